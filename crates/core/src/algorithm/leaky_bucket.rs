//! Leaky bucket as a meter, which is the generic cell rate algorithm (GCRA): every credit taken fills the bucket by
//! one, and `count` credits leak away evenly per period. An ask is granted if the bucket does not overflow.
//!
//! It serves rules and redis-cell's `CL.THROTTLE key max_burst count period`. There, `capacity` is `max_burst + 1`.
//! A fresh bucket grants `capacity` credits at once, then one every `period_ns / count`. GCRA's theoretical arrival
//! time is the time when the bucket will be empty; see ITU-T I.371, annex A, for both forms.
//!
//! The reply's numbers: `left` is the whole credits that fit now. `reset_ns` is the time until the bucket is empty and
//! all credits are back (redis-cell's `reset_after`). In any span of `t` nanoseconds, at most `capacity + t × count /
//! period_ns` credits are granted.
//!
//! Nothing is ever rounded: a credit is `period_ns` drops, and `count` drops leak in a nanosecond. For any limit, the
//! level fits 128 bits. A theoretical arrival time in nanoseconds would not fit 64 bits, and would drift if `count`
//! does not divide the period.

use std::num::NonZeroU64;

use super::decide::{self, Algorithm, InvalidLimit, saturating};
use crate::clock::Timestamp;

/// A capacity of `capacity` credits. `count` credits leak away in `period_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeakyBucket {
    /// Credits that an empty bucket grants at once.
    pub capacity: NonZeroU64,
    /// Credits that leak away in a period.
    pub count: NonZeroU64,
    /// Length of the period (nanoseconds).
    pub period_ns: NonZeroU64,
    /// The smallest count of all limits on its counter. It decides how long the counter is kept.
    pub slowest: NonZeroU64,
    /// For an actor's own limit, the capacity of the rule's limit. `None` for a rule's limit.
    pub in_place_of: Option<NonZeroU64>,
}

/// The level of the bucket at a time. Three words: `mark`, `credits`, `drops`; a fourth one, `own_capacity`, if it is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The time of the level.
    pub mark: Timestamp,
    /// Whole credits in the bucket at that time.
    pub credits: u64,
    /// Drops in addition to the credits, fewer than make a credit.
    pub drops: u64,
    /// The capacity of the actor's own limit that the bucket was last used under; 0 for a rule's. A level above it is debt,
    /// and other usage is no debt under a smaller limit.
    pub own_capacity: u64,
}

impl LeakyBucket {
    /// # Errors
    /// A number is 0.
    pub fn new(capacity: u64, count: u64, period_ns: u64) -> Result<Self, InvalidLimit> {
        let count = decide::valid_credits(count)?;
        let (capacity, period_ns) = (decide::valid_credits(capacity)?, decide::valid_time(period_ns)?);
        Ok(Self { capacity, count, period_ns, slowest: count, in_place_of: None })
    }

    fn drops(&self, credits: u64) -> u128 {
        u128::from(credits) * u128::from(self.period_ns.get())
    }

    fn level(&self, state: &State) -> u128 {
        self.drops(state.credits).saturating_add(state.drops.into())
    }

    fn filled(&self, level: u128, mark: Timestamp) -> State {
        let period_ns = u128::from(self.period_ns.get());
        let own_capacity = self.in_place_of.map_or(0, |_| self.capacity.get());
        State { mark, credits: saturating(level / period_ns), drops: saturating(level % period_ns), own_capacity }
    }

    /// Returns the level under this limit. Usage under another limit counts as far as it fits, and debt as a whole.
    fn level_here(&self, state: &State) -> u128 {
        let level = self.level(state);
        let Some(before) = decide::capacity_before(state.own_capacity, self.in_place_of) else { return level };
        let used = level.min(self.drops(before));
        used.min(self.drops(self.capacity.get())) + (level - used)
    }
}

impl Algorithm for LeakyBucket {
    type State = State;

    fn capacity(&self) -> u64 {
        self.capacity.get()
    }

    fn fresh(&self, at: Timestamp) -> State {
        self.filled(0, at)
    }

    fn time(&self, state: &State) -> Timestamp {
        state.mark
    }

    fn advanced(&self, state: State, at: Timestamp) -> State {
        let leaked = u128::from(at.since(state.mark)) * u128::from(self.count.get());
        self.filled(self.level_here(&state).saturating_sub(leaked), at)
    }

    fn pulled_back(&self, state: State, at: Timestamp) -> State {
        State { mark: at, ..state }
    }

    fn used(&self, state: &State, _at: Timestamp) -> u64 {
        state.credits.saturating_add(u64::from(state.drops > 0))
    }

    fn take(&self, state: &mut State, credits: u64, _at: Timestamp) {
        state.credits = state.credits.saturating_add(credits);
    }

    fn give_back(&self, state: &mut State, credits: u64) {
        *state = self.filled(self.level(state).saturating_sub(self.drops(credits)), state.mark);
    }

    fn wait_ns(&self, state: &State, credits: u64, _at: Timestamp) -> u64 {
        let level_then = self.drops(self.capacity.get().saturating_sub(credits));
        saturating(self.level(state).saturating_sub(level_then).div_ceil(u128::from(self.count.get())))
    }

    fn credits_at_reset(&self, _left: u64) -> u64 {
        self.capacity.get()
    }

    fn lifetime_ns(&self, state: &State, at: Timestamp) -> u64 {
        decide::lifetime_ns(&Self { count: self.slowest, ..*self }, state, at)
    }
}
