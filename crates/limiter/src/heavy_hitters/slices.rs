//! Events, the orders of rankings, and the slices of a window: the time over which a board counts.
//!
//! A window consists of the current slice, which is not over, and the [`SLICES`] - 1 slices before it. A slice is a sixth
//! of the window's nominal length. So the last minute is between 60 and 70 seconds long, and the last hour between 60 and
//! 70 minutes.

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Number of slices of a window.
pub const SLICES: usize = 7;

/// The current slice of a window.
#[derive(Debug)]
pub struct Slices {
    length_ns: u64,
    /// Number of the current slice since 1970.
    current: u64,
    /// Index of the current slice. The slice before it has the index before it, and so on, round and round.
    head: usize,
}

impl Slices {
    pub fn new(window: Window, now: Timestamp) -> Self {
        let length_ns = window.seconds() * NANOS_PER_SECOND / (SLICES as u64 - 1);
        Self { length_ns, current: now.as_nanos() / length_ns, head: 0 }
    }

    /// Moves on to the slice of `now`. Returns the number of slices that begin, at most [`SLICES`].
    ///
    /// A batch that ends late may have an earlier time, so an earlier slice changes nothing. If it is before the window, the
    /// clock was set back: then the current slice goes on from there.
    pub fn advance(&mut self, now: Timestamp) -> usize {
        let slice = now.as_nanos() / self.length_ns;
        let passed = slice.saturating_sub(self.current);
        if passed > 0 || self.current.saturating_sub(slice) >= SLICES as u64 {
            self.current = slice;
        }
        usize::try_from(passed).map_or(SLICES, |passed| passed.min(SLICES))
    }

    /// Makes the next slice the current one. Returns its index, whose counts are outdated.
    pub fn begin_next(&mut self) -> usize {
        self.head = (self.head + 1) % SLICES;
        self.head
    }

    /// Returns the index of the slice of an event at `now`, after [`Slices::advance`] to it.
    pub fn index_at(&self, now: Timestamp) -> usize {
        let age = self.current.saturating_sub(now.as_nanos() / self.length_ns);
        let age = usize::try_from(age).map_or(SLICES - 1, |age| age.min(SLICES - 1));
        (self.head + SLICES - age) % SLICES
    }

    /// Returns whether the whole window is over at `now`.
    pub fn are_over(&self, now: Timestamp) -> bool {
        (now.as_nanos() / self.length_ns).saturating_sub(self.current) >= SLICES as u64
    }
}

/// Maximum length of the part of an actor's name that a board keeps (bytes).
pub const MAX_NAME: usize = 256;

/// An event of one rule.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    pub order: Order,
    /// The actor, as the rule's counters name it.
    pub actor: &'a [u8],
    /// The number of denials, which is 1, or of credits.
    pub amount: u64,
    /// The number of events that this one stands for.
    pub weight: u64,
}

/// The order of a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Denied requests.
    Denied,
    /// Credits that were taken.
    Taken,
}

/// The time until now over which a board counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl Order {
    /// All orders.
    pub const ALL: [Self; 2] = [Self::Denied, Self::Taken];

    /// Returns the name that clients use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Taken => "taken",
        }
    }
}

impl Window {
    /// All windows.
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    /// Returns its length.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * NANOS_PER_SECOND)
    }

    #[test]
    fn slices_of_a_minute_take_ten_seconds() {
        let mut slices = Slices::new(Window::Minute, at(1_005));
        assert_eq!((slices.advance(at(1_009)), slices.advance(at(1_010)), slices.advance(at(1_035))), (0, 1, 2));
        assert_eq!(slices.advance(at(99_999)), SLICES);
    }

    #[test]
    fn late_batch_counts_in_its_own_slice() {
        let mut slices = Slices::new(Window::Minute, at(1_000));
        let old = slices.index_at(at(1_000));
        for _ in 0..slices.advance(at(1_025)) {
            slices.begin_next();
        }
        assert_eq!((slices.advance(at(1_009)), slices.index_at(at(1_009))), (0, old));
        assert_eq!(slices.index_at(at(1_025)), (old + 2) % SLICES);
    }

    #[test]
    fn window_goes_on_from_the_time_that_the_clock_was_set_back_to() {
        let mut slices = Slices::new(Window::Minute, at(9_000));
        let index = slices.index_at(at(9_000));
        assert_eq!((slices.advance(at(5_000)), slices.index_at(at(5_000))), (0, index));
        assert_eq!(
            (slices.advance(at(5_010)), slices.are_over(at(5_079)), slices.are_over(at(5_080))),
            (1, false, true)
        );
    }
}
