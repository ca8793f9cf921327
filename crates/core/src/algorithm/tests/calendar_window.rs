//! The calendar window, compared with a plain model that counts the credits taken in each window. The calendar has
//! windows of 7 and 12 seconds, in turn.

use std::collections::BTreeMap;

use super::*;
use crate::clock::NANOS_PER_SECOND;

const SHORT: u64 = 7 * NANOS_PER_SECOND;
const BOTH: u64 = 19 * NANOS_PER_SECOND;

/// Returns the start and the end of the window that contains `at`.
fn window(at: u64) -> (u64, u64) {
    let pair = at / BOTH * BOTH;
    if at < pair + SHORT { (pair, pair + SHORT) } else { (pair + SHORT, pair + BOTH) }
}

fn limit_at(credits: u64, at: u64) -> Limit {
    let (starts, ends) = window(at);
    let limit = CalendarWindow::new(credits, CalendarId(0)).unwrap();
    let seconds = ((ends - starts) / NANOS_PER_SECOND) as u32;
    Limit::CalendarWindow(CalendarWindow { ends: Timestamp::from_nanos(ends), seconds, ..limit })
}

fn take(bucket: &mut Bucket, credits: u64, cost: u64, at: u64) -> Outcome {
    bucket.limit = limit_at(credits, at);
    bucket.take(cost, at)
}

proptest! {
    #[test]
    fn each_window_grants_its_credits(credits in 1..12u64, hits in hits(0..3 * NANOS_PER_SECOND)) {
        let mut bucket = Bucket::new(limit_at(credits, START));
        let mut taken = BTreeMap::<u64, u64>::new();
        for (at, cost) in hits.0 {
            let (_, ends) = window(at);
            let taken = taken.entry(ends).or_default();
            let before = credits - *taken;
            let outcome = take(&mut bucket, credits, cost, at);
            prop_assert_eq!(outcome.allowed, cost <= before);
            if outcome.allowed {
                *taken += cost;
            }
            prop_assert_eq!(outcome.left, credits - *taken);
            prop_assert_eq!(outcome.reset_ns, if *taken > 0 { ends - at } else { 0 });
            let is_too_much = cost > credits;
            prop_assert_eq!(outcome.retry_ns, (!outcome.allowed && !is_too_much).then_some(ends - at));
            let lifetime = |state: &State| bucket.limit.lifetime_ns(state, Timestamp::from_nanos(at));
            let expected = if *taken > 0 { ends - at } else { 0 };
            prop_assert_eq!(bucket.state.as_ref().map_or(0, lifetime), expected);
        }
    }

    #[test]
    fn running_window_keeps_its_end(moved in -(NANOS_PER_SECOND as i64)..NANOS_PER_SECOND as i64, later in 0..2 * NANOS_PER_SECOND) {
        let at = window(START).0;
        let mut bucket = Bucket::new(limit_at(5, at));
        let ends = at + bucket.take(3, at).reset_ns;
        let Limit::CalendarWindow(limit) = bucket.limit else { unreachable!() };
        let moved_end = limit.ends.as_nanos().saturating_add_signed(moved);
        bucket.limit = Limit::CalendarWindow(CalendarWindow { ends: Timestamp::from_nanos(moved_end), ..limit });
        let outcome = bucket.take(1, at + later);
        prop_assert_eq!((outcome.left, at + later + outcome.reset_ns), (1, ends));
    }

    /// Windows differ in length: a new window may be much longer than the previous one.
    #[test]
    fn only_a_clock_set_back_moves_a_window(at in START..START + 4 * BOTH, back in 0..4 * BOTH) {
        let mut bucket = Bucket::new(limit_at(5, at));
        take(&mut bucket, 5, 3, at);
        let earlier = at - back;
        let outcome = take(&mut bucket, 5, 1, earlier);
        prop_assert_eq!(outcome.left, 1, "taken credit stays taken");
        // The end of the window that was running, or of the window at the earlier time.
        let ends = [window(at).1, window(earlier).1];
        prop_assert!(ends.into_iter().any(|ends| outcome.reset_ns <= ends - earlier), "{}", outcome.reset_ns);
        prop_assert!(outcome.reset_ns <= 2 * BOTH, "no request waits for the old time");
    }
}

/// The wait is bounded even if the clock is set back at any point of a window.
#[test]
fn clock_set_back_causes_no_wait_longer_than_a_window() {
    const MINUTE: u64 = 60 * NANOS_PER_SECOND;
    let limit_at = |at: u64| {
        let limit = CalendarWindow::new(5, CalendarId(0)).unwrap();
        let ends = Timestamp::from_nanos(at / MINUTE * MINUTE + MINUTE);
        Limit::CalendarWindow(CalendarWindow { ends, seconds: 60, ..limit })
    };
    for start in (0..60).map(|seconds| START + seconds * NANOS_PER_SECOND) {
        for back in (11..200).chain([3_600, 86_400]).map(|seconds| seconds * NANOS_PER_SECOND) {
            let mut bucket = Bucket::new(limit_at(start));
            bucket.take(5, start);
            bucket.limit = limit_at(start - back);
            let retry_ns = bucket.look(1, start - back).retry_ns.unwrap();
            // Ten seconds are added, because a request that is so much earlier counts as overtaken.
            assert!(retry_ns <= MINUTE + 10 * NANOS_PER_SECOND, "{back} back at {start}: {retry_ns}");
            let later = start - back + MINUTE + 10 * NANOS_PER_SECOND;
            bucket.limit = limit_at(later);
            let told = bucket.look(1, later);
            assert!(told.allowed, "{back} back at {start}: {told:?}");
        }
    }
}

#[test]
fn undated_limit_accepts_a_state_unchanged() {
    let mut bucket = Bucket::new(limit_at(5, START));
    let reset = bucket.take(2, START).reset_ns;
    bucket.limit = Limit::CalendarWindow(CalendarWindow::new(5, CalendarId(0)).unwrap());
    let look = bucket.look(0, START - BOTH);
    assert_eq!((look.left, look.reset_ns), (3, reset + BOTH));
    assert_eq!(CalendarWindow::new(0, CalendarId(0)), Err(InvalidLimit::NoCredits));
}
