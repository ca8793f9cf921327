//! Making commits: on the event loop if the write is quick, or else on a thread that may block. After a disk failure, the database
//! is reopened, and the next commit writes what the disk lacks.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use crate::disk::{Disk, Patience};
use crate::group_commit::Leader;
use crate::health::Condition;
use crate::hot_table::GroupBarrier;
use crate::journal::Packer;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{oneshot, run_blocking, spawn_blocking};
use divvy_store::{Durability, StoreError};

impl<D: Disk> Engine<D> {
    /// Waits until commit `number` is durable, and makes it unless another caller does.
    ///
    /// # Errors
    /// The commit fails. The change stays in the table, and may become durable later.
    pub async fn wait_until_durable(self: &Arc<Self>, number: u64) -> Result<(), StoreError> {
        let Some(leader) = self.table.commits.wait_for(number).await? else { return Ok(()) };
        if self.is_quick() {
            let number = leader.begin();
            if let Some(result) = self.commit(number, Patience::None) {
                leader.finish(number, &result);
                return result;
            }
            // The next commit writes what this one has taken.
        }
        let (engine, (caller, committed)) = (Arc::clone(self), oneshot::channel());
        spawn_blocking(move || engine.lead(leader, caller));
        committed.await.unwrap_or_else(|_| Err(StoreError::new("the commit was aborted")))
    }

    /// Makes a commit, and sends its result to the caller, which may have left. With `sync`, makes further commits as
    /// long as connections wait. So an fsync follows the last one without a switch to the event loop and back.
    ///
    /// An fsync for many hits takes as long as for one. So with `sync`, a commit waits for as many connections as the last one saw. If
    /// that takes more than half an fsync, the work for some of them had better overlap with the fsync for the others.
    fn lead(&self, leader: Leader, caller: oneshot::Sender<Result<(), StoreError>>) {
        let (mut leading, mut caller) = (Some(leader), Some(caller));
        let (commits, is_sync) = (&self.table.commits, self.durability == Durability::Sync);
        while let Some(leader) = &leading {
            let callers = usize::from(caller.is_some());
            if is_sync {
                let longest = Duration::from_nanos(self.commit_ns.load(Relaxed) / 2);
                commits.gather(self.expected.load(Relaxed).saturating_sub(callers), longest);
            }
            let (result, waiting) = self.make_next(leader);
            self.expected.store(waiting + callers, Relaxed);
            // Before the reply: the caller may need a leader at once, and this one has nothing to do.
            if !is_sync || commits.waiting() == 0 {
                leading = None;
            }
            if let Some(caller) = caller.take() {
                let _ = caller.send(result);
            }
            if is_sync {
                // After the replies, because this write may wait for the file system. A mark that stays behind is safe.
                let _ = self.with_disk(|disk| {
                    disk.note_synced();
                    Ok(())
                });
            }
        }
    }

    /// Waits until every change before this call is durable.
    ///
    /// # Errors
    /// Hits cannot be answered at present.
    pub async fn check(self: &Arc<Self>) -> Result<(), StoreError> {
        match self.table.health.fault() {
            Some(fault) => Err(fault),
            None => self.wait_until_durable(self.table.commits.open()).await,
        }
    }

    /// Returns whether a commit that begins now does not block.
    fn is_quick(&self) -> bool {
        match self.table.health.condition() {
            // A write to the page cache takes less time than a handover to another thread.
            Condition::Well => {
                self.durability == Durability::Wal && !self.is_write_back_overdue() && !self.unsynced.lock().is_full()
            }
            Condition::Broken => true,
            Condition::Reopened => false,
        }
    }

    /// Makes a commit, unless a leader exists. The calling thread may block.
    pub fn commit_unless_led(&self) {
        if let Some(leader) = self.table.commits.try_lead() {
            // The waiters and the log get the result.
            let _ = self.make_next(&leader);
        }
    }

    /// Commits the changes that no hit waits for, when the store is being closed.
    ///
    /// # Errors
    /// The disk refuses writes.
    pub fn commit_rest(&self) -> Result<(), StoreError> {
        match self.table.commits.try_lead() {
            Some(leader) => self.make_next(&leader).0,
            // The leader's thread has ended, so it makes no commit. No hit changes anything anymore.
            None => self.commit_patiently(self.table.commits.begin_for_absent_leader()),
        }
    }

    /// Makes the next commit, and releases those who wait for it. Returns also how many were waiting.
    fn make_next(&self, leader: &Leader) -> (Result<(), StoreError>, usize) {
        let number = leader.begin();
        let result = self.commit_patiently(number);
        let waiting = leader.finish(number, &result);
        (result, waiting)
    }

    fn commit_patiently(&self, number: u64) -> Result<(), StoreError> {
        let patience = if self.durability == Durability::Sync { Patience::Fsync } else { Patience::Stalls };
        // A record that was not written never counts as durable.
        self.commit(number, patience).unwrap_or_else(|| Err(stalled()))
    }

    /// Makes every change so far durable. Returns `None` if that takes more than `patience`.
    fn commit(&self, number: u64, patience: Patience) -> Option<Result<(), StoreError>> {
        let committer = &mut *self.committer.lock();
        let begun = self.clock.now();
        let barrier = self.table.wait_for_groups();
        self.table.take_journal(&barrier, &mut committer.packer, &mut committer.record);
        let result = match self.table.health.condition() {
            Condition::Well => {
                drop(barrier);
                self.append(number, &committer.record, patience)?
            }
            Condition::Broken => Err(self.table.health.last_fault()),
            Condition::Reopened => self.catch_up(number, &committer.record, barrier),
        };
        committer.outage.note(&result);
        if result.is_ok() && !committer.record.is_empty() {
            let took = self.clock.now().since(begun);
            self.commit_ns.store(took, Relaxed);
            self.commit_times.observe(took, 1);
        }
        if result.is_err() || self.durability != Durability::Sync {
            self.unsynced.lock().push(&committer.record);
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
            Ok(()) => self.note_appended(number, record),
            Err(error) => self.table.health.broke(error),
        }
        Some(result)
    }

    /// Waits until the journal may grow by `record`, which was taken from the table.
    fn make_room(&self, record: &[u8]) -> Result<(), StoreError> {
        if self.unsynced.lock().is_full() {
            self.sync()?;
        }
        while self.is_write_back_overdue() {
            if self.write_back_oldest()? {
                continue;
            }
            if !self.segments.lock().is_full() {
                // The counters that cannot be evicted are in the open segment.
                break;
            }
            // A single commit is longer than the journal may be.
            let (through, pending) = (self.close_segment(), self.table.copy_journal());
            self.on_well_disk(|disk| self.write_back_through(disk, self.clock.now(), through, &[record, &pending]))?;
        }
        Ok(())
    }

    /// Waits for the fsync and the write-backs that are due. A large batch does so before it is applied. Otherwise, its
    /// commit would have to wait, and so would every small batch.
    pub async fn make_room_ahead(self: &Arc<Self>) {
        if !self.unsynced.lock().is_long() && !self.is_write_back_due() {
            return;
        }
        // One batch at a time, because commits also need threads that may block.
        let Ok(turn) = Arc::clone(&self.making_room).acquire_owned().await else { return };
        let engine = Arc::clone(self);
        run_blocking(move || {
            let _turn = turn;
            // The next commit reports failures.
            if engine.unsynced.lock().is_long() && engine.sync().is_err() {
                return;
            }
            while engine.is_write_back_due() && matches!(engine.write_back_oldest(), Ok(true)) {}
        })
        .await;
    }

    /// Forces every commit to stable storage.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.on_well_disk(|disk| {
            let covered = std::mem::take(&mut *self.unsynced.lock());
            let synced = disk.sync();
            if synced.is_err() {
                self.unsynced.lock().put_back(covered);
            }
            synced
        })
    }

    /// Reopens a database that has failed, once the disk `is_usable`. The next commit then writes what the disk lacks.
    /// Called periodically; does nothing while the database is well.
    pub fn heal(&self, is_usable: impl FnOnce() -> bool, open: impl FnOnce() -> Result<D, StoreError>) {
        let health = &self.table.health;
        if health.condition() == Condition::Broken && is_usable() {
            match self.reopen(open) {
                Ok(()) => health.reopened(),
                Err(error) => health.broke(&error),
            }
        }
        if health.condition() == Condition::Reopened {
            // If a leader began its commit before the database was reopened, the next call makes the commit.
            self.commit_unless_led();
        }
    }

    /// Closes the failed database, and then opens it again.
    fn reopen(&self, open: impl FnOnce() -> Result<D, StoreError>) -> Result<(), StoreError> {
        let mut disk = self.disk.write();
        *disk = None;
        *disk = Some(open()?);
        // It is unknown which records the disk has lost or kept.
        self.table.forget_records();
        Ok(())
    }

    /// Makes the first commit after the database was reopened. Memory is ahead of the disk. Changes since the last
    /// fsync may have been lost, so they are committed again: each counter in its current state, including all members
    /// of a group.
    pub(super) fn catch_up(&self, number: u64, record: &[u8], barrier: GroupBarrier<'_>) -> Result<(), StoreError> {
        let unsynced = std::mem::take(&mut *self.unsynced.lock());
        let caught_up = self.with_disk(|disk| {
            let mut changes = Vec::new();
            self.table.change_again(&barrier, unsynced.iter().chain([record]), &mut changes)?;
            drop(barrier);
            let mut again = Vec::new();
            Packer::default().pack(&changes, &mut again);
            disk.append_journal(number, &again, Patience::Fsync).unwrap_or_else(|| Err(stalled()))?;
            self.note_appended(number, &again);
            disk.sync()
        });
        match &caught_up {
            Ok(()) => self.table.health.caught_up(),
            Err(error) => {
                self.unsynced.lock().put_back(unsynced);
                self.table.health.broke(error);
            }
        }
        caught_up
    }
}

pub(super) fn stalled() -> StoreError {
    StoreError::new("cannot write the journal: the database is stalled")
}
