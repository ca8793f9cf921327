//! Options of the embedded store. Builds without RocksDB also have them, because the command line is the same in all
//! builds.

use std::path::PathBuf;

use crate::bounds::Bounds;
use divvy_core::clock::Clock;

/// The error of a build without the embedded store.
#[derive(Debug, thiserror::Error)]
#[error(
    "this divvy was built without RocksDB: choose --store redis or --store memory, or build it with the cargo feature \
     `rocksdb`, which is on by default"
)]
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
