//! The parts that all algorithms share: asks and their outcomes, the trait that each implements, the decision that is built on it, the meaning of the
//! number that a window or a token bucket remembers, and the reasons why a limit cannot be built.

use std::num::{NonZeroU32, NonZeroU64};

use crate::clock::{MAX_STANDSTILL_NS, NANOS_PER_SECOND, Timestamp};

/// How far a bucket's time may be ahead of an ask's. Beyond that, the clock was set back. Asks are dated when they are
/// read, so one may overtake another on its way to the bucket. If a clock is set back by less, time stands still until
/// the clock catches up.
const OVERTAKING_NS: u64 = MAX_STANDSTILL_NS;

/// An algorithm with its numbers, as seen by [`decide`].
pub(super) trait Algorithm: Sized {
    type State: Clone + PartialEq;

    /// Returns the credits of a fresh bucket, which is the most that a bucket can hold.
    fn capacity(&self) -> u64;

    /// Returns the state of an unused bucket.
    fn fresh(&self, at: Timestamp) -> Self::State;

    /// Returns the latest time in `state`.
    fn time(&self, state: &Self::State) -> Timestamp;

    /// Returns `state` advanced to `at`, which is not earlier than its time.
    fn advanced(&self, state: Self::State, at: Timestamp) -> Self::State;

    /// Returns `state` with its times moved back to `at`, which is earlier than its time.
    fn pulled_back(&self, state: Self::State, at: Timestamp) -> Self::State;

    /// Returns the credits used, rounded up, in a state that was advanced to `at`. They may exceed the capacity.
    fn used(&self, state: &Self::State, at: Timestamp) -> u64;

    /// Takes `credits`, at least 1, from a state that was advanced to `at`. There may be fewer left.
    fn take(&self, state: &mut Self::State, credits: u64, at: Timestamp);

    /// Gives back `credits`, or as many as were taken, to a state that was advanced to the present.
    fn give_back(&self, state: &mut Self::State, credits: u64);

    /// Returns the whole credits left in a state that was advanced to `at`.
    fn left(&self, state: &Self::State, at: Timestamp) -> u64 {
        self.capacity().saturating_sub(self.used(state, at))
    }

    /// Returns the nanoseconds from `at` until `credits` (at most the capacity) are left; 0 if they already are.
    /// `state` was advanced to `at`.
    fn wait_ns(&self, state: &Self::State, credits: u64, at: Timestamp) -> u64;

    /// Returns the credits that will be left after [`Outcome::reset_ns`], if the bucket is not full now.
    fn credits_at_reset(&self, left: u64) -> u64 {
        left.saturating_add(1)
    }

    /// Returns the credits that are reserved in a state that was advanced to the present.
    fn reserved(&self, _state: &Self::State) -> u64 {
        0
    }

    /// Returns the end of the window, if all credits come back at once then. Otherwise returns `None`.
    fn window_end(&self, _state: &Self::State) -> Option<Timestamp> {
        None
    }

    /// Returns the time until which credits that are taken from `state` at `at` may be used without exceeding the limit, if
    /// there is one: see [`Ask::Share`]. `state` was advanced to `at`. While credits of a bucket that refills are set aside, there is
    /// none, because how full it is depends on them, too.
    fn share_end(&self, state: &Self::State, _at: Timestamp) -> Option<Timestamp> {
        self.window_end(state)
    }

    /// Returns the end of the window if credits of it are used, and others are reserved. The reserved ones may come back before.
    fn end_of_used_window(&self, _state: &Self::State, _at: Timestamp) -> Option<Timestamp> {
        None
    }

    /// Returns the bucket's [`Outcome::session`].
    fn session(&self, _state: &Self::State) -> Timestamp {
        Timestamp::EPOCH
    }

    /// Decides `ask`. In the decision, the state is `None` if nothing changed.
    #[inline(always)]
    fn decide(&self, stored: Option<&Self::State>, ask: Ask, at: Timestamp) -> (Outcome, Option<Self::State>) {
        decide(self, stored.cloned(), ask, at)
    }

    /// Returns the nanoseconds from `at` until all credits are back. Then a bucket may be forgotten.
    fn lifetime_ns(&self, state: &Self::State, at: Timestamp) -> u64 {
        lifetime_ns(self, state, at)
    }
}

/// A bucket's state when an ask reaches it.
pub(super) struct Present<S> {
    pub state: S,
    /// The time of the ask, or the time of the state if that is later.
    pub at: Timestamp,
    /// Whether the clock was set back, and the state was moved back with it.
    pub pulled_back: bool,
}

pub(super) fn present<A: Algorithm>(limit: &A, stored: Option<A::State>, at: Timestamp) -> Present<A::State> {
    let Some(stored) = stored else {
        return Present { state: limit.fresh(at), at, pulled_back: false };
    };
    let time = limit.time(&stored);
    if set_back_ns(time, at).is_some() {
        let state = limit.advanced(limit.pulled_back(stored, at), at);
        return Present { state, at, pulled_back: true };
    }
    let at = at.max(time);
    Present { state: limit.advanced(stored, at), at, pulled_back: false }
}

/// Returns how far the clock was set back before an ask at `at`, if it was. `time` is the latest time before the ask.
pub(super) fn set_back_ns(time: Timestamp, at: Timestamp) -> Option<u64> {
    Some(time.since(at)).filter(|ahead_ns| *ahead_ns > OVERTAKING_NS)
}

/// Implements [`Algorithm::decide`] for most algorithms.
// Inlined, because it runs for each counter of each hit, and a call would copy the outcome and the state.
#[inline(always)]
pub(super) fn decide<A: Algorithm>(
    limit: &A,
    stored: Option<A::State>,
    ask: Ask,
    at: Timestamp,
) -> (Outcome, Option<A::State>) {
    let Present { mut state, at, pulled_back } = present(limit, stored, at);
    let before = if matches!(ask, Ask::Show) { limit.reserved(&state) } else { limit.left(&state, at) };
    let mut changed = pulled_back;
    let returned = match ask {
        Ask::Refund { cost } => cost,
        Ask::Return { credits, until } if limit.window_end(&state) == Some(until) => credits.into(),
        _ => 0,
    };
    if returned > 0 {
        let used = state.clone();
        limit.give_back(&mut state, returned);
        changed |= state != used;
    }
    let is_allowed = ask.wanted() <= before;
    let share = share(limit, &state, ask, before, at);
    let taken = match ask {
        Ask::Take { cost } | Ask::Overdraw { cost } if is_allowed => cost,
        Ask::Share { cost, .. } if is_allowed => cost + share.map_or(0, |(extra, _)| extra),
        Ask::Charge { cost } | Ask::Tally { cost } => cost,
        Ask::Count { cost } | Ask::Drain { cost, .. } | Ask::Replay { cost, .. } => cost.min(before),
        Ask::Look { .. }
        | Ask::Show
        | Ask::Take { .. }
        | Ask::Overdraw { .. }
        | Ask::Share { .. }
        | Ask::Return { .. }
        | Ask::Refund { .. }
        | Ask::Add { .. } => 0,
    };
    if taken > 0 {
        limit.take(&mut state, taken, at);
        changed = true;
    }
    let mut outcome = outcome(limit, &state, ask, before, at);
    if let Some((_, ends)) = share {
        (outcome.session, outcome.retry_ns) = (ends, Some(ends.since(at)));
    }
    (outcome, changed.then_some(state))
}

/// Returns the credits that an ask takes ahead, and the end of this share. `None` if it takes nothing ahead.
fn share<A: Algorithm>(limit: &A, state: &A::State, ask: Ask, before: u64, at: Timestamp) -> Option<(u64, Timestamp)> {
    let Ask::Share { cost, extra, parts } = ask else { return None };
    let extra = u64::from(extra).min(before.checked_sub(cost)? / u64::from(parts.max(1)));
    let ends = limit.share_end(state, at).filter(|ends| ends.since(at) >= SHORTEST_SHARE_NS)?;
    (extra > 0).then_some((extra, ends))
}

/// Reports on `state` after the ask, at `at`. `before` is the credits that were left before the ask.
pub(super) fn outcome<A: Algorithm>(limit: &A, state: &A::State, ask: Ask, before: u64, at: Timestamp) -> Outcome {
    let (capacity, used) = (limit.capacity(), limit.used(state, at));
    let left = capacity.saturating_sub(used);
    let wanted = ask.wanted();
    let allowed = if matches!(ask, Ask::Tally { .. }) { used <= capacity } else { wanted <= before };
    Outcome {
        allowed,
        before,
        left,
        owed: used.saturating_sub(capacity),
        reset_ns: match limit.end_of_used_window(state, at) {
            _ if used == 0 => 0,
            Some(ends) => ends.since(at),
            None => limit.wait_ns(state, limit.credits_at_reset(left), at),
        },
        retry_ns: (!allowed && wanted <= capacity).then(|| limit.wait_ns(state, wanted, at)),
        session: limit.session(state),
        run: None,
        resolution: Resolution::Done,
        source: OutcomeSource::Store,
    }
}

/// Returns the capacity that a bucket was last used under, if it may differ from the present limit's: `own_capacity` of its
/// state, or the rule's if an actor's own limit is `in_place_of` that.
#[inline]
pub(super) fn capacity_before(own_capacity: u64, in_place_of: Option<NonZeroU64>) -> Option<u64> {
    if own_capacity > 0 { Some(own_capacity) } else { in_place_of.map(NonZeroU64::get) }
}

/// Implements [`Algorithm::lifetime_ns`] for most algorithms.
pub(super) fn lifetime_ns<A: Algorithm>(limit: &A, state: &A::State, at: Timestamp) -> u64 {
    let Present { state, at, .. } = present(limit, Some(state.clone()), at);
    limit.wait_ns(&state, limit.capacity(), at)
}

/// Converts to 64 bits, or returns the maximum, which is 584 years in nanoseconds.
pub(super) fn saturating(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The quantity that a state's number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CountBasis {
    /// Credits left of this capacity. Negative, in two's complement, if more was used, because the limit was higher
    /// then.
    LeftOf(NonZeroU64),
    /// Credits used.
    Used,
}

impl CountBasis {
    /// Returns the credits used, for a state with this `count`.
    #[inline]
    pub(super) fn used(self, count: u64) -> u64 {
        match self {
            Self::LeftOf(credits) => credits.get().wrapping_sub(count),
            Self::Used => count,
        }
    }

    /// Returns the number to remember if `used` credits were used. Both directions are the same subtraction.
    #[inline]
    pub(super) fn count(self, used: u64) -> u64 {
        self.used(used)
    }
}

/// The shortest share. Credits that could be used only for a shorter time are not taken ahead: too many of them would be lost.
pub const SHORTEST_SHARE_NS: u64 = NANOS_PER_SECOND / 2;

/// Maximum credits of a sliding log, which remembers the time of each (eight bytes).
pub const MAX_LOG_CREDITS: u64 = 1_000;

/// A limit that cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLimit {
    /// The limit has no credits.
    #[error("a limit needs at least 1 credit")]
    NoCredits,
    /// The window or period is 0.
    #[error("a limit needs a period longer than 0")]
    NoTime,
    /// A refill adds no token.
    #[error("a refill needs at least 1 credit")]
    NoRefill,
    /// The limit exceeds [`MAX_LOG_CREDITS`].
    #[error(
        "sliding-log stores a time for each credit, so it allows at most {} credits, not {credits}; sliding-window allows more",
        MAX_LOG_CREDITS
    )]
    LogTooLong {
        /// Credits of the refused limit.
        credits: u64,
    },
}

pub(super) fn valid_credits(number: u64) -> Result<NonZeroU64, InvalidLimit> {
    NonZeroU64::new(number).ok_or(InvalidLimit::NoCredits)
}

pub(super) fn valid_time(nanos: u64) -> Result<NonZeroU64, InvalidLimit> {
    NonZeroU64::new(nanos).ok_or(InvalidLimit::NoTime)
}

/// A caller's request to a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Reports whether `cost` credits would be granted. Takes nothing.
    Look {
        /// Credits that must be left.
        cost: u64,
    },
    /// Reports the bucket as it is. Takes nothing, and is always granted. `before` in the outcome is the number of
    /// reserved credits.
    Show,
    /// Takes `cost` credits, all or none. A cost of 0 is always granted.
    Take {
        /// Credits to take.
        cost: u64,
    },
    /// Takes all of `cost` credits if at least one is left. The balance may be below 0 afterwards.
    Overdraw {
        /// Credits to take.
        cost: u64,
    },
    /// Takes `cost` credits, or as many as are left, and is always granted. So the balance never falls below 0.
    Count {
        /// Credits to take.
        cost: u64,
    },
    /// Counts `cost` credits that were used already, even if none are left. `allowed` says whether at least one was
    /// left before.
    Charge {
        /// Credits that were used.
        cost: u64,
    },
    /// Counts `cost` credits even if fewer are left, and is granted if no more than the limit is used then. So a denied
    /// ask counts, too.
    Tally {
        /// Credits to count.
        cost: u64,
    },
    /// Gives back `cost` credits, or as many as were taken. It is always allowed. A fresh bucket stays fresh.
    Refund {
        /// Credits to give back.
        cost: u64,
    },
    /// Takes `cost` credits as [`Ask::Take`] does, and if that is granted, up to `extra` more: a share, which the caller may
    /// grant on its own until [`Outcome::session`]. The share is what the ask took beyond its cost.
    ///
    /// A share never exceeds a limit, because its credits are used while the bucket still lacks them:
    /// - In a window, until the window ends.
    /// - In a bucket that refills, as long as it could not have become full without the ask: nothing flows over that was
    ///   taken, and not yet used. A full bucket, or one with reservations, gives no share. A bucket takes nothing back, because
    ///   it would then be full before other shares end.
    /// - In a sliding window or log, a credit that was taken early would also come back early. They give no share.
    Share {
        /// Credits that must be left.
        cost: u64,
        /// Most credits of the share.
        extra: u32,
        /// The share is at most this part of what is left: a half, a third, and so on.
        parts: u16,
    },
    /// Gives back unused `credits` of a share that ends at `until`, if that is the end of the present window. It is always allowed.
    Return {
        /// Credits to give back.
        credits: u32,
        /// The end of the share, as [`Ask::Share`] reported it.
        until: Timestamp,
    },
    /// Takes up to `cost` credits, as many as there are. It is granted if there was at least one.
    ///
    /// `strict` matters only to token buckets. There, a take that leaves no token starts the refill interval again,
    /// even if the take was denied. So a caller that never pauses stays limited.
    Drain {
        /// Maximum number of credits to take.
        cost: u64,
        /// Whether a take that leaves no token restarts the refill interval.
        strict: bool,
    },
    /// Like [`Ask::Drain`], for an event whose time the client supplies. Any time is allowed, and times may run
    /// backwards. A token bucket never treats that as a clock that was set back.
    Replay {
        /// Maximum number of credits to take.
        cost: u64,
        /// Same as for [`Ask::Drain`].
        strict: bool,
    },
    /// Adds to the value of a [`Counter`](super::Counter). Other buckets have no value, and do not change.
    Add {
        /// The increment, which may be negative.
        by: i64,
    },
}

impl Ask {
    /// Returns the credits that a client takes or uses with this ask if it is granted.
    pub fn cost(self) -> u64 {
        match self {
            Ask::Count { cost }
            | Ask::Take { cost }
            | Ask::Overdraw { cost }
            | Ask::Charge { cost }
            | Ask::Share { cost, .. }
            | Ask::Tally { cost } => cost,
            // Only commands with a limit of their own drain a bucket, or add to a counter.
            Ask::Look { .. }
            | Ask::Show
            | Ask::Refund { .. }
            | Ask::Return { .. }
            | Ask::Drain { .. }
            | Ask::Replay { .. }
            | Ask::Add { .. } => 0,
        }
    }

    /// Returns whether the ask may give credits back.
    pub fn gives_back(self) -> bool {
        matches!(self, Ask::Refund { .. } | Ask::Return { .. })
    }

    /// Returns the credits that must be left for this ask to be granted, or would be granted if it was denied.
    pub fn wanted(self) -> u64 {
        match self {
            Ask::Tally { cost } => cost.max(1),
            Ask::Look { cost } | Ask::Take { cost } | Ask::Share { cost, .. } => cost,
            Ask::Overdraw { .. } | Ask::Charge { .. } | Ask::Drain { .. } | Ask::Replay { .. } => 1,
            Ask::Show | Ask::Count { .. } | Ask::Refund { .. } | Ask::Return { .. } | Ask::Add { .. } => 0,
        }
    }
}

/// One of the reservations that have the same name, one after the other. A predecessor's id must not settle its successor.
pub type Run = NonZeroU32;

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Whether the ask was granted.
    pub allowed: bool,
    /// Credits left before the ask. [`Ask::Show`] reports the reserved credits here.
    pub before: u64,
    /// Credits left after the ask.
    pub left: u64,
    /// Credits used beyond the limit, after the ask. 0 as long as any are left.
    pub owed: u64,
    /// Nanoseconds until the bucket holds more credits (each algorithm's module says how many); 0 if it is full. In a window
    /// that gives all credits back at once, until it ends, even if reserved credits come back before.
    pub reset_ns: u64,
    /// Nanoseconds until the same ask would be granted if no other ask comes first, and not a nanosecond earlier.
    /// `None` if it was granted, or never will be because it costs more than the bucket can hold. For a share, nanoseconds until
    /// it ends.
    pub retry_ns: Option<u64>,
    /// For token buckets, the time when the caller's current session began. For an ask that made, renewed or found a
    /// reservation, or took a share, the time when that ends. Otherwise [`Timestamp::EPOCH`].
    pub session: Timestamp,
    /// The run of the reservation that an ask made or found.
    pub run: Option<Run>,
    /// The resolution of a reservation or an idempotent request.
    pub resolution: Resolution,
    /// The part of the program that answered.
    pub source: OutcomeSource,
}

/// The part of the program that answered an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutcomeSource {
    /// The store.
    #[default]
    Store,
    /// This server, which remembered that a window of its distant store has nothing left.
    DenialCache,
    /// This server, from its share of a counter of its distant store.
    Share,
    /// The policy for failures of a distant store, or for a full one.
    FailurePolicy,
}

/// The resolution of an ask about a reservation, or of an idempotent request. If a reservation covers several buckets,
/// the smallest of their resolutions stands for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Resolution {
    /// The reservation had ended before its commit. The cost was counted at the time of the commit.
    Late,
    /// The ask was carried out.
    #[default]
    Done,
    /// The request was made before. The first answer is repeated, and nothing has changed.
    Repeated,
    /// No such reservation exists, or it has ended. Nothing has changed.
    Gone,
    /// The name belongs to another request, or to a reservation with other credits or another TTL. Nothing has changed.
    Different,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn remainder_is_negative_after_overuse() {
        let of_ten = CountBasis::LeftOf(NonZeroU64::new(10).unwrap());
        assert_eq!([0, 3, 10, 12].map(|used| of_ten.count(used) as i64), [10, 7, 0, -2]);
    }

    proptest! {
        #[test]
        fn count_reads_back(credits in 1..=u64::MAX, used: u64) {
            for basis in [CountBasis::Used, CountBasis::LeftOf(NonZeroU64::new(credits).unwrap())] {
                prop_assert_eq!(basis.used(basis.count(used)), used);
            }
        }
    }
}
