//! Ids in the form that clients send are sealed with the store's key, or refused. No sealed bytes cause a panic.

use proptest::prelude::*;

use super::*;
use crate::store::{FailurePolicy, RedisOptions, RedisStore};

const CALENDAR_RULE: &str = "
[by=year user=*]; creditLimit = 100; window = year; timezone = Asia/Muscat; actorField = user
[default]; creditLimit = 0
";

/// Returns the id with this text replaced.
fn altered(id: &ReservationId, text: &str, other: &str) -> ReservationId {
    assert_eq!(text.len(), other.len());
    let alter = |key: &[u8]| {
        let place = key.windows(text.len()).position(|part| part == text.as_bytes()).unwrap();
        let mut key = key.to_vec();
        key[place..place + text.len()].copy_from_slice(other.as_bytes());
        key
    };
    let records: Vec<_> = id.records().map(|record| (record, alter(record.key))).collect();
    ReservationId::new(records.iter().map(|(record, key)| NamedRecord { key, ..*record }))
}

#[test]
fn only_ids_of_this_store_are_read() {
    let (at, other) = (TestLimiter::new(RULES), TestLimiter::new(RULES));
    let id = at.id("user=a", 10);
    let text = at.limiter.write_id(id.clone()).unwrap();
    assert_eq!(at.limiter.read_id(text.as_bytes()).unwrap(), id);
    assert!(matches!(other.limiter.read_id(text.as_bytes()), Err(Refusal::BadReservationId(_))));
    assert!(matches!(at.limiter.read_id(b""), Err(Refusal::BadReservationId(_))));
    assert_eq!(at.commit(&id, 5), Ok(("settled", 95)));
}

#[test]
fn id_sealed_under_other_rules_loads_its_calendar() {
    const ZONES: [&str; 3] = ["Asia/Muscat", "Asia/Hebron", "Asia/Xanadu"];
    let at = TestLimiter::new(CALENDAR_RULE);
    let id = at.id("by=year user=a", 10);
    let is_loaded = |zone: &str| Calendar::find(&format!("year 00:00 {zone}")).is_some();
    assert_eq!(ZONES.map(is_loaded), [true, false, false]);
    for (zone, expected) in [(ZONES[1], true), (ZONES[2], false)] {
        let altered = at.sent_back(altered(&id, ZONES[0], zone));
        assert!(!is_loaded(zone), "not before it is settled");
        assert!(at.commit(&altered, 5).unwrap_err().contains("has ended"));
        assert_eq!((is_loaded(zone), at.release(&altered)), (expected, false), "{zone}");
    }
    // The batch also settles ids that need no calendar.
    let mixed = at.ask(|builder| {
        builder.settle(&altered(&id, ZONES[0], ZONES[2]), Settlement::Release);
        builder.settle(&id, Settlement::Commit { cost: 5 });
    });
    assert_eq!(mixed.report().settled(0).unwrap().resolution, Resolution::Gone);
    assert_eq!(mixed.report().committed(1).unwrap().word(), "settled");
}

/// Without an id, a client could not settle its reservation.
#[test]
fn nothing_is_reserved_before_the_key_is_known() {
    let options = RedisOptions { urls: vec!["redis://127.0.0.1:1".to_owned()], ..RedisOptions::default() };
    let store = Backend::redis(RedisStore::open(options).unwrap(), 0, FailurePolicy::Allow, Clock::system());
    let rules = parse_rules(RULES);
    let metrics = Metrics::new();
    let active = ActiveRules::new(rules, &metrics, CounterNames::InRedis);
    let at = TestLimiter::of(Limiter::new(Some(active), store, Clock::system(), metrics));
    let reserve = Reserve { credits: 5, ttl_seconds: Some(5), id: None };
    let requests = at.ask(|builder| {
        builder.add_reservation(&operation("user=a"), reserve);
        builder.add_clamped_reservation(&operation("user=a"), 5, None);
        assert!(builder.plan().batch.is_empty());
    });
    for index in [0, 1] {
        let refusal = requests.report().reserved(index).unwrap_err();
        assert!(matches!(&refusal, Refusal::Store(StoreError::Unreachable(_))), "{refusal}");
    }
    assert!(matches!(at.limiter.read_id(b"x"), Err(Refusal::Store(_))));
}

/// Generates a record's key around the start of an existing bucket's key, or around any bytes.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let space = prop::sample::select(vec![RecordSpace::Reservations, RecordSpace::Answers]);
    let bucket = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<Vec<u8>>());
    (space, bucket, any::<Vec<u8>>()).prop_map(|(space, (which, length, rest), id)| {
        let at = TestLimiter::new(RULES);
        let active = at.limiter.active_rules().unwrap();
        let buckets: Vec<_> = (0..active.rules().rules().len()).filter_map(|rule| active.counter(rule)).collect();
        let mut bucket = Vec::new();
        buckets[which.index(buckets.len())].write_actor(&operation("user=a key=a log=a"), &mut bucket);
        bucket.truncate(length.index(bucket.len() + 1));
        bucket.extend(rest);
        let mut key = Vec::new();
        record_key::write(space, &id, &mut key, |out| out.extend_from_slice(&bucket));
        key
    })
}

fn payload() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let key = prop_oneof![any::<Vec<u8>>(), record()];
    prop::collection::vec((any::<u32>(), key), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_sealed_bytes_are_settled_without_a_panic(records in payload(), cost: u64, ttl: Option<u32>) {
        let at = TestLimiter::new(RULES);
        at.id("user=a", 10);
        let id = at.sent_back(ReservationId::new(records.iter().map(|(rule, key)| NamedRecord { rule: *rule, run: None, key })));
        let twice = at.ask(|builder| {
            builder.settle(&id, Settlement::Renew { ttl_seconds: ttl });
            builder.settle(&id, Settlement::Commit { cost });
            builder.settle(&id, Settlement::Release);
            builder.settle(&id, Settlement::Commit { cost });
        });
        for index in 0..twice.report().len() {
            let _ = (twice.report().settled(index), twice.report().committed(index));
        }
    }
}
