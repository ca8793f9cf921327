//! The fixed window, compared with a plain model, and its promise of exactly one new window after expiry.

use super::*;

fn bucket(credits: u64, window_ns: u64) -> Bucket {
    Bucket::new(Limit::FixedWindow(FixedWindow::new(credits, window_ns).unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn counts_like_a_plain_model(credits in 1..12u64, window in 1..60u64, hits in hits(0..25)) {
        let mut bucket = bucket(credits, window);
        let mut begun: Option<(u64, u64)> = None;
        for (at, cost) in hits.0 {
            begun = begun.filter(|(start, _)| at < start + window);
            let taken = begun.map_or(0, |(_, taken)| taken);
            let allowed = taken + cost <= credits;
            if allowed && cost > 0 {
                begun = Some((begun.map_or(at, |(start, _)| start), taken + cost));
            }
            let outcome = bucket.take(cost, at);
            prop_assert_eq!(outcome.allowed, allowed);
            prop_assert_eq!(outcome.left, credits - begun.map_or(0, |(_, taken)| taken));
            prop_assert_eq!(outcome.reset_ns, begun.map_or(0, |(start, _)| start + window - at));
        }
    }

    #[test]
    fn grants_stay_within_the_limit_per_window_and_twice_that_in_any_interval(
        credits in 1..12u64, window in 1..60u64, hits in hits(0..25),
    ) {
        let granted = hits.granted_by(&mut bucket(credits, window));
        let mut rest = granted.iter().filter(|(_, cost)| *cost > 0).peekable();
        while let Some((start, cost)) = rest.next() {
            let mut taken = *cost;
            while let Some((_, cost)) = rest.next_if(|(at, _)| *at < start + window) {
                taken += cost;
            }
            prop_assert!(taken <= credits);
        }
        prop_assert!(most_in_a_window(&granted, window) < 2 * credits);
    }

    #[test]
    fn exactly_one_fresh_window_follows_an_expired_one(credits in 1..1_000u64, window in 1..u32::MAX as u64, late in 0..u32::MAX as u64) {
        let mut bucket = bucket(credits, window);
        prop_assert!(bucket.take(credits, START).allowed);
        prop_assert!(!bucket.take(1, START + window - 1).allowed);
        let fresh = START + window + late;
        prop_assert_eq!(bucket.take(credits, fresh).reset_ns, window);
        prop_assert!(!bucket.take(1, fresh).allowed);
        prop_assert!(!bucket.take(1, fresh + window - 1).allowed);
        prop_assert!(bucket.take(1, fresh + window).allowed);
    }

    #[test]
    fn clock_set_back_delays_credit_by_at_most_one_window(credits in 1..1_000u64, window in 1..u32::MAX as u64, back in 11 * crate::clock::NANOS_PER_SECOND..START) {
        let mut bucket = bucket(credits, window);
        bucket.take(credits, START);
        let at = START - back;
        let denied = bucket.take(1, at);
        prop_assert_eq!(denied.retry_ns, Some(window));
        prop_assert_eq!(denied.reset_ns, window);
        prop_assert_eq!(bucket.take(1, at + window - 1).reset_ns, 1);
        prop_assert!(bucket.take(1, at + window).allowed);
    }
}
