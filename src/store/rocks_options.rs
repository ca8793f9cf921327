//! How to open the embedded store, and whether there is one. Builds without RocksDB have these too: the command line is
//! the same in all builds.

use std::path::PathBuf;

use super::bounds::Bounds;
use crate::clock::Clock;

/// Whether this build has the embedded store.
pub const HAS_ROCKSDB: bool = cfg!(feature = "rocksdb");

/// What a build without the embedded store answers when it is asked for.
#[derive(Debug, thiserror::Error)]
#[error(
    "this divvy was built without RocksDB: choose --store redis or --store memory, or build it with the cargo feature \
     `rocksdb`, which is on by default"
)]
pub struct NoRocksDb;

/// Memory for counters, unless the operator says otherwise (bytes): ten million fixed windows.
pub const DEFAULT_CACHE_MEMORY: usize = 320 << 20;
/// Bytes of the journal, unless the operator says otherwise.
pub const DEFAULT_MAX_JOURNAL: u64 = 256 << 20;

/// When a hit may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once it is on stable storage.
    Sync,
    /// Once it is in the write-ahead log, which survives the end of the process; stable storage follows every second.
    #[default]
    Wal,
    /// At once; it is in the write-ahead log within 100 ms.
    Lazy,
}

/// How to open a [`super::RocksStore`].
#[derive(Debug, Clone)]
pub struct RocksOptions {
    pub durability: Durability,
    /// Memory for counters and for writing them back (bytes). Counters that are not written back yet may take an eighth
    /// more before commits wait for a write-back.
    pub cache_memory: usize,
    /// Bytes of the journal: changes that are not written back to the counters' own records. Past it commits wait for
    /// a write-back.
    pub max_journal: u64,
    /// Tells what has expired.
    pub clock: Clock,
    /// How much is remembered, at most.
    pub bounds: Bounds,
    /// Where backups may be written; `None`: nowhere.
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
