//! The sliding log, compared with a plain list of all grants.

use super::*;

fn bucket(credits: u64, window_ns: u64) -> Bucket {
    Bucket::new(Limit::SlidingLog(SlidingLog::new(credits, window_ns).unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn counts_like_a_plain_model(credits in 1..12u64, window in 1..60u64, hits in hits(0..25)) {
        let mut bucket = bucket(credits, window);
        let mut granted: Vec<(u64, u64)> = Vec::new();
        for (at, cost) in hits.0 {
            let in_window: u64 = granted.iter().filter(|(then, _)| at - then < window).map(|(_, cost)| cost).sum();
            let outcome = bucket.take(cost, at);
            prop_assert_eq!(outcome.before, credits - in_window);
            prop_assert_eq!(outcome.allowed, in_window + cost <= credits);
            if outcome.allowed {
                granted.push((at, cost));
            }
        }
    }

    #[test]
    fn never_grants_more_than_the_limit_in_any_window(credits in 1..12u64, window in 1..60u64, hits in hits(0..25)) {
        let granted = hits.granted_by(&mut bucket(credits, window));
        prop_assert!(most_in_a_window(&granted, window) <= credits);
    }

    #[test]
    fn remembers_at_most_one_time_per_credit(credits in 1..12u64, window in 1..60u64, hits in hits(0..5)) {
        let mut bucket = bucket(credits, window);
        for (at, cost) in hits.0 {
            bucket.take(cost, at);
            if let Some(State::SlidingLog(state)) = &bucket.state {
                prop_assert!(state.times.len() as u64 <= credits);
                prop_assert!(state.times.is_sorted());
            }
        }
    }
}
