//! What the engine needs of a database. RocksDB gives it in production, a simulated disk in the model checker.

pub mod actor_limits;
pub mod backup;
pub mod counter_record;
pub mod database;
pub mod directory;
mod engine_disk;
pub mod expiry_filter;
mod format;
pub mod open_error;
pub mod restore;
mod stored_count;
pub mod stored_seal_key;
mod sync_mark;
pub mod tuning;
mod wal;

use super::commit::sorted_changes::SortedChanges;
use crate::store::contract::StoreError;

/// How long a write may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// As long as it takes to copy it into the page cache.
    None,
    /// RocksDB may hold it up while flushes or compactions are behind.
    Stalls,
    /// Until it is on stable storage.
    Fsync,
}

/// How far a read may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To what is in memory.
    Memory,
    /// To the disk.
    Disk,
}

/// Is given what was read of a counter: the place of its key, and its record, or none.
pub type EachCounter<'a> = dyn FnMut(usize, Result<Option<&[u8]>, StoreError>) + 'a;

/// Is given journal records: a commit's number and its record.
pub type EachRecord<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StoreError> + 'a;

/// An open database of counters and journal records. After a crash it holds the journal up to some point in time, and at
/// least to the last [`Disk::sync`] that succeeded; and counters' own records for good.
///
/// An error from any write or sync is final: the database must be opened again.
pub trait Disk: Send + Sync + 'static {
    /// Reads counters' records, and calls `each` with every one that is within `reach`.
    fn counters(&self, keys: &[&[u8]], reach: Reach, each: &mut EachCounter<'_>);

    /// Appends a journal record, if there is anything in it. `None`, and nothing is written, when that would have to
    /// wait and `patience` is none.
    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>>;

    /// Calls `each` with the journal records `first` to `last`, both included, in order.
    fn read_journal(&self, first: u64, last: u64, each: &mut EachRecord<'_>) -> Result<(), StoreError>;

    /// Writes counters' own records. They are on stable storage when it returns.
    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError>;

    /// Drops the journal records up to and including `number`.
    fn clear_journal(&self, number: u64) -> Result<(), StoreError>;

    /// Forces everything that was written before this call to stable storage.
    fn sync(&self) -> Result<(), StoreError>;
}
