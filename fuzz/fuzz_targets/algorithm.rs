//! Decisions: any requests at any times are decided without overflow, under any limit and from any stored state. A
//! counter that started empty is stored and read back after each decision.

#![no_main]

mod limit;

use divvy::algorithm::{Ask, Limit, Outcome, Record, RecordChange, State};
use divvy::clock::Timestamp;
use divvy::store::value;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

use self::limit::{read_ask, read_limit, read_number, read_reservation_ask};

/// The year 2262. Near the end of time, reservations end at fractions of a millisecond.
const LATEST: Timestamp = Timestamp::from_nanos(1 << 63);

fuzz_target!(|input: &[u8]| {
    // Ends at the end of the input.
    let _ = decide_all(&mut Unstructured::new(input));
});

fn decide_all(input: &mut Unstructured) -> Result<()> {
    let limit = read_limit(input)?;
    let stored: &[u8] = input.arbitrary()?;
    let mut state = value::decode(&limit, stored).ok();
    let is_own = state.is_none();
    let mut record = read_record(input)?;
    let mut at = Timestamp::from_nanos(read_number(input)?).min(LATEST);
    while !input.is_empty() {
        let step_ns = read_number(input)?;
        at = if input.ratio(1, 4)? { at.minus(step_ns) } else { at.plus(step_ns).min(LATEST) };
        // The limiter rejects reservations from sliding logs.
        if !matches!(limit, Limit::SlidingLog(_)) && input.ratio(1, 3)? {
            let ask = read_reservation_ask(input)?;
            let (decision, change) =
                limit.decide_reservation(state.as_ref(), record.as_ref(), ask, input.arbitrary()?, at);
            check(&decision.outcome);
            state = decision.state.or(state);
            match change {
                RecordChange::Keep => {}
                RecordChange::Set(set) => {
                    read_back(set);
                    record = Some(set);
                }
                RecordChange::Clear => record = None,
            }
        } else {
            let ask = read_ask(input)?;
            let decision = limit.decide(state.as_ref(), ask, at);
            check(&decision.outcome);
            if let Ask::Take { cost } = ask {
                let is_granted = decision.outcome.allowed;
                assert_eq!(is_granted, cost <= decision.outcome.before, "{limit:?} {state:?} at {at:?}: {decision:?}");
            }
            state = decision.state.or(state);
        }
        if let Some(state) = state.as_ref().filter(|_| is_own) {
            store(&limit, state, at);
        }
    }
    Ok(())
}

fn read_record(input: &mut Unstructured) -> Result<Option<Record>> {
    let stored: &[u8] = input.arbitrary()?;
    let record = value::decode_record(stored).ok();
    if let Some(record) = record {
        read_back(record);
    }
    Ok(record.filter(Record::is_reservation))
}

fn read_back(record: Record) {
    let mut stored = Vec::new();
    value::encode_record(&record, &mut stored);
    assert_eq!(value::decode_record(&stored).ok(), Some(record));
    assert_eq!(value::expiry(&stored).ok(), Some(record.until));
}

fn check(outcome: &Outcome) {
    assert!(outcome.left == 0 || outcome.owed == 0, "{outcome:?}");
    assert!(!outcome.allowed || outcome.retry_ns.is_none(), "{outcome:?}");
}

fn store(limit: &Limit, state: &State, at: Timestamp) {
    let expires = at.plus(limit.lifetime_ns(state, at));
    let mut stored = Vec::new();
    value::encode(state, expires, &mut stored);
    let read = value::decode(limit, &stored).expect("a stored value can be read");
    let mut again = Vec::new();
    value::encode(&read, expires, &mut again);
    assert_eq!(again, stored);
}
