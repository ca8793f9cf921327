//! The store's core, which its public handle and its threads share: listings, backups, metrics, and the end of the store. See
//! [`threads`].

mod threads;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rocksdb::properties;

use super::disk::database::Database;
use super::disk::directory;
use super::disk::tuning::Swept;
use super::disk::{self, side_files};
use super::engine::Engine;
use divvy_core::clock::Clock;
use divvy_store::{Bounds, Listing, Page, Seal, StoreError};
use divvy_telemetry::metrics::Metric;

/// The open store.
pub struct StoreCore {
    pub engine: Arc<Engine<Database>>,
    pub path: PathBuf,
    pub seal: Seal,
    /// Counts of the records that compactions have dropped, in all databases that this store has opened.
    pub swept: Arc<Swept>,
    /// Kept while the database is reopened, because another process may be waiting for it.
    pub _lock: Option<File>,
    pub bounds: Bounds,
    pub clock: Clock,
    pub stopping: Mutex<bool>,
    pub stop: Condvar,
}

/// The store's threads.
#[derive(Default)]
pub struct Threads {
    /// Threads that write, load and recover.
    pub writers: Vec<JoinHandle<()>>,
    /// The thread that enforces the bounds.
    pub bound: Option<JoinHandle<()>>,
}

impl StoreCore {
    /// Returns the number of expired counters that compactions and write-backs have dropped.
    pub fn expired_dropped(&self) -> u64 {
        self.swept.expired.load(Relaxed) + self.engine.expired.load(Relaxed)
    }

    /// Reads a page of counters.
    ///
    /// # Errors
    /// Fails if RocksDB cannot read.
    pub fn list(&self, listing: &Listing) -> Result<Page, StoreError> {
        let engine = &self.engine;
        let mut page = Page::default();
        let after = listing.start_after()?;
        let listed = engine.with_disk(|database| {
            for (looked_at, entry) in (1..).zip(database.entries(&listing.prefix, after.as_deref())) {
                let (key, stored) = entry?;
                let state = engine.table.peek(&key).unwrap_or_else(|| {
                    // A damaged record must not prevent the others from being listed.
                    let decoded = disk::decode_counter(&listing.limit, &stored);
                    decoded.inspect_err(|error| engine.damage.note_record(&key, error)).ok().map(|(state, _)| state)
                });
                let actor = key.get(listing.prefix.len()..).unwrap_or_default();
                if !page.add(listing, actor, state.as_ref(), looked_at) {
                    break;
                }
            }
            Ok(())
        });
        listed.inspect_err(|error| engine.damage.note_read(error, self.clock.now()))?;
        Ok(page)
    }

    /// Copies the database and the key for ids into the new directory `dir`.
    ///
    /// # Errors
    /// The disk refuses reads or writes.
    pub fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        self.engine.write_back()?;
        self.engine.with_disk(|database| database.checkpoint(dir))?;
        side_files::write_seal_key(self.seal.key()?, dir)
            .map_err(|error| StoreError::new(format!("cannot copy the key for reservation ids: {error}")))
    }

    /// Ends the threads, and writes everything to stable storage.
    ///
    /// # Errors
    /// The disk refuses writes.
    pub fn shut_down(&self, threads: Threads) -> Result<(), StoreError> {
        let engine = &self.engine;
        engine.admission.commits.close();
        *self.stopping.lock() = true;
        self.stop.notify_all();
        for thread in threads.writers {
            let _ = thread.join();
        }
        if !engine.is_well() {
            self.heal();
        }
        let result = engine.commit_rest().and_then(|()| engine.sync());
        let stopped = engine.with_disk(|database| {
            database.stop_background_work();
            Ok(())
        });
        // This thread may have waited for a compaction of all counters, which has been cancelled.
        if let Some(thread) = threads.bound {
            let _ = thread.join();
        }
        result.and(stopped)
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.own().to_vec();
        metrics.extend(self.engine.admission.counters.metrics());
        metrics.extend(self.engine.admission.records.metrics());
        // There are no numbers while the database is being reopened.
        metrics.extend(self.engine.with_disk(|database| Ok(rocksdb_metrics(database))).into_iter().flatten());
        if let Ok(bytes) = directory::size(&self.path, |_| true) {
            metrics.push(Metric::gauge("divvy_rocksdb_disk_bytes", "Size of the files in the data directory.", bytes));
        }
        metrics
    }

    fn own(&self) -> [Metric; 12] {
        let (engine, swept, usage) = (&self.engine, &self.swept, self.engine.table.usage());
        [
            Metric::histogram(
                "divvy_commit_duration_seconds",
                "Time of commits to the write-ahead log, each of many hits; includes the fsync with --durability sync.",
                &engine.timings.commits,
            ),
            Metric::histogram(
                "divvy_fsync_duration_seconds",
                "Time of the fsyncs of the write-ahead log that run every second, outside commits.",
                &engine.timings.fsyncs,
            ),
            Metric::gauge("divvy_commits_failing", "1 while commits fail.", u64::from(!engine.is_well())),
            Metric::gauge(
                "divvy_journal_bytes",
                "Size of the journal: changes that are kept until their counters are written back.",
                engine.journal_bytes(),
            ),
            Metric::gauge("divvy_hot_counters", "Counters in the hot table.", usage.counters),
            Metric::gauge("divvy_hot_table_bytes", "Memory of the hot table.", usage.bytes),
            Metric::counter("divvy_hot_table_hits_total", "Actions on counters in the hot table.", usage.hits),
            Metric::counter(
                "divvy_hot_table_misses_total",
                "Actions on counters that had to be looked up in RocksDB.",
                usage.misses,
            ),
            Metric::counter(
                "divvy_expired_dropped_total",
                "Expired counters that compactions and write-backs have dropped.",
                self.expired_dropped(),
            ),
            Metric::counter(
                "divvy_unreadable_kept_total",
                "Records that a compaction could not read, and kept.",
                swept.unreadable.load(Relaxed),
            ),
            Metric::counter(
                "divvy_failed_reads_total",
                "Failed reads of counters: a damaged file or a failing disk.",
                engine.damage.reads.load(Relaxed),
            ),
            Metric::counter(
                "divvy_damaged_records_total",
                "How often a hit or a listing encountered a damaged record.",
                engine.damage.records.load(Relaxed),
            ),
        ]
    }
}

fn rocksdb_metrics(database: &Database) -> [Metric; 9] {
    let number = |name, help, property| Metric::gauge(name, help, database.number(property));
    let sum = |name, help, property| Metric::gauge(name, help, database.sum(property));
    [
        sum("divvy_rocksdb_block_cache_bytes", "Memory of RocksDB's block caches.", properties::BLOCK_CACHE_USAGE),
        sum(
            "divvy_rocksdb_write_buffer_bytes",
            "Memory of RocksDB's write buffers.",
            properties::CUR_SIZE_ALL_MEM_TABLES,
        ),
        sum(
            "divvy_rocksdb_table_reader_bytes",
            "Approximate memory of RocksDB's indexes and filters outside of the block caches.",
            properties::ESTIMATE_TABLE_READERS_MEM,
        ),
        sum(
            "divvy_rocksdb_pending_compaction_bytes",
            "Approximate bytes that compactions have yet to rewrite.",
            properties::ESTIMATE_PENDING_COMPACTION_BYTES,
        ),
        number(
            "divvy_rocksdb_delayed_write_bytes_per_second",
            "Rate to which RocksDB slows down writes because it is behind; 0: not slowed down.",
            properties::ACTUAL_DELAYED_WRITE_RATE,
        ),
        number(
            "divvy_rocksdb_writes_stopped",
            "1 while RocksDB accepts no writes because it is behind.",
            properties::IS_WRITE_STOPPED,
        ),
        number("divvy_rocksdb_running_compactions", "Running compactions.", properties::NUM_RUNNING_COMPACTIONS),
        number("divvy_rocksdb_running_flushes", "Running flushes.", properties::NUM_RUNNING_FLUSHES),
        Metric::counter(
            "divvy_rocksdb_background_errors_total",
            "Errors of RocksDB's background work.",
            database.number(properties::BACKGROUND_ERRORS),
        ),
    ]
}
