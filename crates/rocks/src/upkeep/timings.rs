//! Durations of commits and fsyncs.

use divvy_core::clock::{Clock, Timestamp};
use divvy_telemetry::metrics::{Histogram, Unit};

/// Upper bounds in microseconds, from a write to the page cache to a disk that is far behind.
const MICROS: [u64; 12] = [5, 10, 25, 50, 100, 500, 1_000, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// Durations of commits and fsyncs, and the clock that measures them.
pub struct Timings {
    clock: Clock,
    pub commits: Histogram,
    pub fsyncs: Histogram,
}

impl Timings {
    pub fn new(clock: Clock) -> Self {
        let histogram = || Histogram::new(Unit::Seconds, &MICROS.map(|micros| micros * 1_000));
        Self { clock, commits: histogram(), fsyncs: histogram() }
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}
