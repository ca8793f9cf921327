//! Points in time and their units.

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Nanoseconds in one millisecond.
pub const NANOS_PER_MILLI: u64 = 1_000_000;

/// A point in time: nanoseconds since the Unix epoch, up to the year 2554.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01, 00:00 UTC. Also stands for "no time" where a field says so.
    pub const EPOCH: Self = Self(0);
    /// The latest time, in the year 2554.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time this many nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the time; `None` after the year 2554.
    pub const fn from_millis(millis: u64) -> Option<Self> {
        match millis.checked_mul(NANOS_PER_MILLI) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// Returns the time; `None` after the year 2554.
    pub const fn from_secs(seconds: u64) -> Option<Self> {
        match seconds.checked_mul(NANOS_PER_SECOND) {
            Some(nanos) => Some(Self(nanos)),
            None => None,
        }
    }

    /// Returns the nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns this time plus `nanos`, or [`Timestamp::MAX`].
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns this time minus `nanos`, or [`Timestamp::EPOCH`].
    pub const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Returns the nanoseconds from `earlier` to this time, or 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the nanoseconds between both times, whichever is later. What was done long ago is not recent if the clock was set
    /// back since.
    pub const fn distance(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }
}

/// Returns `nanos` in whole seconds, rounded up so that a caller who waits this long waits long enough.
pub const fn ceil_seconds(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_SECOND)
}
