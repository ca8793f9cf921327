//! A store that keeps its word when the one behind it fails: the operator's policy answers in its place.
//!
//! The policy speaks for each entry that failed, not for the batch: in a cluster only some of the buckets may be out of
//! reach. An outage is counted hit by hit, and logged once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::outage::Outage;
use super::{Action, Batch, Entry, Listing, MemoryStore, Page, Store, StoreError};
use crate::algorithm::Outcome;
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// Buckets that [`FailurePolicy::Local`] counts unless the operator says otherwise: some 200 bytes each.
pub const DEFAULT_LOCAL_BUCKETS: usize = 100_000;
/// When a denied client should ask again, while nobody knows what it has left.
const ASK_AGAIN_NS: u64 = NANOS_PER_SECOND;
/// An outage is over when nothing has failed for so long: while one part of a cluster is down, others answer.
const QUIET_NS: u64 = NANOS_PER_SECOND;

/// What to answer when the store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// Denied, with nothing left, for a second.
    Deny,
    /// What a bucket that nobody has asked before would answer.
    Allow,
    /// The store's error.
    #[default]
    Error,
    /// By a count of this server's own, of up to `buckets` buckets; past them, new ones get an error.
    Local { buckets: usize },
}

/// `inner`, with a policy for its failures.
///
/// An [`Action::Forget`] that failed is an error under every policy: none can make the store forget.
pub struct Resilient<S> {
    inner: S,
    policy: Policy,
    failed: AtomicU64,
    /// When an entry failed last, in nanoseconds; 0 when there is no outage.
    failed_at: AtomicU64,
    outage: Mutex<Outage>,
}

enum Policy {
    Deny,
    Allow,
    Error,
    Local(MemoryStore),
}

impl<S: Store> Resilient<S> {
    pub fn new(inner: S, policy: FailurePolicy) -> Self {
        let (policy, what) = match policy {
            FailurePolicy::Deny => (Policy::Deny, "the store; hits are denied"),
            FailurePolicy::Allow => (Policy::Allow, "the store; hits are allowed"),
            FailurePolicy::Error => (Policy::Error, "the store; hits are answered with an error"),
            FailurePolicy::Local { buckets } => {
                (Policy::Local(MemoryStore::bounded(buckets)), "the store; hits are counted in this server's memory")
            }
        };
        Self {
            inner,
            policy,
            failed: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
            outage: Mutex::new(Outage::of(what)),
        }
    }

    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Actions that the store failed to take since the start, whatever was answered then.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Counts what failed and logs the beginning and the end of an outage; tells whether anything failed.
    fn note(&self, batch: &Batch) -> bool {
        let now = batch.now();
        let mut errors = batch.answers().filter_map(|(_, _, outcome)| outcome.as_ref().err());
        if let Some(error) = errors.next() {
            self.failed.fetch_add(1 + errors.count() as u64, Relaxed);
            let before = self.failed_at.fetch_max(now.as_nanos().max(1), Relaxed);
            if before == 0 {
                self.outage.lock().note(&Err(error.clone()));
            }
            return true;
        }
        let failed_at = self.failed_at.load(Relaxed);
        let is_quiet = failed_at > 0 && now.since(Timestamp::from_nanos(failed_at)) > QUIET_NS;
        if is_quiet && self.failed_at.compare_exchange(failed_at, 0, Relaxed, Relaxed).is_ok() {
            self.outage.lock().note(&Ok(()));
        }
        false
    }

    /// Has the policy answer what failed.
    async fn stand_in(&self, batch: &mut Batch) {
        let failed = failed_asks(batch);
        let mut part = batch.part(&failed);
        match &self.policy {
            Policy::Error => return,
            Policy::Deny => part.answer_each(|_, _, entry| Ok(deny(entry))),
            Policy::Allow => part.answer_each(|_, _, entry| Ok(allow(entry))),
            Policy::Local(memory) => memory.apply(&mut part).await,
        }
        batch.adopt(part, &failed);
    }
}

/// The indexes of the asks that failed.
fn failed_asks(batch: &Batch) -> Vec<usize> {
    let failed =
        |(_, entry, outcome): (&[u8], &Entry, &Result<_, _>)| entry.action != Action::Forget && outcome.is_err();
    batch.answers().enumerate().filter(|(_, answer)| failed(*answer)).map(|(index, _)| index).collect()
}

fn allow(entry: &Entry) -> Outcome {
    entry.decide(None).0
}

fn deny(entry: &Entry) -> Outcome {
    Outcome { allowed: false, before: 0, left: 0, reset_ns: ASK_AGAIN_NS, retry_ns: Some(ASK_AGAIN_NS), ..allow(entry) }
}

impl<S: Store> Store for Resilient<S> {
    async fn apply(&self, batch: &mut Batch) {
        self.inner.apply(batch).await;
        if self.note(batch) {
            self.stand_in(batch).await;
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.inner.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.inner.approximate_len().await
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests;
