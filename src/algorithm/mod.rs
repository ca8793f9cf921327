//! Pure decisions: (limit, state, ask, time) → (outcome, new state).
//!
//! One file an algorithm, `decide.rs` with what they have in common, and here the closed set of them. No clock, no I/O,
//! no keys and no rules live here: time is a parameter and state is a value, so that every promise of an algorithm
//! can be tested by properties.
//!
//! Every algorithm keeps these promises:
//! - An ask that is denied, or that takes nothing, changes nothing. Two exceptions: a strict [`Ask::Drain`] or
//!   [`Ask::Replay`], and the repair of the next point.
//! - Time that runs backwards counts as no time passed: an ask that was overtaken by a later one on its way counts as
//!   made at that one's time. When a bucket's time is more than ten seconds ahead, the clock was set back: the next ask
//!   pulls the state back to the present with nothing given back, and this is remembered even if the ask is denied or takes
//!   nothing. So no client waits longer than the limit's own time. The exception is an [`Ask::Replay`].
//! - Decisions are made in integers, exact to the nanosecond, and no numbers overflow: what would be past the year
//!   2554, or longer than 584 years, saturates.

/// Calls a function with the algorithm's own limit.
macro_rules! with_algorithm {
    ($limit:expr, $own:ident => $call:expr) => {
        match $limit {
            $crate::algorithm::Limit::FixedWindow($own) => $call,
            $crate::algorithm::Limit::CalendarWindow($own) => $call,
            $crate::algorithm::Limit::SlidingWindow($own) => $call,
            $crate::algorithm::Limit::SlidingLog($own) => $call,
            $crate::algorithm::Limit::TokenBucket($own) => $call,
            $crate::algorithm::Limit::LeakyBucket($own) => $call,
            $crate::algorithm::Limit::Concurrency($own) => $call,
        }
    };
}

mod ask;
pub mod calendar_window;
pub mod concurrency;
mod decide;
pub mod fixed_window;
mod invalid;
mod kind;
pub mod leaky_bucket;
pub mod once;
pub mod reservation;
pub mod reserved;
mod reserving;
pub mod sliding_log;
pub mod sliding_window;
mod tally;
#[cfg(test)]
mod tests;
pub mod token_bucket;

use crate::clock::Timestamp;
pub use ask::{Ask, Outcome};
pub use calendar_window::{CalendarId, CalendarWindow};
pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use invalid::{InvalidLimit, MAX_LOG_CREDITS};
pub use kind::Kind;
pub use leaky_bucket::LeakyBucket;
pub use once::Answered;
pub use reservation::{Reservation, ReservationAsk};
pub use reserving::Reserving;
pub use sliding_log::SlidingLog;
pub use sliding_window::SlidingWindow;
pub use tally::Tally;
pub use token_bucket::TokenBucket;

/// How a bucket is limited. Its numbers are part of the bucket's identity: other numbers, another bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    FixedWindow(FixedWindow),
    /// Its states are those of a fixed window.
    CalendarWindow(CalendarWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    /// Nothing takes from it but reservations. Its numbers are no part of the bucket's identity.
    Concurrency(Concurrency),
}

/// What a bucket remembers between two asks, one variant an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    FixedWindow(fixed_window::State),
    SlidingWindow(sliding_window::State),
    SlidingLog(sliding_log::State),
    TokenBucket(token_bucket::State),
    LeakyBucket(leaky_bucket::State),
    Concurrency(concurrency::State),
    /// That of any of them, while something of the bucket is reserved.
    Reserving(Box<Reserving>),
}

/// An algorithm's own state, as one of all states.
pub(crate) trait Kept: Clone + PartialEq {
    /// `None` for the state of another algorithm.
    fn of(state: &State) -> Option<&Self>;
    fn into_state(self) -> State;
}

/// States by the names of their variants.
macro_rules! kept {
    ($($variant:ident: $state:ty),+ $(,)?) => {
        $(impl Kept for $state {
            #[inline]
            fn of(state: &State) -> Option<&Self> {
                if let State::$variant(state) = state { Some(state) } else { None }
            }

            #[inline]
            fn into_state(self) -> State {
                State::$variant(self)
            }
        })+
    };
}

kept! {
    FixedWindow: fixed_window::State,
    SlidingWindow: sliding_window::State,
    SlidingLog: sliding_log::State,
    TokenBucket: token_bucket::State,
    LeakyBucket: leaky_bucket::State,
    Concurrency: concurrency::State,
}

/// An outcome, and the state to remember; `None` when nothing changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub outcome: Outcome,
    pub state: Option<State>,
}

impl Limit {
    /// Decides `ask` at time `at`, given what the bucket remembers (`None`: a fresh bucket).
    ///
    /// A state of another algorithm counts as fresh; the algorithm is part of a bucket's key, so stores never mix them.
    pub fn decide(&self, state: Option<&State>, ask: Ask, at: Timestamp) -> Decision {
        match self {
            Limit::TokenBucket(limit) => decide_by(limit, state, ask, at, TokenBucket::decide),
            Limit::FixedWindow(limit) => decide_by(limit, state, ask, at, decide::decide),
            Limit::CalendarWindow(limit) => decide_by(limit, state, ask, at, decide::decide),
            Limit::SlidingWindow(limit) => decide_by(limit, state, ask, at, decide::decide),
            Limit::SlidingLog(limit) => decide_by(limit, state, ask, at, decide::decide),
            Limit::LeakyBucket(limit) => decide_by(limit, state, ask, at, decide::decide),
            Limit::Concurrency(limit) => decide_by(limit, state, ask, at, decide::decide),
        }
    }

    /// Nanoseconds after `at` when a bucket in `state` has all its credits again by every limit on it, and may be forgotten; 0
    /// for a state of another algorithm.
    pub fn lifetime_ns(&self, state: &State, at: Timestamp) -> u64 {
        match (self, state) {
            (Limit::FixedWindow(limit), State::FixedWindow(state)) => decide::lifetime_ns(limit, state, at),
            (Limit::CalendarWindow(limit), State::FixedWindow(state)) => decide::lifetime_ns(limit, state, at),
            (Limit::SlidingWindow(limit), State::SlidingWindow(state)) => decide::lifetime_ns(limit, state, at),
            (Limit::SlidingLog(limit), State::SlidingLog(state)) => decide::lifetime_ns(limit, state, at),
            (Limit::TokenBucket(limit), State::TokenBucket(state)) => {
                decide::lifetime_ns(&TokenBucket { refill: limit.slowest, ..*limit }, state, at)
            }
            (Limit::LeakyBucket(limit), State::LeakyBucket(state)) => {
                decide::lifetime_ns(&LeakyBucket { count: limit.slowest, ..*limit }, state, at)
            }
            // As long as its last reservation, at least.
            (limit, State::Reserving(held)) => {
                limit.lifetime_ns(&held.base, at).max(held.reserved.last_end().since(at))
            }
            _ => 0,
        }
    }

    /// This limit on a counter whose states count something else: what was used there is used up here as well.
    pub fn counting(mut self, counter: Tally) -> Self {
        match &mut self {
            Limit::FixedWindow(FixedWindow { tally, .. })
            | Limit::CalendarWindow(CalendarWindow { tally, .. })
            | Limit::TokenBucket(TokenBucket { tally, .. }) => *tally = counter,
            // They count what was used.
            Limit::SlidingWindow(_) | Limit::SlidingLog(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => {}
        }
        self
    }

    /// This limit on a counter that other limits are on, too, of which some may give credits back more slowly.
    pub fn beside(mut self, other: &Limit) -> Self {
        match (&mut self, other) {
            (Limit::TokenBucket(limit), Limit::TokenBucket(other)) => limit.slowest = limit.slowest.min(other.slowest),
            (Limit::LeakyBucket(limit), Limit::LeakyBucket(other)) => limit.slowest = limit.slowest.min(other.slowest),
            // Their windows and leases end whatever the limit is.
            _ => {}
        }
        self
    }

    /// What the states of its counters count.
    pub fn tally(&self) -> Tally {
        match self {
            Limit::FixedWindow(limit) => limit.tally,
            Limit::CalendarWindow(limit) => limit.tally,
            Limit::TokenBucket(limit) => limit.tally,
            Limit::SlidingWindow(_) | Limit::SlidingLog(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => {
                Tally::Used
            }
        }
    }

    /// The most credits that the bucket can hold: what a fresh one has. An ask for more is never granted.
    pub fn capacity(&self) -> u64 {
        use decide::Algorithm;
        with_algorithm!(self, limit => limit.capacity())
    }

    /// What it grants in the long run: so many credits in so many nanoseconds; in a calendar window, in the present one. `None`
    /// where that depends on how long things take.
    pub fn rate(&self) -> Option<(u64, u64)> {
        let (credits, time_ns) = match self {
            Limit::CalendarWindow(limit) => return Some((limit.credits.get(), limit.window_ns())),
            Limit::FixedWindow(limit) => (limit.credits, limit.window_ns),
            Limit::SlidingWindow(limit) => (limit.credits, limit.window_ns),
            Limit::SlidingLog(limit) => (limit.credits(), limit.window_ns()),
            Limit::TokenBucket(limit) => (limit.refill, limit.interval_ns),
            Limit::LeakyBucket(limit) => (limit.count, limit.period_ns),
            Limit::Concurrency(_) => return None,
        };
        Some((credits.get(), time_ns.get()))
    }

    /// Which algorithm this limit belongs to.
    pub fn kind(&self) -> Kind {
        match self {
            Limit::FixedWindow(_) | Limit::CalendarWindow(_) => Kind::FixedWindow,
            Limit::SlidingWindow(_) => Kind::SlidingWindow,
            Limit::SlidingLog(_) => Kind::SlidingLog,
            Limit::TokenBucket(_) => Kind::TokenBucket,
            Limit::LeakyBucket(_) => Kind::LeakyBucket,
            Limit::Concurrency(_) => Kind::Concurrency,
        }
    }

    /// The algorithm's name.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

#[inline]
fn decide_by<A: decide::Algorithm<State: Kept>>(
    limit: &A,
    state: Option<&State>,
    ask: Ask,
    at: Timestamp,
    decide: impl FnOnce(&A, Option<&A::State>, Ask, Timestamp) -> (Outcome, Option<A::State>),
) -> Decision {
    let known = match state {
        Some(State::Reserving(held)) => return reserving::decide(limit, held, ask, at),
        state => state.and_then(A::State::of),
    };
    let (outcome, state) = decide(limit, known, ask, at);
    Decision { outcome, state: state.map(A::State::into_state) }
}
