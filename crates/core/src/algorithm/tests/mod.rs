//! Property tests of the algorithms: the common promises are in `promises.rs`, and each algorithm has a plain model.

mod calendar_window;
mod count_basis;
mod counter;
mod debt;
mod fixed_window;
mod idempotent;
mod leaky_bucket;
mod promises;
mod reservations;
mod shares;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use proptest::prelude::*;

use super::*;
use crate::clock::Timestamp;

/// Start of the tests' time. It is late enough that no step back reaches the epoch.
const START: u64 = 1_000_000 * crate::clock::NANOS_PER_SECOND;

/// A bucket with its state: the smallest possible store.
#[derive(Debug, Clone)]
struct Bucket {
    limit: Limit,
    state: Option<State>,
}

impl Bucket {
    fn new(limit: Limit) -> Self {
        Self { limit, state: None }
    }

    /// Decides an ask at `nanos` after the epoch, and keeps the new state.
    fn ask(&mut self, ask: Ask, nanos: u64) -> Outcome {
        let decision = self.limit.decide(self.state.as_ref(), ask, Timestamp::from_nanos(nanos));
        self.state = decision.state.or(self.state.take());
        decision.outcome
    }

    fn take(&mut self, cost: u64, nanos: u64) -> Outcome {
        self.ask(Ask::Take { cost }, nanos)
    }

    fn look(&mut self, cost: u64, nanos: u64) -> Outcome {
        self.ask(Ask::Look { cost }, nanos)
    }
}

/// Hits in the order of time, from [`START`] on.
#[derive(Debug, Clone)]
struct Hits(Vec<(u64, u64)>);

impl Hits {
    /// Takes all hits from `bucket`. Returns (time, cost) of the granted ones.
    fn granted_by(&self, bucket: &mut Bucket) -> Vec<(u64, u64)> {
        self.0.iter().copied().filter(|(at, cost)| bucket.take(*cost, *at).allowed).collect()
    }

    fn end(&self) -> u64 {
        self.0.last().map_or(START, |(at, _)| *at)
    }
}

/// Generates up to 80 hits, `gap` nanoseconds apart, of 0 to 5 credits.
fn hits(gap: std::ops::Range<u64>) -> impl Strategy<Value = Hits> {
    prop::collection::vec((gap, 0..=5u64), 0..80).prop_map(|steps| {
        let mut at = START;
        let dated = |(gap, cost)| {
            at += gap;
            (at, cost)
        };
        Hits(steps.into_iter().map(dated).collect())
    })
}

/// Generates a bucket with a small limit that has taken hits, and the time of the last one.
fn used_bucket() -> impl Strategy<Value = (Bucket, u64)> {
    (small_limit(), hits(0..40)).prop_map(|(limit, past)| {
        let mut bucket = Bucket::new(limit);
        past.granted_by(&mut bucket);
        (bucket, past.end())
    })
}

/// Returns the most credits granted in any `window` nanoseconds. A window excludes its first moment and includes its
/// last.
fn most_in_a_window(granted: &[(u64, u64)], window: u64) -> u64 {
    let ending_at = |end: u64| granted.iter().filter(move |(at, _)| *at <= end && end - *at < window);
    granted.iter().map(|(end, _)| ending_at(*end).map(|(_, cost)| cost).sum()).max().unwrap_or(0)
}

/// Checks that an ask for `wanted` credits, which had this outcome at `at`, is granted after its retry time and not before.
fn check_retry(bucket: &mut Bucket, outcome: Outcome, wanted: u64, at: u64) -> Result<(), TestCaseError> {
    prop_assert_eq!(outcome.retry_ns.is_some(), !outcome.allowed && wanted <= bucket.limit.capacity());
    if let Some(retry_ns) = outcome.retry_ns {
        prop_assert!(!bucket.look(wanted, at + retry_ns - 1).allowed);
        prop_assert!(bucket.look(wanted, at + retry_ns).allowed);
    }
    Ok(())
}

/// Checks that a bucket is full after its lifetime and not before.
fn check_lifetime(bucket: &mut Bucket, at: u64) -> Result<(), TestCaseError> {
    let Some(state) = bucket.state.clone() else { return Ok(()) };
    let lifetime_ns = bucket.limit.lifetime_ns(&state, Timestamp::from_nanos(at));
    prop_assert_eq!(bucket.look(0, at + lifetime_ns).left, bucket.limit.capacity());
    prop_assert!(lifetime_ns == 0 || bucket.look(0, at + lifetime_ns - 1).left < bucket.limit.capacity());
    Ok(())
}

/// Checks that no more credits are granted in a span of time than `most` says.
fn check_spans(granted: &[(u64, u64)], most: impl Fn(u64) -> u64) -> Result<(), TestCaseError> {
    for (first, (from, _)) in granted.iter().enumerate() {
        let mut taken = 0;
        for (to, cost) in granted.iter().skip(first) {
            taken += cost;
            prop_assert!(taken <= most(to - from));
        }
    }
    Ok(())
}

/// Generates limits of every algorithm that counts hits. They are so small that hits reach every boundary.
fn small_limit() -> impl Strategy<Value = Limit> {
    limit_of(|| 1..=12u64, || 1..=60u64)
}

/// Generates limits of every algorithm that counts hits, up to the largest numbers.
fn any_limit() -> impl Strategy<Value = Limit> {
    limit_of(|| any_number().prop_map(|number| number.max(1)), || any_number().prop_map(|number| number.max(1)))
}

/// Generates asks of up to 15 credits, which is more than a small limit has.
fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        (0..15u64).prop_map(|cost| Ask::Look { cost }),
        (0..15u64).prop_map(|cost| Ask::Take { cost }),
        (0..15u64).prop_map(|cost| Ask::Overdraw { cost }),
        (0..15u64).prop_map(|cost| Ask::Count { cost }),
        (0..15u64).prop_map(|cost| Ask::Charge { cost }),
        (0..15u64).prop_map(|cost| Ask::Tally { cost }),
        (0..15u64).prop_map(|cost| Ask::Refund { cost }),
        (0..9u64, 0..15u32, 0..4u16).prop_map(|(cost, extra, parts)| Ask::Share { cost, extra, parts }),
        (0..9u32, 0..900u64)
            .prop_map(|(credits, at)| Ask::Return { credits, until: Timestamp::from_nanos(START + at) }),
        (0..15u64, any::<bool>()).prop_map(|(cost, strict)| Ask::Drain { cost, strict }),
        (0..15u64, any::<bool>()).prop_map(|(cost, strict)| Ask::Replay { cost, strict }),
    ]
}

/// Generates numbers, often extreme ones.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..4u64,
        (u64::MAX - 3)..=u64::MAX,
        Just(i64::MAX as u64),
        (0..64u32).prop_map(|bit| 1 << bit)
    ]
}

fn limit_of<C, N>(credits: impl Fn() -> C, nanos: impl Fn() -> N) -> impl Strategy<Value = Limit>
where
    C: Strategy<Value = u64> + 'static,
    N: Strategy<Value = u64> + 'static,
{
    let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency).collect();
    (prop::sample::select(kinds), credits(), credits(), nanos()).prop_map(|(kind, capacity, refill, time_ns)| {
        let capacity = if kind == Kind::SlidingLog { capacity.min(MAX_LOG_CREDITS) } else { capacity };
        Limit::new(kind, capacity, refill, time_ns).unwrap()
    })
}

#[test]
fn invalid_limits_cannot_be_built() {
    for kind in Kind::ALL {
        assert_eq!(Limit::new(kind, 1, 1, crate::clock::NANOS_PER_SECOND).unwrap().kind(), kind);
        assert_eq!(Limit::new(kind, 1, 1, 0), Err(InvalidLimit::NoTime), "{kind:?}");
        if kind != Kind::Concurrency {
            assert_eq!(Limit::new(kind, 0, 1, 1), Err(InvalidLimit::NoCredits), "{kind:?}");
        }
    }
    assert!(SlidingLog::new(1_000, 1).is_ok());
    assert_eq!(SlidingLog::new(1_001, 1), Err(InvalidLimit::LogTooLong { credits: 1_001 }));
    assert_eq!(TokenBucket::new(1, 0, 1), Err(InvalidLimit::NoRefill));
    assert_eq!(LeakyBucket::new(1, 0, 1), Err(InvalidLimit::NoCredits));
}
