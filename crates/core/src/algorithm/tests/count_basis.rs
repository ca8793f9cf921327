//! Limits that change around a counter: usage carries over, regardless of the counter's basis.

use std::num::NonZeroU64;

use super::*;

/// Returns `limit` with other credits, for the same counters.
fn resized(limit: Limit, credits: u64) -> Limit {
    let (refill, time_ns) = limit.rate().unwrap();
    Limit::new(limit.kind(), credits, refill, time_ns).unwrap().counting(limit.count_basis())
}

fn count_basis() -> impl Strategy<Value = CountBasis> {
    prop_oneof![
        Just(CountBasis::Used),
        (1..30u64).prop_map(|credits| CountBasis::LeftOf(NonZeroU64::new(credits).unwrap()))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn answers_do_not_depend_on_the_count_basis(
        limit in small_limit(), basis in count_basis(), asks in prop::collection::vec((0..40u64, ask()), 0..60),
    ) {
        let (mut plain, mut other) = (Bucket::new(limit), Bucket::new(limit.counting(basis)));
        let mut at = START;
        for (gap, ask) in asks {
            at += gap;
            prop_assert_eq!(plain.ask(ask, at), other.ask(ask, at));
        }
    }

    #[test]
    fn usage_carries_over_to_another_limit(
        limit in small_limit(), basis in count_basis(), credits in 1..25u64, past in hits(0..40), later in 0..60u64,
    ) {
        let mut bucket = Bucket::new(limit.counting(basis));
        past.granted_by(&mut bucket);
        let at = past.end() + later;
        let used = limit.capacity() - bucket.look(0, at).left;
        bucket.limit = resized(bucket.limit, credits);
        prop_assert_eq!(bucket.look(0, at).left, credits.saturating_sub(used));
    }

    /// After a downgrade, usage may exceed the limit.
    #[test]
    fn retry_time_is_exact_after_a_downgrade(
        limit in small_limit(), basis in count_basis(), credits in 1..25u64, past in hits(0..10), cost in 1..15u64,
    ) {
        let mut bucket = Bucket::new(limit.counting(basis));
        past.granted_by(&mut bucket);
        bucket.limit = resized(bucket.limit, credits);
        let at = past.end();
        let outcome = bucket.take(cost, at);
        check_retry(&mut bucket, outcome, cost, at)?;
        check_lifetime(&mut bucket, at)?;
    }
}

#[test]
fn bucket_is_kept_until_its_slowest_limit_fills_it() {
    let tokens = |credits| Limit::TokenBucket(TokenBucket::new(credits, credits, 100).unwrap());
    let leaky = |credits| Limit::LeakyBucket(LeakyBucket::new(credits, credits, 100).unwrap());
    for (fast, slow) in [(tokens(1_000), tokens(10)), (leaky(1_000), leaky(10))] {
        let [fast, slow] = [fast.share_counter_with(&slow), slow.share_counter_with(&fast)]
            .map(|limit| limit.counting(CountBasis::Used));
        let mut bucket = Bucket::new(fast);
        assert!(bucket.take(1_000, START).allowed);
        let state = bucket.state.clone().unwrap();
        let at = Timestamp::from_nanos(START);
        assert_eq!([fast, slow].map(|limit| limit.lifetime_ns(&state, at)), [10_000; 2]);
        // Under the slow limit, the retry time is as long as the lifetime under both.
        bucket.limit = slow;
        let denied = bucket.take(10, START);
        assert_eq!((denied.allowed, denied.retry_ns), (false, Some(10_000)));
    }
}
