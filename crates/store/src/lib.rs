//! Stores of counters, behind one contract.
//!
//! - [`contract`]: the [`Store`] trait, the [`Batch`] that a store applies, and its outcomes
//! - [`codec`]: keys and values as bytes
//! - [`bounds`]: budgets for counters, reservations and idempotency keys
//! - [`memory`]: the store in memory
//! - [`layers`]: a fallback and a cache of denials in front of a distant store
//!
//! The stores on RocksDB and Redis are crates of their own. A store gets keys, limits, costs and times. It never sees a rule or a
//! socket, and asks no clock for a decision: the times come with the batch.

#![cfg_attr(test, allow(clippy::string_slice, reason = "a test may panic"))]

pub mod bounds;
pub mod codec;
pub mod contract;
pub mod group;
pub mod layers;
pub mod memory;
pub mod outage;
pub mod rocks_options;
pub mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use self::bounds::CounterBudget;
pub use self::bounds::records::{RecordBudgets, RecordCount, Records, Share, Shares, was_set_back};
pub use self::bounds::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, DEFAULT_MAX_IDEMPOTENCY_KEYS,
    DEFAULT_MAX_RESERVATIONS, WhenFull,
};
pub use self::codec::{key, record_key, value};
pub use self::contract::{
    Action, BackupError, Batch, Change, Changed, ENTRY_WEIGHT, Effect, Entry, Exception, ExceptionChange,
    ExceptionCursor, ExceptionKind, ExceptionPage, ListedBucket, Listing, Outcomes, Page, Repetition, Replaces, SHOW,
    Setter, Store, StoreError, append_key, outcome_at,
};
pub use self::contract::{EXCEPTIONS_PER_PAGE, MAX_BACKUP_NAME, Unit, generation, invalid_cursor};
pub use self::layers::{DEFAULT_DENIAL_CACHE, FailurePolicy, LOCAL_BUCKETS, LayeredStore};
pub use self::memory::MemoryStore;
pub use self::outage::{Outage, RoomLog};
pub use self::rocks_options::{DEFAULT_CACHE_MEMORY, DEFAULT_MAX_JOURNAL, Durability, NoRocksDb, RocksOptions};
pub use self::seal::{SEAL_BYTES, Seal, SealKey, unknown_seal_key};
