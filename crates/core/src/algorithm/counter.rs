//! A client's own counter, for `INCREX`: a signed 64-bit number that starts at 0, within bounds, and may expire.
//!
//! Its state is a fixed window's. The window's end is the counter's expiry, or [`Timestamp::MAX`] if it has none. The
//! window's count is the value in two's complement.
//!
//! The reply's numbers: `before` and `left` are the values before and after the ask, in two's complement. A denied increment
//! changes neither the value nor the expiry. If a saturating increment is denied, because the change does not fit 64 bits, `left`
//! is the value that it would have set.
//!
//! The expiry is a time, as in Valkey. The counter does not know when it was set, so it lasts longer if the clock is set back.

use super::decide::{Algorithm, Ask, Outcome};
use super::windows::WindowState;
use crate::clock::Timestamp;

/// The bounds of an increment, and its effect on the expiry. None of these is part of the counter's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counter {
    /// Lowest value that an increment may set.
    pub lower: i64,
    /// Highest value that an increment may set. At least `lower`.
    pub upper: i64,
    /// Whether an increment beyond a bound sets the value to the bound. Otherwise it is denied.
    pub saturates: bool,
    /// The effect on the expiry.
    pub expiry: Expiry,
    /// Whether a counter that has an expiry keeps it.
    pub keeps_expiry: bool,
}

/// The effect of an increment on a counter's expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// None.
    Keep,
    /// The counter expires this many nanoseconds after the increment.
    After(u64),
    /// The counter expires at this time: never, if it is [`Timestamp::MAX`].
    At(Timestamp),
}

impl Default for Counter {
    fn default() -> Self {
        Self { lower: i64::MIN, upper: i64::MAX, saturates: false, expiry: Expiry::Keep, keeps_expiry: false }
    }
}

/// The state of a counter that does not exist.
const FRESH: WindowState = WindowState { ends: Timestamp::MAX, count: 0 };

impl Counter {
    /// Returns the expiry after an increment at `at` of a counter with the expiry `ends`.
    fn next_expiry(&self, ends: Timestamp, at: Timestamp) -> Timestamp {
        match self.expiry {
            _ if self.keeps_expiry && ends < Timestamp::MAX => ends,
            Expiry::Keep => ends,
            Expiry::After(nanos) => at.plus(nanos),
            Expiry::At(time) => time,
        }
    }
}

impl Algorithm for Counter {
    type State = WindowState;

    fn capacity(&self) -> u64 {
        u64::MAX
    }

    fn fresh(&self, _at: Timestamp) -> WindowState {
        FRESH
    }

    fn time(&self, _state: &WindowState) -> Timestamp {
        Timestamp::EPOCH
    }

    fn advanced(&self, state: WindowState, at: Timestamp) -> WindowState {
        if at < state.ends { state } else { FRESH }
    }

    fn pulled_back(&self, state: WindowState, _at: Timestamp) -> WindowState {
        state
    }

    fn used(&self, _state: &WindowState, _at: Timestamp) -> u64 {
        0
    }

    /// Does nothing, because only increments change a counter.
    fn take(&self, _state: &mut WindowState, _credits: u64, _at: Timestamp) {}

    fn give_back(&self, _state: &mut WindowState, _credits: u64) {}

    fn wait_ns(&self, _state: &WindowState, _credits: u64, _at: Timestamp) -> u64 {
        0
    }

    fn decide(&self, stored: Option<&WindowState>, ask: Ask, at: Timestamp) -> (Outcome, Option<WindowState>) {
        let found = self.advanced(stored.copied().unwrap_or(FRESH), at);
        let before = found.count.cast_signed();
        let outcome = |allowed, value: i64| Outcome {
            allowed,
            before: found.count,
            left: value.cast_unsigned(),
            ..Outcome::default()
        };
        let Ask::Add { by } = ask else { return (outcome(true, before), None) };
        let value = before.saturating_add(by).min(self.upper).max(self.lower);
        if !self.saturates && before.checked_add(by) != Some(value) {
            return (outcome(false, before), None);
        }
        if value.checked_sub(before).is_none() {
            return (outcome(false, value), None);
        }
        let state = WindowState { ends: self.next_expiry(found.ends, at), count: value.cast_unsigned() };
        let state = self.advanced(state, at);
        (outcome(true, value), (state != stored.copied().unwrap_or(FRESH)).then_some(state))
    }

    fn lifetime_ns(&self, state: &WindowState, at: Timestamp) -> u64 {
        if *state == FRESH { 0 } else { state.ends.since(at) }
    }
}
