//! The journal's segments: the commits in each of them, the length of the journal, and marks that say which counters still need it.
//!
//! The journal is divided into numbered segments. A change carries the number of the segment that was open when it was
//! made. The change is in that segment or in the first commit of the next one: see [`SegmentMarks::open`]. Another mark
//! names the last segment whose counters are all written back.

use std::collections::VecDeque;

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The low bits of a segment's number, which fit into a slot of the table. If a counter does not change for 65,536
/// segments, it looks as if it had changed recently, while that segment is kept. The only effect is that it stays in
/// memory.
pub type Mark = u16;
/// Minimum number of segments in a full journal.
const SEGMENTS: u64 = 32;
/// Minimum ratio of the table's length to a segment's. Otherwise, the counters of one segment might fill the table, and
/// none of them could be evicted.
const TABLE_TO_SEGMENT: u64 = 32;
/// Length that a segment may have regardless of the table (bytes).
const SHORTEST_SEGMENT: u64 = 64 << 10;

/// The number of the open segment, and of the last one whose counters are all written back.
#[derive(Debug)]
pub struct SegmentMarks {
    open: AtomicU32,
    clean: AtomicU32,
}

impl SegmentMarks {
    pub fn new() -> Self {
        Self { open: AtomicU32::new(1), clean: AtomicU32::new(0) }
    }

    /// Returns the number of the open segment.
    ///
    /// A change must read it under its stripe's lock, after the stripe is marked as pending. If a commit has taken the
    /// stripe's changes before that, the change sees the segments that were closed by then. So no change is later than
    /// in the first commit after its segment.
    pub fn open(&self) -> u32 {
        self.open.load(Acquire)
    }

    /// Closes the open segment, and returns its number.
    pub fn close(&self) -> u32 {
        self.open.fetch_add(1, AcqRel)
    }

    /// Returns the last segment that is written back: the own record of every counter whose last change is in this
    /// segment or earlier is current.
    pub fn clean(&self) -> u32 {
        self.clean.load(Acquire)
    }

    /// Records that every counter whose last change is in segment `number` or earlier is written back.
    pub fn set_clean(&self, number: u32) {
        self.clean.fetch_max(number, Release);
    }

    /// Returns the segment that `mark` stands for: the last one with these low bits.
    pub fn number(&self, mark: Mark) -> u32 {
        let open = self.open();
        open.wrapping_sub(u32::from((open as Mark).wrapping_sub(mark)))
    }

    /// Returns whether the counter's own record contains its last change, which has this mark.
    pub fn is_clean(&self, mark: Mark) -> bool {
        // A mark from before the first segment becomes a number near the largest.
        let number = self.number(mark);
        number <= self.clean() || number > self.open()
    }

    /// Returns a mark for a counter whose own record is current.
    pub fn clean_mark(&self) -> Mark {
        self.clean() as Mark
    }
}

/// A run of commits whose counters are written back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub number: u32,
    /// The first commit in the segment. In an empty segment, it is after the last commit.
    pub first: u64,
    pub last: u64,
    pub bytes: u64,
}

/// The segments that are not written back. The last one is open.
#[derive(Debug)]
pub struct Segments {
    segments: VecDeque<Segment>,
    bytes: u64,
    max_bytes: u64,
    /// A segment is closed at this length (bytes).
    segment_bytes: u64,
}

impl Segments {
    /// Creates an empty journal of at most `max_bytes`, for a table with `table_bytes`.
    pub fn new(max_bytes: u64, table_bytes: u64, marks: &SegmentMarks) -> Self {
        let longest_segment = (table_bytes / TABLE_TO_SEGMENT).max(SHORTEST_SEGMENT);
        let segment_bytes = (max_bytes / SEGMENTS).min(longest_segment);
        let mut segments = Self { segments: VecDeque::new(), bytes: 0, max_bytes, segment_bytes };
        segments.open(marks, 0);
        segments
    }

    fn open(&mut self, marks: &SegmentMarks, last: u64) {
        self.segments.push_back(Segment { number: marks.open(), first: last + 1, last, bytes: 0 });
    }

    /// Returns the bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that commit `number` was appended to the open segment, and closes a segment that is long enough.
    pub fn grew(&mut self, number: u64, bytes: u64, marks: &SegmentMarks) {
        self.bytes += bytes;
        if let Some(open) = self.segments.back_mut() {
            if open.bytes == 0 {
                open.first = number;
            }
            open.last = number;
            open.bytes += bytes;
            if open.bytes >= self.segment_bytes {
                self.close(marks);
            }
        }
    }

    /// Closes the open segment. Returns its number.
    pub fn close(&mut self, marks: &SegmentMarks) -> u32 {
        let last = self.segments.back().map_or(0, |open| open.last);
        let closed = marks.close();
        self.open(marks, last);
        closed
    }

    /// Returns whether the journal exceeds its maximum length.
    pub fn is_full(&self) -> bool {
        self.bytes > self.max_bytes
    }

    /// Returns whether a segment should be written back, to make room for the next ones.
    pub fn is_long(&self) -> bool {
        self.bytes > self.max_bytes - 2 * self.segment_bytes
    }

    /// Returns the oldest segment, if it is closed, and the first commit after it, if there is one.
    pub fn oldest(&self) -> Option<(Segment, Option<u64>)> {
        let oldest = self.segments.front()?;
        let next = self.segments.get(1)?;
        Some((*oldest, (next.bytes > 0).then_some(next.first)))
    }

    /// Notes that the oldest segment was written back, and its commits were dropped.
    pub fn drop_oldest(&mut self) {
        if let Some(dropped) = self.segments.pop_front() {
            self.bytes -= dropped.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_clean_once_its_segment_is() {
        let marks = SegmentMarks::new();
        assert!(marks.is_clean(marks.clean_mark()));
        let mark = marks.open() as Mark;
        assert!(!marks.is_clean(mark));
        assert_eq!(marks.close(), 1);
        assert!(!marks.is_clean(mark) && !marks.is_clean(marks.open() as Mark));
        marks.set_clean(1);
        assert!(marks.is_clean(mark) && !marks.is_clean(marks.open() as Mark));
    }

    #[test]
    fn marks_wrap_and_stay_distinct() {
        let marks = SegmentMarks::new();
        (0..70_000).for_each(|_| marks.set_clean(marks.close()));
        assert!(!marks.is_clean(marks.open() as Mark));
        assert!((1..65_000).all(|ago| marks.is_clean((marks.open() - ago) as Mark)));
    }
}
