//! The store's core, which its public handle and its threads share: listings, backups, metrics, and the end of the store.
//!
//! The threads write back, fsync, commit changes that no hit waits for, reopen the database after a disk failure, and load and bound
//! the counters. Hits wait only for commits.
//!
//! After a start, the last thread reads all records once, while hits are served. If all counters found room, the table is then complete: a
//! counter that is not in it does not exist. The first hit of a new actor then needs no look-up. The thread also records which
//! counters have records, because the count of counters depends on it. Until it has finished, hits look up the records that they
//! need. A stripe that a counter has left for lack of room needs look-ups until the next start, even if all counters would fit again.
//! To find that out would take another pass over all records, and room that expired counters still occupy.
//!
//! To enforce the bounds, the same thread measures the disk, counts the counters after a start, and reclaims expired ones when little room is
//! left. The [budget](divvy_store::CounterBudget) counts each counter that is made or forgotten. It has no count of
//! the counters that an earlier process left, and does not know which ones compactions drop. RocksDB's own estimate
//! cannot decide about hits: it includes each version of a counter and all records of reservations and answers, and it
//! is too low while a file deletes counters that no other file has. So the counters are counted by a scan, once after a
//! start, and whenever the bound is near, after a compaction has dropped the expired ones. Both are done so rarely that
//! they use only a small part of a processor.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rocksdb::properties::{
    ACTUAL_DELAYED_WRITE_RATE, BACKGROUND_ERRORS, BLOCK_CACHE_USAGE, CUR_SIZE_ALL_MEM_TABLES, ESTIMATE_NUM_KEYS,
    ESTIMATE_PENDING_COMPACTION_BYTES, ESTIMATE_TABLE_READERS_MEM, IS_WRITE_STOPPED, LIVE_SST_FILES_SIZE,
};

use super::disk::database::{COUNTERS, DEFAULT, Database, MAX_WAL_BYTES, Swept};
use super::disk::{self, Decoder, directory};
use super::engine::Engine;
use divvy_store::{Bounds, Listing, Outage, Page, RoomLog, Seal, StoreError};
use divvy_telemetry::metrics::Metric;

/// Pause between checks whether a write-back is due.
const WRITE_BACK_INTERVAL: Duration = Duration::from_millis(50);
/// Pause between fsyncs of the write-ahead log.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// Time that an acknowledged hit may wait for its commit with [`Durability::Lazy`](divvy_store::Durability::Lazy).
pub const LAZY_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between checks whether the disk has failed, and whether it takes writes again.
pub const HEAL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of records that are noted at once, while there is no write-back: 64 a stripe, about 5 MB.
const LOADED_AT_ONCE: usize = 64 << 10;
/// Pause between measurements of the disk. A flood must not write much in between.
const MEASURING_INTERVAL: Duration = Duration::from_millis(100);
/// Approximate size on disk of a counter that has no record yet (bytes).
const RECORD_BYTES: u64 = 48;
/// Allowance for the write-ahead log in addition to `--max-disk` (bytes). RocksDB flushes old data beyond
/// [`MAX_WAL_BYTES`], which takes a moment. Beyond this allowance, the log counts like counters. The documented 192 MiB
/// leave room for later writes.
const WAL_ALLOWANCE: u64 = MAX_WAL_BYTES + (64 << 20);
/// The pause after a survey, as a multiple of the survey's duration.
const SURVEY_PAUSE: u32 = 20;

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
    pub stopping: Mutex<bool>,
    pub stop: Condvar,
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
        listed.inspect_err(|error| engine.damage.note_read(error, self.engine.clock.now()))?;
        Ok(page)
    }

    /// Copies the database and the key for ids into the new directory `dir`.
    ///
    /// # Errors
    /// The disk refuses reads or writes.
    pub fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        self.engine.write_back()?;
        self.engine.with_disk(|database| database.checkpoint(dir))?;
        directory::write_seal_key(self.seal.key()?, dir)
            .map_err(|error| StoreError::new(format!("cannot copy the key for reservation ids: {error}")))
    }

    /// Ends the threads, and writes everything to stable storage. The last thread enforces the bounds.
    ///
    /// # Errors
    /// The disk refuses writes.
    pub fn shut_down(&self, mut threads: Vec<JoinHandle<()>>) -> Result<(), StoreError> {
        let engine = &self.engine;
        engine.table.commits.close();
        *self.stopping.lock() = true;
        self.stop.notify_all();
        let bound = threads.pop();
        for thread in threads {
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
        bound.map(JoinHandle::join);
        result.and(stopped)
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let (engine, usage) = (&self.engine, self.engine.table.usage());
        let (gauge, counter, load) = (Metric::gauge, Metric::counter, |count: &AtomicU64| count.load(Relaxed));
        let mut metrics = vec![
            Metric::histogram("divvy_commit_duration_seconds", "Commits to the log.", &engine.commit_times),
            Metric::histogram("divvy_fsync_duration_seconds", "Fsyncs outside of commits.", &engine.fsync_times),
            gauge("divvy_commits_failing", "1 while commits fail.", u64::from(!engine.is_well())),
            gauge("divvy_journal_bytes", "Size of the journal.", engine.journal_bytes()),
            gauge("divvy_hot_counters", "Counters in the hot table.", usage.counters),
            gauge("divvy_hot_table_bytes", "Memory of the hot table.", usage.bytes),
            counter("divvy_hot_table_hits_total", "Actions on counters in the hot table.", usage.hits),
            counter("divvy_hot_table_misses_total", "Actions on counters looked up on disk.", usage.misses),
            counter("divvy_expired_dropped_total", "Expired counters that were dropped.", self.expired_dropped()),
            counter("divvy_unreadable_kept_total", "Unreadable records that were kept.", load(&self.swept.unreadable)),
            counter("divvy_failed_reads_total", "Failed reads of counters.", load(&engine.damage.reads)),
            counter("divvy_damaged_records_total", "Reads of damaged records.", load(&engine.damage.records)),
        ];
        metrics.extend(engine.table.counters.metrics());
        metrics.extend(engine.table.records.metrics());
        // There are no numbers while the database is being reopened.
        metrics.extend(engine.with_disk(|database| Ok(rocksdb_metrics(database))).into_iter().flatten());
        if let Ok(bytes) = directory::size(&self.path, |_| true) {
            metrics.push(Metric::gauge("divvy_rocksdb_disk_bytes", "Size of the files in the data directory.", bytes));
        }
        metrics
    }
}

fn rocksdb_metrics(database: &Database) -> [Metric; 7] {
    let number = |name, help, property| Metric::gauge(name, help, database.number(DEFAULT, property));
    let sum = |name, help, property| Metric::gauge(name, help, database.sum(property));
    let errors = database.number(DEFAULT, BACKGROUND_ERRORS);
    [
        sum("divvy_rocksdb_block_cache_bytes", "Memory of RocksDB's block caches.", BLOCK_CACHE_USAGE),
        sum("divvy_rocksdb_write_buffer_bytes", "Memory of RocksDB's write buffers.", CUR_SIZE_ALL_MEM_TABLES),
        sum("divvy_rocksdb_table_reader_bytes", "Memory of RocksDB's indexes and filters.", ESTIMATE_TABLE_READERS_MEM),
        sum("divvy_rocksdb_pending_compaction_bytes", "Bytes yet to compact.", ESTIMATE_PENDING_COMPACTION_BYTES),
        number("divvy_rocksdb_delayed_write_bytes_per_second", "Limit on writes; 0: none.", ACTUAL_DELAYED_WRITE_RATE),
        number("divvy_rocksdb_writes_stopped", "1 while RocksDB accepts no writes.", IS_WRITE_STOPPED),
        Metric::counter("divvy_rocksdb_background_errors_total", "Errors of background work.", errors),
    ]
}

impl StoreCore {
    pub fn write_back_loop(&self) {
        let mut outage = Outage::of("write-backs", "counters stay in the journal");
        while !self.stopped_within(WRITE_BACK_INTERVAL) {
            self.write_back_while_due(&mut outage);
        }
    }

    /// Writes back what is due, until the store is being closed: the journal keeps the rest.
    fn write_back_while_due(&self, outage: &mut Outage) {
        // Another thread logs the failure of a disk, and recovers from it.
        while self.engine.is_well() && !self.stopped_within(Duration::ZERO) {
            let written = self.engine.write_back_if_due();
            let is_more = matches!(written, Ok(true));
            outage.note(&written.map(drop));
            if !is_more {
                break;
            }
        }
    }

    pub fn sync_loop(&self) {
        let engine = &self.engine;
        let mut synced = 0;
        let mut outage = Outage::of("fsyncs", "acknowledged hits are not on stable storage");
        while !self.stopped_within(HOUSEKEEPING_INTERVAL) {
            let done = engine.table.commits.done();
            if !engine.is_well() || done == synced {
                continue;
            }
            let begun = engine.clock.now();
            let result = engine.sync();
            engine.fsync_times.observe(engine.clock.now().since(begun), 1);
            outage.note(&result);
            if result.is_ok() {
                synced = done;
            }
        }
    }

    /// Calls `work` after each `interval`, until the store is being closed.
    pub fn every(&self, interval: Duration, work: impl Fn()) {
        while !self.stopped_within(interval) {
            work();
        }
    }

    /// Reopens a database that has failed, if the disk takes writes, and commits the changes that it lacks.
    pub fn heal(&self) {
        let takes_writes = || directory::probe(&self.path).is_ok();
        let open = || {
            let opened = Database::open(&self.path, self.engine.clock, Arc::clone(&self.swept));
            let database = opened.map_err(|error| StoreError::new(format!("cannot reopen the database: {error}")))?;
            database.start_compactions().map(|()| database)
        };
        self.engine.heal(takes_writes, open);
    }

    /// Sleeps for `interval`, or until the store is being closed. Returns whether it is being closed.
    pub fn stopped_within(&self, interval: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stop.wait_for(&mut stopping, interval);
        }
        *stopping
    }

    /// Notes every record in the table, and loads counters while there is room. Does nothing if the table knows all records.
    fn load(&self) -> Result<(), StoreError> {
        let (engine, table) = (&self.engine, &self.engine.table);
        if table.knows_records() {
            return Ok(());
        }
        engine.with_disk(|database| {
            let mut records = engine.without_write_backs(|| {
                table.forget_records();
                database.records()
            });
            let mut decoder = Decoder::default();
            loop {
                let some = records.by_ref().take(LOADED_AT_ONCE).map(|record| {
                    let (key, value) = record?;
                    Ok((table.hasher.hash(&key), decoder.decode(&key, &value).ok()))
                });
                let mut some = some.collect::<Result<Vec<_>, StoreError>>()?;
                let count = some.len();
                // They are sorted by stripe, so that most of a stripe is in the processor's caches.
                some.sort_unstable_by_key(|(hash, _)| hash.stripe());
                engine.without_write_backs(|| {
                    some.into_iter().for_each(|(hash, record)| table.note_record(hash, record))
                });
                if count < LOADED_AT_ONCE {
                    table.noted_records();
                    return Ok(());
                }
                if !self.goes_on() {
                    return Ok(());
                }
            }
        })
    }

    /// Measures the disk during a long read. Returns whether to go on: a database that has failed is not reopened before the read
    /// ends.
    fn goes_on(&self) -> bool {
        self.measure();
        !*self.stopping.lock() && self.engine.is_well()
    }

    #[expect(clippy::disallowed_methods, reason = "paces a thread of its own")]
    pub fn bound_loop(&self) {
        let counters = &self.engine.table.counters;
        let mut room_log = RoomLog::default();
        let mut outage =
            Outage::of("loading the counters", "they are looked up when they are needed, and not reclaimed");
        let mut next = Instant::now();
        loop {
            let is_due = !self.engine.table.knows_records() || !counters.is_counted() || self.is_room_short();
            if is_due && self.engine.is_well() && Instant::now() >= next {
                let begun = Instant::now();
                outage.note(&self.load().and_then(|()| self.survey()));
                next = Instant::now() + begun.elapsed() * SURVEY_PAUSE;
            }
            self.engine.sweep_records(self.engine.clock.now());
            room_log.note(counters, self.engine.clock.now());
            let measured_until = Instant::now() + HOUSEKEEPING_INTERVAL;
            while Instant::now() < measured_until {
                self.measure();
                if self.stopped_within(MEASURING_INTERVAL) {
                    return;
                }
            }
        }
    }

    /// Measures the counters in files, those to be written, and the write-ahead log.
    fn measure(&self) {
        let is_log = |path: &Path| path.extension().is_some_and(|extension| extension == "log");
        let Ok(log) = directory::size(&self.path, is_log) else { return };
        let files = self.engine.with_disk(|database| Ok(database.number(COUNTERS, LIVE_SST_FILES_SIZE)));
        let Ok(files) = files else { return };
        let unrecorded = u64::try_from(self.engine.table.usage().unrecorded).unwrap_or(0).saturating_mul(RECORD_BYTES);
        let bytes = files.saturating_add(unrecorded).saturating_add(log.saturating_sub(WAL_ALLOWANCE));
        self.engine.table.counters.disk_is_full.store(bytes >= self.bounds.max_disk, Relaxed);
    }

    /// Returns whether a bound is near or reached.
    fn is_room_short(&self) -> bool {
        let counters = &self.engine.table.counters;
        counters.is_nearly_full() || counters.disk_is_full.load(Relaxed)
    }

    /// Drops expired counters if a bound is near, and then counts those that are left. Does nothing until the table
    /// knows all records.
    ///
    /// # Errors
    /// RocksDB cannot read or write. The number of counters is then as before.
    pub fn survey(&self) -> Result<(), StoreError> {
        let engine = &self.engine;
        if !engine.table.knows_records() {
            return Ok(());
        }
        if self.is_room_short() {
            // Forgets expired counters with changes in the journal, so that all others have current records.
            engine.write_back()?;
            let now = self.engine.clock.now();
            engine.with_disk(|database| {
                database.compact(&[COUNTERS]);
                Ok(())
            })?;
            engine.table.forget_expired(now);
            self.measure();
        }
        engine.with_disk(|database| self.count(database))
    }

    /// Counts the counters. While there is no write-back, the table knows the number of counters without a record, and
    /// an iterator fixes the records to count.
    fn count(&self, database: &Database) -> Result<(), StoreError> {
        let (engine, counters) = (&self.engine, &self.engine.table.counters);
        let start = || (counters.begun(), engine.table.usage().unrecorded, database.records());
        let (begun, unrecorded, records) = engine.without_write_backs(start);
        let mut counted = 0u64;
        for record in records {
            record?;
            counted += 1;
            if counted.is_multiple_of(LOADED_AT_ONCE as u64) && !self.goes_on() {
                return Ok(());
            }
        }
        counters.counted(counted.saturating_add_signed(unrecorded), begun);
        Ok(())
    }

    /// Estimates the number of counters from RocksDB's estimate.
    pub fn estimate(&self) -> Result<u64, StoreError> {
        let entries = self.engine.with_disk(|database| Ok(database.number(COUNTERS, ESTIMATE_NUM_KEYS)))?;
        Ok(entries.saturating_add_signed(self.engine.table.usage().unrecorded))
    }
}

#[cfg(test)]
mod tests;
