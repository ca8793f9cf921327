//! Recovery from a disk that failed: the database is opened again, and the next commit writes what it lacks.

use super::Engine;
use crate::store::contract::StoreError;
use crate::store::rocks::commit::journal::Packer;
use crate::store::rocks::disk::{Disk, Patience};
use crate::store::rocks::table::BetweenGroups;
use crate::store::rocks::upkeep::health::Condition;

impl<D: Disk> Engine<D> {
    /// The first commit after the database was opened again. Memory is ahead of the disk, and what of the journal since
    /// the last fsync has reached it is unknown: those changes are committed again.
    /// Counters are committed as they are now: also those of a group are, since the record was taken.
    pub(super) fn catch_up(
        &self,
        number: u64,
        record: &[u8],
        between_groups: BetweenGroups<'_>,
    ) -> Result<(), StoreError> {
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
}
