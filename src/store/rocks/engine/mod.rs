//! The engine of the embedded store: a table of counters in front of a disk, group commit, write-back, and recovery
//! from a disk that failed.
//!
//! Generic over the disk, so that the model checker can run all of it on a simulated one. Threads, bounds and the
//! clock are the store's.

mod commits;
mod counter_reads;
mod recovery;
mod replay;
mod write_back;

use std::sync::Arc;

use tokio::sync::Semaphore;

use self::write_back::{Scene, WriteBack};
use super::commit::group_commit::{GroupCommit, Leader};
use super::commit::journal::Packer;
use super::commit::unsynced_records::UnsyncedRecords;
use super::disk::Disk;
use super::sync::atomic::{AtomicU64, Ordering::Relaxed};
use super::sync::{Mutex, RwLock, run_blocking};
use super::table::lookups::{CacheYield, Lookups};
use super::table::{Acted, Surroundings, Table};
use super::upkeep::damage::Damage;
use super::upkeep::health::Health;
use super::upkeep::timings::Timings;
use crate::clock::Timestamp;
use crate::store::bounds::CounterBudget;
use crate::store::bounds::{RecordBudgets, Shares};
use crate::store::bounds::{RecordCount, was_set_back};
use crate::store::contract::StoreError;
use crate::store::contract::{Entry, Outcomes, Unit};
use crate::store::outage::Outage;
use crate::store::rocks_options::Durability;

/// Threads that may read from the disk at the same time.
const READERS: usize = 8;

/// See the module.
pub struct Engine<D> {
    /// Empty while the database is being opened again.
    disk: RwLock<Option<D>>,
    pub table: Arc<Table>,
    pub budget: Arc<CounterBudget>,
    pub records: RecordBudgets,
    /// When records were swept last (nanoseconds).
    swept_records: AtomicU64,
    pub damage: Damage,
    pub health: Health,
    pub write_back: WriteBack,
    cache_yield: CacheYield,
    /// Permits for threads that read from the disk. Each of them takes up to a megabyte.
    readers: Arc<Semaphore>,
    unsynced: UnsyncedRecords,
    /// Taken by the large batch that makes room.
    making_room: Arc<Semaphore>,
    pub timings: Timings,
    pub durability: Durability,
    group: Arc<GroupCommit>,
    committer: Mutex<Committer>,
}

/// What the leader works with.
struct Committer {
    record: Vec<u8>,
    packer: Packer,
    outage: Outage,
}

/// The journal, as it is when the engine starts.
#[derive(Debug, Clone, Copy)]
pub struct Journal {
    /// The number of the last commit in it; 0 when there is none.
    pub last_commit: u64,
    /// Past this a commit waits for a write-back (bytes): it bounds the counters that cannot be evicted, and the time
    /// that opening takes.
    pub max_bytes: u64,
}

impl<D: Disk> Engine<D> {
    pub fn new(
        disk: D,
        table: Arc<Table>,
        (budget, records): (Arc<CounterBudget>, RecordBudgets),
        durability: Durability,
        timings: Timings,
        journal: Journal,
    ) -> Self {
        let write_back = WriteBack::new(journal.max_bytes, &table);
        Self {
            disk: RwLock::new(Some(disk)),
            table,
            budget,
            records,
            swept_records: AtomicU64::new(0),
            damage: Damage::default(),
            health: Health::new(),
            write_back,
            cache_yield: CacheYield::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            unsynced: UnsyncedRecords::default(),
            making_room: Arc::new(Semaphore::new(1)),
            timings,
            durability,
            group: GroupCommit::new(journal.last_commit),
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

    /// Every commit up to this one is durable.
    pub fn done(&self) -> u64 {
        self.group.done()
    }

    /// Calls `ask` with the database.
    ///
    /// # Errors
    /// Those of `ask`, and one while the database is being opened again: never waits for that.
    pub fn with_disk<T>(&self, ask: impl FnOnce(&D) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match self.disk.try_read().as_deref() {
            Some(Some(disk)) => ask(disk),
            Some(None) | None => Err(self.health.fault().unwrap_or_else(reopening)),
        }
    }

    /// Applies `entry`, with this index in its batch, to the counter with `key`. `None`, and nothing is changed, when it
    /// has to be [looked up](Engine::look_up) first.
    pub fn act(
        &self,
        (index, key, entry): (usize, &[u8], &Entry),
        now: Timestamp,
        lookups: &mut Lookups,
    ) -> Result<Option<Acted>, StoreError> {
        let surroundings = self.surroundings();
        let load = |departures| self.record_for((index, key, entry), now, lookups, departures);
        self.table.act(key, entry, now, surroundings, load)
    }

    /// As [`Engine::act`], for the entries of a group: see [`Table::act_together`].
    pub fn act_together(
        &self,
        group: Unit<'_>,
        now: Timestamp,
        (lookups, shares): (&mut Lookups, &Shares),
        outcomes: &mut Outcomes,
    ) -> Result<Option<u64>, StoreError> {
        let load = |member, departures| self.record_for(member, now, lookups, departures);
        self.table.act_together(group, now, self.surroundings(), shares, outcomes, load)
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings { group: &self.group, health: &self.health, counters: &self.budget, records: &self.records }
    }

    /// Forgets the reservations and answers that are over by `now`.
    pub fn sweep_records(&self, now: Timestamp) {
        let before = Timestamp::from_nanos(self.swept_records.swap(now.as_nanos(), Relaxed));
        if self.records.remembered() != RecordCount::default() {
            self.table.sweep_records(now, was_set_back(before, now));
        }
    }

    /// Waits until everything that was changed before this call is durable: whether hits can be answered just now.
    pub async fn check(self: &Arc<Self>) -> Result<(), StoreError> {
        match self.health.fault() {
            Some(fault) => Err(fault),
            None => self.settle(self.group.open()).await,
        }
    }

    /// Waits for the fsync and the write-backs that are due. Large batches do so before they are applied: otherwise commits
    /// would have to wait, and with them every small batch.
    pub async fn make_room_ahead(self: &Arc<Self>) {
        if !self.unsynced.is_long() && !self.write_back.is_due(&self.table) {
            return;
        }
        // One at a time: commits need threads that may block, too.
        let Ok(turn) = Arc::clone(&self.making_room).acquire_owned().await else { return };
        let engine = Arc::clone(self);
        run_blocking(move || {
            let _turn = turn;
            // The next commit reports what fails here.
            if engine.unsynced.is_long() && engine.sync().is_err() {
                return;
            }
            while let Ok(true) = engine.write_back_if_due() {}
        })
        .await;
    }

    /// Writes back the oldest segment of the journal if the journal is nearly as long as it may be. False when there was
    /// nothing to do.
    ///
    /// # Errors
    /// When the disk refuses reads or writes.
    pub fn write_back_if_due(&self) -> Result<bool, StoreError> {
        if !self.write_back.is_due(&self.table) {
            return Ok(false);
        }
        self.on_well_disk(|disk| self.write_back.run_oldest(self.scene(disk)))
    }

    /// Brings all counters' own records up to date with what is committed.
    ///
    /// # Errors
    /// When the disk refuses reads or writes.
    pub fn write_back(&self) -> Result<(), StoreError> {
        self.write_back_at(self.timings.now())
    }

    /// As [`Engine::write_back`], but only counters that have expired by `now` are forgotten instead.
    pub(super) fn write_back_at(&self, now: Timestamp) -> Result<(), StoreError> {
        // What nobody waits for (`lazy`) would have to wait for the next write-back. A commit uses the disk by itself.
        if self.health.is_well()
            && let Some(leader) = self.try_lead()
        {
            self.lead(&leader);
        }
        self.on_well_disk(|disk| {
            let (through, record, pending) = {
                // No commit is under way: every change is in the journal, in this record, or pending.
                let committer = self.committer.lock();
                // Of a commit that has failed just now, the changes are neither in the journal nor pending.
                if let Some(fault) = self.health.fault() {
                    return Err(fault);
                }
                let through = self.write_back.close_segment(&self.table.marks);
                (through, committer.record.clone(), self.pending())
            };
            let scene = Scene { now, ..self.scene(disk) };
            self.write_back.run_through(scene, through, &[&record, &pending])
        })
    }

    /// A record of the changes that no commit has taken yet.
    fn pending(&self) -> Vec<u8> {
        let mut pending = Vec::new();
        self.table.copy_journal(&mut Packer::default(), &mut pending);
        pending
    }

    fn scene<'a>(&'a self, disk: &'a D) -> Scene<'a, D> {
        Scene { table: &self.table, group: &self.group, budget: &self.budget, disk, now: self.timings.now() }
    }

    /// As [`Table::sweep`].
    ///
    /// # Errors
    /// Those of `load`.
    pub fn sweep(
        &self,
        key: &[u8],
        now: Timestamp,
        load: impl FnOnce() -> Result<Option<Timestamp>, StoreError>,
    ) -> Result<bool, StoreError> {
        self.table.sweep(key, now, &self.group, &self.budget, load)
    }

    /// Forces everything that was committed to stable storage.
    ///
    /// # Errors
    /// When the disk refuses it.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.on_well_disk(|disk| {
            let covered = self.unsynced.take();
            let synced = disk.sync();
            if synced.is_err() {
                self.unsynced.put_back(covered);
            }
            synced
        })
    }

    /// Does `work`, after the failure of which the database has to be opened again.
    fn on_well_disk<T>(&self, work: impl FnOnce(&D) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if let Some(fault) = self.health.fault() {
            return Err(fault);
        }
        let result = self.with_disk(work);
        if let Err(error) = &result {
            self.health.broke(error);
        }
        result
    }

    /// Leadership, unless there is a leader.
    pub fn try_lead(&self) -> Option<Leader> {
        self.group.try_lead()
    }

    /// Later hits get an error; those under way are still served.
    pub fn close(&self) {
        self.group.close();
    }
}

fn reopening() -> StoreError {
    StoreError::new("the database is being reopened after a disk failure")
}

#[cfg(all(test, not(feature = "model")))]
mod tests;
