//! Write-back: brings counters' own records up to date, and then drops the journal that they replace.
//!
//! No answer needs a write-back: what is not written back is in the journal. Counters change far more often than they
//! have to be written back, which is before the journal segment with their last change is dropped. Most change again
//! before that. Writing them is one pass over one segment: its keys, the counters as they are, sorted.

use std::collections::HashSet;

use crate::clock::Timestamp;
use crate::store::bounds::CounterBudget;
use crate::store::contract::StoreError;
use crate::store::rocks::commit::group_commit::GroupCommit;
use crate::store::rocks::commit::journal;
use crate::store::rocks::commit::segment_marks::SegmentMarks;
use crate::store::rocks::commit::segments::{Segment, Segments};
use crate::store::rocks::commit::sorted_changes::SortedChanges;
use crate::store::rocks::disk::Disk;
use crate::store::rocks::sync::Mutex;
use crate::store::rocks::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::store::rocks::table::Table;
use crate::store::rocks::table::write_back::Due;

/// How much longer a staged change is than a packed one, at most; for usual keys.
const STAGED_TO_PACKED: usize = 4;

/// A segment is this much shorter than the table, at least: else the counters of one might fill it, and none of them can
/// be evicted.
const TABLE_TO_SEGMENT: u64 = 32;
/// Unless it would be shorter than this (bytes).
const SHORTEST_SEGMENT: u64 = 64 << 10;
/// The table may exceed its memory by one part in so many before commits wait for write-backs,
const TOLERATED_EXCESS: usize = 8;
/// or by so much (bytes).
const ALWAYS_TOLERATED: usize = 1 << 20;

/// How much journal there is, and who writes back.
pub struct WriteBack {
    /// One write-back at a time.
    running: Mutex<()>,
    segments: Mutex<Segments>,
    expired: AtomicU64,
}

/// What a write-back works on.
pub struct Scene<'a, D> {
    pub table: &'a Table,
    pub group: &'a GroupCommit,
    pub budget: &'a CounterBudget,
    pub disk: &'a D,
    pub now: Timestamp,
}

impl WriteBack {
    /// For a journal of `max_bytes`, in front of such a table.
    pub fn new(max_bytes: u64, table: &Table) -> Self {
        let longest_segment = (table.memory() as u64 / TABLE_TO_SEGMENT).max(SHORTEST_SEGMENT);
        let segments = Mutex::new(Segments::new(max_bytes, longest_segment, &table.marks));
        Self { running: Mutex::new(()), segments, expired: AtomicU64::new(0) }
    }

    /// Bytes of the journal.
    pub fn journal_bytes(&self) -> u64 {
        self.segments.lock().bytes()
    }

    /// Whether the journal is as long as it may be.
    pub fn is_full(&self) -> bool {
        self.segments.lock().is_full()
    }

    /// Whether commits have to wait for a write-back: the journal is full, or counters that cannot be evicted take much
    /// more memory than there is.
    pub fn is_overdue(&self, table: &Table) -> bool {
        table.excess() > tolerated_excess(table) || self.is_full()
    }

    /// Whether a segment should be written back now.
    pub fn is_due(&self, table: &Table) -> bool {
        table.excess() > tolerated_excess(table) / 4 || self.segments.lock().is_long()
    }

    /// Commit `number` has been appended to the journal.
    pub fn journal_grew(&self, number: u64, bytes: usize, marks: &SegmentMarks) {
        self.segments.lock().grew(number, bytes as u64, marks);
    }

    /// Closes the open segment; returns its number. Changes that no commit has taken yet may belong to it.
    pub fn close_segment(&self, marks: &SegmentMarks) -> u32 {
        self.segments.lock().close(marks)
    }

    /// Writes the oldest segment back and drops it, if it is closed and a commit came after it. False if not.
    ///
    /// # Errors
    /// When the disk refuses a read or a write. The journal is kept then.
    pub fn run_oldest<D: Disk>(&self, scene: Scene<'_, D>) -> Result<bool, StoreError> {
        let _one_at_a_time = self.running.lock();
        let oldest = self.segments.lock().oldest();
        match oldest {
            // Changes of this segment may be in the first commit after it.
            Some((segment, Some(next))) => self.write(&scene, segment, next, &[]).map(|()| true),
            Some((_, None)) | None => Ok(false),
        }
    }

    /// Writes back and drops all segments up to number `through`, which must be closed. `uncommitted`: records with the
    /// changes that were not committed when that was closed.
    ///
    /// # Errors
    /// As [`WriteBack::run_oldest`].
    pub fn run_through<D: Disk>(
        &self,
        scene: Scene<'_, D>,
        through: u32,
        uncommitted: &[&[u8]],
    ) -> Result<(), StoreError> {
        let _one_at_a_time = self.running.lock();
        loop {
            let oldest = self.segments.lock().oldest();
            match oldest {
                Some((segment, next)) if segment.number <= through => {
                    let last = next.unwrap_or(segment.last);
                    self.write(&scene, segment, last, uncommitted)?;
                }
                Some(_) | None => return Ok(()),
            }
        }
    }

    /// Does `work` while nothing is written back.
    pub fn pause<T>(&self, work: impl FnOnce() -> T) -> T {
        let _one_at_a_time = self.running.lock();
        work()
    }

    /// Writes back the counters whose last change is in `segment`: in its commits, or in those up to `last`. Some of them may
    /// be changed again by `uncommitted` records.
    fn write<D: Disk>(
        &self,
        &Scene { table, group, budget, disk, now }: &Scene<'_, D>,
        segment: Segment,
        last: u64,
        uncommitted: &[&[u8]],
    ) -> Result<(), StoreError> {
        // Changes that outlive the segment in the journal.
        let mut late = HashSet::new();
        let mut note_late = |record: &[u8]| {
            journal::each_change(record, |change| {
                late.insert(table.hasher.hash(change.key));
                Ok::<_, StoreError>(())
            })
        };
        uncommitted.iter().try_for_each(|record| note_late(record))?;
        if segment.last < last {
            disk.read_journal(segment.last + 1, last, &mut |_, record| note_late(record))?;
        }
        // Reserved, not used: growing step by step would take twice the memory for a moment.
        let reserved = usize::try_from(segment.bytes).unwrap_or(0).saturating_mul(STAGED_TO_PACKED);
        let due = Due { through: segment.number, now, group, budget };
        let (mut changes, mut forgotten) = (Vec::with_capacity(reserved), 0);
        if segment.first <= last {
            disk.read_journal(segment.first, last, &mut |_, record| {
                journal::each_change(record, |change| {
                    let is_late = |hash| late.contains(&hash);
                    forgotten += u64::from(table.write_back(&change, &due, is_late, &mut changes));
                    Ok::<_, StoreError>(())
                })
            })?;
        }
        self.expired.fetch_add(forgotten, Relaxed);
        if !changes.is_empty() {
            // These records are on stable storage at once. If the journal were not, a disk that fails could lose a later
            // commit and keep an earlier one, which the next start would take for newer than the record; and of a group it
            // could keep what is in records alone.
            disk.sync()?;
            disk.write_counters(&SortedChanges::new(&changes))?;
        }
        late.iter().for_each(|hash| table.stays_in_journal(*hash, segment.number));
        table.marks.set_clean(segment.number);
        if segment.bytes > 0 {
            disk.clear_journal(segment.last)?;
        }
        self.segments.lock().drop_oldest();
        if table.excess() > 0 {
            table.give_back();
        }
        Ok(())
    }

    /// Counters that had expired when their turn came, and were forgotten.
    pub fn expired(&self) -> u64 {
        self.expired.load(Relaxed)
    }
}

/// By how much the table may exceed its memory before commits wait (bytes).
fn tolerated_excess(table: &Table) -> usize {
    (table.memory() / TOLERATED_EXCESS).max(ALWAYS_TOLERATED)
}
