//! Calendar window: a fixed window that ends when the calendar says so, at midnight or on the first of a month.
//!
//! Like a [fixed window](super::fixed_window), except that the end is a parameter: the caller takes it from a calendar for the time of
//! the ask. A window that has begun keeps its end, even if the calendar's data change.
//!
//! The reply's numbers: `left` is the credits left in the window. `reset_ns` is the time until the window ends, or 0 if
//! nothing was taken.

use std::num::NonZeroU64;

use super::count_basis::CountBasis;
use super::invalid::{self, InvalidLimit};
use super::window::{State, Window};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

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
        let credits = invalid::credits(credits)?;
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
