//! A connection and its streams, which run in one task.
//!
//! Over HTTP/2 the library has each stream in a task of its own, to be made, scheduled and run twice for each request. Here
//! they are the connection's, and what they send is written by the same run of its task.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
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

/// Runs a connection, until that has ended. Streams that have not are dropped then: there is no way to answer them.
pub struct Driven<C> {
    pub connection: C,
    wakes: Wakes,
    begun: Begun,
    streams: FuturesUnordered<Stream>,
}

impl<C: Future + Unpin> Driven<C> {
    /// The connection's streams come by `begun`.
    pub fn new(connection: C, begun: Begun) -> Self {
        Self { connection, wakes: Wakes::default(), begun, streams: FuturesUnordered::new() }
    }

    fn run_streams(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = self.streams.poll_next_unpin(context) {}
    }
}

impl<C: Future + Unpin> Future for Driven<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let driven = &mut *self;
        if !driven.streams.is_empty() {
            // What they send wakes the connection, which is polled next in any case.
            let _is_next = driven.wakes.mute();
            driven.run_streams(context);
        }
        let polled = driven.wakes.poll(&mut driven.connection, context);
        // Also when it has ended: each stream has what they come by, which would never be freed with one of them in it.
        let begun = std::mem::take(&mut *driven.begun.0.lock());
        if polled.is_pending() && !begun.is_empty() {
            driven.streams.extend(begun);
            driven.run_streams(context);
        }
        polled
    }
}
