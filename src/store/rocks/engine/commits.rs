//! Making commits: on the event loop if the write is quick, else on a thread that may block.

use std::sync::Arc;

use super::{Engine, reopening};
use crate::store::contract::StoreError;
use crate::store::rocks::commit::group_commit::{Leader, Waited};
use crate::store::rocks::disk::{Disk, Patience};
use crate::store::rocks::sync::{run_blocking, yield_now};
use crate::store::rocks::upkeep::health::Condition;
use crate::store::rocks_options::Durability;

/// Turns of its leader's thread for which a commit waits at most.
const GATHERING_TURNS: usize = 8;
/// Connections in one commit beyond which more of them make it no cheaper for each. A turn of a thread that serves this
/// number takes milliseconds.
const GATHERED: usize = 256;

/// A commit that was begun.
struct Begun {
    leader: Leader,
    number: u64,
}

impl<D: Disk> Engine<D> {
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
}
