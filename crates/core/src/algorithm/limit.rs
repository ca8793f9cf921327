//! The limit and the state of a bucket: one type for all algorithms, and the algorithms' names in a rules file.

use super::decide::{Algorithm, Ask, CountBasis, InvalidLimit, Outcome, Resolution};
use super::groups::ExpiryGroups;
use super::record::{Record, RecordChange, Replay};
use super::set_aside::Decorator;
use super::{
    CalendarWindow, Concurrency, ConcurrencyState, Counter, FixedWindow, LeakyBucket, LeakyBucketState, SlidingLog,
    SlidingLogState, SlidingWindow, SlidingWindowState, TokenBucket, TokenBucketState, WindowState,
};
use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// Evaluates an expression with the algorithm's own limit type.
macro_rules! with_algorithm {
    ($limit:expr, $own:ident => $call:expr) => {
        match $limit {
            $crate::algorithm::limit::Limit::FixedWindow($own) => $call,
            $crate::algorithm::limit::Limit::CalendarWindow($own) => $call,
            $crate::algorithm::limit::Limit::SlidingWindow($own) => $call,
            $crate::algorithm::limit::Limit::SlidingLog($own) => $call,
            $crate::algorithm::limit::Limit::TokenBucket($own) => $call,
            $crate::algorithm::limit::Limit::LeakyBucket($own) => $call,
            $crate::algorithm::limit::Limit::Concurrency($own) => $call,
            $crate::algorithm::limit::Limit::Counter($own) => $call,
        }
    };
}

pub(super) use with_algorithm;

/// The limit of a bucket. Its numbers are part of the bucket's identity: other numbers mean another bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Credits per window. A window begins with the first hit.
    FixedWindow(FixedWindow),
    /// Credits per window of a calendar. Its buckets have the state of a fixed window.
    CalendarWindow(CalendarWindow),
    /// Credits in the window that ends now, approximately.
    SlidingWindow(SlidingWindow),
    /// Credits in the window that ends now, exactly.
    SlidingLog(SlidingLog),
    /// Tokens with refills in whole steps.
    TokenBucket(TokenBucket),
    /// A meter that leaks evenly.
    LeakyBucket(LeakyBucket),
    /// A number of leases. Its numbers are not part of the bucket's identity.
    Concurrency(Concurrency),
    /// A client's own counter. Nothing of it is part of the bucket's identity. Its buckets have the state of a fixed window.
    Counter(Counter),
}

impl Limit {
    /// Creates a limit of `capacity` credits. `refill` of them come back every `time_ns` nanoseconds, or all of them with windows and
    /// leases. Leases last for whole seconds.
    ///
    /// # Errors
    /// The algorithm needs a number that is 0, or is limited to fewer credits.
    pub fn new(kind: Kind, capacity: u64, refill: u64, time_ns: u64) -> Result<Self, InvalidLimit> {
        let seconds = u32::try_from(time_ns / NANOS_PER_SECOND).unwrap_or(u32::MAX);
        Ok(match kind {
            Kind::FixedWindow => Self::FixedWindow(FixedWindow::new(capacity, time_ns)?),
            Kind::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(capacity, time_ns)?),
            Kind::SlidingLog => Self::SlidingLog(SlidingLog::new(capacity, time_ns)?),
            Kind::TokenBucket => Self::TokenBucket(TokenBucket::new(capacity, refill, time_ns)?),
            Kind::LeakyBucket => Self::LeakyBucket(LeakyBucket::new(capacity, refill, time_ns)?),
            Kind::Concurrency => Self::Concurrency(Concurrency::new(capacity, seconds)?),
        })
    }

    /// Decides `ask` at time `at`, given the bucket's state (`None` for a fresh bucket).
    ///
    /// A bucket whose state belongs to another algorithm counts as fresh. The algorithm is part of a bucket's key, so
    /// stores never mix them.
    pub fn decide(&self, state: Option<&State>, ask: Ask, at: Timestamp) -> Decision {
        with_algorithm!(self, limit => decide_by(limit, state, ask, at))
    }

    /// Decides an idempotent request that is not in a group, at time `at`, given the state of its bucket and its
    /// record.
    pub fn decide_idempotent(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        (ask, fingerprint): (Ask, u64),
        at: Timestamp,
    ) -> (Decision, RecordChange) {
        let kept = RecordChange::Keep.or_found(record, at);
        match Replay::find(record, fingerprint, at) {
            Replay::Answered(outcome) => (Decision { outcome, state: None }, kept),
            Replay::Conflict => (self.decide_conflict(bucket, at), kept),
            Replay::None | Replay::HeldBack(_) => {
                let decision = self.decide(bucket, ask, at);
                let record = Record::new_answer(fingerprint, decision.outcome, false, at);
                (decision, RecordChange::Set(record))
            }
        }
    }

    /// Decides a request whose idempotency key belongs to another request.
    fn decide_conflict(&self, bucket: Option<&State>, at: Timestamp) -> Decision {
        let look = self.decide(bucket, Ask::Look { cost: 0 }, at);
        Decision { outcome: Outcome { allowed: false, resolution: Resolution::Different, ..look.outcome }, ..look }
    }

    /// Returns the nanoseconds from `at` until a bucket in `state` has all its credits again, under every limit that
    /// shares it. Then it may be forgotten. Returns 0 if the state belongs to another algorithm.
    pub fn lifetime_ns(&self, state: &State, at: Timestamp) -> u64 {
        match state {
            // A bucket is kept at least until its last reservation ends.
            State::Reserved(state) => self.lifetime_ns(&state.base, at).max(state.groups.last_end().since(at)),
            state => with_algorithm!(self, limit => {
                AlgorithmState::downcast(state).map_or(0, |state| limit.lifetime_ns(state, at))
            }),
        }
    }

    /// Returns this limit for a counter whose states have another basis. The usage carries over.
    pub fn counting(mut self, counter: CountBasis) -> Self {
        if let Some(basis) = self.count_basis_mut() {
            *basis = counter;
        }
        self
    }

    /// Returns this limit for a counter that it shares with `other`, which may give credits back more slowly.
    pub fn share_counter_with(mut self, other: &Limit) -> Self {
        match (&mut self, other) {
            (Limit::TokenBucket(limit), Limit::TokenBucket(other)) => limit.slowest = limit.slowest.min(other.slowest),
            (Limit::LeakyBucket(limit), Limit::LeakyBucket(other)) => limit.slowest = limit.slowest.min(other.slowest),
            // Windows and leases end at the same time under every limit.
            _ => {}
        }
        self
    }

    /// Returns this limit of an actor, for the counter of its rule, which has the limit `rule`.
    pub fn in_place_of(self, rule: &Limit) -> Self {
        let mut own = self.counting(rule.count_basis()).share_counter_with(rule);
        match (&mut own, rule) {
            (Limit::TokenBucket(own), Limit::TokenBucket(rule)) => own.in_place_of = Some(rule.capacity),
            (Limit::LeakyBucket(own), Limit::LeakyBucket(rule)) => own.in_place_of = Some(rule.capacity),
            // Windows and leases end at the same time under every limit.
            _ => {}
        }
        own
    }

    /// Returns what the states of its counters count.
    pub fn count_basis(self) -> CountBasis {
        self.chosen_count_basis().unwrap_or(CountBasis::Used)
    }

    /// Returns what the states of its counters count. `None` if they can only count what was used.
    pub fn chosen_count_basis(mut self) -> Option<CountBasis> {
        self.count_basis_mut().copied()
    }

    /// Returns `None` for algorithms whose states always count the credits used.
    fn count_basis_mut(&mut self) -> Option<&mut CountBasis> {
        match self {
            Limit::FixedWindow(FixedWindow { basis, .. })
            | Limit::CalendarWindow(CalendarWindow { basis, .. })
            | Limit::TokenBucket(TokenBucket { basis, .. }) => Some(basis),
            Limit::SlidingWindow(_)
            | Limit::SlidingLog(_)
            | Limit::LeakyBucket(_)
            | Limit::Concurrency(_)
            | Limit::Counter(_) => None,
        }
    }

    /// Returns the most credits that the bucket can hold. A fresh bucket has as many. An ask for more is never granted.
    pub fn capacity(&self) -> u64 {
        with_algorithm!(self, limit => limit.capacity())
    }

    /// Returns the credits that the limit grants in the long run, and the time that this takes (nanoseconds). For a
    /// calendar window, that is the length of the current window. Returns `None` for leases, whose rate depends on how
    /// long they are held, and for counters.
    pub fn rate(&self) -> Option<(u64, u64)> {
        let (credits, time_ns) = match self {
            Limit::CalendarWindow(limit) => return Some((limit.credits.get(), limit.window_ns())),
            Limit::FixedWindow(limit) => (limit.credits, limit.window_ns),
            Limit::SlidingWindow(limit) => (limit.credits, limit.window_ns),
            Limit::SlidingLog(limit) => (limit.credits, limit.window_ns),
            Limit::TokenBucket(limit) => (limit.refill, limit.interval_ns),
            Limit::LeakyBucket(limit) => (limit.count, limit.period_ns),
            Limit::Concurrency(_) | Limit::Counter(_) => return None,
        };
        Some((credits.get(), time_ns.get()))
    }

    /// Returns the algorithm. A calendar window is a fixed window, and so is a client's counter, which is stored as one.
    pub fn kind(&self) -> Kind {
        match self {
            Limit::FixedWindow(_) | Limit::CalendarWindow(_) | Limit::Counter(_) => Kind::FixedWindow,
            Limit::SlidingWindow(_) => Kind::SlidingWindow,
            Limit::SlidingLog(_) => Kind::SlidingLog,
            Limit::TokenBucket(_) => Kind::TokenBucket,
            Limit::LeakyBucket(_) => Kind::LeakyBucket,
            Limit::Concurrency(_) => Kind::Concurrency,
        }
    }
}

#[inline]
fn decide_by<A: Algorithm<State: AlgorithmState>>(
    limit: &A,
    state: Option<&State>,
    ask: Ask,
    at: Timestamp,
) -> Decision {
    let own = match state {
        Some(state @ State::Reserved(_)) => return Decorator(limit).decide_reserved(state, ask, at),
        state => state.and_then(A::State::downcast),
    };
    let (outcome, state) = limit.decide(own, ask, at);
    Decision { outcome, state: state.map(A::State::into_state) }
}

named_values! {
    /// An algorithm, without its numbers. The default is Divvy's.
    #[derive(Default)]
    Kind {
        /// A window that begins with the first hit, or on a date of a calendar.
        #[default]
        FixedWindow = "fixed-window",
        /// Two counters that approximate the last window.
        SlidingWindow = "sliding-window",
        /// The exact time of each credit.
        SlidingLog = "sliding-log",
        /// Tokens that come back in whole refills.
        TokenBucket = "token-bucket",
        /// A level that leaks evenly: GCRA.
        LeakyBucket = "leaky-bucket",
        /// Leases, which are returned instead of used up.
        Concurrency = "concurrency",
    }
}

/// The state of a bucket while some of its credits are reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedState {
    /// The algorithm's own state.
    pub base: State,
    /// The credits that are set aside.
    pub groups: ExpiryGroups,
}

/// An outcome, and the new state if it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer to the caller.
    pub outcome: Outcome,
    /// The new state. `None` if it did not change.
    pub state: Option<State>,
}

/// One algorithm's own state.
pub(crate) trait AlgorithmState: Clone + PartialEq {
    /// Returns the algorithm's state, or `None` if the state belongs to another algorithm.
    fn downcast(state: &State) -> Option<&Self>;
    fn into_state(self) -> State;
}

/// Declares [`State`] and the states of the algorithms in it.
macro_rules! states {
    ($($(#[$doc:meta])* $algorithm:ident($state:ty),)+) => {
        /// The state that a bucket keeps between two asks, one variant per algorithm.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum State {
            $($(#[$doc])* $algorithm($state),)+
            /// State of any algorithm, while some credits are reserved.
            Reserved(Box<ReservedState>),
        }

        $(impl AlgorithmState for $state {
            #[inline]
            fn downcast(state: &State) -> Option<&Self> {
                if let State::$algorithm(state) = state { Some(state) } else { None }
            }

            #[inline]
            fn into_state(self) -> State {
                State::$algorithm(self)
            }
        })+
    };
}

states! {
    /// State of a fixed window, a calendar window or a client's counter.
    FixedWindow(WindowState),
    /// State of a sliding window.
    SlidingWindow(SlidingWindowState),
    /// State of a sliding log.
    SlidingLog(SlidingLogState),
    /// State of a token bucket.
    TokenBucket(TokenBucketState),
    /// State of a leaky bucket.
    LeakyBucket(LeakyBucketState),
    /// State of a concurrency limit.
    Concurrency(ConcurrencyState),
}
