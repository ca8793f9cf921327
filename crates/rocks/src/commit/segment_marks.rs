//! Marks that say which counters still need the journal. Each change has a mark. Another mark names the last segment
//! whose counters are all written back.
//!
//! The journal is divided into numbered segments. A change carries the number of the segment that was open when it was
//! made. The change is in that segment or in the first commit of the next one: see [`SegmentMarks::open`].

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// The low bits of a segment's number, which fit into a slot of the table. If a counter does not change for 65,536
/// segments, it looks as if it had changed recently, while that segment is kept. The only effect is that it stays in
/// memory.
pub type Mark = u16;

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
