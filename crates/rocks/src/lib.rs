//! The embedded store: RocksDB behind a table of hot counters, with group commit.
//!
//! A hit changes its counter in the [`hot_table`], under its stripe's mutex. A [commit](group_commit) writes the changes of all
//! connections as one journal record and then releases their replies. The counters' own records on the [`disk`] follow
//! far behind, by write-backs. Opening replays the journal into the table. A compaction filter reclaims expired
//! counters. The [`engine`] runs all of this over any [`disk::Disk`]. The public store and its threads ([`upkeep`])
//! know that the disk is RocksDB.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test may ask the clock"))]

mod disk;
mod engine;
mod group_commit;
mod health;
mod hot_table;
pub mod journal;
mod sync;
#[cfg(test)]
mod tests;
mod upkeep;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

use self::disk::backup;
pub use self::disk::backup::{RestoreError, restore};
use self::disk::database::{Database, FAMILIES, Swept};
pub use self::disk::directory::OpenError;
use self::disk::{Decoder, directory};
use self::engine::Engine;
use self::upkeep::{HEAL_INTERVAL, LAZY_INTERVAL, StoreCore};
use divvy_core::clock::Timestamp;
use divvy_store::{
    BackupError, Batch, Changed, Durability, ExceptionChange, ExceptionCursor, ExceptionPage, Listing, Page, Replaces,
    RocksOptions, Seal, Store, StoreError, record_key, value,
};
use divvy_telemetry::metrics::Metric;

/// The embedded store. Dropping it without [`Store::close`] has the effect of a kill.
pub struct RocksStore {
    core: Arc<StoreCore>,
    /// The last one enforces the bounds.
    threads: Mutex<Vec<JoinHandle<()>>>,
    backup_dir: Option<PathBuf>,
}

impl RocksStore {
    /// Opens the store in `path`, creating it in a new or empty directory.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing is overwritten then.
    pub fn open(path: &Path, options: RocksOptions) -> Result<Self, OpenError> {
        directory::claim(path)?;
        let lock = directory::lock(path)?;
        let swept = Arc::<Swept>::default();
        let database = Database::open(path, options.clock, Arc::clone(&swept))?;
        let last_commit = database.last_commit;
        // The estimate may be 0 even if there are counters.
        let is_empty = last_commit == 0 && database.records().next().is_none();
        let engine = Engine::new(database, last_commit, &options);
        let damaged = |error: StoreError| OpenError::damaged(path, &error);
        engine.load_records(options.clock.now()).map_err(damaged)?;
        engine.replay().map_err(damaged)?;
        let started = engine.with_disk(Database::start_compactions);
        started.map_err(|error| OpenError::unusable(path, &error))?;
        engine.table.sweep_records(options.clock.now(), false);
        let seal = Seal::new(directory::read_or_make_seal_key(path)?);
        let core = Arc::new(StoreCore {
            engine: Arc::new(engine),
            path: path.to_owned(),
            seal,
            swept,
            _lock: lock,
            bounds: options.bounds,
            stopping: Mutex::new(false),
            stop: Condvar::new(),
        });
        if is_empty {
            core.engine.table.noted_records();
        } else {
            core.engine.table.counters.estimated(core.estimate().unwrap_or_default());
        }
        let mut threads = vec![
            spawn("divvy-write-back", &core, StoreCore::write_back_loop)?,
            spawn("divvy-fsync", &core, StoreCore::sync_loop)?,
            spawn("divvy-heal", &core, |core| core.every(HEAL_INTERVAL, || core.heal()))?,
        ];
        if options.durability == Durability::Lazy {
            let commit = |core: &StoreCore| core.every(LAZY_INTERVAL, || core.engine.commit_unless_led());
            threads.push(spawn("divvy-commit", &core, commit)?);
        }
        threads.push(spawn("divvy-bound", &core, StoreCore::bound_loop)?);
        Ok(Self { core, threads: Mutex::new(threads), backup_dir: options.backup_dir })
    }

    /// Returns the key for ids, which is in the data directory and its backups.
    pub fn seal(&self) -> &Seal {
        &self.core.seal
    }

    /// Returns whether another process has the store in `path` open.
    pub fn is_in_use(path: &Path) -> bool {
        directory::is_in_use(path)
    }

    /// Writes every counter back and drops the expired ones from disk now. RocksDB would do so later.
    ///
    /// # Errors
    /// Fails if RocksDB refuses a write.
    pub fn compact(&self) -> Result<(), StoreError> {
        self.core.engine.write_back()?;
        self.core.engine.with_disk(|database| {
            database.compact(&FAMILIES);
            Ok(())
        })
    }

    /// See [`BackupError`].
    ///
    /// # Errors
    /// See [`BackupError`].
    pub async fn backup(&self, name: &str) -> Result<PathBuf, BackupError> {
        let backup = backup::begin(self.backup_dir.as_deref(), name)?;
        // With `lazy`, there may be hits that were answered and are not committed yet.
        let committed = self.core.engine.check().await;
        let core = Arc::clone(&self.core);
        let copy = move |dir: &Path| committed.and_then(|()| core.checkpoint(dir));
        let taken = tokio::task::spawn_blocking(move || backup.take(copy));
        taken.await.unwrap_or_else(|error| Err(BackupError::Broken(error.to_string())))
    }

    /// Calls `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreCore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let core = Arc::clone(&self.core);
        let worked = tokio::task::spawn_blocking(move || work(&core)).await;
        worked.unwrap_or_else(|error| Err(StoreError::new(format!("the store's work was aborted: {error}"))))
    }

    async fn write_exceptions(&self, changes: Vec<ExceptionChange>, sync: bool) -> Result<(), StoreError> {
        self.blocking(move |core| core.engine.with_disk(|database| database.write_exceptions(&changes, sync))).await
    }

    /// Returns the durability of acknowledged hits.
    pub fn durability(&self) -> Durability {
        self.core.engine.durability
    }

    /// Returns the path of the data directory.
    pub fn path(&self) -> &Path {
        &self.core.path
    }

    /// Returns the number of expired counters that compactions and write-backs have dropped since the store was opened.
    pub fn expired_dropped(&self) -> u64 {
        self.core.expired_dropped()
    }
}

impl Store for RocksStore {
    fn apply(&self, batch: &mut Batch) -> impl Future<Output = ()> + Send {
        self.core.engine.apply(batch)
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        if listing.cursor.is_none() {
            // The listing finds only counters that have a record, and only committed counters can be written back.
            self.core.engine.check().await?;
            self.blocking(|core| core.engine.write_back()).await?;
        }
        self.blocking(move |core| core.list(&listing)).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        let engine = &self.core.engine;
        // The estimate falls when RocksDB's own compactions drop expired counters, but it includes all versions of a
        // counter until they are merged. So the lower number is closer.
        let estimate = self.core.estimate().unwrap_or(u64::MAX);
        Ok(estimate.min(engine.table.counters.count()))
    }

    /// Waits for a commit, to detect a disk that hangs as well as one that fails.
    async fn check(&self) -> Result<(), StoreError> {
        self.core.engine.damage.check(self.core.engine.clock.now())?;
        self.core.engine.check().await
    }

    async fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        _replaces: Replaces,
        _now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        let made = vec![Changed::Made; changes.len()];
        let sync = self.core.engine.durability == Durability::Sync;
        self.write_exceptions(changes, sync).await.map(|()| made)
    }

    async fn forget_exceptions(&self, over: Vec<ExceptionChange>) -> Result<(), StoreError> {
        // An expired exception stays expired, so this does not wait for stable storage.
        self.write_exceptions(over, false).await
    }

    async fn follow_exceptions(&self, known: ExceptionCursor, _now: Timestamp) -> Result<ExceptionPage, StoreError> {
        self.blocking(move |core| core.engine.with_disk(|database| database.read_exceptions(&known))).await
    }

    fn metrics(&self) -> Vec<Metric> {
        self.core.metrics()
    }

    async fn close(&self) -> Result<(), StoreError> {
        let threads = std::mem::take(&mut *self.threads.lock());
        self.blocking(move |core| core.shut_down(threads)).await
    }
}

impl Engine<Database> {
    /// Loads the stored records of reservations and answers that have not ended by `now`. The journal may have later
    /// ones.
    fn load_records(&self, now: Timestamp) -> Result<(), StoreError> {
        let mut decoder = Decoder::default();
        self.with_disk(|database| {
            for entry in database.entries(record_key::PREFIX, None) {
                let (key, stored) = entry?;
                match value::decode_record(&stored) {
                    Ok(record) if record.until <= now => {}
                    Ok(record) => {
                        decoder.note_record(&key, &record);
                        self.table.load_record(self.table.hasher.hash_of(&key), record);
                    }
                    Err(error) => self.damage.note_record(&key, &error),
                }
            }
            Ok(())
        })
    }
}

fn spawn(name: &str, core: &Arc<StoreCore>, run: fn(&StoreCore)) -> Result<JoinHandle<()>, OpenError> {
    let core = Arc::clone(core);
    thread::Builder::new().name(name.into()).spawn(move || run(&core)).map_err(OpenError::NoThread)
}
