//! Saves one run of the connection's task for each request over HTTP/1.
//!
//! Taking a frame of a body wakes the library's side of the connection, which then sends the next frame. Over HTTP/1 both
//! sides are the same task, so it would run again even after the last frame. Here the task is woken only if there is a next
//! frame.

use std::cell::Cell;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use hyper::body::{Body, Frame};

thread_local! {
    /// The task on this thread that is taking a frame of a body, until it wakes itself; null if no task is.
    static TAKES: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// The waker of a connection.
#[derive(Default)]
pub struct Wakes {
    /// Derived from the task's waker, which stays the same for the life of a task.
    waker: Option<(Waker, Waker)>,
}

impl Wakes {
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use bytes::Bytes;

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
        assert!(Wakes::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
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
        assert!(Wakes::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
        assert_eq!(elsewhere.0.load(Relaxed), 1);
    }
}
