//! Fixed window, as Divvy counts: the window starts with the first hit, and ends `window_ns` later whatever happens.
//!
//! The reply's numbers: `left` is what the window still grants, and `reset_ns` is the time until it ends, when all
//! credits are back; 0 while no window has begun. A denied ask neither starts nor prolongs a window.
//!
//! What it promises: at most `credits` in a window, and exactly one fresh window after it. Around a window's end, up to
//! `2 × credits − 1` can pass in a short time.
//!
//! A window is closed at its start and open at its end: a hit at the very end belongs to the next one.

use std::num::NonZeroU64;

use super::decide::Algorithm;
use super::{InvalidLimit, Tally, invalid};
use crate::clock::Timestamp;

pub(super) const NAME: &str = "fixed-window";

/// `credits` per window of `window_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    pub credits: NonZeroU64,
    pub window_ns: NonZeroU64,
    /// What its states count.
    pub tally: Tally,
}

/// A window that has begun. Two words: `ends`, `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The window is over at this time.
    pub ends: Timestamp,
    /// Credits left until then, or used, as the limit's [`Tally`] says.
    pub count: u64,
}

impl FixedWindow {
    /// # Errors
    /// When a number is 0.
    pub fn new(credits: u64, window_ns: u64) -> Result<Self, InvalidLimit> {
        let credits = invalid::credits(credits)?;
        Ok(Self { credits, window_ns: invalid::time(window_ns)?, tally: Tally::LeftOf(credits) })
    }

    /// A window with nothing left until it ends, and so much owed.
    pub fn used_up(&self, ends: Timestamp, owed: u64) -> State {
        State { ends, count: self.tally.count(self.credits.get().saturating_add(owed)) }
    }
}

impl Algorithm for FixedWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.credits.get()
    }

    fn fresh(&self, at: Timestamp) -> State {
        State { ends: at.plus(self.window_ns.get()), count: self.tally.count(0) }
    }

    /// When the window began.
    fn time(&self, state: &State) -> Timestamp {
        Timestamp::from_nanos(state.ends.as_nanos().saturating_sub(self.window_ns.get()))
    }

    fn advanced(&self, state: &State, at: Timestamp) -> State {
        if at < state.ends { *state } else { self.fresh(at) }
    }

    fn pulled_back(&self, state: &State, at: Timestamp) -> State {
        State { ends: at.plus(self.window_ns.get()), ..*state }
    }

    fn used(&self, state: &State, _at: Timestamp) -> u64 {
        self.tally.used(state.count)
    }

    fn take(&self, state: &mut State, credits: u64, _at: Timestamp) {
        state.count = self.tally.count(self.tally.used(state.count).saturating_add(credits));
    }

    fn give_back(&self, state: &mut State, credits: u64) {
        state.count = self.tally.count(self.tally.used(state.count).saturating_sub(credits));
    }

    fn window_end(&self, state: &State) -> Option<Timestamp> {
        Some(state.ends)
    }

    fn wait_ns(&self, state: &State, credits: u64, at: Timestamp) -> u64 {
        if credits <= self.left(state, at) { 0 } else { state.ends.since(at) }
    }
}
