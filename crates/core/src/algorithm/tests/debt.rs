//! Balances below 0: overdrafts, charges and refunds.

use super::*;
use crate::clock::NANOS_PER_SECOND as SECOND;

fn balance(outcome: Outcome) -> i128 {
    i128::from(outcome.left) - i128::from(outcome.owed)
}

/// Generates limits of all algorithms that support debt.
fn debt_limit() -> impl Strategy<Value = Limit> {
    small_limit().prop_filter("a log has no place for debt", |limit| limit.kind() != Kind::SlidingLog)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn debt_from_hits_stays_below_the_largest_cost(
        limit in debt_limit(), costs in prop::collection::vec((0..40u64, 1..15u64), 1..60),
    ) {
        let mut bucket = Bucket::new(limit);
        let (mut at, mut largest) = (START, 0);
        for (gap, cost) in costs {
            (at, largest) = (at + gap, largest.max(cost));
            let outcome = bucket.ask(Ask::Overdraw { cost }, at);
            prop_assert_eq!(outcome.allowed, outcome.before > 0);
            prop_assert!(outcome.owed < largest);
            if outcome.allowed {
                prop_assert_eq!(balance(outcome), i128::from(outcome.before) - i128::from(cost));
            }
        }
    }

    #[test]
    fn charge_always_counts_in_full(
        limit in debt_limit(), past in prop::collection::vec((0..40u64, ask()), 0..40), cost in 0..40u64, later in 0..60u64,
    ) {
        let mut bucket = Bucket::new(limit);
        let mut at = START;
        for (gap, ask) in past {
            at += gap;
            bucket.ask(ask, at);
        }
        let before = bucket.look(1, at + later);
        let charged = bucket.ask(Ask::Charge { cost }, at + later);
        prop_assert_eq!((charged.allowed, charged.before), (before.allowed, before.left));
        prop_assert_eq!(balance(charged), balance(before) - i128::from(cost));
    }

    #[test]
    fn refund_never_exceeds_the_used_credit(
        (mut bucket, now) in used_bucket(), cost in 0..40u64, later in 0..60u64,
    ) {
        let (limit, at) = (bucket.limit, now + later);
        let before = bucket.look(1, at);
        let refunded = bucket.ask(Ask::Refund { cost }, at);
        let full = i128::from(limit.capacity()).min(balance(before) + i128::from(cost));
        prop_assert!(refunded.allowed && refunded.before == before.left);
        match limit {
            // Credits that fade count for less than they cost.
            Limit::SlidingWindow(_) => prop_assert!((balance(before)..=full).contains(&balance(refunded))),
            // The refund returns the same amount, in whole credits or drops.
            _ => prop_assert_eq!(balance(refunded), full),
        }
    }

    #[test]
    fn immediate_refund_cancels_a_charge(
        limit in debt_limit(), past in hits(0..40), cost in 1..40u64, later in 0..60u64,
    ) {
        let mut bucket = Bucket::new(limit);
        past.granted_by(&mut bucket);
        let at = past.end() + later;
        let before = bucket.look(1, at);
        bucket.ask(Ask::Charge { cost }, at);
        bucket.ask(Ask::Refund { cost }, at);
        let after = bucket.look(1, at);
        let numbers = |outcome: Outcome| Outcome { session: Timestamp::EPOCH, ..outcome };
        prop_assert_eq!(numbers(after), numbers(before));
    }

    #[test]
    fn unused_bucket_has_nothing_to_refund(limit in small_limit(), cost in 0..40u64) {
        let decision = limit.decide(None, Ask::Refund { cost }, Timestamp::from_nanos(START));
        prop_assert_eq!((decision.outcome.left, decision.state), (limit.capacity(), None));
    }
}

/// Returns the limits of one counter: the rule's, and those that its actors may have.
fn rule_and_own(kind: Kind, rule: u64, own: [u64; 3]) -> [Limit; 4] {
    let limit = |credits| Limit::new(kind, credits, credits, 60 * SECOND).unwrap();
    let rule = limit(rule);
    let [one, two, three] = own.map(|credits| limit(credits).in_place_of(&rule));
    [rule, one, two, three]
}

#[test]
fn usage_under_another_limit_is_paid_in_the_time_that_a_whole_bucket_takes() {
    for kind in [Kind::TokenBucket, Kind::LeakyBucket] {
        let at = |seconds: u64| Timestamp::from_secs(1_000 + seconds).unwrap();
        for (rule, own) in [(1, 1_000), (1_000, 1)] {
            let [rule, own, ..] = rule_and_own(kind, rule, [own; 3]);
            let (large, small) = if own.capacity() > 1 { (own, rule) } else { (rule, own) };
            let full = large.decide(None, Ask::Take { cost: 1_000 }, at(0)).state.unwrap();
            let denied = small.decide(Some(&full), Ask::Take { cost: 1 }, at(0)).outcome;
            assert_eq!((denied.allowed, denied.owed, denied.retry_ns), (false, 0, Some(60 * SECOND)), "{kind:?}");
            assert!(small.decide(Some(&full), Ask::Take { cost: 1 }, at(60)).outcome.allowed, "{kind:?}");

            let owing = large.decide(None, Ask::Charge { cost: 1_002 }, at(0)).state.unwrap();
            let look = small.decide(Some(&owing), Ask::Look { cost: 1 }, at(0)).outcome;
            assert_eq!((look.owed, look.retry_ns), (2, Some(180 * SECOND)), "{kind:?}: debt stays");
        }
    }
}

proptest! {
    #[test]
    fn another_limit_keeps_the_debt_and_what_fits_of_the_usage(
        kind in prop::sample::select(vec![Kind::TokenBucket, Kind::LeakyBucket]), rule in 1..30_u64,
        steps in prop::collection::vec((0..4_usize, 0..90_u64, ask()), 1..30), next in 0..4_usize,
    ) {
        let limits = rule_and_own(kind, rule, [1, 7, 1_000]);
        let (mut state, mut at, mut last) = (None, Timestamp::from_secs(1_000).unwrap(), limits[0]);
        for (limit, later, ask) in steps {
            at = at.plus(later * SECOND / 7);
            if let Some(changed) = limits[limit].decide(state.as_ref(), ask, at).state {
                (state, last) = (Some(changed), limits[limit]);
            }
        }
        let Some(changed) = state else { return Ok(()) };
        let at = match &changed {
            State::TokenBucket(state) => state.mark,
            State::LeakyBucket(state) => state.mark,
            other => panic!("{other:?}"),
        };
        let look = |limit: Limit| limit.decide(Some(&changed), Ask::Look { cost: 0 }, at).outcome;
        let (before, after) = (look(last), look(limits[next]));
        let (old, new) = (last.capacity(), limits[next].capacity());
        if new <= old {
            prop_assert_eq!(after.owed, before.owed);
            prop_assert_eq!(after.left, new.saturating_sub(old - before.left));
        } else {
            prop_assert_eq!(balance(after), balance(before) + i128::from(new - old));
        }
    }
}

#[test]
fn each_algorithm_repays_debt_at_its_own_pace() {
    const SECOND: u64 = 1_000_000_000;
    let cases = [
        // The debt ends with the window.
        (Limit::FixedWindow(FixedWindow::new(10, 60 * SECOND).unwrap()), [-5, -5, 10, 10]),
        // Refills repay the debt.
        (Limit::TokenBucket(TokenBucket::new(10, 3, 30 * SECOND).unwrap()), [-5, -2, 1, 7]),
        // The debt leaks away.
        (Limit::LeakyBucket(LeakyBucket::new(10, 10, 60 * SECOND).unwrap()), [-5, 0, 5, 10]),
        // The debt fades: all of it counts for one window, and then less and less.
        (Limit::SlidingWindow(SlidingWindow::new(10, 60 * SECOND).unwrap()), [-5, -5, -5, 10]),
    ];
    for (limit, balances) in cases {
        let start = START - START % (60 * SECOND);
        let mut bucket = Bucket::new(limit);
        bucket.ask(Ask::Charge { cost: 15 }, start);
        let told = [0, 30, 60, 120].map(|seconds| balance(bucket.look(1, start + seconds * SECOND)));
        assert_eq!(told, balances, "{limit:?}");
    }
}

#[test]
fn sliding_log_refunds_the_newest_first_and_counts_at_most_its_limit() {
    let mut bucket = Bucket::new(Limit::SlidingLog(SlidingLog::new(3, 100).unwrap()));
    (0..3).for_each(|gap| assert!(bucket.take(1, START + 10 * gap).allowed));
    assert_eq!(bucket.ask(Ask::Refund { cost: 2 }, START + 30).left, 2);
    assert_eq!(bucket.look(1, START + 100).left, 3, "the oldest was left");
    let charged = bucket.ask(Ask::Charge { cost: u64::MAX }, START + 100);
    assert_eq!((charged.left, charged.owed), (0, 0));
}

#[test]
fn sliding_window_refunds_the_current_window_then_the_previous() {
    let mut bucket = Bucket::new(Limit::SlidingWindow(SlidingWindow::new(100, 100).unwrap()));
    let start = START - START % 100;
    bucket.take(40, start);
    bucket.take(10, start + 150);
    assert_eq!(bucket.look(1, start + 150).left, 70, "half of 40, and 10");
    assert_eq!(bucket.ask(Ask::Refund { cost: 20 }, start + 150).left, 85, "half of 30");
}
