//! Sliding window, approximated by two counters: the hits of the current window, and the hits of the previous window,
//! weighted by how much of it the last `window_ns` overlap. Windows are aligned: they start at multiples of their
//! length since the Unix epoch.
//!
//! At a share `x` into the current window, `previous × (1 − x) + current` credits are counted as taken, rounded down.
//! An example from Alex Xu's "System Design Interview": the limit is 7 per minute, with 5 in the last minute, 3 in the
//! current one, and 30 % of that passed. Then 5 × 0.7 + 3 = 6.5 are counted, rounded down to 6, so one more is granted.
//! An ask is granted if the rounded count plus its cost does not exceed the limit. Cloudflare's limiter decides in the
//! same way: a hit passes while the estimate is below the limit.
//!
//! The reply's numbers: `left` is the credits left by that count. `reset_ns` is the time until one more is left.
//!
//! Its promise: the count before rounding stays below `credits + 1`. So at most `credits` are granted in an aligned
//! window, and at most `2 × credits` in any window of the same length. The worst case is a burst at the very end of a
//! window: the count spreads the burst over the whole window, and forgets it before it is `window_ns` old.

use std::num::NonZeroU64;

use super::decide::{self, Algorithm, InvalidLimit, saturating};
use crate::clock::Timestamp;

/// `credits` per window of `window_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    /// Credits of a window.
    pub credits: NonZeroU64,
    /// Length of a window (nanoseconds). Windows are aligned to the Unix epoch.
    pub window_ns: NonZeroU64,
}

/// Two counters. Three words: `start`, `current`, `previous`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The start of the current window, a multiple of the window's length.
    pub start: Timestamp,
    /// Credits taken in the current window.
    pub current: u64,
    /// Credits taken in the window before.
    pub previous: u64,
}

impl SlidingWindow {
    /// # Errors
    /// A number is 0.
    pub fn new(credits: u64, window_ns: u64) -> Result<Self, InvalidLimit> {
        Ok(Self { credits: decide::valid_credits(credits)?, window_ns: decide::valid_time(window_ns)? })
    }

    fn aligned(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % self.window_ns)
    }
}

impl Algorithm for SlidingWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.credits.get()
    }

    fn fresh(&self, at: Timestamp) -> State {
        State { start: self.aligned(at), current: 0, previous: 0 }
    }

    fn time(&self, state: &State) -> Timestamp {
        state.start
    }

    fn advanced(&self, state: State, at: Timestamp) -> State {
        match at.since(state.start) / self.window_ns {
            0 => state,
            1 => State { start: state.start.plus(self.window_ns.get()), current: 0, previous: state.current },
            _ => self.fresh(at),
        }
    }

    fn pulled_back(&self, state: State, at: Timestamp) -> State {
        State { start: self.aligned(at), ..state }
    }

    fn used(&self, state: &State, at: Timestamp) -> u64 {
        let overlap = self.window_ns.get().saturating_sub(at.since(state.start));
        let fading = u128::from(state.previous) * u128::from(overlap) / u128::from(self.window_ns.get());
        state.current.saturating_add(saturating(fading))
    }

    fn take(&self, state: &mut State, credits: u64, _at: Timestamp) {
        state.current = state.current.saturating_add(credits);
    }

    /// Gives credits back to the current window first, then to the previous one.
    fn give_back(&self, state: &mut State, credits: u64) {
        let over = credits.saturating_sub(state.current);
        state.current = state.current.saturating_sub(credits);
        state.previous = state.previous.saturating_sub(over);
    }

    /// Returns the wait. It ends in the current window if that window's own count permits, or else in the next one,
    /// where that count is the one that fades. In either case, at most `room` fading credits may count, rounded down:
    /// `fading × overlap` must be less than `(room + 1) × window`.
    fn wait_ns(&self, state: &State, credits: u64, at: Timestamp) -> u64 {
        if credits <= self.left(state, at) {
            return 0;
        }
        let room = self.credits.get().saturating_sub(credits);
        let window = u128::from(self.window_ns.get());
        let (start, fading, room) = match room.checked_sub(state.current) {
            Some(room) => (u128::from(state.start.as_nanos()), state.previous, room),
            None => (u128::from(state.start.as_nanos()) + window, state.current, room),
        };
        let longest_overlap = ((u128::from(room) + 1) * window - 1) / u128::from(fading.max(1));
        saturating((start + window - longest_overlap.min(window)).saturating_sub(u128::from(at.as_nanos())))
    }
}
