//! Calendar window: a fixed window that ends when the calendar says so, at midnight or on the first of a month.
//!
//! Like a [fixed window](super::fixed_window), except that the end is a parameter: the caller takes it from a calendar for the time of
//! the ask. A window that has begun keeps its end, even if the calendar's data change.
//!
//! The reply's numbers: `left` is what the window still grants, and `reset_ns` is the time until it ends; 0 while nothing
//! was taken.

use std::num::NonZeroU64;

use super::count_basis::CountBasis;
use super::invalid::{self, InvalidLimit};
use super::window::{State, Window};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// A number for a calendar, whose meaning is unknown here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarId(pub u32);

/// `credits` per window of a calendar. The other numbers describe the present window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CalendarWindow {
    /// Credits of a window.
    pub credits: NonZeroU64,
    /// The end of the window that contains the ask's time. [`Timestamp::EPOCH`] if the limit has no date yet.
    pub ends: Timestamp,
    /// The length of that window.
    pub seconds: u32,
    /// Number of the calendar in this process.
    pub calendar: CalendarId,
    /// The meaning of the number in its states.
    pub basis: CountBasis,
}

impl CalendarWindow {
    /// Makes a limit that has no date yet.
    ///
    /// # Errors
    /// When there are no credits.
    pub fn new(credits: u64, calendar: CalendarId) -> Result<Self, InvalidLimit> {
        let credits = invalid::credits(credits)?;
        Ok(Self { credits, ends: Timestamp::EPOCH, seconds: 0, calendar, basis: CountBasis::LeftOf(credits) })
    }

    /// Returns the length of the present window in nanoseconds.
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

    /// A window later than the present one begins at the present one's end or after it. Half a window of tolerance: the calendar's
    /// data may have changed since, but not by that much, and windows do not differ in length by that much. A limit without a
    /// date cannot say.
    fn begin(&self, state: &State) -> Timestamp {
        let (window_ns, later_ns) = (self.window_ns(), state.ends.since(self.ends));
        if window_ns == 0 || later_ns < window_ns / 2 {
            return Timestamp::EPOCH;
        }
        self.ends.plus(later_ns.saturating_sub(window_ns + window_ns / 2))
    }
}
