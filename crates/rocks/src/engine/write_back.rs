//! The write-back of counters, which shortens the journal.
//!
//! A write-back brings counters' own records up to date, and then drops the journal that they replace. No answer waits for it, because
//! the journal has every change. A counter has to be written back only before the journal segment with its last change is dropped,
//! and most counters change again before that. A write-back is one pass over one segment: it reads the keys, and writes the current
//! states of the counters, sorted.

use std::collections::HashSet;

use super::Engine;
use crate::disk::Disk;
use crate::journal::{self, Segment, SortedChanges};
use crate::sync::atomic::Ordering::Relaxed;
use divvy_core::clock::Timestamp;
use divvy_store::StoreError;

/// Maximum ratio of a staged change's length to its packed length, for usual keys.
const STAGED_TO_PACKED: usize = 4;
/// The table may exceed its memory by one part in this many before commits wait for write-backs.
const TOLERATED_EXCESS: usize = 8;
/// Minimum of the tolerated excess (bytes).
const ALWAYS_TOLERATED: usize = 1 << 20;
/// The table gives memory back after write-backs of one part in this many of its excess. A pass over all counters for
/// each segment would take longer than the write-backs if the table is many times too large.
const EXCESS_TO_WRITTEN: usize = 8;

impl<D: Disk> Engine<D> {
    /// Returns the size of the journal (bytes).
    pub fn journal_bytes(&self) -> u64 {
        self.segments.lock().bytes
    }

    /// Returns whether commits must wait for a write-back: the journal is full, or counters that cannot be evicted take
    /// much more memory than there is.
    pub(super) fn is_write_back_overdue(&self) -> bool {
        let inherited = self.inherited_excess.load(Relaxed);
        self.table.excess() > inherited + self.tolerated_excess() || self.segments.lock().is_full()
    }

    /// Returns whether a segment should be written back now, so that no commit has to wait.
    pub(super) fn is_write_back_due(&self) -> bool {
        let inherited = self.inherited_excess.load(Relaxed);
        self.table.excess() > inherited + self.tolerated_excess() / 4 || self.segments.lock().is_long()
    }

    /// Notes that the journal and the table have what the last process left. If that is more than they may have, because the
    /// bounds were larger, no commit waits until it is written back.
    pub(super) fn inherit(&self) {
        self.segments.lock().inherit();
        self.inherited_excess.store(self.table.excess(), Relaxed);
        self.note_inherited_excess();
    }

    fn has_inherited(&self) -> bool {
        self.inherited_excess.load(Relaxed) > 0 || self.segments.lock().has_inherited()
    }

    /// Notes how much of the inherited excess is left. No other write-back may run.
    fn note_inherited_excess(&self) {
        let excess = self.table.excess();
        let left = if excess <= self.tolerated_excess() / 4 { 0 } else { excess };
        self.inherited_excess.store(left.min(self.inherited_excess.load(Relaxed)), Relaxed);
    }

    /// Returns the excess over the table's memory that is tolerated before commits wait (bytes).
    fn tolerated_excess(&self) -> usize {
        (self.table.memory / TOLERATED_EXCESS).max(ALWAYS_TOLERATED)
    }

    /// Notes that commit `number` was appended to the journal. Empty records are not written.
    pub(super) fn note_appended(&self, number: u64, record: &[u8]) {
        if !record.is_empty() {
            self.segments.lock().grew(number, record.len() as u64, &self.table.marks);
        }
    }

    /// Closes the open segment and returns its number. Changes that no commit has taken yet may belong to it.
    pub(super) fn close_segment(&self) -> u32 {
        self.segments.lock().close(&self.table.marks)
    }

    /// Writes back the oldest segment if the journal is nearly full, or longer than it may be. Returns false if there was
    /// nothing to do.
    ///
    /// # Errors
    /// The disk refuses reads or writes.
    pub fn write_back_if_due(&self) -> Result<bool, StoreError> {
        if self.is_write_back_due() || self.has_inherited() { self.write_back_oldest() } else { Ok(false) }
    }

    /// Brings all counters' own records up to date with the commits.
    ///
    /// # Errors
    /// The disk refuses reads or writes.
    pub fn write_back(&self) -> Result<(), StoreError> {
        self.write_back_at(self.clock.now())
    }

    /// Does the same at this time. Counters that have expired by then are forgotten.
    pub fn write_back_at(&self, now: Timestamp) -> Result<(), StoreError> {
        // With `lazy`, changes that no caller waits for would be left behind. This comes first, because a commit uses
        // the disk, too.
        if self.is_well() {
            self.commit_unless_led();
        }
        self.on_well_disk(|disk| {
            let (through, record, pending) = {
                // No commit is under way: every change is in the journal, in this record, or pending.
                let committer = self.committer.lock();
                // The changes of a commit that has just failed are in none of them.
                if let Some(fault) = self.table.health.fault() {
                    return Err(fault);
                }
                (self.close_segment(), committer.record.clone(), self.table.copy_journal())
            };
            self.write_back_through(disk, now, through, &[&record, &pending])
        })
    }

    /// Writes back and drops the oldest segment, if it is closed and a commit came after it. Returns false if not.
    ///
    /// # Errors
    /// The disk refuses reads or writes. The journal is kept then.
    pub(super) fn write_back_oldest(&self) -> Result<bool, StoreError> {
        self.on_well_disk(|disk| {
            let now = self.clock.now();
            let _turn = self.write_back_turn.lock();
            let oldest = self.segments.lock().oldest();
            // The first commit after the segment may have some of its changes.
            let Some((segment, Some(next))) = oldest else { return Ok(false) };
            self.write_segment(disk, now, segment, next, &[]).map(|()| true)
        })
    }

    /// Writes back and drops all segments up to number `through`, which must be closed. `uncommitted` are records with
    /// the changes that were not committed when it was closed.
    ///
    /// # Errors
    /// The disk refuses reads or writes. The journal is kept then.
    pub(super) fn write_back_through(
        &self,
        disk: &D,
        now: Timestamp,
        through: u32,
        uncommitted: &[&[u8]],
    ) -> Result<(), StoreError> {
        let _turn = self.write_back_turn.lock();
        loop {
            let oldest = self.segments.lock().oldest();
            let Some((segment, next)) = oldest.filter(|(segment, _)| segment.number <= through) else { return Ok(()) };
            self.write_segment(disk, now, segment, next.unwrap_or(segment.last), uncommitted)?;
        }
    }

    /// Calls `work` while there is no write-back.
    pub fn without_write_backs<T>(&self, work: impl FnOnce() -> T) -> T {
        let _turn = self.write_back_turn.lock();
        work()
    }

    /// Writes back the counters whose last change is in `segment`: in its commits, or in those up to `last`.
    /// `uncommitted` records may change some of them again.
    fn write_segment(
        &self,
        disk: &D,
        now: Timestamp,
        segment: Segment,
        last: u64,
        uncommitted: &[&[u8]],
    ) -> Result<(), StoreError> {
        let table = &self.table;
        // Keys with later changes in the journal, after this segment.
        let mut late = HashSet::new();
        let mut note_late =
            |record: &[u8]| journal::each_change(record, |change| late.extend([table.hasher.hash(change.key)]));
        uncommitted.iter().try_for_each(|record| note_late(record))?;
        if segment.last < last {
            disk.read_journal(segment.last + 1, last, &mut |_, record| note_late(record))?;
        }
        // Reserved at once, because a buffer that grows step by step temporarily takes twice the memory.
        let reserved = usize::try_from(segment.bytes).unwrap_or(0).saturating_mul(STAGED_TO_PACKED);
        let (mut changes, mut forgotten) = (Vec::with_capacity(reserved), 0);
        if segment.first <= last {
            disk.read_journal(segment.first, last, &mut |_, record| {
                journal::each_change(record, |change| {
                    let is_late = |hash| late.contains(&hash);
                    let due = (segment.number, now);
                    forgotten += u64::from(table.write_back(&change, due, is_late, &mut changes));
                })
            })?;
        }
        self.expired.fetch_add(forgotten, Relaxed);
        if !changes.is_empty() {
            // These records are on stable storage at once, so the journal must be, too. Otherwise, a failing disk could
            // lose a later commit and keep an earlier one. The next start would take the earlier commit for newer than
            // the record. The disk could also keep only those members of a group that have records.
            disk.sync()?;
            disk.write_counters(&SortedChanges::new(&changes))?;
        }
        late.iter().for_each(|hash| table.stays_in_journal(*hash, segment.number));
        table.marks.set_clean(segment.number);
        if segment.bytes > 0 {
            disk.clear_journal(segment.last)?;
        }
        self.segments.lock().drop_oldest();
        let written = self.written_back.fetch_add(segment.bytes, Relaxed) + segment.bytes;
        if table.excess() > 0 && written >= (table.excess() / EXCESS_TO_WRITTEN) as u64 {
            self.written_back.store(0, Relaxed);
            table.give_back();
            self.note_inherited_excess();
        }
        Ok(())
    }
}
