//! Fewer wake-ups and timers than the library alone would cause.
//!
//! Taking a frame of a body wakes the library's side of the connection, which then sends the next frame. Over HTTP/1 both
//! sides are the same task, so it would run again even after the last frame. Here the task is woken only if there is a next
//! frame, which saves one run of the task for each request.
//!
//! The library creates a timer for the head of each request. Creating, registering and removing one costs more than all the
//! bounds on the connection itself. Here a connection has one timer, which stays set while the library waits for later
//! deadlines. When it fires too early, it is set again.

use std::cell::Cell;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use hyper::body::{Body, Frame};
use hyper::rt;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep_until};

thread_local! {
    /// The task on this thread that is taking a frame of a body, until it wakes itself; null if no task is.
    static TAKES: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// The waker of a connection.
#[derive(Default)]
pub struct ConnectionWaker {
    /// Derived from the task's waker, which stays the same for the life of a task.
    waker: Option<(Waker, Waker)>,
}

impl ConnectionWaker {
    /// Polls the connection with a waker that [`poll_frame`] recognizes.
    pub fn poll<F: Future + Unpin>(&mut self, connection: &mut F, context: &Context<'_>) -> Poll<F::Output> {
        let task = context.waker();
        let (_, waker) = match self.waker.take().filter(|(made_of, _)| made_of.will_wake(task)) {
            Some(wakers) => self.waker.insert(wakers),
            None => self.waker.insert((task.clone(), Waker::from(Arc::new(Task(task.clone()))))),
        };
        Pin::new(connection).poll(&mut Context::from_waker(waker))
    }
}

struct Task(Waker);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if ptr::eq(TAKES.get(), Arc::as_ptr(self).cast()) {
            TAKES.set(ptr::null());
        } else {
            self.0.wake_by_ref();
        }
    }
}

/// Resets the state when a frame was taken, even after a panic.
struct TakeGuard;

impl TakeGuard {
    fn begin(task: &Waker) -> Self {
        TAKES.set(task.data());
        Self
    }

    /// Returns whether the task has woken itself while it took a frame.
    fn has_woken(&self) -> bool {
        TAKES.get().is_null()
    }
}

impl Drop for TakeGuard {
    fn drop(&mut self) {
        TAKES.set(ptr::null());
    }
}

/// The next frame of a body.
type Next<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// Polls a body for its next frame.
pub fn poll_frame<B: Body + Unpin>(body: &mut B, context: &mut Context<'_>) -> Poll<Next<B>> {
    let taking = TakeGuard::begin(context.waker());
    let frame = Pin::new(&mut *body).poll_frame(context);
    let has_woken = taking.has_woken();
    drop(taking);
    if has_woken && !body.is_end_stream() {
        context.waker().wake_by_ref();
    }
    frame
}

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
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use bytes::Bytes;
    use futures_util::poll;
    use hyper::rt::Timer;
    use tokio::time::{self, timeout};

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// A body that wakes its sender for each frame that is taken, and while it has no frame.
    struct SenderBody {
        pieces: VecDeque<&'static str>,
        sender: Waker,
    }

    impl Body for SenderBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.sender.wake_by_ref();
            match self.pieces.pop_front() {
                Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece.into())))),
                None => Poll::Pending,
            }
        }

        fn is_end_stream(&self) -> bool {
            self.pieces.is_empty()
        }
    }

    /// Returns how often a task that polls a body is woken. `of` selects the sender's waker.
    fn woken(pieces: &[&'static str], polls: usize, of: impl Fn(&Waker) -> Waker) -> usize {
        let woken = Arc::new(WakeCounter::default());
        let task = Waker::from(Arc::clone(&woken));
        let mut connection = poll_fn(|context| {
            let pieces = pieces.iter().copied().collect();
            let mut body = SenderBody { pieces, sender: of(context.waker()) };
            for _ in 0..polls {
                let _ = poll_frame(&mut body, context);
            }
            Poll::Ready(())
        });
        assert!(ConnectionWaker::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
        woken.0.load(Relaxed)
    }

    #[test]
    fn task_does_not_wake_itself_for_the_last_frame() {
        assert_eq!(woken(&["all"], 1, Waker::clone), 0);
        assert_eq!(woken(&["first", "last"], 1, Waker::clone), 1);
        assert_eq!(woken(&["first", "second", "last"], 3, Waker::clone), 2);
    }

    #[test]
    fn other_tasks_wake_the_task_at_any_time() {
        let other = Arc::new(WakeCounter::default());
        let of = |_: &Waker| Waker::from(Arc::clone(&other));
        assert_eq!(woken(&["all"], 1, of), 0);
        assert_eq!(other.0.load(Relaxed), 1);
        // The sender is on another thread.
        let elsewhere = Arc::new(WakeCounter::default());
        let task = Waker::from(Arc::clone(&elsewhere));
        let mut connection = poll_fn(|context| {
            let _taking = TakeGuard::begin(context.waker());
            let waker = context.waker().clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
            Poll::Ready(())
        });
        assert!(ConnectionWaker::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
        assert_eq!(elsewhere.0.load(Relaxed), 1);
    }

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
