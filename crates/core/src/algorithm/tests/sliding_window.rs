//! The sliding window: the textbook example, a plain model, and the exact bound of the approximation.

use std::collections::HashMap;

use super::*;

fn bucket(credits: u64, window_ns: u64) -> Bucket {
    Bucket::new(Limit::SlidingWindow(SlidingWindow::new(credits, window_ns).unwrap()))
}

/// Returns the start of the first aligned window from [`START`] on.
fn aligned(window: u64) -> u64 {
    START.next_multiple_of(window)
}

#[test]
fn burst_at_the_end_of_a_window_reaches_the_bound() {
    let (credits, window) = (3, 300);
    let mut bucket = bucket(credits, window);
    let end = aligned(window) + window;
    assert!(bucket.take(3, end - 1).allowed);
    for hit in [end + 1, end + window / 3 + 1, end + window * 2 / 3 + 1] {
        assert!(!bucket.take(1, hit - 1).allowed);
        assert!(bucket.take(1, hit).allowed);
    }
    // 6 = 2 × 3 within 203 of 300 nanoseconds.
    assert!(!bucket.take(1, end + window - 1).allowed);
}

/// Credits taken, by aligned window.
#[derive(Default)]
struct TakenIn(HashMap<u64, u64>);

impl TakenIn {
    fn window(&self, index: u64) -> u64 {
        self.0.get(&index).copied().unwrap_or(0)
    }

    /// Returns the count at `at`, in fractions of a window, so that all numbers are whole.
    fn counted(&self, at: u64, window: u64) -> u64 {
        let index = at / window;
        self.window(index - 1) * (window - at % window) + self.window(index) * window
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn counts_like_a_plain_model(credits in 1..12u64, window in 1..60u64, hits in hits(0..25)) {
        let mut bucket = bucket(credits, window);
        let mut taken = TakenIn::default();
        for (at, cost) in hits.0 {
            let counted = taken.counted(at, window) / window;
            let outcome = bucket.take(cost, at);
            prop_assert_eq!(outcome.before, credits - counted);
            prop_assert_eq!(outcome.allowed, counted + cost <= credits);
            if outcome.allowed {
                *taken.0.entry(at / window).or_default() += cost;
            }
        }
    }

    #[test]
    fn count_exceeds_the_limit_by_less_than_one_credit(
        credits in 1..12u64, window in 1..60u64, hits in hits(0..25),
    ) {
        let mut taken = TakenIn::default();
        for (at, cost) in hits.granted_by(&mut bucket(credits, window)) {
            *taken.0.entry(at / window).or_default() += cost;
            if cost > 0 {
                prop_assert!(taken.counted(at, window) < (credits + 1) * window);
            }
        }
    }

    #[test]
    fn grants_stay_within_the_limit_per_aligned_window_and_twice_that_in_any_interval(
        credits in 1..12u64, window in 1..60u64, hits in hits(0..25),
    ) {
        let granted = hits.granted_by(&mut bucket(credits, window));
        for (at, _) in &granted {
            let aligned: u64 = granted.iter().filter(|(then, _)| then / window == at / window).map(|(_, cost)| cost).sum();
            prop_assert!(aligned <= credits);
        }
        prop_assert!(most_in_a_window(&granted, window) <= 2 * credits);
    }
}
