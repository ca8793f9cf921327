//! The store of a limiter: all stores as one enum, without dynamic dispatch.

#[cfg(not(feature = "rocksdb"))]
mod no_rocks;

use std::path::PathBuf;

use divvy_core::clock::{Clock, Timestamp};
pub use divvy_redis::{
    DEFAULT_ACK_TIMEOUT, DEFAULT_REDIS_TIMEOUT, InvalidRedisTarget, RedisOptions, RedisSentinel, RedisStore, RedisTls,
    ReplicaAcks, RequiredReplicas, window_script as redis_window_script,
};
#[cfg(feature = "rocksdb")]
pub use divvy_rocks::{OpenError, RestoreError, RocksStore, journal, restore};
pub use divvy_store::*;
use divvy_telemetry::metrics::Metric;

#[cfg(not(feature = "rocksdb"))]
pub use self::no_rocks::{OpenError, RestoreError, RocksStore, restore};

/// Whether this build has the embedded store.
pub const HAS_ROCKSDB: bool = cfg!(feature = "rocksdb");

/// The store of a server.
pub enum Backend {
    /// Counters in this process, lost when it ends.
    Memory(MemoryStore),
    /// Counters on this machine's disk.
    Rocks(RocksStore),
    /// Counters in Redis, which servers share, behind a fallback and a cache of denials.
    Redis(Box<LayeredStore<RedisStore>>),
}

impl Backend {
    /// Creates the backend for Redis, with a cache of up to `denial_cache` denials, and a policy for failures.
    pub fn redis(store: RedisStore, denial_cache: usize, on_error: FailurePolicy, clock: Clock) -> Self {
        Self::Redis(Box::new(LayeredStore::new(store, denial_cache, on_error, clock)))
    }

    /// Copies all counters, in their current state, into a new directory `name` in the directory for backups. Returns
    /// its path.
    ///
    /// # Errors
    /// See [`BackupError`]. No partial backup is left.
    pub async fn backup(&self, name: &str) -> Result<PathBuf, BackupError> {
        match self {
            Backend::Rocks(store) => store.backup(name).await,
            Backend::Memory(_) | Backend::Redis(_) => Err(BackupError::NothingOfOurs(self.name())),
        }
    }

    /// Returns whether other servers may change the counters.
    pub fn is_shared(&self) -> bool {
        matches!(self, Backend::Redis(_))
    }

    /// Returns the key for ids. All servers on the store share it, and it lives as long as the counters.
    pub fn seal(&self) -> &Seal {
        match self {
            Backend::Memory(store) => store.seal(),
            Backend::Rocks(store) => store.seal(),
            Backend::Redis(store) => store.inner().seal(),
        }
    }

    /// Reads the key for ids again if several servers share it, and creates a key if the store has lost it. Redis may lose the
    /// key, so servers call this every second.
    ///
    /// # Errors
    /// The key cannot be read or created. The key in memory stays in force.
    pub async fn follow_seal(&self) -> Result<(), StoreError> {
        match self {
            Backend::Memory(_) | Backend::Rocks(_) => Ok(()),
            Backend::Redis(store) => store.inner().follow_seal().await,
        }
    }

    /// Gives back what this server's shares of counters do not need. Servers whose store is shared call it every
    /// [`SHARE_TICK_NS`].
    pub async fn tend_shares(&self) {
        if let Backend::Redis(store) = self {
            store.tend_shares().await;
        }
    }

    /// Checks the settings of a store that answers. A store that does not is no error.
    ///
    /// # Errors
    /// Every hit would fail with these settings.
    pub async fn check_settings(&self) -> Result<(), StoreError> {
        match self {
            Backend::Memory(_) | Backend::Rocks(_) => Ok(()),
            Backend::Redis(store) => store.inner().check_replication().await,
        }
    }

    /// Returns the embedded store, which has a data directory. `None` for other stores.
    pub fn on_disk(&self) -> Option<&RocksStore> {
        match self {
            Backend::Rocks(store) => Some(store),
            Backend::Memory(_) | Backend::Redis(_) => None,
        }
    }

    /// Returns its name in `--store`.
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Memory(_) => "memory",
            Backend::Rocks(_) => "rocksdb",
            Backend::Redis(_) => "redis",
        }
    }
}

/// Calls the store in a backend.
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
            // Boxed, because otherwise the future of every connection and request would have room for it.
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

    async fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        replaces: Replaces,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        call_store!(self, store => store.change_exceptions(changes, replaces, now).await)
    }

    async fn forget_exceptions(&self, over: Vec<ExceptionChange>) -> Result<(), StoreError> {
        call_store!(self, store => store.forget_exceptions(over).await)
    }

    async fn follow_exceptions(&self, known: ExceptionCursor, now: Timestamp) -> Result<ExceptionPage, StoreError> {
        call_store!(self, store => store.follow_exceptions(known, now).await)
    }

    fn metrics(&self) -> Vec<Metric> {
        call_store!(self, store => store.metrics())
    }

    async fn close(&self) -> Result<(), StoreError> {
        call_store!(self, store => store.close().await)
    }
}
