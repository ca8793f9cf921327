//! A distant store, with the layers between it and the limiter: a cache of denials, and a fallback for failures.
//!
//! Clients may hang up and timeouts may pass, but the distant store carries out what was sent to it. Its answer to a batch or a check
//! must reach the denial cache, the circuit breaker, the counts of hits and failures, and the bound on calls in flight. So these
//! continue in a task of their own if their caller has stopped waiting.

mod denial_cache;
mod failure_policy;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

pub use self::denial_cache::DEFAULT_DENIAL_CACHE;
use self::denial_cache::DenialCache;
use self::failure_policy::Fallback;
pub use self::failure_policy::{FailurePolicy, LOCAL_BUCKETS};
use crate::contract::{
    Batch, Changed, ExceptionChange, ExceptionCursor, ExceptionPage, Listing, Page, Replaces, Store, StoreError,
};
use divvy_core::clock::{Clock, Timestamp};
use divvy_telemetry::metrics::Metric;

/// A store, its cached denials, and the policy for its failures. Calls are completed even if their futures are dropped.
pub struct LayeredStore<S>(pub(super) Arc<Layers<S>>);

pub(super) struct Layers<S> {
    pub store: S,
    pub denials: DenialCache,
    pub fallback: Fallback,
}

impl<S: Store + 'static> LayeredStore<S> {
    /// Creates the layers around `store`: a cache of up to `denial_cache` denials, and the policy `on_error`.
    pub fn new(store: S, denial_cache: usize, on_error: FailurePolicy, clock: Clock) -> Self {
        let (denials, fallback) = (DenialCache::new(denial_cache), Fallback::new(on_error, clock));
        Self(Arc::new(Layers { store, denials, fallback }))
    }

    /// Returns the store behind the layers.
    pub fn inner(&self) -> &S {
        &self.0.store
    }
}

impl<S: Store + 'static> Store for LayeredStore<S> {
    async fn apply(&self, batch: &mut Batch) {
        let (layers, mut owned) = (Arc::clone(&self.0), std::mem::take(batch));
        let work = async move {
            layers.denials.apply(&mut owned, &layers.store).await;
            layers.fallback.answer_failed(&mut owned).await;
            owned
        };
        let applied = Uninterrupted::new(work, |task| batch.unattended = Some(task)).await;
        *batch = applied;
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.0.store.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.0.store.approximate_len().await
    }

    /// Checks the store even if the policy would answer in its place, so that an outage is noticed before the first
    /// hit.
    async fn check(&self) -> Result<(), StoreError> {
        let layers = Arc::clone(&self.0);
        Uninterrupted::new(async move { layers.fallback.check(layers.store.check().await) }, drop).await
    }

    async fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        replaces: Replaces,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        self.0.store.change_exceptions(changes, replaces, now).await
    }

    async fn follow_exceptions(&self, known: ExceptionCursor, now: Timestamp) -> Result<ExceptionPage, StoreError> {
        self.0.store.follow_exceptions(known, now).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let Layers { store, denials, fallback } = &*self.0;
        store.metrics().into_iter().chain([denials.metric()]).chain(fallback.metrics()).collect()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.0.store.close().await
    }
}

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
    /// Creates the work. `leave` runs if its client goes away first.
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
