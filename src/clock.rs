//! The only place that asks what time it is.
//!
//! Here live [`Timestamp`] and the system's [`Clock`]; how the clock follows the machine's is [`anchor`]'s. Nothing below
//! the servers reads a clock by itself: time is read once per batch of requests and passed down, so tests, replays and
//! client-supplied times all take the same path.

mod anchor;
mod shared;

use std::sync::LazyLock;

pub use self::anchor::MAX_STANDSTILL_NS;
use self::shared::{Shared, SystemSource};

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

/// The machine's clock, as divvy goes by it: every `Clock` of a process tells the same time.
///
/// It is measured again each second. When the machine's clock was set forward, this one follows at once. When it was set
/// back by up to ten seconds, this one stands still until the machine's has caught up; when by more, it jumps back, too.
/// Apart from that jump it never runs backwards.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    shared: &'static Shared<SystemSource>,
}

impl Clock {
    pub fn system() -> Self {
        static SYSTEM: LazyLock<Shared<SystemSource>> = LazyLock::new(|| Shared::new(SystemSource));
        Self { shared: &SYSTEM }
    }

    pub fn now(&self) -> Timestamp {
        self.shared.now()
    }
}

/// `nanos` in whole seconds, rounded up: a caller that waits so long has waited long enough.
pub const fn ceil_seconds(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_SECOND)
}
