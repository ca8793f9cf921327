//! Fixed window, as Divvy counts: the window starts with the first hit, and always ends `window_ns` later.
//!
//! The reply's numbers: `left` is the credits left in the window. `reset_ns` is the time until the window ends and all
//! credits are back, or 0 if no window has begun. A denied ask neither starts nor prolongs a window.
//!
//! Its promise: at most `credits` in a window, and exactly one new window after it. Around a window's end, up to `2 ×
//! credits − 1` can pass in a short time.
//!
//! A hit at the very start of a window belongs to it. A hit at the very end belongs to the next one.

use std::num::NonZeroU64;

use super::count_basis::CountBasis;
use super::invalid::{self, InvalidLimit};
pub use super::window::State;
use super::window::Window;
use crate::clock::Timestamp;

/// `credits` per window of `window_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    /// Credits of a window.
    pub credits: NonZeroU64,
    /// Length of a window (nanoseconds).
    pub window_ns: NonZeroU64,
    /// The meaning of the number in its states.
    pub basis: CountBasis,
}

impl FixedWindow {
    /// # Errors
    /// A number is 0.
    pub fn new(credits: u64, window_ns: u64) -> Result<Self, InvalidLimit> {
        let credits = invalid::credits(credits)?;
        Ok(Self { credits, window_ns: invalid::time(window_ns)?, basis: CountBasis::LeftOf(credits) })
    }

    /// Returns a window with nothing left until it ends, and a debt of `owed` credits.
    pub fn used_up(&self, ends: Timestamp, owed: u64) -> State {
        State { ends, count: self.basis.count(self.credits.get().saturating_add(owed)) }
    }
}

impl Window for FixedWindow {
    fn credits(&self) -> NonZeroU64 {
        self.credits
    }

    fn count_basis(&self) -> CountBasis {
        self.basis
    }

    fn end(&self, at: Timestamp) -> Timestamp {
        at.plus(self.window_ns.get())
    }

    fn begin(&self, state: &State) -> Timestamp {
        Timestamp::from_nanos(state.ends.as_nanos().saturating_sub(self.window_ns.get()))
    }
}
