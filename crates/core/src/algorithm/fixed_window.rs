//! Fixed windows and calendar windows: all credits come back at once, when the window ends.
//!
//! A fixed window, as Divvy counts, starts with the first hit, and always ends `window_ns` later. A calendar window ends when
//! the calendar says so, at midnight or on the first of a month. Its end is a parameter: the caller takes it from a calendar
//! for the time of the ask. A window that has begun keeps its end, even if the calendar's data change.
//!
//! The reply's numbers: `left` is the credits left in the window. `reset_ns` is the time until the window ends and all
//! credits are back, or 0 if no window has begun or nothing was taken. A denied ask neither starts nor prolongs a window.
//!
//! The promise of a fixed window: at most `credits` in a window, and exactly one new window after it. Around a window's end,
//! up to `2 × credits − 1` can pass in a short time.
//!
//! A hit at the very start of a window belongs to it. A hit at the very end belongs to the next one.

use std::num::NonZeroU64;

use super::decide::{self, Algorithm, CountBasis, InvalidLimit};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

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
        let credits = decide::valid_credits(credits)?;
        Ok(Self { credits, window_ns: decide::valid_time(window_ns)?, basis: CountBasis::LeftOf(credits) })
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

/// Opaque id of a calendar. This module does not interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarId(pub u32);

/// `credits` per window of a calendar. The other numbers describe the current window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    /// Credits of a window.
    pub credits: NonZeroU64,
    /// The end of the window that contains the ask's time. [`Timestamp::EPOCH`] if the limit has no date yet.
    pub ends: Timestamp,
    /// The length of the current window.
    pub seconds: u32,
    /// The calendar. Its id is valid only in this process.
    pub calendar: CalendarId,
    /// The meaning of the number in its states.
    pub basis: CountBasis,
}

impl CalendarWindow {
    /// Creates a limit that has no date yet.
    ///
    /// # Errors
    /// There are no credits.
    pub fn new(credits: u64, calendar: CalendarId) -> Result<Self, InvalidLimit> {
        let credits = decide::valid_credits(credits)?;
        Ok(Self { credits, ends: Timestamp::EPOCH, seconds: 0, calendar, basis: CountBasis::LeftOf(credits) })
    }

    /// Returns the length of the current window in nanoseconds.
    pub fn window_ns(&self) -> u64 {
        u64::from(self.seconds) * NANOS_PER_SECOND
    }
}

impl Window for CalendarWindow {
    fn credits(&self) -> NonZeroU64 {
        self.credits
    }

    fn count_basis(&self) -> CountBasis {
        self.basis
    }

    fn end(&self, _at: Timestamp) -> Timestamp {
        self.ends
    }

    /// Returns [`Timestamp::EPOCH`] if the state's window is the current one. A later window begins when the current
    /// one ends, or after that. Half a window of tolerance allows for new calendar data and for windows of different
    /// lengths, which differ by less than that. A limit without a date cannot tell the windows apart, and returns the
    /// epoch, too.
    fn begin(&self, state: &State) -> Timestamp {
        let (window_ns, later_ns) = (self.window_ns(), state.ends.since(self.ends));
        if window_ns == 0 || later_ns < window_ns / 2 {
            return Timestamp::EPOCH;
        }
        self.ends.plus(later_ns.saturating_sub(window_ns + window_ns / 2))
    }
}

/// A window that has begun. Two words: `ends`, `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The end of the window.
    pub ends: Timestamp,
    /// Credits left in the window, or used, depending on the limit's [`CountBasis`].
    pub count: u64,
}

/// A limit whose credits come in windows.
pub(super) trait Window {
    fn credits(&self) -> NonZeroU64;

    fn count_basis(&self) -> CountBasis;

    /// Returns the end of the window that contains `at`.
    fn end(&self, at: Timestamp) -> Timestamp;

    /// Returns the beginning of the window, or the latest time that is certainly not after it.
    fn begin(&self, state: &State) -> Timestamp;
}

impl<W: Window> Algorithm for W {
    type State = State;

    fn capacity(&self) -> u64 {
        self.credits().get()
    }

    fn fresh(&self, at: Timestamp) -> State {
        State { ends: self.end(at), count: self.count_basis().count(0) }
    }

    fn time(&self, state: &State) -> Timestamp {
        self.begin(state)
    }

    fn advanced(&self, state: State, at: Timestamp) -> State {
        if at < state.ends { state } else { self.fresh(at) }
    }

    fn pulled_back(&self, state: State, at: Timestamp) -> State {
        State { ends: self.end(at), ..state }
    }

    fn used(&self, state: &State, _at: Timestamp) -> u64 {
        self.count_basis().used(state.count)
    }

    fn take(&self, state: &mut State, credits: u64, _at: Timestamp) {
        state.count = self.count_basis().count(self.count_basis().used(state.count).saturating_add(credits));
    }

    fn give_back(&self, state: &mut State, credits: u64) {
        state.count = self.count_basis().count(self.count_basis().used(state.count).saturating_sub(credits));
    }

    fn window_end(&self, state: &State) -> Option<Timestamp> {
        Some(state.ends)
    }

    fn wait_ns(&self, state: &State, credits: u64, at: Timestamp) -> u64 {
        if credits <= self.left(state, at) { 0 } else { state.ends.since(at) }
    }
}
