//! Recovery from a failed disk: the database is reopened, and the next commit writes what the disk lacks.

use super::Engine;
use super::commits::stalled;
use crate::commit::journal::Packer;
use crate::disk::{Disk, Patience};
use crate::table::GroupBarrier;
use crate::upkeep::health::Condition;
use divvy_store::contract::StoreError;

impl<D: Disk> Engine<D> {
    /// Reopens a database that has failed, once the disk `is_usable`. The next commit then writes what the disk lacks.
    /// Called periodically; does nothing while the database is well.
    pub fn heal(&self, is_usable: impl FnOnce() -> bool, open: impl FnOnce() -> Result<D, StoreError>) {
        let health = &self.admission.health;
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
            Ok(()) => self.admission.health.caught_up(),
            Err(error) => {
                self.unsynced.lock().put_back(unsynced);
                self.admission.health.broke(error);
            }
        }
        caught_up
    }
}
