//! Stores of counters, behind one contract.
//!
//! - [`contract`]: the [`Store`] trait, the [`Batch`] that a store applies, and its outcomes
//! - [`codec`]: keys and values as bytes
//! - [`bounds`]: budgets for counters, reservations and idempotency keys
//! - [`backend`]: the closed set of stores: [`memory`], [`rocks`], and [`redis`] behind its [`layers`]
//!
//! A store gets keys, limits, costs and times. It never sees a rule or a socket, and asks no clock for a decision: the times come
//! with the batch.

mod backend;
mod bounds;
mod codec;
mod contract;
mod group;
mod layers;
mod memory;
mod outage;
mod redis;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(not(feature = "rocksdb"))]
#[path = "no_rocks.rs"]
mod rocks;
mod rocks_options;
mod seal;
#[cfg(test)]
pub(crate) mod testing;

pub use self::backend::Backend;
pub use self::bounds::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, DEFAULT_MAX_IDEMPOTENCY_KEYS,
    DEFAULT_MAX_RESERVATIONS, WhenFull,
};
pub use self::codec::{key, record_key, value};
pub use self::contract::{
    Action, BackupError, Batch, Change, Changed, ENTRY_WEIGHT, Effect, Entry, Exception, ExceptionChange,
    ExceptionCursor, ExceptionKind, ExceptionPage, ListedBucket, Listing, Outcomes, Page, Repetition, Store,
    StoreError, append_key, listing, outcome_at,
};
pub use self::layers::{DEFAULT_DENIAL_CACHE, FailurePolicy, LOCAL_BUCKETS, LayeredStore};
pub use self::memory::MemoryStore;
pub use self::redis::{
    DEFAULT_REDIS_TIMEOUT, InvalidRedisTarget, RedisOptions, RedisSentinel, RedisStore, RedisTls,
    window_script as redis_window_script,
};
#[cfg(feature = "rocksdb")]
pub use self::rocks::journal;
pub use self::rocks::{OpenError, RestoreError, RocksStore, restore};
pub use self::rocks_options::{
    DEFAULT_CACHE_MEMORY, DEFAULT_MAX_JOURNAL, Durability, HAS_ROCKSDB, NoRocksDb, RocksOptions,
};
pub use self::seal::{SEAL_BYTES, Seal, SealKey, unknown_seal_key};
