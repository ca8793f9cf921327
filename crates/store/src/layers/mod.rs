//! A distant store, with the layers between it and the limiter: a cache of denials, and a fallback for failures.
//!
//! The distant store carries out what was sent to it. Its answer must reach the denial cache, the circuit breaker, the counts of hits
//! and failures, and the bound on calls in flight. So callers run in tasks that no client ends.

mod denial_cache;
mod failure_policy;

pub use self::denial_cache::DEFAULT_DENIAL_CACHE;
use self::denial_cache::DenialCache;
use self::failure_policy::Fallback;
pub use self::failure_policy::{FailurePolicy, LOCAL_BUCKETS};
use crate::contract::{
    Batch, Changed, ExceptionChange, ExceptionCursor, ExceptionPage, Listing, Page, Replaces, Store, StoreError,
};
use divvy_core::clock::{Clock, Timestamp};
use divvy_telemetry::metrics::Metric;

/// A store, its cached denials, and the policy for its failures.
pub struct LayeredStore<S> {
    store: S,
    denials: DenialCache,
    fallback: Fallback,
}

impl<S: Store + 'static> LayeredStore<S> {
    /// Creates the layers around `store`: a cache of up to `denial_cache` denials, and the policy `on_error`.
    pub fn new(store: S, denial_cache: usize, on_error: FailurePolicy, clock: Clock) -> Self {
        Self { store, denials: DenialCache::new(denial_cache), fallback: Fallback::new(on_error, clock) }
    }

    /// Returns the store behind the layers.
    pub fn inner(&self) -> &S {
        &self.store
    }
}

impl<S: Store + 'static> Store for LayeredStore<S> {
    async fn apply(&self, batch: &mut Batch) {
        self.denials.apply(batch, &self.store).await;
        self.fallback.answer_failed(batch).await;
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.store.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.store.approximate_len().await
    }

    /// Checks the store even if the policy would answer in its place, so that an outage is noticed before the first
    /// hit.
    async fn check(&self) -> Result<(), StoreError> {
        self.fallback.check(self.store.check().await)
    }

    async fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        replaces: Replaces,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        self.store.change_exceptions(changes, replaces, now).await
    }

    async fn follow_exceptions(&self, known: ExceptionCursor, now: Timestamp) -> Result<ExceptionPage, StoreError> {
        self.store.follow_exceptions(known, now).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let Self { store, denials, fallback } = self;
        store.metrics().into_iter().chain([denials.metric()]).chain(fallback.metrics()).collect()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}
