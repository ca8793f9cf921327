//! A connection and its streams, which run in one task.
//!
//! Over HTTP/2 the library has each stream in a task of its own, to be made, scheduled and run twice for each request. Here
//! they are the connection's, and what they send is written by the same run of its task.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::task::{Context, Poll, Wake, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;

use super::wakes::Wakes;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Streams that the library has begun and that do not run yet.
#[derive(Clone, Default)]
pub struct Begun(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, stream: F) {
        self.0.lock().push(Box::pin(stream));
    }
}

/// A stream that runs. A set of futures of the libraries would run the task once more whenever it has polled all of its
/// own, which here is at each request.
struct Running {
    stream: Stream,
    woken: Arc<Woken>,
    /// Made of `woken`.
    waker: Waker,
}

struct Woken {
    is_woken: AtomicBool,
    /// The connection's.
    task: Waker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, AcqRel) {
            self.task.wake_by_ref();
        }
    }
}

impl Running {
    fn new(stream: Stream, task: &Waker) -> Self {
        let woken = Arc::new(Woken { is_woken: AtomicBool::new(true), task: task.clone() });
        Self { stream, waker: Waker::from(Arc::clone(&woken)), woken }
    }

    /// Polls it, if it was woken; whether it goes on.
    fn run(&mut self) -> bool {
        let is_woken = self.woken.is_woken.swap(false, AcqRel);
        !is_woken || self.stream.as_mut().poll(&mut Context::from_waker(&self.waker)).is_pending()
    }
}

/// Runs a connection until it has ended, for one task. Streams that have not ended are dropped then: there is no way to
/// answer them.
pub struct Driven<C> {
    pub connection: C,
    wakes: Wakes,
    begun: Begun,
    streams: Vec<Running>,
}

impl<C: Future + Unpin> Driven<C> {
    /// The connection's streams come by `begun`.
    pub fn new(connection: C, begun: Begun) -> Self {
        Self { connection, wakes: Wakes::default(), begun, streams: Vec::new() }
    }
}

impl<C: Future + Unpin> Future for Driven<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let driven = &mut *self;
        if !driven.streams.is_empty() {
            // What they send wakes the connection, which is polled next in any case.
            let _is_next = driven.wakes.mute();
            driven.streams.retain_mut(Running::run);
        }
        let polled = driven.wakes.poll(&mut driven.connection, context);
        // Also when it has ended: each stream has what they come by, which would never be freed with one of them in it.
        let begun = std::mem::take(&mut *driven.begun.0.lock());
        if polled.is_pending() {
            let begun = begun.into_iter().map(|stream| Running::new(stream, context.waker()));
            driven.streams.extend(begun.filter_map(|mut stream| stream.run().then_some(stream)));
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::{pending, poll_fn};
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;

    /// A connection that begins these streams, one at each poll, and ends when there are no more.
    fn connection(begun: &Begun, streams: Vec<Stream>) -> impl Future<Output = ()> + Unpin + use<> {
        let (begun, mut streams) = (begun.clone(), VecDeque::from(streams));
        poll_fn(move |_| match streams.pop_front() {
            Some(stream) => {
                begun.execute(stream);
                Poll::Pending
            }
            None => Poll::Ready(()),
        })
    }

    #[tokio::test]
    async fn streams_run_at_once_and_then_when_they_are_woken() {
        let (polls, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (end, mut until) = oneshot::channel::<()>();
        let stream: Stream = {
            let (polls, ended) = (Arc::clone(&polls), Arc::clone(&ended));
            Box::pin(poll_fn(move |context| {
                polls.fetch_add(1, Relaxed);
                Pin::new(&mut until).poll(context).map(|_| ended.store(true, Relaxed))
            }))
        };
        let begun = Begun::default();
        let idle = || -> Stream { Box::pin(async {}) };
        let mut driven = Driven::new(connection(&begun, vec![stream, idle(), idle()]), begun);
        assert!(poll!(&mut driven).is_pending());
        assert!(poll!(&mut driven).is_pending());
        assert_eq!((polls.load(Relaxed), ended.load(Relaxed)), (1, false), "it was not woken");
        end.send(()).unwrap();
        assert!(poll!(&mut driven).is_pending());
        assert_eq!((polls.load(Relaxed), ended.load(Relaxed)), (2, true));
        assert!(poll!(&mut driven).is_ready());
    }

    #[tokio::test]
    async fn nothing_is_kept_when_the_connection_ends() {
        let held = Arc::new(());
        let stream = |held: Arc<()>, begun: Begun| -> Stream {
            Box::pin(async move {
                pending::<()>().await;
                drop((held, begun));
            })
        };
        let begun = Begun::default();
        let first = stream(Arc::clone(&held), begun.clone());
        let mut driven = Driven::new(connection(&begun, vec![first]), begun.clone());
        assert!(poll!(&mut driven).is_pending());
        // In the poll by which the connection ends.
        begun.execute(stream(Arc::clone(&held), begun.clone()));
        assert!(poll!(&mut driven).is_ready());
        drop(driven);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
