//! The library's timers, which are one for each connection.
//!
//! The library waits for the head of each request with a timer of its own. To make one, to register it and to take it
//! back costs more than all of these bounds on the connection itself. Here the connection's one timer stays as it is
//! while later ones are waited for; when it rings too early, it is set again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep_until};

/// The timer of one connection. One task waits for all that is made of it.
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
        Box::pin(Until { deadline: deadline.into(), alarm: Arc::clone(&self.alarm) })
    }

    #[expect(clippy::disallowed_methods, reason = "how long a client takes for the head of a request")]
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}

/// Ends at its deadline.
struct Until {
    deadline: tokio::time::Instant,
    alarm: Arc<Alarm>,
}

impl rt::Sleep for Until {}

impl Future for Until {
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
    async fn each_ends_at_its_own_deadline() {
        let timer = OneTimer::default();
        // Later than the last one, and earlier.
        for short in [SHORT, 2 * SHORT, SHORT] {
            let begun = time::Instant::now();
            timeout(PATIENCE, timer.sleep(short)).await.unwrap();
            assert!(begun.elapsed() >= short, "{short:?}");
        }
    }

    #[tokio::test]
    async fn one_that_is_given_up_neither_ends_a_later_one_nor_delays_an_earlier_one() {
        let timer = OneTimer::default();
        for (given_up, wanted) in [(SHORT, 4 * SHORT), (LONG, SHORT)] {
            let begun = time::Instant::now();
            assert!(poll!(timer.sleep(given_up)).is_pending());
            timeout(PATIENCE, timer.sleep(wanted)).await.unwrap();
            assert!(begun.elapsed() >= wanted, "{wanted:?} after {given_up:?}");
        }
    }
}
