//! A circuit breaker: after a failure, calls fail at once during a pause. Without it, every hit during a long outage would wait for
//! its whole timeout in vain. After each pause, one call is let through to test whether Redis is back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::wire::Failure;

/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Breaker {
    /// Whether there is an outage. Without one, a call checks nothing else.
    is_open: AtomicBool,
    /// The last failure, and the time of the next try.
    outage: Mutex<Option<(Arc<Failure>, Instant)>>,
}

impl Breaker {
    /// Lets a call through, or returns the last failure. A trial call without a result after `patience` counts as lost.
    pub fn admit(&self, now: Instant, patience: Duration) -> Result<(), Failure> {
        if !self.is_open.load(Relaxed) {
            return Ok(());
        }
        match &mut *self.outage.lock() {
            Some((failure, next_try)) if now < *next_try => Err(Failure::Suspended(Arc::clone(failure))),
            Some((_, next_try)) => {
                *next_try = now + patience;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records that Redis did not answer.
    pub fn failed(&self, failure: &Failure, now: Instant) {
        let mut outage = self.outage.lock();
        *outage = Some((Arc::new(failure.clone()), now + PAUSE));
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

    #[test]
    fn one_try_follows_each_pause_and_makes_room_for_the_next() {
        let (breaker, mut now) = (Breaker::default(), Instant::now());
        let fail = |at| breaker.failed(&Failure::Timeout(PATIENCE), at);
        let admits = |at| breaker.admit(at, PATIENCE).is_ok();
        assert!(admits(now) && admits(now), "no outage, no limit");
        for _ in 0..3 {
            fail(now);
            let reported = breaker.admit(now + PAUSE / 2, PATIENCE).unwrap_err();
            assert!(reported.describe("x").to_string().contains("did not answer within 500 ms"), "{reported:?}");
            now += PAUSE;
            assert!(admits(now) && !admits(now), "one try");
        }
        assert!(!admits(now + PATIENCE / 2) && admits(now + PATIENCE), "a try without a result");
        breaker.answered();
        assert!(admits(now) && admits(now));
    }
}
