//! Stores of counters, behind one contract.
//!
//! - the contract: the [`Store`] trait, the [`Batch`] that a store applies, and its outcomes
//! - [`key`], [`record_key`] and [`value`]: counters and records as bytes
//! - [`CounterBudget`] and [`RecordBudgets`]: bounds on counters, reservations and idempotency keys
//! - [`group`]: decisions about entries that take effect together
//! - [`MemoryStore`]: the store in memory
//! - [`LayeredStore`]: shares of hot counters, a cache of denials and a fallback in front of a distant store
//!
//! The stores on RocksDB and Redis are crates of their own. A store gets keys, limits, costs and times. It never sees a rule or a
//! socket, and asks no clock for a decision: the times come with the batch.
//!
//! The options of the embedded store are here, because builds without RocksDB also have them: the command line is the same in all
//! builds.

#![cfg_attr(test, allow(clippy::string_slice, reason = "a test may panic"))]

mod bounds;
mod contract;
pub mod group;
pub mod key;
mod layers;
mod memory;
pub mod record_key;
mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod value;

use std::path::PathBuf;

pub use self::bounds::*;
pub use self::contract::*;
pub use self::layers::{
    DEFAULT_DENIAL_CACHE, FailurePolicy, LOCAL_BUCKETS, LayeredStore, SHARE_TICK_NS, usable_share_ns,
};
pub use self::memory::MemoryStore;
pub use self::seal::{SEAL_BYTES, Seal, SealKey, unknown_seal_key};
use divvy_core::clock::Clock;

/// The error of a build without the embedded store.
#[derive(Debug, thiserror::Error)]
#[error("this divvy was built without RocksDB: use --store redis or memory, or build it with the feature `rocksdb`")]
pub struct NoRocksDb;

/// Default memory for counters (bytes): ten million fixed windows.
pub const DEFAULT_CACHE_MEMORY: usize = 320 << 20;
/// Default size of the journal (bytes).
pub const DEFAULT_MAX_JOURNAL: u64 = 256 << 20;

/// The time when a hit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// When the hit is on stable storage.
    Sync,
    /// When the hit is in the write-ahead log, which survives the end of the process. Stable storage follows every
    /// second.
    #[default]
    Wal,
    /// At once. The hit is in the write-ahead log within 100 ms.
    Lazy,
}

/// Options of the embedded store.
#[derive(Debug, Clone)]
pub struct RocksOptions {
    /// The time when a hit is acknowledged.
    pub durability: Durability,
    /// Memory for counters and for writing them back (bytes). Counters that are not written back yet may take an eighth more.
    /// Beyond that, commits wait for a write-back.
    pub cache_memory: usize,
    /// Maximum size of the journal (bytes): changes that are not written back to the counters' own records. Beyond it, commits
    /// wait for a write-back.
    pub max_journal: u64,
    /// The clock that decides what has expired.
    pub clock: Clock,
    /// Bounds on counters and records.
    pub bounds: Bounds,
    /// Directory for backups. `None` switches them off.
    pub backup_dir: Option<PathBuf>,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            cache_memory: DEFAULT_CACHE_MEMORY,
            max_journal: DEFAULT_MAX_JOURNAL,
            clock: Clock::system(),
            bounds: Bounds::default(),
            backup_dir: None,
        }
    }
}
