//! How long commits and fsyncs take.

use crate::clock::{Clock, Timestamp};
use crate::metrics::{Histogram, Unit};

/// Upper bounds in nanoseconds: from the page cache to a disk that is far behind.
const DURATIONS: [u64; 12] = [
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    250_000_000,
    1_000_000_000,
];

/// How long commits and fsyncs take.
pub struct Timings {
    clock: Clock,
    pub(super) commits: Histogram,
    pub(super) fsyncs: Histogram,
}

impl Timings {
    pub fn new(clock: Clock) -> Self {
        let histogram = || Histogram::new(Unit::Seconds, &DURATIONS);
        Self { clock, commits: histogram(), fsyncs: histogram() }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A commit that began then has been made.
    pub fn committed(&self, begun: Timestamp) {
        self.commits.observe(self.now().since(begun), 1);
    }

    /// An fsync that began then has been made.
    pub fn synced(&self, begun: Timestamp) {
        self.fsyncs.observe(self.now().since(begun), 1);
    }
}
