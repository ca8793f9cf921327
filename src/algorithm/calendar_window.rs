//! Calendar window: a fixed window that ends when the calendar says so, at midnight or on the first of a month.
//!
//! As [fixed window](super::fixed_window), but for the end: that is a parameter, which the caller takes from a calendar for
//! the time of the ask. A window that has begun keeps the end that it was given, also when the calendar's data change.
//!
//! The reply's numbers: `left` is what the window still grants, and `reset_ns` is the time until it ends; 0 while nothing
//! was taken.

use std::num::NonZeroU64;

use super::decide::Algorithm;
use super::fixed_window::State;
use super::{InvalidLimit, Tally, invalid};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// Stands for a calendar. What it means is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarId(pub u32);

/// `credits` per window of a calendar. Its numbers but the credits are those of the present window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    pub credits: NonZeroU64,
    /// The end of the window to which an ask belongs; [`Timestamp::EPOCH`] while no time is asked about.
    pub ends: Timestamp,
    /// How long that window is.
    pub seconds: u32,
    pub calendar: CalendarId,
    /// What its states count.
    pub tally: Tally,
}

impl CalendarWindow {
    /// A limit that is not dated yet.
    ///
    /// # Errors
    /// When there are no credits.
    pub fn new(credits: u64, calendar: CalendarId) -> Result<Self, InvalidLimit> {
        let credits = invalid::credits(credits)?;
        Ok(Self { credits, ends: Timestamp::EPOCH, seconds: 0, calendar, tally: Tally::LeftOf(credits) })
    }

    /// Nanoseconds in the present window.
    pub fn window_ns(&self) -> u64 {
        u64::from(self.seconds) * NANOS_PER_SECOND
    }
}

impl Algorithm for CalendarWindow {
    type State = State;

    fn capacity(&self) -> u64 {
        self.credits.get()
    }

    fn fresh(&self, _at: Timestamp) -> State {
        State { ends: self.ends, count: self.tally.count(0) }
    }

    /// Not after the time at which the window began. A later window than the present one began at its end, or after it; by half
    /// of it, other data about the calendar do not move an end, and windows do not differ in length. A limit that is not dated
    /// cannot tell.
    fn time(&self, state: &State) -> Timestamp {
        let (window_ns, later_ns) = (self.window_ns(), state.ends.since(self.ends));
        if window_ns == 0 || later_ns < window_ns / 2 {
            return Timestamp::EPOCH;
        }
        self.ends.plus(later_ns.saturating_sub(window_ns + window_ns / 2))
    }

    fn advanced(&self, state: &State, at: Timestamp) -> State {
        if at < state.ends { *state } else { self.fresh(at) }
    }

    fn pulled_back(&self, state: &State, _at: Timestamp) -> State {
        State { ends: self.ends, ..*state }
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
