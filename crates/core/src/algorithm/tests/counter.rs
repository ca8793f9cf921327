//! The counter of `INCREX`, compared with a model that calculates in 128 bits.

use super::*;

const SECOND: u64 = crate::clock::NANOS_PER_SECOND;

/// A counter's value, and its expiry in nanoseconds since the epoch. It does not exist if it is `None`.
#[derive(Debug, Clone, Copy, Default)]
struct Model(Option<(i128, Option<u64>)>);

/// The reply to an increment.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Counted { value: i128, applied: i128 },
    Overflow,
}

impl Model {
    fn increment(&mut self, limit: &Counter, by: i64, at: u64) -> Reply {
        let (value, expiry) = self.0.filter(|(_, expiry)| expiry.is_none_or(|expiry| at < expiry)).unwrap_or_default();
        let wanted = value + i128::from(by);
        let next = wanted.clamp(limit.lower.into(), limit.upper.into());
        if next != wanted && !limit.saturates {
            return Reply::Counted { value, applied: 0 };
        }
        if i64::try_from(next - value).is_err() {
            return Reply::Overflow;
        }
        let expiry = match limit.expiry {
            Expiry::Keep => expiry,
            _ if limit.keeps_expiry && expiry.is_some() => expiry,
            Expiry::After(nanos) => Some(at + nanos),
            Expiry::At(time) => Some(time.as_nanos()).filter(|nanos| *nanos < u64::MAX),
        };
        self.0 = Some((next, expiry));
        Reply::Counted { value: next, applied: next - value }
    }
}

fn reply(outcome: &Outcome) -> Reply {
    let [before, value] = [outcome.before, outcome.left].map(u64::cast_signed);
    match value.checked_sub(before) {
        Some(applied) => Reply::Counted { value: value.into(), applied: applied.into() },
        None => Reply::Overflow,
    }
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -5..=5i64, 1 => any::<i64>(), 1 => (0..3i64).prop_map(|near| i64::MAX - near), 1 => (0..3i64).prop_map(|near| i64::MIN + near)]
}

fn limit() -> impl Strategy<Value = Counter> {
    let bound = |usual| prop_oneof![2 => Just(usual), 2 => number()];
    let expiry = prop_oneof![
        3 => Just(Expiry::Keep),
        3 => (1..5u64).prop_map(|seconds| Expiry::After(seconds * SECOND)),
        2 => (0..20u64).prop_map(|seconds| Expiry::At(Timestamp::from_nanos(START + seconds * SECOND))),
        1 => Just(Expiry::At(Timestamp::MAX)),
    ];
    (bound(i64::MIN), bound(i64::MAX), any::<bool>(), expiry, any::<bool>()).prop_map(
        |(one, other, saturates, expiry, keeps_expiry)| Counter {
            lower: one.min(other),
            upper: one.max(other),
            saturates,
            expiry,
            keeps_expiry,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn increments_agree_with_the_model(asks in prop::collection::vec((limit(), number(), 0..3u64), 1..20)) {
        let (mut model, mut state, mut at) = (Model::default(), None, START);
        for (limit, by, seconds) in asks {
            at += seconds * SECOND;
            let time = Timestamp::from_nanos(at);
            let decision = Limit::Counter(limit).decide(state.as_ref(), Ask::Add { by }, time);
            prop_assert_eq!(reply(&decision.outcome), model.increment(&limit, by, at), "{:?} by {}", limit, by);
            state = decision.state.or(state);
            // A store forgets a state whose lifetime is over.
            state = state.filter(|state| Limit::Counter(limit).lifetime_ns(state, time) > 0);
        }
    }
}

#[test]
fn asks_other_than_increments_change_nothing() {
    let mut counter = Bucket::new(Limit::Counter(Counter { saturates: true, upper: 3, ..Counter::default() }));
    assert_eq!(counter.ask(Ask::Add { by: 5 }, START).left, 3);
    for ask in
        [Ask::Look { cost: 9 }, Ask::Show, Ask::Take { cost: 9 }, Ask::Refund { cost: 9 }, Ask::Charge { cost: 9 }]
    {
        assert_eq!((counter.ask(ask, START).left, counter.look(0, START).left), (3, 3), "{ask:?}");
    }
}
