//! A circuit breaker: after a failure, calls fail at once during a pause, which doubles each time.
//!
//! Without it, every hit during a long outage would wait for its whole timeout in vain. After each pause, one call is
//! let through to test whether Redis is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::wire::Failure;

/// The pause after the first failure. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Breaker {
    /// Whether there is an outage. Without one, a call checks nothing else.
    is_open: AtomicBool,
    outage: Mutex<Option<Outage>>,
}

struct Outage {
    failure: Arc<Failure>,
    pause: Duration,
    next_try: Instant,
    /// Whether a call was let through and has not failed yet.
    trying: bool,
}

impl Breaker {
    /// Lets a call through, or returns the last failure. A trial call without a result after `patience` counts as lost.
    pub fn admit(&self, now: Instant, patience: Duration) -> Result<(), Failure> {
        if !self.is_open.load(Relaxed) {
            return Ok(());
        }
        match &mut *self.outage.lock() {
            Some(outage) if now < outage.next_try => Err(Failure::Suspended(Arc::clone(&outage.failure))),
            Some(outage) => {
                outage.trying = true;
                outage.next_try = now + patience;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records that Redis did not answer. A call that was sent before the outage began fails late, and does not prolong
    /// the pause.
    pub fn failed(&self, failure: &Failure, now: Instant) {
        let mut outage = self.outage.lock();
        let pause = match &*outage {
            None => FIRST_PAUSE,
            Some(outage) if outage.trying => (outage.pause * 2).min(LONGEST_PAUSE),
            Some(_) => return,
        };
        let failure = Arc::new(failure.clone());
        *outage = Some(Outage { failure, pause, next_try: now + pause, trying: false });
        self.is_open.store(true, Relaxed);
    }

    /// Records that Redis answered.
    pub fn answered(&self) {
        if self.is_open.load(Relaxed) {
            let mut outage = self.outage.lock();
            *outage = None;
            self.is_open.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(500);

    fn fail(breaker: &Breaker, at: Instant) {
        breaker.failed(&Failure::Timeout(PATIENCE), at);
    }

    fn admits(breaker: &Breaker, at: Instant) -> bool {
        breaker.admit(at, PATIENCE).is_ok()
    }

    #[test]
    fn one_try_follows_each_pause_and_pauses_grow() {
        let (breaker, mut now) = (Breaker::default(), Instant::now());
        assert!(admits(&breaker, now) && admits(&breaker, now), "no outage, no limit");
        fail(&breaker, now);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let begin = now;
            while !admits(&breaker, now) {
                now += Duration::from_millis(1);
            }
            assert!(!admits(&breaker, now), "a second try at the same time");
            pauses.push((now - begin).as_millis());
            fail(&breaker, now);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        breaker.answered();
        assert!(admits(&breaker, now) && admits(&breaker, now));
    }

    #[test]
    fn late_failure_prolongs_no_pause_and_the_first_failure_is_reported() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        fail(&breaker, now);
        breaker.failed(&Failure::NoNode, now + FIRST_PAUSE / 2);
        let reported = breaker.admit(now + FIRST_PAUSE / 2, PATIENCE).unwrap_err();
        assert!(reported.describe("x").to_string().contains("did not answer within 500 ms"), "{reported:?}");
        assert!(admits(&breaker, now + FIRST_PAUSE));
    }

    #[test]
    fn try_without_a_result_makes_room_for_the_next() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        fail(&breaker, now);
        let first = now + FIRST_PAUSE;
        assert!(admits(&breaker, first));
        assert!(!admits(&breaker, first + PATIENCE / 2));
        assert!(admits(&breaker, first + PATIENCE));
    }
}
