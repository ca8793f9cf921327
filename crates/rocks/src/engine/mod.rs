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
use super::group_commit::{Gathering, GroupCommit};
use super::health::{Damage, Health, Timings};
use super::hot_table::{ActionResult, CacheYield, ChangeContext, CounterRecord, HotTable, Lookups};
use super::journal::{Packer, Segments, UnsyncedRecords};
use super::sync::atomic::{AtomicU64, Ordering::Relaxed};
use super::sync::{Mutex, RwLock, run_blocking};
use divvy_core::algorithm::Limit;
use divvy_core::clock::Timestamp;
use divvy_store::group::EntryDecision;
use divvy_store::{
    CounterBudget, Durability, Entry, Outage, Outcomes, RecordBudgets, RecordCount, Shares, StoreError, Unit,
    was_set_back,
};

/// Threads that may read from the disk at the same time.
const READERS: usize = 8;
/// Maximum number of records that are read at once. Their blocks stay in memory until all of them are read.
const READ_AT_ONCE: usize = 128;

/// The engine. See the module's documentation.
pub struct Engine<D> {
    /// `None` while the database is being reopened.
    disk: RwLock<Option<D>>,
    pub table: Arc<HotTable>,
    pub context: ChangeContext,
    gathering: Gathering,
    /// Time of the last sweep of records (nanoseconds).
    records_swept_at: AtomicU64,
    pub damage: Damage,
    segments: Mutex<Segments>,
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
    pub timings: Timings,
    pub durability: Durability,
    committer: Mutex<Committer>,
}

/// The state of the thread that makes a commit.
struct Committer {
    record: Vec<u8>,
    packer: Packer,
    outage: Outage,
}

/// The journal at the start of the engine.
#[derive(Debug, Clone, Copy)]
pub struct Journal {
    /// The number of the last commit in the journal; 0 if it is empty.
    pub last_commit: u64,
    /// Length beyond which a commit waits for a write-back (bytes). It bounds the counters that cannot be evicted, and
    /// the time that opening takes.
    pub max_bytes: u64,
}

impl<D: Disk> Engine<D> {
    pub fn new(
        disk: D,
        table: Arc<HotTable>,
        (counters, records): (Arc<CounterBudget>, RecordBudgets),
        durability: Durability,
        timings: Timings,
        journal: Journal,
    ) -> Self {
        let commits = GroupCommit::new(journal.last_commit);
        Self {
            disk: RwLock::new(Some(disk)),
            context: ChangeContext { commits, health: Health::default(), counters, records },
            gathering: Gathering::default(),
            records_swept_at: AtomicU64::new(0),
            damage: Damage::default(),
            segments: Mutex::new(Segments::new(journal.max_bytes, table.memory as u64, &table.marks)),
            write_back_turn: Mutex::new(()),
            expired: AtomicU64::new(0),
            cache_yield: CacheYield::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            unsynced: Mutex::default(),
            making_room: Arc::new(Semaphore::new(1)),
            table,
            timings,
            durability,
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

    /// Returns the last durable commit. All commits before it are durable, too.
    pub fn done(&self) -> u64 {
        self.context.commits.done()
    }

    /// Returns whether the database can be read and written.
    pub fn is_well(&self) -> bool {
        self.context.health.is_well()
    }

    /// Calls `ask` with the database.
    ///
    /// # Errors
    /// The error of `ask`. While the database is being reopened, fails without waiting.
    pub fn with_disk<T>(&self, ask: impl FnOnce(&D) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.disk.try_read().as_deref() {
            Some(Some(disk)) => ask(disk),
            Some(None) | None => Err(self.reopening()),
        }
    }

    /// Calls `work` with the database if it is healthy. After an error, the database must be reopened.
    fn on_well_disk<T>(&self, work: impl FnOnce(&D) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if let Some(fault) = self.context.health.fault() {
            return Err(fault);
        }
        self.with_disk(work).inspect_err(|error| self.context.health.broke(error))
    }

    /// Returns the error of calls that need the database while it is being reopened.
    fn reopening(&self) -> StoreError {
        let reopening = || StoreError::new("the database is being reopened after a disk failure");
        self.context.health.fault().unwrap_or_else(reopening)
    }

    /// Applies `entry`, which has this index in its batch, to the counter with `key`. Returns `None`, and changes
    /// nothing, if the counter has to be [looked up](Engine::look_up) first.
    ///
    /// # Errors
    /// See [`HotTable::act`].
    pub fn act(
        &self,
        (index, key, entry): (usize, &[u8], &Entry),
        now: Timestamp,
        lookups: &mut Lookups,
    ) -> Result<Option<ActionResult>, StoreError> {
        let load = |evictions| self.record_for((index, key, entry), now, lookups, evictions);
        self.table.act(key, entry, now, &self.context, load)
    }

    /// Applies the entries of a group: see [`Engine::act`] and [`HotTable::act_together`].
    ///
    /// # Errors
    /// See [`HotTable::act_together`].
    pub fn act_together(
        &self,
        group: Unit<'_>,
        now: Timestamp,
        (lookups, shares, decisions): (&mut Lookups, &Shares, &mut Vec<EntryDecision>),
        outcomes: &mut Outcomes,
    ) -> Result<Option<u64>, StoreError> {
        let load = |member, evictions| self.record_for(member, now, lookups, evictions);
        self.table.act_together(group, now, &self.context, (shares, decisions), outcomes, load)
    }

    /// Forgets the reservations and answers that have ended by `now`.
    pub fn sweep_records(&self, now: Timestamp) {
        let before = Timestamp::from_nanos(self.records_swept_at.swap(now.as_nanos(), Relaxed));
        if self.context.records.remembered() != RecordCount::default() {
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
