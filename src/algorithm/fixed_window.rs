//! Fixed window, as Divvy counts: the window starts with the first hit, and ends `window` later whatever happens.
//!
//! `reset` is the time until the window ends, when all credits are back. A denied ask changes nothing.

use std::num::NonZeroU64;

use super::{Ask, Outcome};
use crate::clock::Timestamp;

/// `credits` per window of `window_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    pub credits: NonZeroU64,
    pub window_ns: NonZeroU64,
}

/// A window that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The window is over at this time.
    pub ends: Timestamp,
    /// Credits left until then.
    pub left: u64,
}

impl FixedWindow {
    pub(super) fn decide(&self, state: Option<State>, ask: Ask, at: Timestamp) -> (Outcome, Option<State>) {
        let window = state.filter(|state| at < state.ends).map(|state| self.clamped(state, at));
        let left = window.map_or(self.credits.get(), |window| window.left);
        match ask {
            Ask::Take { cost } if cost > 0 && cost <= left => {
                let ends = window.map_or(at.plus(self.window_ns.get()), |window| window.ends);
                let taken = State { ends, left: left - cost };
                (Outcome { allowed: true, left: taken.left, reset_ns: ends.since(at) }, Some(taken))
            }
            Ask::Take { cost } | Ask::Look { cost } => {
                let reset_ns = window.map_or(0, |window| window.ends.since(at));
                (Outcome { allowed: cost <= left, left, reset_ns }, None)
            }
        }
    }

    /// A window cannot end later than a fresh one would: after the wall clock was set back (between two runs), a
    /// stored end may lie far ahead, and the caller would wait for all that time.
    fn clamped(&self, state: State, at: Timestamp) -> State {
        State { ends: state.ends.min(at.plus(self.window_ns.get())), left: state.left.min(self.credits.get()) }
    }
}
