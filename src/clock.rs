//! The only place that asks what time it is.
//!
//! Here live [`Timestamp`] and the system's [`Clock`]; how the clock follows the machine's is [`anchor`]'s. Nothing below
//! the servers reads a clock by itself: time is read once per batch of requests and passed down, so tests, replays and
//! client-supplied times all take the same path.

mod anchor;
mod shared;
mod timestamp;

use std::sync::LazyLock;

pub use self::anchor::MAX_STANDSTILL_NS;
use self::shared::{Shared, SystemSource};
pub use self::timestamp::{NANOS_PER_MILLI, NANOS_PER_SECOND, Timestamp, ceil_seconds};

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
