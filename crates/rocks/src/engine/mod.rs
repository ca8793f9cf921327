//! The engine of the embedded store: a table of counters in front of a disk, group commit, write-backs, and recovery
//! from a failed disk.
//!
//! It is generic over the disk, so that the model checker can run it on a simulated one. The store owns the threads,
//! the bounds and the clock.
//!
//! The records of counters that are not in the table are read from the disk. A batch's records are read before its stripes are locked: first those in RocksDB's memory, then the rest on a thread
//! that may block. A record that has become outdated is read again, the last time under its stripe's lock. Reads change
//! nothing, so a caller may leave at any time.

mod commits;
mod replay;
mod write_back;

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::disk::{self, Disk, Reach};
use super::health::{Damage, durations};
use super::hot_table::{CacheYield, CounterRecord, HotTable, Lookups};
use super::journal::{Packer, Segments, UnsyncedRecords};
use super::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use super::sync::{Mutex, RwLock, run_blocking};
use divvy_core::algorithm::Limit;
use divvy_core::clock::{Clock, Timestamp};
use divvy_store::{Batch, Durability, Entry, Outage, RecordCount, RocksOptions, StoreError, was_set_back};
use divvy_telemetry::metrics::Histogram;

/// Share of the memory for counters that write-backs use: one byte in this many.
const WRITE_BACK_SHARE: usize = 8;
/// Bytes of keys beyond which a batch waits for due disk work before it is applied.
const LARGE_BATCH: usize = 64 << 10;
/// Threads that may read from the disk at the same time.
const READERS: usize = 8;
/// Maximum number of records that are read at once. Their blocks stay in memory until all of them are read.
const READ_AT_ONCE: usize = 128;

/// The engine. See the module's documentation.
pub struct Engine<D> {
    /// `None` while the database is being reopened.
    disk: RwLock<Option<D>>,
    pub table: HotTable,
    /// Duration of the last commit (nanoseconds).
    commit_ns: AtomicU64,
    /// Number of connections that waited when it was finished.
    expected: AtomicUsize,
    /// Time of the last sweep of records (nanoseconds).
    records_swept_at: AtomicU64,
    pub damage: Damage,
    segments: Mutex<Segments>,
    /// Excess over the table's memory that the last process's journal causes; 0 once it is tolerated (bytes). The table
    /// may exceed its memory by it.
    inherited_excess: AtomicUsize,
    /// Length of the segments that were written back since the table last gave memory back (bytes).
    written_back: AtomicU64,
    /// Held by the write-back that is running. It is locked before the segments.
    write_back_turn: Mutex<()>,
    /// Number of expired counters that write-backs have forgotten.
    pub expired: AtomicU64,
    cache_yield: CacheYield,
    /// Permits for threads that read from the disk. Each of them takes up to a megabyte.
    readers: Arc<Semaphore>,
    /// Records that no fsync has covered. An fsync takes them out, and covers those that were written.
    unsynced: Mutex<UnsyncedRecords>,
    /// A permit for the one large batch that makes room.
    making_room: Arc<Semaphore>,
    pub clock: Clock,
    pub commit_times: Histogram,
    pub fsync_times: Histogram,
    pub durability: Durability,
    committer: Mutex<Committer>,
}

/// The state of the thread that makes a commit.
struct Committer {
    record: Vec<u8>,
    packer: Packer,
    outage: Outage,
}

impl<D: Disk> Engine<D> {
    /// Creates the engine. `last_commit` is the number of the last commit in the journal; 0 if it is empty.
    pub fn new(disk: D, last_commit: u64, options: &RocksOptions) -> Self {
        let memory = options.cache_memory - options.cache_memory / WRITE_BACK_SHARE;
        let table = HotTable::new(memory, last_commit, options.bounds);
        Self {
            disk: RwLock::new(Some(disk)),
            commit_ns: AtomicU64::new(0),
            expected: AtomicUsize::new(0),
            records_swept_at: AtomicU64::new(0),
            damage: Damage::default(),
            segments: Mutex::new(Segments::new(options.max_journal, table.memory as u64, &table.marks)),
            inherited_excess: AtomicUsize::new(0),
            written_back: AtomicU64::new(0),
            write_back_turn: Mutex::new(()),
            expired: AtomicU64::new(0),
            cache_yield: CacheYield::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            unsynced: Mutex::default(),
            making_room: Arc::new(Semaphore::new(1)),
            table,
            clock: options.clock,
            commit_times: durations(),
            fsync_times: durations(),
            durability: options.durability,
            committer: Mutex::new(Committer {
                record: Vec::new(),
                packer: Packer::default(),
                outage: Outage::of(
                    "commits",
                    "hits are answered with an error; divvy reopens its database once the disk accepts writes",
                ),
            }),
        }
    }

    /// Returns whether the database can be read and written.
    pub fn is_well(&self) -> bool {
        self.table.health.is_well()
    }

    /// Calls `ask` with the database.
    ///
    /// # Errors
    /// The error of `ask`. While the database is being reopened, fails without waiting.
    pub fn with_disk<T>(&self, ask: impl FnOnce(&D) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.disk.try_read().as_deref() {
            Some(Some(disk)) => ask(disk),
            // The database is being reopened after this fault.
            Some(None) | None => Err(self.table.health.last_fault()),
        }
    }

    /// Calls `work` with the database if it is healthy. After an error, the database must be reopened.
    fn on_well_disk<T>(&self, work: impl FnOnce(&D) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if let Some(fault) = self.table.health.fault() {
            return Err(fault);
        }
        self.with_disk(work).inspect_err(|error| self.table.health.broke(error))
    }

    /// Applies the batch: see [`Store::apply`](divvy_store::Store::apply).
    pub async fn apply(self: &Arc<Self>, batch: &mut Batch) {
        if batch.keys.len() > LARGE_BATCH {
            Box::pin(self.make_room_ahead()).await;
        }
        let now = batch.now();
        let durable = self.table.commits.done();
        let mut durable_after = 0;
        let mut not_durable = std::mem::take(&mut batch.not_durable);
        let mut lookups = Lookups::default();
        let mut decisions = Vec::new();
        batch.outcomes.clear();
        let mut needs_records = self.table.needs_records.load(Relaxed);
        loop {
            if needs_records {
                self.look_up(&mut lookups, batch.unanswered(), now).await;
            }
            let is_done = batch.answer_on(|unit, outcomes| {
                let acted = match unit.entries {
                    [entry] if !entry.action.has_record() => {
                        let key = unit.key(entry);
                        let load = |evictions| self.record_for((unit.first, key, entry), now, &mut lookups, evictions);
                        self.table.act(key, entry, now, load).map(|acted| {
                            let (outcome, durable_after) = acted?;
                            outcomes.push(Ok(outcome));
                            Some(durable_after)
                        })
                    }
                    _ => {
                        let load = |member, evictions| self.record_for(member, now, &mut lookups, evictions);
                        self.table.act_together(unit, now, &mut decisions, outcomes, load)
                    }
                };
                match acted {
                    Ok(None) => return false,
                    Ok(Some(commit)) if commit <= durable => {}
                    Ok(Some(commit)) => {
                        not_durable.extend(unit.first..outcomes.len());
                        durable_after = durable_after.max(commit);
                    }
                    Err(error) => outcomes.extend(unit.entries.iter().map(|_| Err(error.clone()))),
                }
                true
            });
            if is_done {
                break;
            }
            needs_records = true;
        }
        batch.not_durable = not_durable;
        if durable_after > 0
            && self.durability != Durability::Lazy
            && let Err(error) = self.wait_until_durable(durable_after).await
        {
            batch.fail_not_durable(&error);
        }
    }

    /// Forgets the reservations and answers that have ended by `now`.
    pub fn sweep_records(&self, now: Timestamp) {
        let before = Timestamp::from_nanos(self.records_swept_at.swap(now.as_nanos(), Relaxed));
        if self.table.records.remembered() != RecordCount::default() {
            self.table.sweep_records(now, was_set_back(before, now));
        }
    }

    /// Reads the records of those counters of `entries` that are not in the table. An entry comes with its index in the
    /// batch and its key.
    pub async fn look_up<'a>(
        self: &Arc<Self>,
        lookups: &mut Lookups,
        entries: impl Iterator<Item = (usize, &'a [u8], &'a Entry)>,
        now: Timestamp,
    ) {
        lookups.begin(&self.table, entries);
        let wanted = lookups.unread();
        if wanted > 0 && self.cache_yield.is_worth_a_try() {
            self.read(lookups, Reach::Memory, now);
            self.cache_yield.note(wanted - lookups.unread(), wanted);
        }
        if lookups.unread() > 0 {
            let Ok(turn) = Arc::clone(&self.readers).acquire_owned().await else { return };
            let (engine, mut unread) = (Arc::clone(self), std::mem::take(lookups));
            let read = run_blocking(move || {
                // The turn ends with the read, even if the caller has left.
                let _turn = turn;
                engine.read(&mut unread, Reach::Disk, now);
                unread
            });
            // While the runtime shuts down, no other thread can continue the read.
            *lookups = read.await.unwrap_or_else(Lookups::exhausted);
        }
    }

    /// Reads the records that have not been read yet, as far as they are within `reach`. If the database cannot be read, its
    /// error becomes the result of each look-up.
    fn read(&self, Lookups { lookups, keys, .. }: &mut Lookups, reach: Reach, now: Timestamp) {
        let mut unread: Vec<_> = lookups.iter_mut().filter(|lookup| lookup.record.is_none()).collect();
        for unread in unread.chunks_mut(READ_AT_ONCE) {
            let wanted: Vec<_> = unread.iter().map(|lookup| keys.get(lookup.key.clone()).unwrap_or_default()).collect();
            let read = self.with_disk(|disk| {
                disk.counters(&wanted, reach, &mut |position, stored| {
                    if let (Some(lookup), Some(key)) = (unread.get_mut(position), wanted.get(position)) {
                        lookup.record = Some(self.decode(key, &lookup.limit, stored, now));
                    }
                });
                Ok(())
            });
            if let Err(error) = read {
                unread.iter_mut().for_each(|lookup| lookup.record = Some(Err(error.clone())));
            }
        }
    }

    /// Returns the record of an entry's counter, as it was looked up, if it is still current. `None` means that the
    /// caller must look it up again.
    pub(super) fn record_for(
        &self,
        (index, key, entry): (usize, &[u8], &Entry),
        now: Timestamp,
        lookups: &mut Lookups,
        evictions: u32,
    ) -> Result<Option<CounterRecord>, StoreError> {
        match lookups.take(index, evictions) {
            Some(record) => record.map(Some),
            None if lookups.may_go_on() => Ok(None),
            None => self.with_disk(|disk| {
                let mut record = Ok(None);
                disk.counters(&[key], Reach::Disk, &mut |_, stored| {
                    record = self.decode(key, &entry.limit, stored, now).map(Some);
                });
                record
            }),
        }
    }

    /// Decodes the stored record of the counter with `key`, and reports damage.
    fn decode(
        &self,
        key: &[u8],
        limit: &Limit,
        stored: Result<Option<&[u8]>, StoreError>,
        now: Timestamp,
    ) -> Result<CounterRecord, StoreError> {
        let stored = stored.inspect_err(|error| self.damage.note_read(error, now))?;
        let record = stored.map(|stored| disk::decode_counter(limit, stored)).transpose();
        record.inspect_err(|error| self.damage.note_record(key, error))
    }
}

#[cfg(test)]
mod tests;
