//! The engine of the embedded store: a table of counters in front of a disk, group commit, write-back, and recovery
//! from a disk that failed.
//!
//! Generic over the disk, so that the model checker can run all of it on a simulated one. Threads, bounds and the
//! clock are the store's.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::commit::{GroupCommit, Leader, Waited};
use super::damage::Damage;
use super::disk::{Disk, Patience};
use super::health::{Condition, Health};
use super::journal::Packer;
use super::lookups::{CacheYield, Lookups};
use super::sync::atomic::{AtomicU64, Ordering::Relaxed};
use super::sync::{Mutex, RwLock, run_blocking, yield_now};
use super::table::{Acted, BetweenGroups, Surroundings, Table};
use super::timings::Timings;
use super::unsynced::Unsynced;
use super::write_back::{Scene, WriteBack};
use crate::clock::Timestamp;
use crate::store::bounds::{CounterBudget, RecordBudgets, RecordCount, Shares, was_set_back};
use crate::store::contract::{Entry, Outcomes, StoreError, Unit};
use crate::store::outage::Outage;
use crate::store::rocks_options::Durability;

/// Turns of its leader's thread for which a commit waits at most.
const GATHERING_TURNS: usize = 8;
/// Connections in one commit beyond which more of them make it no cheaper for each. A turn of a thread that serves this
/// number takes milliseconds.
const GATHERED: usize = 256;
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
    pub(super) cache_yield: CacheYield,
    /// Permits for threads that read from the disk. Each of them takes up to a megabyte.
    pub(super) readers: Arc<Semaphore>,
    unsynced: Unsynced,
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

/// A commit that was begun.
struct Begun {
    leader: Leader,
    number: u64,
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
            unsynced: Unsynced::default(),
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

    /// Waits until commit `number` is durable, and makes it unless another caller does.
    ///
    /// # Errors
    /// When the commit fails. The change stays in the table, and may become durable later.
    pub async fn settle(self: &Arc<Self>, number: u64) -> Result<(), StoreError> {
        let leader = match self.group.wait_for(number).await {
            Waited::Committed(result) => return result,
            Waited::Leading(leader) => leader,
        };
        self.gather().await;
        match self.commit_at_once(leader) {
            Ok(result) => result,
            Err(unfinished) => self.commit_elsewhere(unfinished).await,
        }
    }

    /// Lets other connections whose requests have arrived, or arrive during these turns, get their changes into the next
    /// commit. It ends when a turn of this thread brings no more of them, or when there are enough.
    async fn gather(&self) {
        let mut waiting = self.group.waiting();
        for _ in 0..GATHERING_TURNS {
            yield_now().await;
            let before = std::mem::replace(&mut waiting, self.group.waiting());
            if waiting <= before || waiting >= GATHERED {
                return;
            }
        }
    }

    /// Waits until everything that was changed before this call is durable: whether hits can be answered just now.
    pub async fn check(self: &Arc<Self>) -> Result<(), StoreError> {
        match self.health.fault() {
            Some(fault) => Err(fault),
            None => self.settle(self.group.open()).await,
        }
    }

    /// Makes the commit on this thread, unless that might take long: then gives it back.
    fn commit_at_once(&self, leader: Leader) -> Result<Result<(), StoreError>, Begun> {
        let begun = Begun { number: leader.begin(), leader };
        let patience = match self.durability {
            Durability::Sync => Patience::Fsync,
            // A write to the page cache takes less than handing it to another thread would.
            Durability::Wal if !self.write_back.is_overdue(&self.table) && !self.unsynced.is_full() => Patience::None,
            Durability::Wal | Durability::Lazy => Patience::Stalls,
        };
        let is_quick = match self.health.condition() {
            Condition::Well => patience == Patience::None,
            Condition::Broken => true,
            Condition::Reopened => false,
        };
        match is_quick.then(|| self.commit(begun.number, patience)).flatten() {
            Some(result) => {
                begun.leader.finish(begun.number, &result);
                Ok(result)
            }
            None => Err(begun),
        }
    }

    /// Makes the commit on a thread that may block. It runs to its end, and its leader with it, even if this caller
    /// leaves: a later leader must not begin while this commit is under way.
    async fn commit_elsewhere(self: &Arc<Self>, begun: Begun) -> Result<(), StoreError> {
        let engine = Arc::clone(self);
        let made = run_blocking(move || engine.finish(&begun.leader, begun.number)).await;
        made.unwrap_or_else(|| Err(StoreError::new("the commit was aborted")))
    }

    /// For a thread that may block: makes one commit.
    pub fn lead(&self, leader: &Leader) {
        // A failure is told to the waiters, and logged.
        let _ = self.finish(leader, leader.begin());
    }

    fn finish(&self, leader: &Leader, number: u64) -> Result<(), StoreError> {
        let result = self.commit_patiently(number);
        leader.finish(number, &result);
        result
    }

    fn commit_patiently(&self, number: u64) -> Result<(), StoreError> {
        let patience = if self.durability == Durability::Sync { Patience::Fsync } else { Patience::Stalls };
        // A record that was not written must never count as durable, whatever the disk's reason.
        let refused = || Err(StoreError::new("cannot write the journal: the database is stalled"));
        self.commit(number, patience).unwrap_or_else(refused)
    }

    /// Makes every change so far durable. `None` when that takes more patience.
    fn commit(&self, number: u64, patience: Patience) -> Option<Result<(), StoreError>> {
        let committer = &mut *self.committer.lock();
        let begun = self.timings.now();
        let between_groups = self.table.between_groups();
        self.table.take_journal(&between_groups, &mut committer.packer, &mut committer.record);
        let result = match self.health.condition() {
            Condition::Well => {
                drop(between_groups);
                self.append(number, &committer.record, patience)?
            }
            Condition::Broken => Err(self.health.fault().unwrap_or_else(reopening)),
            Condition::Reopened => self.catch_up(number, &committer.record, between_groups),
        };
        committer.outage.note(&result);
        if result.is_ok() && !committer.record.is_empty() {
            self.timings.committed(begun);
        }
        if result.is_err() || self.durability != Durability::Sync {
            self.unsynced.push(&committer.record);
        }
        committer.record.clear();
        Some(result)
    }

    fn append(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>> {
        if patience != Patience::None
            && let Err(error) = self.make_room(record)
        {
            return Some(Err(error));
        }
        let appended = self.with_disk(|disk| Ok(disk.append_journal(number, record, patience)));
        let result = appended.unwrap_or_else(|error| Some(Err(error)))?;
        match &result {
            Ok(()) if !record.is_empty() => self.write_back.journal_grew(number, record.len(), &self.table.marks),
            Ok(()) => {}
            Err(error) => self.health.broke(error),
        }
        Some(result)
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

    /// Waits until the journal may grow by `record`, which was taken from the table.
    fn make_room(&self, record: &[u8]) -> Result<(), StoreError> {
        if self.unsynced.is_full() {
            self.sync()?;
        }
        while self.write_back.is_overdue(&self.table) {
            if self.on_well_disk(|disk| self.write_back.run_oldest(self.scene(disk)))? {
                continue;
            }
            if !self.write_back.is_full() {
                // The counters that cannot be evicted are in the open segment.
                break;
            }
            // One commit is longer than all that the journal may be.
            let through = self.write_back.close_segment(&self.table.marks);
            let pending = self.pending();
            self.on_well_disk(|disk| self.write_back.run_through(self.scene(disk), through, &[record, &pending]))?;
        }
        Ok(())
    }

    /// The first commit after the database was opened again. Memory is ahead of the disk, and what of the journal since
    /// the last fsync has reached it is unknown: those changes are committed again.
    /// Counters are committed as they are now: also those of a group are, since the record was taken.
    fn catch_up(&self, number: u64, record: &[u8], between_groups: BetweenGroups<'_>) -> Result<(), StoreError> {
        let unsynced = self.unsynced.take();
        let caught_up = self.with_disk(|disk| {
            let mut changes = Vec::new();
            self.table.change_again(&between_groups, unsynced.iter().chain([record]), &mut changes)?;
            drop(between_groups);
            let mut again = Vec::new();
            if !changes.is_empty() {
                Packer::default().pack(&changes, &mut again);
            }
            let stalled = || Err(StoreError::new("cannot write the journal: the database is stalled"));
            disk.append_journal(number, &again, Patience::Fsync).unwrap_or_else(stalled)?;
            if !again.is_empty() {
                self.write_back.journal_grew(number, again.len(), &self.table.marks);
            }
            disk.sync()
        });
        match &caught_up {
            Ok(()) => self.health.caught_up(),
            Err(error) => {
                self.unsynced.put_back(unsynced);
                self.health.broke(error);
            }
        }
        caught_up
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

    /// Commits what no hit waits for any more: for the end.
    ///
    /// # Errors
    /// When the disk refuses writes.
    pub fn commit_rest(&self) -> Result<(), StoreError> {
        match self.group.try_lead() {
            Some(leader) => self.finish(&leader, leader.begin()),
            // A leader exists that makes no commit: its thread has ended. Nothing is changed any more that it could write.
            None => self.commit_patiently(self.group.begin_for_absent_leader()),
        }
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

    /// Opens a database again that has failed, once the disk `is_usable`, and has the next commit write what it lacks.
    /// To be called again and again; does nothing while all is well.
    pub fn heal(&self, is_usable: impl FnOnce() -> bool, open: impl FnOnce() -> Result<D, StoreError>) {
        if self.health.condition() == Condition::Broken && is_usable() {
            match self.reopen(open) {
                Ok(()) => self.health.reopened(),
                Err(error) => self.health.broke(&error),
            }
        }
        if self.health.condition() == Condition::Reopened {
            // A leader that has begun its commit already may have begun too early; then the next call sees to it.
            if let Some(leader) = self.try_lead() {
                self.lead(&leader);
            }
        }
    }

    /// Puts the database that `open` gives in the place of one that has failed. That one is closed first.
    fn reopen(&self, open: impl FnOnce() -> Result<D, StoreError>) -> Result<(), StoreError> {
        let mut disk = self.disk.write();
        *disk = None;
        *disk = Some(open()?);
        // It is unknown what the disk has lost or kept.
        self.budget.doubt();
        self.table.forget_records();
        Ok(())
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
