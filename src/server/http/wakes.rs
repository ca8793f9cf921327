//! A run less of a connection's task for each request: it does not wake itself for nothing.
//!
//! Taking a piece of a body wakes the library's side of the connection, so that it sends the next piece. Over HTTP/1 that
//! is the very task that takes it, and it would run again as soon as it waits, also when that piece was the last. Here
//! the task is woken for the next piece, and not for none. Over HTTP/2 a stream that sends something wakes the connection,
//! which is not woken when it is about to be polled.

use std::cell::Cell;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use hyper::body::{Body, Frame};

thread_local! {
    static MUTED: Cell<Muted> = const { Cell::new(Muted { task: ptr::null(), is_woken: false }) };
}

/// The task that this thread does not wake.
#[derive(Clone, Copy)]
struct Muted {
    /// By its waker; null: there is none.
    task: *const (),
    /// It was to be.
    is_woken: bool,
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

    /// The connection is polled next in any case.
    pub fn mute(&self) -> Mute {
        Mute::new(self.waker.as_ref().map_or(ptr::null(), |(_, waker)| waker.data()))
    }
}

struct Task(Waker);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let muted = MUTED.get();
        if ptr::eq(muted.task, Arc::as_ptr(self).cast()) {
            MUTED.set(Muted { is_woken: true, ..muted });
        } else {
            self.0.wake_by_ref();
        }
    }
}

/// While it exists, this thread does not wake the task.
pub struct Mute {
    /// What was muted before.
    before: Muted,
}

impl Mute {
    fn new(task: *const ()) -> Self {
        Self { before: MUTED.replace(Muted { task, is_woken: false }) }
    }

    /// Ends it; whether the task was to be woken.
    fn end(self) -> bool {
        MUTED.get().is_woken
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        MUTED.set(self.before);
    }
}

/// Polls a body for its next piece.
pub fn poll_frame<B: Body + Unpin>(
    body: &mut B,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
    let mute = Mute::new(context.waker().data());
    let frame = Pin::new(&mut *body).poll_frame(context);
    if mute.end() && !body.is_end_stream() {
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
            let _mute = Mute::new(context.waker().data());
            let waker = context.waker().clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
            Poll::Ready(())
        });
        assert!(Wakes::default().poll(&mut connection, &Context::from_waker(&task)).is_ready());
        assert_eq!(elsewhere.0.load(Relaxed), 1);
    }

    #[test]
    fn a_connection_that_is_polled_next_is_woken_afterwards_again() {
        let woken = Arc::new(Woken::default());
        let task = Waker::from(Arc::clone(&woken));
        let (mut wakes, mut waker) = (Wakes::default(), None);
        let mut connection = poll_fn(|context| {
            waker = Some(context.waker().clone());
            Poll::Ready(())
        });
        assert!(wakes.poll(&mut connection, &Context::from_waker(&task)).is_ready());
        let waker = waker.unwrap();
        let mute = wakes.mute();
        // A stream that takes a piece of its body meanwhile.
        let mut body = Sent { pieces: ["all"].into(), sender: waker.clone() };
        let _ = poll_frame(&mut body, &mut Context::from_waker(&waker));
        waker.wake_by_ref();
        assert_eq!(woken.0.load(Relaxed), 0);
        drop(mute);
        waker.wake_by_ref();
        assert_eq!(woken.0.load(Relaxed), 1);
    }
}
