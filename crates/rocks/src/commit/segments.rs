//! The journal's segments: the commits in each of them, and the length of the journal.

use std::collections::VecDeque;

use super::segment_marks::SegmentMarks;

/// Minimum number of segments in a full journal.
const SEGMENTS: u64 = 32;
/// Minimum ratio of the table's length to a segment's. Otherwise, the counters of one segment might fill the table, and
/// none of them could be evicted.
const TABLE_TO_SEGMENT: u64 = 32;
/// Length that a segment may have regardless of the table (bytes).
const SHORTEST_SEGMENT: u64 = 64 << 10;

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
