//! What remembers: the [`Store`] contract, the batch that it is asked with, and the closed set of backends.
//!
//! A store sees bucket keys, limits, costs and times. It never sees a rule or a socket and never asks a clock for a
//! decision: the times come with the batch.

mod backup_error;
#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store recounts its counters"))]
mod counter_budget;
mod denial_cache;
mod denials;
pub mod key;
pub mod listing;
mod memory;
mod outage;
mod redis;
mod resilient;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(not(feature = "rocksdb"))]
#[path = "no_rocks.rs"]
mod rocks;
mod rocks_options;
#[cfg(test)]
pub(crate) mod testing;
mod uninterrupted;
pub mod value;

use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

pub use self::backup_error::BackupError;
pub use self::counter_budget::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, WhenFull,
};
pub use self::denial_cache::{DEFAULT_DENIAL_CACHE, DenialCache};
pub use self::listing::{Listed, Listing, Page};
pub use self::memory::MemoryStore;
pub use self::redis::{
    DEFAULT_REDIS_TIMEOUT, InvalidRedisTarget, RedisOptions, RedisSentinel, RedisStore, RedisTls,
    WINDOW_SCRIPT as REDIS_WINDOW_SCRIPT,
};
pub use self::resilient::{DEFAULT_LOCAL_BUCKETS, FailurePolicy, Resilient};
#[cfg(feature = "rocksdb")]
pub use self::rocks::journal;
pub use self::rocks::{OpenError, RestoreError, RocksStore, restore};
pub use self::rocks_options::{DEFAULT_HOT_COUNTERS, Durability, HAS_ROCKSDB, NoRocksDb, RocksOptions};
pub use self::uninterrupted::Uninterrupted;
use crate::algorithm::{Ask, Limit, Outcome, State};
use crate::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use crate::metrics::Figure;

/// When a denied client should ask again, while nobody knows what it has left.
const ASK_AGAIN_NS: u64 = NANOS_PER_SECOND;

/// Why a store could not answer. Cheap to clone: one failed commit fails many asks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("{0}")]
    Failed(Arc<str>),
    /// Whoever keeps the counters cannot be reached, or takes nothing from anybody.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// More was asked of the store than it can do in time. It is well, as far as is known.
    #[error("{0}")]
    Overloaded(Arc<str>),
    /// Whoever asked is mistaken, not the store: it gave nobody the cursor that begins so.
    #[error("{0:?} is no cursor of this store, or the store has changed since; begin from the start")]
    InvalidCursor(String),
}

impl StoreError {
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed(reason.into())
    }

    pub fn unreachable(reason: impl Into<Arc<str>>) -> Self {
        Self::Unreachable(reason.into())
    }

    pub fn overloaded(reason: impl Into<Arc<str>>) -> Self {
        Self::Overloaded(reason.into())
    }
}

/// What to do with a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Ask(Ask),
    /// Forget the bucket. `allowed` in the outcome tells whether it held anything but a fresh state.
    Forget,
}

/// One action on one bucket.
#[derive(Debug, Clone)]
pub struct Entry {
    key: Range<usize>,
    pub limit: Limit,
    pub action: Action,
    /// The time by which the bucket decides: the batch's, or one that the client supplied.
    pub at: Timestamp,
}

/// What an action does to a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Keep,
    Set(State),
    Clear,
}

impl Entry {
    /// Decides the action, given what the bucket remembers. Every backend that remembers states goes through here.
    pub fn decide(&self, state: Option<&State>) -> (Outcome, Change) {
        match self.action {
            Action::Ask(ask) => {
                let decision = self.limit.decide(state, ask, self.at);
                (decision.outcome, decision.state.map_or(Change::Keep, Change::Set))
            }
            Action::Forget => {
                let held = state.is_some_and(|state| self.limit.lifetime_ns(state, self.at) > 0);
                let change = if held { Change::Clear } else { Change::Keep };
                (Outcome { allowed: held, ..Outcome::default() }, change)
            }
        }
    }

    /// The answer when nothing can be counted and the operator wants that allowed: what a bucket that nobody has asked
    /// before would answer.
    fn uncounted(&self) -> Outcome {
        self.decide(None).0
    }

    /// The answer when nothing can be counted and the operator wants that denied: nothing left, for a second.
    fn denied(&self) -> Outcome {
        Outcome {
            allowed: false,
            before: 0,
            left: 0,
            reset_ns: ASK_AGAIN_NS,
            retry_ns: Some(ASK_AGAIN_NS),
            ..self.uncounted()
        }
    }

    /// When a bucket in `state` may be forgotten, by the server's clock, which reads `now`.
    pub fn expiry(&self, state: &State, now: Timestamp) -> Timestamp {
        now.plus(self.limit.lifetime_ns(state, self.at))
    }
}

/// A batch of actions, and their outcomes once a store has applied it. Reused from read to read: its buffers keep their
/// capacity, so that a hit allocates nothing.
#[derive(Debug, Default)]
pub struct Batch {
    /// The server's time when the batch was begun; expiries on disk are reckoned from it.
    now: Timestamp,
    keys: Vec<u8>,
    entries: Vec<Entry>,
    outcomes: Vec<Result<Outcome, StoreError>>,
    /// Outcomes that rest on a change which was not durable yet, by index.
    unsettled: Vec<usize>,
}

impl Batch {
    /// Empties the batch and dates it.
    pub fn begin(&mut self, now: Timestamp) {
        self.now = now;
        self.keys.clear();
        self.entries.clear();
        self.outcomes.clear();
        self.unsettled.clear();
    }

    /// Adds an action on the bucket whose key `write_key` appends; returns its index.
    pub fn push(&mut self, limit: Limit, action: Action, at: Timestamp, write_key: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.keys.len();
        write_key(&mut self.keys);
        self.entries.push(Entry { key: start..self.keys.len(), limit, action, at });
        self.entries.len() - 1
    }

    /// Takes back the entries from index `len` on; for a batch that no store has applied yet.
    pub fn truncate(&mut self, len: usize) {
        if let Some(first) = self.entries.get(len) {
            self.keys.truncate(first.key.start);
            self.entries.truncate(len);
        }
    }

    /// What its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.keys.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.outcomes.capacity() * size_of::<Result<Outcome, StoreError>>()
            + self.unsettled.capacity() * size_of::<usize>()
    }

    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The entry's time if a client brought it; `None` where it is the batch's own.
    fn brought_time(&self, entry: &Entry) -> Option<Timestamp> {
        (entry.at != self.now).then_some(entry.at)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Answers every entry, in order, with what `answer` makes of its index, its bucket key and itself.
    fn answer_each(&mut self, mut answer: impl FnMut(usize, &[u8], &Entry) -> Result<Outcome, StoreError>) {
        self.outcomes.clear();
        let entries = self.entries.iter().enumerate();
        self.outcomes.extend(entries.map(|(index, entry)| answer(index, &self.keys[entry.key.clone()], entry)));
    }

    /// Replaces the outcomes that rest on changes which could not be made durable.
    #[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store makes changes durable"))]
    fn fail_unsettled(&mut self, error: &StoreError) {
        for index in self.unsettled.drain(..) {
            if let Some(outcome) = self.outcomes.get_mut(index) {
                *outcome = Err(error.clone());
            }
        }
    }

    /// Every key, entry and outcome, once the batch is applied.
    fn answers(&self) -> impl Iterator<Item = (&[u8], &Entry, &Result<Outcome, StoreError>)> {
        self.entries.iter().zip(&self.outcomes).map(|(entry, outcome)| (&self.keys[entry.key.clone()], entry, outcome))
    }

    /// The entries at `indexes` as a batch of their own, to be applied elsewhere.
    fn part(&self, indexes: &[usize]) -> Self {
        let mut part = Self { now: self.now, ..Self::default() };
        for entry in indexes.iter().filter_map(|index| self.entries.get(*index)) {
            let key = &self.keys[entry.key.clone()];
            part.push(entry.limit, entry.action, entry.at, |out| out.extend_from_slice(key));
        }
        part
    }

    /// Takes over the outcomes of `part`, which is [`Batch::part`] of `indexes`.
    fn adopt(&mut self, part: Self, indexes: &[usize]) {
        for (index, outcome) in indexes.iter().zip(part.outcomes) {
            if let Some(place) = self.outcomes.get_mut(*index) {
                *place = outcome;
            }
        }
    }

    /// Whether the action with this index was allowed; `None` when it has no outcome. As [`Batch::outcome`], without
    /// copying it.
    pub fn allowed(&self, index: usize) -> Option<bool> {
        self.outcomes.get(index)?.as_ref().ok().map(|outcome| outcome.allowed)
    }

    /// The outcome of the action that [`Batch::push`] gave this index; an error when no store has applied it.
    pub fn outcome(&self, index: usize) -> Result<Outcome, StoreError> {
        self.outcomes.get(index).cloned().unwrap_or_else(|| Err(StoreError::new("the store gave no answer")))
    }
}

/// A place that remembers buckets.
///
/// The contract, which one conformance suite holds every backend to:
/// - Actions on one bucket take effect one after the other, each seeing what the one before left, within a batch in the
///   batch's order and between batches in some order. Actions on different buckets are independent.
/// - When `apply` returns, every outcome that it gives is as durable as the backend promises, a denial that saw
///   another caller's change included: that change is durable too.
/// - An action that failed has an error as its outcome. It may or may not have taken its credit, never more than once.
/// - Decisions use each entry's own time. The backend's clock is asked by nobody but its own housekeeping. The
///   exceptions are in Redis, which several servers share: an entry whose time is the batch's, no client having brought
///   another, is decided by Redis's clock; and a rule's fixed window, which is shared with programs that pass no time,
///   always is, in whole milliseconds.
/// - A bucket lives at least until it is as good as a fresh one, and then may vanish without any outcome changing.
pub trait Store: Send + Sync {
    /// Applies the batch and fills in its outcomes.
    fn apply(&self, batch: &mut Batch) -> impl Future<Output = ()> + Send;

    /// The buckets of one rule, a page at a time. Whatever was changed before the first page was asked for, and is still
    /// there when its page is, is listed; what changes meanwhile may or may not be. Buckets that are as good as fresh
    /// are left out.
    fn list(&self, listing: Listing) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The number of buckets that are remembered, expired ones included until they are dropped: as exact as the store knows
    /// it.
    fn approximate_len(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Whether hits can be answered just now. What is broken and may be mended is tried.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { self.approximate_len().await.map(drop) }
    }

    /// What it measures about itself. It may take the time of a few system calls.
    fn figures(&self) -> Vec<Figure>;

    /// Makes everything durable and stops background work. Nothing may be asked of the store afterwards.
    fn close(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// The closed set of backends.
pub enum Backend {
    Memory(MemoryStore),
    Rocks(RocksStore),
    Redis(Uninterrupted<Resilient<DenialCache<RedisStore>>>),
}

impl Backend {
    /// Redis with what stands between it and the hits: the memory of up to `denial_cache` denials, the policy, and that
    /// none of it stops halfway when a client is gone.
    pub fn redis(store: RedisStore, denial_cache: usize, on_error: FailurePolicy, clock: Clock) -> Self {
        Self::Redis(Uninterrupted::new(Resilient::new(DenialCache::new(store, denial_cache), on_error, clock)))
    }

    /// Copies everything that is counted, as it is now, into a new directory called `name` where backups are kept;
    /// returns its path.
    ///
    /// # Errors
    /// See [`BackupError`]: nothing half is left behind.
    pub async fn backup(&self, name: &str) -> Result<PathBuf, BackupError> {
        match self {
            Backend::Rocks(store) => store.backup(name).await,
            Backend::Memory(_) | Backend::Redis(_) => Err(BackupError::NothingOfOurs(self.name())),
        }
    }

    /// What `--store` calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Memory(_) => "memory",
            Backend::Rocks(_) => "rocksdb",
            Backend::Redis(_) => "redis",
        }
    }
}

impl Store for Backend {
    async fn apply(&self, batch: &mut Batch) {
        match self {
            Backend::Memory(store) => store.apply(batch).await,
            Backend::Rocks(store) => store.apply(batch).await,
            Backend::Redis(store) => store.apply(batch).await,
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        match self {
            Backend::Memory(store) => store.list(listing).await,
            Backend::Rocks(store) => store.list(listing).await,
            Backend::Redis(store) => store.list(listing).await,
        }
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        match self {
            Backend::Memory(store) => store.approximate_len().await,
            Backend::Rocks(store) => store.approximate_len().await,
            Backend::Redis(store) => store.approximate_len().await,
        }
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self {
            Backend::Memory(store) => store.check().await,
            Backend::Rocks(store) => store.check().await,
            Backend::Redis(store) => store.check().await,
        }
    }

    fn figures(&self) -> Vec<Figure> {
        match self {
            Backend::Memory(store) => store.figures(),
            Backend::Rocks(store) => store.figures(),
            Backend::Redis(store) => store.figures(),
        }
    }

    async fn close(&self) -> Result<(), StoreError> {
        match self {
            Backend::Memory(store) => store.close().await,
            Backend::Rocks(store) => store.close().await,
            Backend::Redis(store) => store.close().await,
        }
    }
}
