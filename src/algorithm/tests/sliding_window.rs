//! The sliding window: the example of the books, a plain model, and the true bound of the approximation.

use super::*;
use crate::clock::NANOS_PER_SECOND;
use std::collections::HashMap;

fn bucket(credits: u64, window_ns: u64) -> Bucket {
    Bucket::new(Limit::SlidingWindow(SlidingWindow::new(credits, window_ns).unwrap()))
}

/// The start of a window of `window` nanoseconds.
fn aligned(window: u64) -> u64 {
    START.next_multiple_of(window)
}

/// 5 in the last minute and 3 in the current one, of which 30 % are over: 5 × 0.7 + 3 = 6.5 are counted.
fn books_example(credits: u64) -> (Bucket, u64) {
    let minute = 60 * NANOS_PER_SECOND;
    let mut bucket = bucket(credits, minute);
    let start = aligned(minute);
    assert!(bucket.take(5, start).allowed);
    assert!(bucket.take(3, start + minute + minute * 3 / 10).allowed);
    (bucket, start + minute + minute * 3 / 10)
}

#[test]
fn seven_per_minute_as_in_the_books() {
    let (mut bucket, now) = books_example(7);
    let outcome = bucket.take(1, now);
    // Half a credit is left; the next is there when 5 × 0.6 + 3 = 6 are counted.
    assert_eq!((outcome.allowed, outcome.left), (false, 0));
    assert_eq!(outcome.retry_ns, Some(6 * NANOS_PER_SECOND));
    assert!(bucket.take(1, now + 6 * NANOS_PER_SECOND).allowed);
}

#[test]
fn six_and_a_half_are_counted_neither_six_nor_seven() {
    // Of 8, 1.5 are left: one more fits. If 6 were counted two would, if 7 were, the half would be missing below.
    let (mut bucket, now) = books_example(8);
    assert_eq!(bucket.look(0, now).left, 1);
    // The other half fades in after another tenth of the minute: 5 × 0.6 + 3 = 6.
    assert_eq!(bucket.look(2, now).retry_ns, Some(6 * NANOS_PER_SECOND));
}

#[test]
fn the_bound_is_reached_by_a_burst_at_the_end_of_a_window() {
    let (credits, window) = (3, 300);
    let mut bucket = bucket(credits, window);
    let end = aligned(window) + window;
    assert!(bucket.take(3, end - 1).allowed);
    assert!(bucket.take(1, end + window / 3).allowed);
    assert!(bucket.take(1, end + window * 2 / 3).allowed);
    // 5 = 2 × 3 − 1 within two thirds of a window.
    assert!(!bucket.take(1, end + window * 2 / 3).allowed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn counts_as_a_plain_model_does(credits in 1..12u64, window in 1..60u64, hits in hits(0..25)) {
        let mut bucket = bucket(credits, window);
        let mut taken_in: HashMap<u64, u64> = HashMap::new();
        for (at, cost) in hits.0 {
            let index = at / window;
            let taken = |index: u64| taken_in.get(&index).copied().unwrap_or(0);
            // In shares of a window, so that all numbers are whole.
            let counted = taken(index - 1) * (window - at % window) + taken(index) * window;
            let outcome = bucket.take(cost, at);
            prop_assert_eq!(outcome.before, (credits * window - counted) / window);
            prop_assert_eq!(outcome.allowed, counted + cost * window <= credits * window);
            if outcome.allowed {
                *taken_in.entry(index).or_default() += cost;
            }
        }
    }

    #[test]
    fn never_grants_more_than_the_limit_in_an_aligned_window_nor_more_than_the_bound_in_any(
        credits in 1..12u64, window in 1..60u64, hits in hits(0..25),
    ) {
        let granted = hits.granted_by(&mut bucket(credits, window));
        for (at, _) in &granted {
            let aligned: u64 = granted.iter().filter(|(then, _)| then / window == at / window).map(|(_, cost)| cost).sum();
            prop_assert!(aligned <= credits);
        }
        prop_assert!(most_in_a_window(&granted, window) < 2 * credits);
    }
}
