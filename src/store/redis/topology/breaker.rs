//! Leaves a Redis that does not answer alone for a while, longer each time.
//!
//! Without it every hit of a long outage would wait its whole timeout for nothing. So after a failure calls fail at
//! once, and one at a time is let through to see whether Redis is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::store::redis::wire::Failure;

/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Breaker {
    /// Whether there is an outage: all that a call looks at while there is none.
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
    /// Lets a call through, or says what failed a moment ago. A try counts as lost when nothing is heard of it for
    /// `patience`.
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

    /// Takes note that Redis did not answer. Calls that were on their way when an outage began fail late, and prolong
    /// nothing.
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

    /// Takes note that Redis answered.
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
    fn one_try_at_a_time_after_ever_longer_pauses() {
        let (breaker, mut now) = (Breaker::default(), Instant::now());
        assert!(admits(&breaker, now) && admits(&breaker, now), "no outage, no limit");
        fail(&breaker, now);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let begin = now;
            while !admits(&breaker, now) {
                now += Duration::from_millis(1);
            }
            assert!(!admits(&breaker, now), "a second try beside the first");
            pauses.push((now - begin).as_millis());
            fail(&breaker, now);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        breaker.answered();
        assert!(admits(&breaker, now) && admits(&breaker, now));
    }

    #[test]
    fn what_fails_late_prolongs_nothing_and_the_first_failure_is_told() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        fail(&breaker, now);
        breaker.failed(&Failure::NoNode, now + FIRST_PAUSE / 2);
        let told = breaker.admit(now + FIRST_PAUSE / 2, PATIENCE).unwrap_err();
        assert!(told.describe("x").to_string().contains("did not answer within 500 ms"), "{told:?}");
        assert!(admits(&breaker, now + FIRST_PAUSE));
    }

    #[test]
    fn a_try_that_is_never_heard_of_again_makes_room_for_the_next() {
        let (breaker, now) = (Breaker::default(), Instant::now());
        fail(&breaker, now);
        let first = now + FIRST_PAUSE;
        assert!(admits(&breaker, first));
        assert!(!admits(&breaker, first + PATIENCE / 2));
        assert!(admits(&breaker, first + PATIENCE));
    }
}
