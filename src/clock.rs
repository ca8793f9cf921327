//! The only place that asks what time it is.
//!
//! Here live [`Timestamp`] and the system [`Clock`]. Nothing below the servers reads a clock by itself: time is read
//! once per batch of requests and passed down, so tests, replays and client-supplied times all take the same path.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Nanoseconds in one millisecond.
pub const NANOS_PER_MILLI: u64 = 1_000_000;

/// A point in time: nanoseconds since the Unix epoch, good until the year 2554.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const EPOCH: Self = Self(0);
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `None` when the result is past the year 2554.
    pub const fn from_millis(millis: u64) -> Option<Self> {
        match millis.checked_mul(NANOS_PER_MILLI) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// `None` when the result is past the year 2554.
    pub const fn from_secs(seconds: u64) -> Option<Self> {
        match seconds.checked_mul(NANOS_PER_SECOND) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This time plus `nanos`, or [`Timestamp::MAX`].
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this time; 0 when `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The system's clock: a wall-clock anchor taken once, advanced by the monotonic clock.
///
/// It never runs backwards while the process lives, whatever happens to the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    wall: Timestamp,
    anchor: Instant,
}

impl Clock {
    /// Anchors the clock at the wall clock's present time.
    pub fn system() -> Self {
        // A wall clock set before 1970 reads as the epoch: windows then start there, and still expire.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| saturating_nanos(d.as_nanos()));
        Self { wall: Timestamp(wall), anchor: Instant::now() }
    }

    pub fn now(&self) -> Timestamp {
        self.wall.plus(saturating_nanos(self.anchor.elapsed().as_nanos()))
    }
}

fn saturating_nanos(nanos: u128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// `nanos` in whole seconds, rounded up: a caller that waits so long has waited long enough.
pub const fn ceil_seconds(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_SECOND)
}
