//! Sliding log: the exact sliding window. It remembers when each credit was taken. It grants an ask if the window that
//! ends now contains at most `credits` taken credits, including the credits asked for.
//!
//! The reply's numbers: `left` is the credits left in that window. `reset_ns` is the time until the oldest credit
//! leaves the window, so that one more is left. A denied ask is not written into the log, so it prolongs nothing.
//!
//! The window does not contain its first moment, and contains its last: a credit taken at `t` counts until just before
//! `t + window_ns`. No window of this length ever contains more than `credits`, regardless of its start.

use std::num::NonZeroU64;

use super::decide::{self, Algorithm, InvalidLimit, MAX_LOG_CREDITS};
use crate::clock::Timestamp;

/// `credits`, at most [`MAX_LOG_CREDITS`], in any window of `window_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    pub(super) credits: NonZeroU64,
    pub(super) window_ns: NonZeroU64,
}

/// The credits taken recently. One word for each, at most the limit's credits: the time when it was taken, oldest
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Times when credits were taken, oldest first.
    pub times: Box<[Timestamp]>,
}

impl SlidingLog {
    /// # Errors
    /// A number is 0, or there are more than [`MAX_LOG_CREDITS`] credits.
    pub fn new(credits: u64, window_ns: u64) -> Result<Self, InvalidLimit> {
        if credits > MAX_LOG_CREDITS {
            return Err(InvalidLimit::LogTooLong { credits });
        }
        Ok(Self { credits: decide::valid_credits(credits)?, window_ns: decide::valid_time(window_ns)? })
    }
}

impl Algorithm for SlidingLog {
    type State = State;

    fn capacity(&self) -> u64 {
        self.credits.get()
    }

    fn fresh(&self, _at: Timestamp) -> State {
        State { times: Box::default() }
    }

    fn time(&self, state: &State) -> Timestamp {
        state.times.last().copied().unwrap_or(Timestamp::EPOCH)
    }

    fn advanced(&self, state: State, at: Timestamp) -> State {
        let has_left = |time: &Timestamp| at.since(*time) >= self.window_ns.get();
        match state.times.iter().take_while(|time| has_left(time)).count() {
            0 => state,
            left => State { times: state.times.iter().skip(left).copied().collect() },
        }
    }

    fn pulled_back(&self, state: State, at: Timestamp) -> State {
        State { times: state.times.iter().map(|time| at.min(*time)).collect() }
    }

    fn used(&self, state: &State, _at: Timestamp) -> u64 {
        state.times.len() as u64
    }

    /// Takes at most the credits left, because the log has no room for more.
    fn take(&self, state: &mut State, credits: u64, at: Timestamp) {
        let taken = (0..credits.min(self.left(state, at))).map(|_| at);
        state.times = state.times.iter().copied().chain(taken).collect();
    }

    /// Gives back the newest credits first.
    fn give_back(&self, state: &mut State, credits: u64) {
        let kept = (state.times.len() as u64).saturating_sub(credits);
        state.times = (0..kept).zip(&state.times).map(|(_, time)| *time).collect();
    }

    fn wait_ns(&self, state: &State, credits: u64, at: Timestamp) -> u64 {
        let missing = (state.times.len() as u64).saturating_sub(self.credits.get().saturating_sub(credits));
        let last_to_leave = missing.checked_sub(1).and_then(|index| state.times.get(usize::try_from(index).ok()?));
        last_to_leave.map_or(0, |time| time.plus(self.window_ns.get()).since(at))
    }
}
