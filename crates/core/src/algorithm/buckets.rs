//! Buckets: tokens that are refilled in steps, a level that leaks, and leases that are returned.
//!
//! # Token bucket
//! Refills come in whole steps, as in Smyte's limiter: after `n` full intervals, `n × refill` tokens are
//! added, up to `capacity`, and the refill mark advances by those intervals only.
//!
//! It serves rules by [`Ask::Take`], and the `RL.*` commands by [`Ask::Drain`] or, with `AT`, by [`Ask::Replay`], with two
//! differences:
//! - A take from a full bucket moves the refill mark to the present, so a bucket that has filled up is like a fresh
//!   one. A drain leaves the mark on its grid, as the original does, so that replies are the same to the token. If a
//!   full bucket is forgotten, only the grid of its refills shifts.
//! - A replay's time comes from the client and may run backwards. It is never treated as a clock that was set back.
//!
//! The reply's numbers: `left` is the tokens in the bucket. `reset_ns` is the time until the next refill, or 0 if the
//! bucket is full. In any span of time, at most `capacity` tokens are granted, plus `refill` for each interval begun.
//!
//! A session begins with an ask that gets all the tokens that it wants. Asks that get fewer, or are denied, belong to
//! the session before. With one token and strict drains, a session groups hits that follow each other within an
//! interval.
//!
//! # Leaky bucket
//! A meter, which is the generic cell rate algorithm (GCRA): every credit taken fills the bucket by
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
//!
//! # Concurrency limit
//! The credits are leases. Each lease is a reservation, which ends when it is released or when its TTL has passed. Nothing is
//! ever used up. So a bucket only has to remember its reservations, and the latest time that it has seen.
//!
//! The reply's numbers: `left` is the number of free leases, and `reset_ns` is the time until the next lease expires.

use std::num::{NonZeroU32, NonZeroU64};

use super::decide::{self, Algorithm, Ask, CountBasis, InvalidLimit, Outcome, Present, saturating};
use crate::clock::Timestamp;

/// At most `capacity` tokens, with `refill` more after each `interval_ns` nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    /// Maximum number of tokens.
    pub capacity: NonZeroU64,
    /// Tokens that each interval adds.
    pub refill: NonZeroU64,
    /// Length of the interval (nanoseconds).
    pub interval_ns: NonZeroU64,
    /// The meaning of the number in its states.
    pub basis: CountBasis,
    /// The smallest refill of all limits on its counter. It decides how long the counter is kept.
    pub slowest: NonZeroU64,
    /// For an actor's own limit, the capacity of the rule's limit. `None` for a rule's limit.
    pub in_place_of: Option<NonZeroU64>,
}

/// A bucket in use. Three words: `mark`, `count`, `session`; a fourth one, `own_capacity`, if it is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucketState {
    /// Refills are counted up to this time. The next one comes an interval later.
    pub mark: Timestamp,
    /// Tokens in the bucket at the mark, or missing from it, depending on the limit's [`CountBasis`].
    pub count: u64,
    /// When the current session began.
    pub session: Timestamp,
    /// The capacity of the actor's own limit that the bucket was last used under; 0 for a rule's. More missing tokens are debt,
    /// and other usage is no debt under a smaller limit.
    pub own_capacity: u64,
}

impl TokenBucket {
    /// # Errors
    /// A number is 0.
    pub fn new(capacity: u64, refill: u64, interval_ns: u64) -> Result<Self, InvalidLimit> {
        let capacity = decide::valid_credits(capacity)?;
        let refill = NonZeroU64::new(refill).ok_or(InvalidLimit::NoRefill)?;
        let interval_ns = decide::valid_time(interval_ns)?;
        Ok(Self {
            capacity,
            refill,
            interval_ns,
            basis: CountBasis::LeftOf(capacity),
            slowest: refill,
            in_place_of: None,
        })
    }

    /// Returns the state `found`, after draining `cost` tokens, or as many as there are.
    fn drained(&self, found: TokenBucketState, cost: u64, strict: bool, at: Timestamp) -> TokenBucketState {
        let tokens = self.left(&found, at);
        if cost == 0 {
            return found;
        }
        let mark = if strict && cost >= tokens { at } else { found.mark };
        let session = if cost <= tokens { at } else { found.session };
        self.lacking(self.missing(&found).saturating_add(cost.min(tokens)), mark, session)
    }

    fn lacking(&self, missing: u64, mark: Timestamp, session: Timestamp) -> TokenBucketState {
        let own_capacity = self.in_place_of.map_or(0, |_| self.capacity.get());
        TokenBucketState { mark, count: self.basis.count(missing), session, own_capacity }
    }

    /// Returns the tokens that the bucket lacks under this limit. Usage under another limit counts as far as it fits, and debt as
    /// a whole.
    fn missing_here(&self, state: &TokenBucketState) -> u64 {
        let missing = self.missing(state);
        let Some(before) = decide::capacity_before(state.own_capacity, self.in_place_of) else { return missing };
        let used = missing.min(before);
        used.min(self.capacity.get()) + (missing - used)
    }

    /// Returns the tokens that the bucket lacked at its mark. They may exceed the capacity: by debt, or if the bucket was
    /// larger before.
    fn missing(&self, state: &TokenBucketState) -> u64 {
        self.basis.used(state.count)
    }
}

impl Algorithm for TokenBucket {
    type State = TokenBucketState;

    fn capacity(&self) -> u64 {
        self.capacity.get()
    }

    fn fresh(&self, at: Timestamp) -> TokenBucketState {
        self.lacking(0, at, at)
    }

    fn time(&self, state: &TokenBucketState) -> Timestamp {
        state.mark
    }

    fn advanced(&self, state: TokenBucketState, at: Timestamp) -> TokenBucketState {
        let steps = at.since(state.mark) / self.interval_ns;
        let missing = self.missing_here(&state).saturating_sub(steps.saturating_mul(self.refill.get()));
        self.lacking(missing, state.mark.plus(steps * self.interval_ns.get()), state.session)
    }

    fn pulled_back(&self, state: TokenBucketState, at: Timestamp) -> TokenBucketState {
        TokenBucketState { mark: at, ..state }
    }

    fn used(&self, state: &TokenBucketState, _at: Timestamp) -> u64 {
        self.missing(state)
    }

    fn take(&self, state: &mut TokenBucketState, credits: u64, at: Timestamp) {
        let missing = self.missing(state);
        let mark = if missing == 0 { at } else { state.mark };
        *state = self.lacking(missing.saturating_add(credits), mark, at);
    }

    /// Gives tokens back without moving the refill mark.
    fn give_back(&self, state: &mut TokenBucketState, credits: u64) {
        *state = self.lacking(self.missing(state).saturating_sub(credits), state.mark, state.session);
    }

    fn wait_ns(&self, state: &TokenBucketState, credits: u64, at: Timestamp) -> u64 {
        let missing = self.missing(state).saturating_sub(self.capacity.get().saturating_sub(credits));
        if missing == 0 {
            return 0;
        }
        let refilling_ns = u128::from(missing.div_ceil(self.refill.get())) * u128::from(self.interval_ns.get());
        saturating((u128::from(state.mark.as_nanos()) + refilling_ns).saturating_sub(u128::from(at.as_nanos())))
    }

    fn share_end(&self, state: &TokenBucketState, at: Timestamp) -> Option<Timestamp> {
        Some(at.plus(self.wait_ns(state, self.capacity.get(), at)))
    }

    fn session(&self, state: &TokenBucketState) -> Timestamp {
        state.session
    }

    fn decide(
        &self,
        stored: Option<&TokenBucketState>,
        ask: Ask,
        at: Timestamp,
    ) -> (Outcome, Option<TokenBucketState>) {
        let (Present { state: found, at, pulled_back }, cost, strict) = match ask {
            Ask::Drain { cost, strict } => (decide::present(self, stored.copied(), at), cost, strict),
            Ask::Replay { cost, strict } => {
                let state = stored.map_or_else(|| self.fresh(at), |state| self.advanced(*state, at));
                (Present { state, at, pulled_back: false }, cost, strict)
            }
            Ask::Look { .. }
            | Ask::Show
            | Ask::Take { .. }
            | Ask::Overdraw { .. }
            | Ask::Count { .. }
            | Ask::Charge { .. }
            | Ask::Tally { .. }
            | Ask::Share { .. }
            | Ask::Return { .. }
            | Ask::Refund { .. }
            | Ask::Add { .. } => return decide::decide(self, stored.copied(), ask, at),
        };
        let before = self.left(&found, at);
        let drained = self.drained(found, cost, strict, at);
        let outcome = decide::outcome(self, &drained, ask, before, at);
        let is_changed = pulled_back || (cost > 0 && stored != Some(&drained));
        (outcome, is_changed.then_some(drained))
    }

    fn lifetime_ns(&self, state: &TokenBucketState, at: Timestamp) -> u64 {
        decide::lifetime_ns(&Self { refill: self.slowest, ..*self }, state, at)
    }
}

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
pub struct LeakyBucketState {
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

    fn level(&self, state: &LeakyBucketState) -> u128 {
        self.drops(state.credits).saturating_add(state.drops.into())
    }

    fn filled(&self, level: u128, mark: Timestamp) -> LeakyBucketState {
        let period_ns = u128::from(self.period_ns.get());
        let own_capacity = self.in_place_of.map_or(0, |_| self.capacity.get());
        LeakyBucketState {
            mark,
            credits: saturating(level / period_ns),
            drops: saturating(level % period_ns),
            own_capacity,
        }
    }

    /// Returns the level under this limit. Usage under another limit counts as far as it fits, and debt as a whole.
    fn level_here(&self, state: &LeakyBucketState) -> u128 {
        let level = self.level(state);
        let Some(before) = decide::capacity_before(state.own_capacity, self.in_place_of) else { return level };
        let used = level.min(self.drops(before));
        used.min(self.drops(self.capacity.get())) + (level - used)
    }
}

impl Algorithm for LeakyBucket {
    type State = LeakyBucketState;

    fn capacity(&self) -> u64 {
        self.capacity.get()
    }

    fn fresh(&self, at: Timestamp) -> LeakyBucketState {
        self.filled(0, at)
    }

    fn time(&self, state: &LeakyBucketState) -> Timestamp {
        state.mark
    }

    fn advanced(&self, state: LeakyBucketState, at: Timestamp) -> LeakyBucketState {
        let leaked = u128::from(at.since(state.mark)) * u128::from(self.count.get());
        self.filled(self.level_here(&state).saturating_sub(leaked), at)
    }

    fn pulled_back(&self, state: LeakyBucketState, at: Timestamp) -> LeakyBucketState {
        LeakyBucketState { mark: at, ..state }
    }

    fn used(&self, state: &LeakyBucketState, _at: Timestamp) -> u64 {
        state.credits.saturating_add(u64::from(state.drops > 0))
    }

    fn take(&self, state: &mut LeakyBucketState, credits: u64, _at: Timestamp) {
        state.credits = state.credits.saturating_add(credits);
    }

    fn give_back(&self, state: &mut LeakyBucketState, credits: u64) {
        *state = self.filled(self.level(state).saturating_sub(self.drops(credits)), state.mark);
    }

    fn wait_ns(&self, state: &LeakyBucketState, credits: u64, _at: Timestamp) -> u64 {
        let level_then = self.drops(self.capacity.get().saturating_sub(credits));
        saturating(self.level(state).saturating_sub(level_then).div_ceil(u128::from(self.count.get())))
    }

    fn share_end(&self, state: &LeakyBucketState, at: Timestamp) -> Option<Timestamp> {
        Some(at.plus(self.wait_ns(state, self.capacity.get(), at)))
    }

    fn credits_at_reset(&self, _left: u64) -> u64 {
        self.capacity.get()
    }

    fn lifetime_ns(&self, state: &LeakyBucketState, at: Timestamp) -> u64 {
        decide::lifetime_ns(&Self { count: self.slowest, ..*self }, state, at)
    }
}

/// At most `leases` at once, each for `ttl_seconds`. If `leases` is 0, earlier leases still expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Concurrency {
    /// Maximum number of leases at once.
    pub leases: u64,
    /// Time until a lease that is not released expires.
    pub ttl_seconds: NonZeroU32,
}

/// A bucket's latest time. One word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConcurrencyState {
    /// When a lease was last taken, renewed or freed.
    pub time: Timestamp,
}

impl Concurrency {
    /// # Errors
    /// The TTL is 0.
    pub fn new(leases: u64, ttl_seconds: u32) -> Result<Self, InvalidLimit> {
        let ttl_seconds = NonZeroU32::new(ttl_seconds).ok_or(InvalidLimit::NoTime)?;
        Ok(Self { leases, ttl_seconds })
    }
}

impl Algorithm for Concurrency {
    type State = ConcurrencyState;

    fn capacity(&self) -> u64 {
        self.leases
    }

    fn fresh(&self, at: Timestamp) -> ConcurrencyState {
        ConcurrencyState { time: at }
    }

    fn time(&self, state: &ConcurrencyState) -> Timestamp {
        state.time
    }

    fn advanced(&self, _state: ConcurrencyState, at: Timestamp) -> ConcurrencyState {
        ConcurrencyState { time: at }
    }

    fn pulled_back(&self, _state: ConcurrencyState, at: Timestamp) -> ConcurrencyState {
        ConcurrencyState { time: at }
    }

    fn used(&self, _state: &ConcurrencyState, _at: Timestamp) -> u64 {
        0
    }

    /// Does nothing, because a lease uses nothing up.
    fn take(&self, _state: &mut ConcurrencyState, _credits: u64, _at: Timestamp) {}

    fn give_back(&self, _state: &mut ConcurrencyState, _credits: u64) {}

    fn wait_ns(&self, _state: &ConcurrencyState, _credits: u64, _at: Timestamp) -> u64 {
        0
    }
}
