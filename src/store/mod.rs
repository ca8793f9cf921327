//! What remembers: the [`Store`] contract, the batch that it is asked with, and the closed set of backends.
//!
//! A store sees bucket keys, limits, costs and times. It never sees a rule or a socket and never asks a clock for a
//! decision: the times come with the batch.

mod actor_limits;
mod backend;
mod backup_error;
mod batch;
mod contract;
#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only the embedded store recounts its counters"))]
mod counter_budget;
mod denial_cache;
mod denials;
mod error;
mod fallback_store;
mod group;
pub mod key;
pub mod listing;
mod memory;
mod origin;
mod outage;
mod record_count;
pub mod record_key;
mod records;
mod redis;
#[cfg(feature = "rocksdb")]
mod rocks;
#[cfg(not(feature = "rocksdb"))]
#[path = "no_rocks.rs"]
mod rocks;
mod rocks_options;
mod seal;
mod shares;
#[cfg(test)]
pub(crate) mod testing;
mod uninterrupted;
pub mod value;

pub use self::actor_limits::{ActorLimit, Followed, LimitChange, LimitPage};
pub use self::backend::Backend;
pub use self::backup_error::BackupError;
pub use self::batch::{Action, Batch, Change, ENTRY_WEIGHT, Entry, Outcomes, append_key, outcome_at};
pub use self::contract::Store;
pub use self::counter_budget::{
    Bounds, DEFAULT_MAX_COUNTERS, DEFAULT_MAX_COUNTERS_IN_MEMORY, DEFAULT_MAX_DISK, WhenFull,
};
pub use self::denial_cache::{DEFAULT_DENIAL_CACHE, DenialCache};
pub use self::error::StoreError;
pub use self::fallback_store::{DEFAULT_LOCAL_BUCKETS, FailurePolicy, FallbackStore};
pub use self::listing::{Listed, Listing, Page};
pub use self::memory::MemoryStore;
pub use self::origin::Origin;
pub use self::records::{DEFAULT_MAX_IDEMPOTENCY_KEYS, DEFAULT_MAX_RESERVATIONS};
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
pub use self::shares::DEFAULT_MAX_ADDRESS_SHARE;
pub use self::uninterrupted::Uninterrupted;
