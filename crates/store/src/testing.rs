//! Helpers for tests: a store that fails on demand, and functions that apply a batch.

#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "only tests use it"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::contract::{Action, Batch, Listing, Page, Store, StoreError};
use crate::memory::MemoryStore;
use crate::record_key::{self, RecordSpace};
use divvy_core::algorithm::{Ask, FixedWindow, Limit, Outcome};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::Metric;

pub const TAKE: Action = Action::Ask(Ask::Take { cost: 1 });
pub const LOOK: Action = Action::Ask(Ask::Look { cost: 1 });

/// A store in memory that fails for keys that begin with `!` (unreachable), `?` (failed) and `+` (overloaded), and for all keys
/// while it is down.
#[derive(Default)]
pub struct ScriptedStore {
    pub memory: MemoryStore,
    pub is_down: AtomicBool,
    /// Number of entries that it was asked to apply.
    pub asked: AtomicU64,
}

impl Store for ScriptedStore {
    async fn apply(&self, batch: &mut Batch) {
        self.answer(batch).await;
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.memory.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.memory.approximate_len().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        if self.is_down.load(Relaxed) { Err(StoreError::Unreachable("down".into())) } else { Ok(()) }
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

impl ScriptedStore {
    async fn answer(&self, batch: &mut Batch) {
        self.asked.fetch_add(batch.len() as u64, Relaxed);
        if self.is_down.load(Relaxed) {
            batch.answer_each(|_| Err(StoreError::Unreachable("down".into())));
            return;
        }
        self.memory.apply(batch).await;
        let failure = |key: &[u8]| match key.first() {
            Some(b'!') => Some(StoreError::Unreachable("out of reach".into())),
            Some(b'?') => Some(StoreError::new("not understood")),
            Some(b'+') => Some(StoreError::Overloaded("no room".into())),
            _ => None,
        };
        // A failure fails the whole group.
        let failures = batch.units(0).flat_map(|unit| {
            let failure = unit.members().find_map(|(_, key, _)| failure(key));
            vec![failure; unit.entries.len()]
        });
        let failures: Vec<_> = failures.collect();
        for (outcome, failure) in batch.outcomes.iter_mut().zip(failures) {
            if let Some(error) = failure {
                *outcome = Err(error);
            }
        }
    }
}

pub fn window(credits: u64, seconds: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(credits, seconds * NANOS_PER_SECOND).unwrap())
}

pub fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000 + seconds).unwrap()
}

/// Returns the key of a reservation's record.
pub fn record(bucket: &str, id: &str) -> String {
    let mut key = Vec::new();
    record_key::write(RecordSpace::Reservations, id.as_bytes(), &mut key, |out| {
        out.extend_from_slice(bucket.as_bytes())
    });
    String::from_utf8(key).unwrap()
}

/// Applies `actions` as one batch. Returns their outcomes.
pub fn outcomes(
    store: &impl Store,
    now: Timestamp,
    actions: &[(&str, Limit, Action)],
) -> Vec<Result<Outcome, StoreError>> {
    applied(store, batch(now, actions))
}

/// Applies `actions` as one group. Returns their outcomes.
pub fn outcomes_together(
    store: &impl Store,
    now: Timestamp,
    actions: &[(&str, Limit, Action)],
) -> Vec<Result<Outcome, StoreError>> {
    let mut batch = batch(now, actions);
    batch.group(0);
    applied(store, batch)
}

/// Returns a batch with `actions`.
pub fn batch(now: Timestamp, actions: &[(&str, Limit, Action)]) -> Batch {
    let mut batch = Batch::default();
    batch.begin(now);
    for (key, limit, action) in actions {
        batch.push(*limit, *action, now, |out| out.extend_from_slice(key.as_bytes()));
    }
    batch
}

fn applied(store: &impl Store, mut batch: Batch) -> Vec<Result<Outcome, StoreError>> {
    wait(store.apply(&mut batch));
    (0..batch.len()).map(|index| batch.outcome(index)).collect()
}

pub fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
