//! One run of the connection's task fewer for each request over HTTP/1.
//!
//! Taking a piece of a body wakes the library's side of the connection, so that it sends the next piece. Over HTTP/1 that
//! is the very task that takes it, and it would run again as soon as it waits, also when that piece was the last. Here
//! the task is woken for the next piece, and not for none.

use std::cell::Cell;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use hyper::body::{Body, Frame};

thread_local! {
    /// The task on this thread that takes a piece of a body now, until it wakes itself; null: none does.
    static TAKES: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// What a connection is woken by.
#[derive(Default)]
pub struct Wakes {
    /// Made of the task's waker, which is the same for the life of a task.
    waker: Option<(Waker, Waker)>,
}

impl Wakes {
    /// Polls the connection such that [`poll_frame`] knows what wakes it.
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

/// Ends the taking, even by a panic.
struct Taking;

impl Taking {
    fn begin(task: &Waker) -> Self {
        TAKES.set(task.data());
        Self
    }

    /// Whether the task has woken itself meanwhile.
    fn has_woken(&self) -> bool {
        TAKES.get().is_null()
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        TAKES.set(ptr::null());
    }
}

/// A body's next piece.
type Next<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// Polls a body for its next piece.
pub fn poll_frame<B: Body + Unpin>(body: &mut B, context: &mut Context<'_>) -> Poll<Next<B>> {
    let taking = Taking::begin(context.waker());
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
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Wakes its sender for each piece that is taken, and while there is none.
    struct Sent {
        pieces: VecDeque<&'static str>,
        sender: Waker,
    }

    impl Body for Sent {
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

    /// How often a task is woken that polls a body of these pieces so often. `of` chooses the sender's waker.
    fn woken(pieces: &[&'static str], polls: usize, of: impl Fn(&Waker) -> Waker) -> usize {
        let woken = Arc::new(Woken::default());
        let task = Waker::from(Arc::clone(&woken));
        let mut connection = poll_fn(|context| {
            let pieces = pieces.iter().copied().collect();
            let mut body = Sent { pieces, sender: of(context.waker()) };
            for _ in 0..polls {
                let _ = poll_frame(&mut body, context);
            }
            Poll::Ready(())
        });
        assert!(Wakes::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
        woken.0.load(Relaxed)
    }

    #[test]
    fn a_task_is_not_woken_by_itself_for_the_last_piece() {
        assert_eq!(woken(&["all"], 1, Waker::clone), 0);
        assert_eq!(woken(&["first", "last"], 1, Waker::clone), 1);
        assert_eq!(woken(&["first", "second", "last"], 3, Waker::clone), 2);
    }

    #[test]
    fn others_wake_the_task_at_any_time() {
        let other = Arc::new(Woken::default());
        let of = |_: &Waker| Waker::from(Arc::clone(&other));
        assert_eq!(woken(&["all"], 1, of), 0);
        assert_eq!(other.0.load(Relaxed), 1);
        // From another thread.
        let elsewhere = Arc::new(Woken::default());
        let task = Waker::from(Arc::clone(&elsewhere));
        let mut connection = poll_fn(|context| {
            let _taking = Taking::begin(context.waker());
            let waker = context.waker().clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
            Poll::Ready(())
        });
        assert!(Wakes::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
        assert_eq!(elsewhere.0.load(Relaxed), 1);
    }
}
