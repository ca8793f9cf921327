//! The disk: the interface that the engine needs of a database. RocksDB implements it in production, and a simulated
//! disk in the model checker.

pub mod backup;
pub mod counter_record;
pub mod database;
pub mod directory;
mod engine_disk;
pub mod exceptions;
pub mod expiry_filter;
pub mod open_error;
pub mod restore;
pub mod stored_seal_key;
mod sync_mark;
pub mod tuning;

use super::commit::sorted_changes::SortedChanges;
use divvy_store::contract::StoreError;

/// The time that a write may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Enough for a copy into the page cache.
    None,
    /// Enough for RocksDB to delay the write while flushes or compactions are behind.
    Stalls,
    /// Enough for the write to reach stable storage.
    Fsync,
}

/// The places that a read may search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only memory.
    Memory,
    /// Memory and disk.
    Disk,
}

/// A callback for the record of a counter (if it has one), and the position of its key among the requested ones.
pub type EachCounter<'a> = dyn FnMut(usize, Result<Option<&[u8]>, StoreError>) + 'a;

/// A callback for a journal record and the number of its commit.
pub type EachRecord<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StoreError> + 'a;

/// An open database of counters and journal records. After a crash it holds the journal up to some point in time, at
/// least to the last successful [`Disk::sync`]. Counters' own records are permanent.
///
/// An error from any write or sync is final: the database must be reopened.
pub trait Disk: Send + Sync + 'static {
    /// Reads counters' records. Calls `each` for every one within `reach`.
    fn counters(&self, keys: &[&[u8]], reach: Reach, each: &mut EachCounter<'_>);

    /// Appends a journal record, unless it is empty. If the write would have to wait longer than `patience` allows,
    /// writes nothing and returns `None`.
    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>>;

    /// Calls `each` with the journal records `first` to `last`, in order.
    fn read_journal(&self, first: u64, last: u64, each: &mut EachRecord<'_>) -> Result<(), StoreError>;

    /// Writes counters' own records to stable storage.
    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError>;

    /// Drops the journal records up to and including `number`.
    fn clear_journal(&self, number: u64) -> Result<(), StoreError>;

    /// Forces everything that was written before this call to stable storage.
    fn sync(&self) -> Result<(), StoreError>;
}
