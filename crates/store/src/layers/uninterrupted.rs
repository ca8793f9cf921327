//! Work that is completed even if its caller stops waiting.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// A future that can be completed in a task of its own.
pub trait Work: Future<Output: Send> + Send + 'static {}

impl<F: Future<Output: Send> + Send + 'static> Work for F {}

/// A future that works in the task that polls it. If it is dropped before it is complete, a new task does the rest, and
/// `leave` is called with that task.
pub struct Uninterrupted<W: Work, L: FnMut(JoinHandle<W::Output>) + Unpin> {
    work: Option<Pin<Box<W>>>,
    is_begun: bool,
    leave: L,
}

impl<W: Work, L: FnMut(JoinHandle<W::Output>) + Unpin> Uninterrupted<W, L> {
    pub fn new(work: W, leave: L) -> Self {
        Self { work: Some(Box::pin(work)), is_begun: false, leave }
    }
}

impl<W: Work, L: FnMut(JoinHandle<W::Output>) + Unpin> Future for Uninterrupted<W, L> {
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<W::Output> {
        // The work is taken out, so that it is not polled again after a panic.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
            self.is_begun = true;
        }
        polled
    }
}

impl<W: Work, L: FnMut(JoinHandle<W::Output>) + Unpin> Drop for Uninterrupted<W, L> {
    fn drop(&mut self) {
        // There is no runtime if the process is ending.
        if let Some(work) = self.work.take().filter(|_| self.is_begun)
            && let Ok(runtime) = Handle::try_current()
        {
            (self.leave)(runtime.spawn(work));
        }
    }
}
