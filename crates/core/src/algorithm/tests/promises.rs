//! Promises of every algorithm.

use super::*;
use crate::clock::NANOS_PER_SECOND;

/// Returns the maximum time until all credits of the limit are available again.
fn span_ns(limit: Limit) -> u64 {
    match limit {
        Limit::SlidingWindow(limit) => 2 * limit.window_ns.get(),
        Limit::TokenBucket(limit) => limit.capacity.get().div_ceil(limit.refill.get()) * limit.interval_ns.get(),
        Limit::LeakyBucket(limit) => (limit.capacity.get() * limit.period_ns.get()).div_ceil(limit.count.get()),
        limit => limit.rate().expect("nothing takes from leases but reservations").1,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn denied_ask_changes_nothing((bucket, now) in used_bucket(), cost in 0..15u64, later in 0..60u64) {
        let limit = bucket.limit;
        let at = Timestamp::from_nanos(now + later);
        let decision = limit.decide(bucket.state.as_ref(), Ask::Take { cost }, at);
        prop_assert_eq!(decision.outcome.allowed, cost <= decision.outcome.before);
        prop_assert_eq!(decision.state.is_some(), decision.outcome.allowed && cost > 0);
        let taken = if decision.outcome.allowed { cost } else { 0 };
        prop_assert_eq!(decision.outcome.left, decision.outcome.before - taken);
    }

    #[test]
    fn look_predicts_the_outcome_of_a_take((mut bucket, now) in used_bucket(), cost in 0..15u64, later in 0..60u64) {
        let state = bucket.state.clone();
        let look = bucket.look(cost, now + later);
        prop_assert_eq!(&bucket.state, &state);
        prop_assert_eq!(look.left, look.before);
        let take = bucket.take(cost, now + later);
        prop_assert_eq!((look.allowed, look.before, look.retry_ns), (take.allowed, take.before, take.retry_ns));
    }

    #[test]
    fn drain_takes_all_available_credit((mut bucket, now) in used_bucket(), cost in 0..15u64, later in 0..60u64) {
        let outcome = bucket.ask(Ask::Drain { cost, strict: false }, now + later);
        prop_assert_eq!(outcome.allowed, outcome.before > 0);
        prop_assert_eq!(outcome.left, outcome.before.saturating_sub(cost));
        prop_assert_eq!(bucket.look(0, now + later).left, outcome.left);
    }

    #[test]
    fn count_is_always_granted_and_owes_nothing((mut bucket, now) in used_bucket(), cost in 0..15u64, later in 0..60u64) {
        let outcome = bucket.ask(Ask::Count { cost }, now + later);
        prop_assert!(outcome.allowed && outcome.retry_ns.is_none());
        prop_assert_eq!((outcome.left, outcome.owed), (outcome.before.saturating_sub(cost), 0));
        prop_assert_eq!(bucket.look(0, now + later).left, outcome.left);
    }

    #[test]
    fn tally_counts_as_a_charge_and_is_granted_up_to_the_limit((bucket, now) in used_bucket(), cost in 0..15u64, later in 0..60u64) {
        let at = now + later;
        let charged = bucket.clone().ask(Ask::Charge { cost }, at);
        let tallied = bucket.clone().ask(Ask::Tally { cost }, at);
        prop_assert_eq!((tallied.left, tallied.owed, tallied.reset_ns), (charged.left, charged.owed, charged.reset_ns));
        prop_assert_eq!(tallied.allowed, tallied.owed == 0);
        prop_assert_eq!(tallied.retry_ns.is_some(), !tallied.allowed && cost <= bucket.limit.capacity());
    }

    #[test]
    fn ask_is_granted_after_its_retry_time_and_not_before(
        (mut bucket, now) in used_bucket(), ask in ask(), later in 0..60u64,
    ) {
        let at = now + later;
        let outcome = bucket.ask(ask, at);
        let wanted = match ask {
            Ask::Look { cost } | Ask::Take { cost } | Ask::Share { cost, .. } => cost,
            Ask::Tally { cost } => cost.max(1),
            Ask::Overdraw { .. } | Ask::Charge { .. } | Ask::Drain { .. } | Ask::Replay { .. } => 1,
            Ask::Show | Ask::Count { .. } | Ask::Refund { .. } | Ask::Return { .. } | Ask::Add { .. } => 0,
        };
        check_retry(&mut bucket, outcome, wanted, at)?;
    }

    #[test]
    fn credit_grows_after_the_reset_time_and_not_before(
        (mut bucket, now) in used_bucket(), ask in ask(), later in 0..60u64,
    ) {
        let limit = bucket.limit;
        let at = now + later;
        let outcome = bucket.ask(ask, at);
        prop_assert_eq!(outcome.reset_ns == 0, outcome.left == limit.capacity());
        if outcome.reset_ns > 0 {
            let just_before = bucket.look(0, at + outcome.reset_ns - 1).left;
            let then = bucket.look(0, at + outcome.reset_ns).left;
            match limit {
                Limit::LeakyBucket(_) => prop_assert!(just_before < limit.capacity() && then == limit.capacity()),
                Limit::FixedWindow(_) => prop_assert!(just_before == outcome.left && then == limit.capacity()),
                _ => prop_assert!(just_before == outcome.left && then > outcome.left),
            }
        }
    }

    #[test]
    fn bucket_is_full_after_its_lifetime_and_not_before((mut bucket, now) in used_bucket(), ask in ask()) {
        bucket.ask(ask, now);
        check_lifetime(&mut bucket, now)?;
    }

    #[test]
    fn forgetting_a_bucket_after_its_lifetime_changes_no_outcome(
        (mut kept, now) in used_bucket(), later in 0..100u64, future in hits(0..40),
    ) {
        let limit = kept.limit;
        let lifetime_ns = kept.state.as_ref().map_or(0, |state| limit.lifetime_ns(state, Timestamp::from_nanos(now)));
        let mut forgotten = Bucket::new(limit);
        for (at, cost) in future.0 {
            let at = at + (now - START) + lifetime_ns + later;
            // The session of a full bucket is over, but a bucket that still remembers it may return it.
            let numbers = |outcome: Outcome| Outcome { session: Timestamp::EPOCH, ..outcome };
            prop_assert_eq!(numbers(kept.take(cost, at)), numbers(forgotten.take(cost, at)));
        }
    }

    #[test]
    fn overtaken_ask_gets_no_credit_from_the_past(
        (mut bucket, now) in used_bucket(), cost in 1..15u64, back in 0..10 * NANOS_PER_SECOND,
    ) {
        let limit = bucket.limit;
        if !bucket.take(1, now).allowed {
            return Ok(());
        }
        let present = bucket.look(0, now).before;
        let overtaken = bucket.take(cost, now - back);
        prop_assert!(overtaken.before <= present);
        prop_assert!(overtaken.reset_ns <= span_ns(limit));
        let taken = if overtaken.allowed { cost } else { 0 };
        prop_assert_eq!(bucket.look(0, now).left, present - taken);
    }

    #[test]
    fn no_ask_waits_for_the_old_time_after_the_clock_is_set_back(
        (mut bucket, now) in used_bucket(), back in 11 * NANOS_PER_SECOND..START / 2,
    ) {
        let limit = bucket.limit;
        let at = now - back;
        let cost = limit.capacity();
        let present = bucket.look(0, now).before;
        let outcome = bucket.take(cost, at);
        // For a sliding window, the share of the previous window that counts depends on the time of day.
        prop_assert!(matches!(limit, Limit::SlidingWindow(_)) || outcome.before <= present);
        if let Some(retry_ns) = outcome.retry_ns {
            prop_assert!(retry_ns <= span_ns(limit));
            prop_assert!(!bucket.take(cost, at + retry_ns - 1).allowed);
            prop_assert!(bucket.take(cost, at + retry_ns).allowed);
        }
    }

    #[test]
    fn no_drain_waits_for_the_old_time_after_the_clock_is_set_back(
        (mut bucket, now) in used_bucket(), back in 11 * NANOS_PER_SECOND..START / 2, strict in any::<bool>(),
    ) {
        let limit = bucket.limit;
        let at = now - back;
        let present = bucket.look(0, now).before;
        let outcome = bucket.ask(Ask::Drain { cost: limit.capacity(), strict }, at);
        prop_assert!(matches!(limit, Limit::SlidingWindow(_)) || outcome.before <= present);
        prop_assert!(outcome.reset_ns <= span_ns(limit));
        prop_assert!(outcome.retry_ns.is_none_or(|retry_ns| retry_ns <= span_ns(limit)));
    }

    #[test]
    fn state_of_another_algorithm_counts_as_unused(limit in small_limit(), (bucket, now) in used_bucket(), cost in 0..15u64) {
        if limit.kind() == bucket.limit.kind() {
            return Ok(());
        }
        let at = Timestamp::from_nanos(now);
        let ask = Ask::Take { cost };
        prop_assert_eq!(limit.decide(bucket.state.as_ref(), ask, at), limit.decide(None, ask, at));
        if let Some(state) = &bucket.state {
            prop_assert_eq!(limit.lifetime_ns(state, at), 0);
        }
    }

    #[test]
    fn unused_bucket_of_any_size_grants_exactly_its_credits_at_once(
        limit in any_limit(), at in 0..u64::MAX, parts in prop::collection::vec(any_number(), 0..4),
    ) {
        let mut bucket = Bucket::new(limit);
        let mut left = limit.capacity();
        for part in parts {
            prop_assert_eq!(bucket.take(part, at).allowed, part <= left);
            left -= if part <= left { part } else { 0 };
            prop_assert_eq!(bucket.look(0, at).left, left);
        }
        prop_assert!(bucket.take(left, at).allowed);
        let denied = bucket.take(1, at);
        prop_assert_eq!((denied.allowed, denied.left), (false, 0));
        prop_assert!(denied.retry_ns.is_some_and(|retry_ns| retry_ns > 0));
    }

    #[test]
    fn numbers_and_times_never_overflow(
        limit in any_limit(),
        asks in prop::collection::vec((any_number(), any_number(), 0..10u8), 1..30),
    ) {
        let mut bucket = Bucket::new(limit);
        for (at, cost, kind) in asks {
            let ask = match kind {
                0 => Ask::Look { cost },
                1 => Ask::Take { cost },
                2 | 3 => Ask::Drain { cost, strict: kind == 3 },
                4 | 5 => Ask::Replay { cost, strict: kind == 5 },
                6 => Ask::Overdraw { cost },
                7 => Ask::Charge { cost },
                9 => Ask::Tally { cost },
                _ => Ask::Refund { cost },
            };
            let outcome = bucket.ask(ask, at);
            prop_assert!(outcome.before <= limit.capacity());
            let most = if kind == 8 { limit.capacity() } else { outcome.before };
            prop_assert!(outcome.left <= most);
            prop_assert!(outcome.owed == 0 || outcome.left == 0);
            if let Some(state) = &bucket.state {
                limit.lifetime_ns(state, Timestamp::from_nanos(at));
            }
        }
    }
}
