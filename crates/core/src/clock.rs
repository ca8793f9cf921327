//! The only module that reads the clock.
//!
//! It contains [`Timestamp`] and the system's [`Clock`]; [`anchor`] determines how the clock follows the machine's.
//! Code below the servers never reads a clock. Time is read once per batch of requests and passed down, so that tests,
//! replays and times from clients all take the same path.

mod anchor;
mod shared_clock;
mod timestamp;

use std::sync::LazyLock;

pub use self::anchor::MAX_STANDSTILL_NS;
use self::shared_clock::{SharedClock, SystemSource};
pub use self::timestamp::{NANOS_PER_MILLI, NANOS_PER_SECOND, Timestamp, ceil_seconds};

/// The machine's clock, as divvy uses it. All `Clock`s of a process return the same time.
///
/// It is corrected every second. If the machine's clock was set forward, this one follows at once. If it was set back
/// by up to ten seconds, this one stands still until the machine's has caught up. If it was set back further, this one
/// jumps back, too. Apart from such a jump it never runs backwards.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    shared: &'static SharedClock<SystemSource>,
}

impl Clock {
    /// Returns the process's clock. The first call starts it.
    pub fn system() -> Self {
        static SYSTEM: LazyLock<SharedClock<SystemSource>> = LazyLock::new(|| SharedClock::new(SystemSource));
        Self { shared: &SYSTEM }
    }

    /// Returns the current time. The front reads it once per batch.
    pub fn now(&self) -> Timestamp {
        self.shared.now()
    }
}
