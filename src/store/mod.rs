//! What remembers: the [`Store`] contract, the batch that it is asked with, and the closed set of backends.
//!
//! A store sees bucket keys, limits, costs and times. It never sees a rule or a socket and never asks a clock for a
//! decision: the times come with the batch.

pub mod key;

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use crate::algorithm::{Ask, Limit, Outcome};
use crate::clock::Timestamp;

/// Why a store could not answer. Cheap to clone: one failed commit fails many asks.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(Arc<str>);

impl StoreError {
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self(reason.into())
    }
}

/// One ask of one bucket.
#[derive(Debug, Clone)]
pub struct Entry {
    key: Range<usize>,
    pub limit: Limit,
    pub ask: Ask,
    /// The time by which the bucket decides: the batch's, or one that the client supplied.
    pub at: Timestamp,
}

/// A batch of asks, and their outcomes once a store has applied it. Reused from read to read: its buffers keep their
/// capacity, so that a hit allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// The server's time when the batch was begun; expiries on disk are reckoned from it.
    now: Timestamp,
    keys: Vec<u8>,
    entries: Vec<Entry>,
    outcomes: Vec<Result<Outcome, StoreError>>,
}

impl Batch {
    /// Empties the batch and dates it.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = now;
        self.keys.clear();
        self.entries.clear();
        self.outcomes.clear();
    }

    /// Adds an ask of the bucket whose key `write_key` appends; returns its index.
    pub fn push(&mut self, limit: Limit, ask: Ask, at: Timestamp, write_key: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.keys.len();
        write_key(&mut self.keys);
        self.entries.push(Entry { key: start..self.keys.len(), limit, ask, at });
        self.entries.len() - 1
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The asks with their bucket keys, in order.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&[u8], &Entry)> {
        self.entries.iter().map(|entry| (&self.keys[entry.key.clone()], entry))
    }

    /// The outcome of the ask that [`Batch::push`] gave this index; an error when no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        self.outcomes.get(index).cloned().unwrap_or_else(|| Err(StoreError::new("the store gave no answer")))
    }
}

/// A place that remembers buckets.
///
/// The contract, which one conformance suite holds every backend to:
/// - Asks of one bucket take effect one after the other, each seeing what the one before left, within a batch in the
///   batch's order and between batches in some order. Asks of different buckets are independent.
/// - When `apply` returns, every outcome that it gives is as durable as the backend promises, a denial that saw
///   another caller's change included: that change is durable too.
/// - An ask that failed has an error as its outcome. It may or may not have taken its credit, never more than once.
/// - Decisions use each ask's own time. The backend's clock is asked by nobody but its own housekeeping.
/// - A bucket lives at least until it is as good as a fresh one, and then may vanish without any outcome changing.
pub trait Store: Send + Sync {
    /// Applies the batch and fills in its outcomes.
    fn apply(&self, batch: &mut Batch) -> impl Future<Output = ()> + Send;

    /// Forgets the buckets with these keys; returns how many of them held anything but a fresh state at `now`.
    fn forget(&self, keys: &[Vec<u8>], now: Timestamp) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// The number of live buckets, which may be an estimate.
    fn len(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Makes everything durable and stops background work. Later calls fail.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}
