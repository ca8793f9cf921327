//! The backends to choose from: a closed set, so that no call goes through a table of functions.

use std::path::PathBuf;

use super::contract::{BackupError, Batch, Followed, LimitChange, LimitPage, Listing, Page, Store, StoreError};
use super::layers::{FailurePolicy, LayeredStore};
use super::memory::MemoryStore;
use super::redis::RedisStore;
use super::rocks::RocksStore;
use super::seal::Seal;
use crate::clock::{Clock, Timestamp};
use crate::metrics::Metric;

/// The closed set of backends.
pub enum Backend {
    Memory(MemoryStore),
    Rocks(RocksStore),
    Redis(LayeredStore<RedisStore>),
}

impl Backend {
    /// Redis with what stands between it and the hits: the memory of up to `denial_cache` denials, the policy, and that
    /// none of it stops halfway when a client is gone.
    pub fn redis(store: RedisStore, denial_cache: usize, on_error: FailurePolicy, clock: Clock) -> Self {
        Self::Redis(LayeredStore::new(store, denial_cache, on_error, clock))
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

    /// Whether other servers may change what it keeps.
    pub fn is_shared(&self) -> bool {
        matches!(self, Backend::Redis(_))
    }

    /// The key for ids that clients get: one for all servers on the store, for as long as it keeps its counters.
    pub fn seal(&self) -> &Seal {
        match self {
            Backend::Memory(store) => store.seal(),
            Backend::Rocks(store) => store.seal(),
            Backend::Redis(store) => store.inner().seal(),
        }
    }

    /// Reads the key again if several servers share it, and makes one if the store has lost it. Other stores know their key.
    ///
    /// # Errors
    /// When the key cannot be read or made. The one that is known stays in force.
    pub async fn follow_seal(&self) -> Result<(), StoreError> {
        match self {
            Backend::Memory(_) | Backend::Rocks(_) => Ok(()),
            Backend::Redis(store) => store.inner().follow_seal().await,
        }
    }

    /// The embedded store, whose counters are in a data directory; `None` for the others.
    pub fn on_disk(&self) -> Option<&RocksStore> {
        match self {
            Backend::Rocks(store) => Some(store),
            Backend::Memory(_) | Backend::Redis(_) => None,
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

/// Calls the store that this backend is.
macro_rules! call_store {
    ($backend:expr, $store:ident => $call:expr) => {
        match $backend {
            Backend::Memory($store) => $call,
            Backend::Rocks($store) => $call,
            Backend::Redis($store) => $call,
        }
    };
}

impl Store for Backend {
    async fn apply(&self, batch: &mut Batch) {
        match self {
            Backend::Memory(store) => store.apply(batch).await,
            Backend::Rocks(store) => store.apply(batch).await,
            // Boxed: every connection and request would have the room that it needs.
            Backend::Redis(store) => Box::pin(store.apply(batch)).await,
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        call_store!(self, store => store.list(listing).await)
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        call_store!(self, store => store.approximate_len().await)
    }

    async fn check(&self) -> Result<(), StoreError> {
        call_store!(self, store => store.check().await)
    }

    async fn change_limit(&self, change: LimitChange, now: Timestamp) -> Result<Option<bool>, StoreError> {
        call_store!(self, store => store.change_limit(change, now).await)
    }

    async fn forget_limits(&self, over: Vec<LimitChange>) -> Result<(), StoreError> {
        call_store!(self, store => store.forget_limits(over).await)
    }

    async fn follow_limits(&self, known: Followed) -> Result<LimitPage, StoreError> {
        call_store!(self, store => store.follow_limits(known).await)
    }

    fn metrics(&self) -> Vec<Metric> {
        call_store!(self, store => store.metrics())
    }

    async fn close(&self) -> Result<(), StoreError> {
        call_store!(self, store => store.close().await)
    }
}
