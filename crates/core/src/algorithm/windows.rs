//! Limits of credits per window: fixed and calendar windows, the sliding window, and the sliding log.
//!
//! # Fixed windows and calendar windows
//! All credits come back at once, when the window ends.
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
//!
//! # Sliding window
//! It is approximated by two counters: the hits of the current window, and the hits of the previous window,
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
//!
//! # Sliding log
//! The exact sliding window. It remembers when each credit was taken. It grants an ask if the window that
//! ends now contains at most `credits` taken credits, including the credits asked for.
//!
//! The reply's numbers: `left` is the credits left in that window. `reset_ns` is the time until the oldest credit
//! leaves the window, so that one more is left. A denied ask is not written into the log, so it prolongs nothing.
//!
//! The window does not contain its first moment, and contains its last: a credit taken at `t` counts until just before
//! `t + window_ns`. No window of this length ever contains more than `credits`, regardless of its start.

use std::num::NonZeroU64;

use super::decide::{self, Algorithm, CountBasis, InvalidLimit, MAX_LOG_CREDITS, saturating};
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
    pub fn used_up(&self, ends: Timestamp, owed: u64) -> WindowState {
        WindowState { ends, count: self.basis.count(self.credits.get().saturating_add(owed)) }
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

    fn begin(&self, state: &WindowState) -> Timestamp {
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
    fn begin(&self, state: &WindowState) -> Timestamp {
        let (window_ns, later_ns) = (self.window_ns(), state.ends.since(self.ends));
        if window_ns == 0 || later_ns < window_ns / 2 {
            return Timestamp::EPOCH;
        }
        self.ends.plus(later_ns.saturating_sub(window_ns + window_ns / 2))
    }
}

/// A window that has begun. Two words: `ends`, `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowState {
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
    fn begin(&self, state: &WindowState) -> Timestamp;
}

impl<W: Window> Algorithm for W {
    type State = WindowState;

    fn capacity(&self) -> u64 {
        self.credits().get()
    }

    fn fresh(&self, at: Timestamp) -> WindowState {
        WindowState { ends: self.end(at), count: self.count_basis().count(0) }
    }

    fn time(&self, state: &WindowState) -> Timestamp {
        self.begin(state)
    }

    fn advanced(&self, state: WindowState, at: Timestamp) -> WindowState {
        if at < state.ends { state } else { self.fresh(at) }
    }

    fn pulled_back(&self, state: WindowState, at: Timestamp) -> WindowState {
        WindowState { ends: self.end(at), ..state }
    }

    fn used(&self, state: &WindowState, _at: Timestamp) -> u64 {
        self.count_basis().used(state.count)
    }

    fn take(&self, state: &mut WindowState, credits: u64, _at: Timestamp) {
        state.count = self.count_basis().count(self.count_basis().used(state.count).saturating_add(credits));
    }

    fn give_back(&self, state: &mut WindowState, credits: u64) {
        state.count = self.count_basis().count(self.count_basis().used(state.count).saturating_sub(credits));
    }

    fn window_end(&self, state: &WindowState) -> Option<Timestamp> {
        Some(state.ends)
    }

    fn wait_ns(&self, state: &WindowState, credits: u64, at: Timestamp) -> u64 {
        if credits <= self.left(state, at) { 0 } else { state.ends.since(at) }
    }
}

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
pub struct SlidingWindowState {
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
    type State = SlidingWindowState;

    fn capacity(&self) -> u64 {
        self.credits.get()
    }

    fn fresh(&self, at: Timestamp) -> SlidingWindowState {
        SlidingWindowState { start: self.aligned(at), current: 0, previous: 0 }
    }

    fn time(&self, state: &SlidingWindowState) -> Timestamp {
        state.start
    }

    fn advanced(&self, state: SlidingWindowState, at: Timestamp) -> SlidingWindowState {
        match at.since(state.start) / self.window_ns {
            0 => state,
            1 => SlidingWindowState {
                start: state.start.plus(self.window_ns.get()),
                current: 0,
                previous: state.current,
            },
            _ => self.fresh(at),
        }
    }

    fn pulled_back(&self, state: SlidingWindowState, at: Timestamp) -> SlidingWindowState {
        SlidingWindowState { start: self.aligned(at), ..state }
    }

    fn used(&self, state: &SlidingWindowState, at: Timestamp) -> u64 {
        let overlap = self.window_ns.get().saturating_sub(at.since(state.start));
        let fading = u128::from(state.previous) * u128::from(overlap) / u128::from(self.window_ns.get());
        state.current.saturating_add(saturating(fading))
    }

    fn take(&self, state: &mut SlidingWindowState, credits: u64, _at: Timestamp) {
        state.current = state.current.saturating_add(credits);
    }

    /// Gives credits back to the current window first, then to the previous one.
    fn give_back(&self, state: &mut SlidingWindowState, credits: u64) {
        let over = credits.saturating_sub(state.current);
        state.current = state.current.saturating_sub(credits);
        state.previous = state.previous.saturating_sub(over);
    }

    /// Returns the wait. It ends in the current window if that window's own count permits, or else in the next one,
    /// where that count is the one that fades. In either case, at most `room` fading credits may count, rounded down:
    /// `fading × overlap` must be less than `(room + 1) × window`.
    fn wait_ns(&self, state: &SlidingWindowState, credits: u64, at: Timestamp) -> u64 {
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

/// `credits`, at most [`MAX_LOG_CREDITS`], in any window of `window_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    pub(super) credits: NonZeroU64,
    pub(super) window_ns: NonZeroU64,
}

/// The credits taken recently. One word for each, at most the limit's credits: the time when it was taken, oldest
/// first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlidingLogState {
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
    type State = SlidingLogState;

    fn capacity(&self) -> u64 {
        self.credits.get()
    }

    fn fresh(&self, _at: Timestamp) -> SlidingLogState {
        SlidingLogState { times: Box::default() }
    }

    fn time(&self, state: &SlidingLogState) -> Timestamp {
        state.times.last().copied().unwrap_or(Timestamp::EPOCH)
    }

    fn advanced(&self, state: SlidingLogState, at: Timestamp) -> SlidingLogState {
        let has_left = |time: &Timestamp| at.since(*time) >= self.window_ns.get();
        match state.times.iter().take_while(|time| has_left(time)).count() {
            0 => state,
            left => SlidingLogState { times: state.times.iter().skip(left).copied().collect() },
        }
    }

    fn pulled_back(&self, state: SlidingLogState, at: Timestamp) -> SlidingLogState {
        SlidingLogState { times: state.times.iter().map(|time| at.min(*time)).collect() }
    }

    fn used(&self, state: &SlidingLogState, _at: Timestamp) -> u64 {
        state.times.len() as u64
    }

    /// Takes at most the credits left, because the log has no room for more.
    fn take(&self, state: &mut SlidingLogState, credits: u64, at: Timestamp) {
        let taken = (0..credits.min(self.left(state, at))).map(|_| at);
        state.times = state.times.iter().copied().chain(taken).collect();
    }

    /// Gives back the newest credits first.
    fn give_back(&self, state: &mut SlidingLogState, credits: u64) {
        let kept = (state.times.len() as u64).saturating_sub(credits);
        state.times = (0..kept).zip(&state.times).map(|(_, time)| *time).collect();
    }

    fn wait_ns(&self, state: &SlidingLogState, credits: u64, at: Timestamp) -> u64 {
        let missing = (state.times.len() as u64).saturating_sub(self.credits.get().saturating_sub(credits));
        let last_to_leave = missing.checked_sub(1).and_then(|index| state.times.get(usize::try_from(index).ok()?));
        last_to_leave.map_or(0, |time| time.plus(self.window_ns.get()).since(at))
    }
}
