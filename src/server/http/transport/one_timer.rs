//! The library's timers, merged into one per connection.
//!
//! The library creates a timer for the head of each request. Creating, registering and removing one costs more than all the
//! bounds on the connection itself. Here a connection has one timer, which stays set while the library waits for later
//! deadlines. When it fires too early, it is set again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep_until};

/// The timer of one connection. A single task waits for all of its sleeps.
#[derive(Default)]
pub struct OneTimer {
    alarm: Arc<Alarm>,
}

type Alarm = Mutex<Option<Pin<Box<Sleep>>>>;

impl rt::Timer for OneTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(AlarmSleep { deadline: deadline.into(), alarm: Arc::clone(&self.alarm) })
    }

    #[expect(clippy::disallowed_methods, reason = "how long a client takes for the head of a request")]
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}

/// A sleep until a deadline.
struct AlarmSleep {
    deadline: tokio::time::Instant,
    alarm: Arc<Alarm>,
}

impl rt::Sleep for AlarmSleep {}

impl Future for AlarmSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut alarm = self.alarm.lock();
        let alarm = alarm.get_or_insert_with(|| Box::pin(sleep_until(self.deadline)));
        if self.deadline < alarm.deadline() {
            alarm.as_mut().reset(self.deadline);
        }
        loop {
            ready!(alarm.as_mut().poll(context));
            if self.deadline <= alarm.deadline() {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(self.deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use hyper::rt::Timer;
    use tokio::time::{self, timeout};

    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(3600);
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn each_wait_ends_at_its_own_deadline() {
        let timer = OneTimer::default();
        // One deadline is later than the last one, and one is earlier.
        for short in [SHORT, 2 * SHORT, SHORT] {
            let begun = time::Instant::now();
            timeout(PATIENCE, timer.sleep(short)).await.unwrap();
            assert!(begun.elapsed() >= short, "{short:?}");
        }
    }

    #[tokio::test]
    async fn abandoned_wait_neither_ends_a_later_one_nor_delays_an_earlier_one() {
        let timer = OneTimer::default();
        for (given_up, wanted) in [(SHORT, 4 * SHORT), (LONG, SHORT)] {
            let begun = time::Instant::now();
            assert!(poll!(timer.sleep(given_up)).is_pending());
            timeout(PATIENCE, timer.sleep(wanted)).await.unwrap();
            assert!(begun.elapsed() >= wanted, "{wanted:?} after {given_up:?}");
        }
    }
}
