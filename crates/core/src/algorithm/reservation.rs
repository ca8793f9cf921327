//! Reservations: a decision changes a bucket and the reservation's record together.
//!
//! A reservation sets credits aside until it ends: when its TTL has passed, its bucket's window ends, or it is released
//! or committed. A commit counts the credits used, which may be more or fewer than were reserved. Its answer is
//! remembered for a while, so that a client that got no answer may send it again.
//!
//! [`Decorator`] adds reservations to an algorithm. Credits that are set aside cannot be taken by other callers.
//!
//! The algorithm's state is the same as without reservations. The credits left are those that the algorithm reports,
//! minus those set aside.
//!
//! [`Concurrency`] limits concurrent requests. The credits are leases. Each lease is a reservation, which ends when it is released
//! or when its TTL has passed.
//!
//! Nothing is ever used up. So a bucket only has to remember its reservations, and the latest time that it has seen.
//! The reply's numbers: `left` is the number of free leases, and `reset_ns` is the time until the next lease expires.

use std::num::NonZeroU32;

use super::decide::{self, Algorithm, Ask, InvalidLimit, Outcome, Present, Resolution, Run};
use super::limit::{AlgorithmState, Decision, Limit, ReservedState, State, with_algorithm};
use super::record::{Content, REMEMBERED_NS, Record, RecordChange, Reservation};
use super::reservation::groups::ExpiryGroups;
use crate::clock::Timestamp;

pub mod groups;

/// Maximum TTL of a reservation: thirty days (seconds). Use a quota to set credits aside for longer.
pub const LONGEST_SECONDS: u32 = 30 * 24 * 60 * 60;

/// A caller's request about a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationAsk {
    /// Sets `credits`, at least one, aside for `ttl_seconds`: all or none. A repeated request finds the same
    /// reservation.
    Reserve {
        /// Credits to set aside, at least 1.
        credits: u64,
        /// TTL.
        ttl_seconds: u32,
    },
    /// Counts `cost` credits that were used, and frees the reserved credits. If there is no reservation, `charges` says
    /// whether the cost is counted anyway.
    Commit {
        /// Credits that were used.
        cost: u64,
        /// Whether the cost is counted even without a reservation.
        charges: bool,
        /// The run that is meant; `None` for whichever has the name.
        run: Option<Run>,
    },
    /// Frees the reserved credits.
    Release {
        /// As for a commit.
        run: Option<Run>,
    },
    /// Keeps the reserved credits for `ttl_seconds` from now on, but never for less time than before. `None` stands for
    /// the TTL of the original request.
    Renew {
        /// New TTL.
        ttl_seconds: Option<u32>,
        /// As for a commit.
        run: Option<Run>,
    },
}

impl ReservationAsk {
    /// Returns the run that the ask is about; `None` for whichever has the name, or for a new one.
    pub fn run(self) -> Option<Run> {
        match self {
            Self::Reserve { .. } => None,
            Self::Commit { run, .. } | Self::Release { run } | Self::Renew { run, .. } => run,
        }
    }
}

/// Returns the run of a reservation that is made with this [generation](Limit::decide_reservation).
pub fn run_of(generation: u64) -> Run {
    Run::new(generation as u32).unwrap_or(Run::MAX)
}

impl Limit {
    /// Decides `ask` about a reservation at time `at`, given the state of its bucket and its record. `generation` is a
    /// number that no other bucket with the same key had recently. In the outcome, `session` is the end of the
    /// reservation, if it is still open.
    pub fn decide_reservation(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        ask: ReservationAsk,
        generation: u64,
        at: Timestamp,
    ) -> (Decision, RecordChange) {
        let found = record.and_then(|record| record.found(at));
        // Another reservation has the name now. Its record stays.
        let run_found = found.and_then(|record| record.reservation()?.run);
        let is_of_other = ask.run().is_some_and(|run| found.is_some() && Some(run) != run_found);
        let record_of_run = found.as_ref().filter(|_| !is_of_other);
        let context = Context { limit: self, bucket, record: record_of_run, at };
        let (decision, change) = match ask {
            ReservationAsk::Reserve { credits, ttl_seconds } => {
                let run = Some(run_of(generation));
                context.reserve(Reservation { credits, ttl_seconds, run }, generation)
            }
            ReservationAsk::Commit { cost, charges, run } => context.commit(cost, charges, run),
            ReservationAsk::Release { .. } => context.release(),
            ReservationAsk::Renew { ttl_seconds, .. } => context.renew(ttl_seconds),
        };
        let change = if is_of_other { RecordChange::Keep } else { change };
        (decision, change.or_found(record, at))
    }

    /// Decides a request to reserve under a name whose reservation is over in another bucket of its group. What is still set
    /// aside here becomes the new reservation's, so that the old one's id concerns no part of it.
    pub fn decide_next_run(
        &self,
        bucket: Option<&State>,
        record: Option<&Record>,
        (credits, ttl_seconds): (u64, u32),
        generation: u64,
        at: Timestamp,
    ) -> (Decision, RecordChange) {
        let found = record.and_then(|record| record.found(at));
        let context = Context { limit: self, bucket, record: found.as_ref(), at };
        let reservation = Reservation { credits, ttl_seconds, run: Some(run_of(generation)) };
        let (decision, change) = match context.find_open() {
            Some(open) => context.extend(OpenReservation { reservation, ..open }, ttl_seconds),
            None => Context { record: None, ..context }.reserve(reservation, generation),
        };
        (decision, change.or_found(record, at))
    }

    fn is_concurrency_limit(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }
}

/// An ask's bucket, record and time.
struct Context<'a> {
    limit: &'a Limit,
    bucket: Option<&'a State>,
    record: Option<&'a Record>,
    at: Timestamp,
}

/// Returns the decision with the end of the reservation, and the reservation's record.
fn record_open(mut decision: Decision, open: OpenReservation) -> (Decision, RecordChange) {
    let OpenReservation { reservation, expiry, generation, capacity } = open;
    decision.outcome.session = expiry.by_server;
    decision.outcome.run = reservation.run;
    let content = Content::Open { reservation, ends: expiry.by_bucket, generation, capacity };
    (decision, RecordChange::Set(Record { until: expiry.by_server, content }))
}

impl Context<'_> {
    fn reserve(&self, reservation: Reservation, generation: u64) -> (Decision, RecordChange) {
        let open = self.find_open();
        let existing = match self.record.map(|record| record.content) {
            Some(Content::Open { reservation, .. }) if open.is_some() => Some(reservation),
            // A committed lease is free, so its name may be used again.
            Some(Content::Committed { reservation, .. }) if !self.limit.is_concurrency_limit() => Some(reservation),
            _ => None,
        };
        if let Some(existing) = existing {
            return self.repeat(existing, reservation, open);
        }
        let wanted = (reservation, generation);
        let (decision, expiry) =
            with_algorithm!(self.limit, limit => Decorator(limit).reserve(self.bucket, wanted, self.at));
        let (true, Some(state)) = (decision.outcome.allowed, &decision.state) else {
            return (decision, RecordChange::Keep);
        };
        let generation = if let State::Reserved(state) = state { state.groups.generation } else { generation };
        record_open(decision, OpenReservation { reservation, expiry, generation, capacity: self.limit.capacity() })
    }

    /// Answers a request to reserve under a name that is in use: by the same reservation, or by another one.
    fn repeat(
        &self,
        existing: Reservation,
        wanted: Reservation,
        open: Option<OpenReservation>,
    ) -> (Decision, RecordChange) {
        // The rule, not the client, says how long a lease lasts.
        let lasts_alike = self.limit.is_concurrency_limit() || existing.ttl_seconds == wanted.ttl_seconds;
        let is_unknown = existing.credits == 0;
        let is_same = is_unknown || (existing.credits == wanted.credits && lasts_alike);
        let resolution = if is_same { Resolution::Repeated } else { Resolution::Different };
        let session = open.map_or(Timestamp::EPOCH, |open| open.expiry.by_server);
        self.look(|outcome| Outcome { allowed: is_same, resolution, session, run: existing.run, ..outcome })
    }

    fn commit(&self, cost: u64, charges: bool, run: Option<Run>) -> (Decision, RecordChange) {
        if let Some(&Record { content: Content::Committed { left, owed, reset_ns, .. }, .. }) = self.record {
            let first = Outcome { allowed: true, before: left, left, owed, reset_ns, ..Outcome::default() };
            let outcome = Outcome { resolution: Resolution::Repeated, ..first };
            return (Decision { outcome, state: None }, RecordChange::Keep);
        }
        let open = self.find_open();
        if open.is_none() && !charges {
            return self.gone();
        }
        let mut decision = self.settle(open, cost);
        decision.outcome.resolution = if open.is_some() { Resolution::Done } else { Resolution::Late };
        // The credits and the TTL of a reservation that has ended are unknown.
        let reservation = open.map_or(Reservation { run, ..Reservation::default() }, |open| open.reservation);
        let as_made = self.at.plus(groups::longest_ns(reservation.ttl_seconds));
        let ends = open.map_or(Timestamp::EPOCH, |open| open.expiry.by_server.min(as_made));
        let Outcome { left, owed, reset_ns, .. } = decision.outcome;
        let content = Content::Committed { reservation, left, owed, reset_ns };
        (decision, RecordChange::Set(Record { until: ends.max(self.at.plus(REMEMBERED_NS)), content }))
    }

    fn release(&self) -> (Decision, RecordChange) {
        match self.find_open() {
            Some(open) => (self.settle(Some(open), 0), RecordChange::Clear),
            None => self.gone(),
        }
    }

    fn renew(&self, ttl_seconds: Option<u32>) -> (Decision, RecordChange) {
        let Some(open) = self.find_open() else { return self.gone() };
        self.extend(open, ttl_seconds.unwrap_or(open.reservation.ttl_seconds))
    }

    /// Keeps the reserved credits for this TTL from now on, but never for less time than before.
    fn extend(&self, open: OpenReservation, ttl_seconds: u32) -> (Decision, RecordChange) {
        let longer = (open.reservation.credits, open.expiry.by_bucket, ttl_seconds);
        let (decision, expiry) =
            with_algorithm!(self.limit, limit => Decorator(limit).renew(self.bucket, longer, self.at));
        record_open(decision, OpenReservation { expiry, ..open })
    }

    /// Frees the reserved credits, if there are any, and counts `cost`.
    fn settle(&self, open: Option<OpenReservation>, cost: u64) -> Decision {
        with_algorithm!(self.limit, limit => Decorator(limit).settle(self.bucket, open, cost, self.at))
    }

    /// Returns the reservation if its credits are still set aside.
    fn find_open(&self) -> Option<OpenReservation> {
        let Content::Open { reservation, ends, generation, capacity } = self.record?.content else { return None };
        let Some(State::Reserved(state)) = self.bucket else { return None };
        let by_server = with_algorithm!(self.limit, limit => Decorator(limit).end_by_server(state, ends, self.at));
        let is_open = self.at < by_server && generation == state.groups.generation;
        let expiry = Expiry { by_server, by_bucket: ends };
        is_open.then_some(OpenReservation { reservation, expiry, generation, capacity })
    }

    fn gone(&self) -> (Decision, RecordChange) {
        self.look(|outcome| Outcome { allowed: false, resolution: Resolution::Gone, ..outcome })
    }

    fn look(&self, answer: impl FnOnce(Outcome) -> Outcome) -> (Decision, RecordChange) {
        let look = self.limit.decide(self.bucket, Ask::Look { cost: 0 }, self.at);
        (Decision { outcome: answer(look.outcome), ..look }, RecordChange::Keep)
    }
}

/// An ask that is always allowed, and takes nothing.
const SETTLED: Ask = Ask::Refund { cost: 0 };

/// Algorithm `A`, with credits set aside.
pub(super) struct Decorator<'a, A>(pub &'a A);

/// The time when credits that are set aside become free, by both clocks.
#[derive(Debug, Clone, Copy)]
struct Expiry {
    by_server: Timestamp,
    by_bucket: Timestamp,
}

/// A reservation whose credits are set aside.
#[derive(Debug, Clone, Copy)]
struct OpenReservation {
    reservation: Reservation,
    expiry: Expiry,
    generation: u64,
    /// Capacity of the limit under which they were set aside.
    capacity: u64,
}

impl<A: Algorithm> Algorithm for Decorator<'_, A> {
    type State = (A::State, ExpiryGroups);

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn fresh(&self, at: Timestamp) -> Self::State {
        (self.0.fresh(at), ExpiryGroups::new(0))
    }

    fn time(&self, (base, groups): &Self::State) -> Timestamp {
        self.0.time(base).max(groups.time)
    }

    fn advanced(&self, (base, mut groups): Self::State, at: Timestamp) -> Self::State {
        groups.advance(at);
        (self.0.advanced(base, at), groups)
    }

    fn pulled_back(&self, state: Self::State, at: Timestamp) -> Self::State {
        let set_back_ns = self.time(&state).since(at);
        let (base, mut groups) = state;
        groups.clock.set_back(set_back_ns);
        groups.time = at;
        (if self.0.time(&base) > at { self.0.pulled_back(base, at) } else { base }, groups)
    }

    fn used(&self, (base, groups): &Self::State, at: Timestamp) -> u64 {
        self.0.used(base, at).saturating_add(groups.credits())
    }

    fn take(&self, (base, _): &mut Self::State, credits: u64, at: Timestamp) {
        self.0.take(base, credits, at);
    }

    fn give_back(&self, (base, _): &mut Self::State, credits: u64) {
        self.0.give_back(base, credits);
    }

    /// Returns the wait. Between the ends of two groups, the number of credits set aside is constant. The wait ends in
    /// the first such interval where the algorithm has enough credits besides them.
    fn wait_ns(&self, (base, groups): &Self::State, credits: u64, at: Timestamp) -> u64 {
        let mut aside = groups.credits();
        let mut starts = at;
        for group in groups.groups() {
            let ends = groups.clock.by_server(group.ends);
            if let Some(wait) = self.wait_for_unreserved(base, credits, aside, at)
                && at.plus(wait) < ends
            {
                return wait.max(starts.since(at));
            }
            aside = aside.saturating_sub(group.credits);
            starts = ends;
        }
        self.0.wait_ns(base, credits, at).max(starts.since(at))
    }

    fn credits_at_reset(&self, left: u64) -> u64 {
        self.0.credits_at_reset(left)
    }

    fn reserved(&self, (_, groups): &Self::State) -> u64 {
        groups.credits()
    }

    fn window_end(&self, (base, _): &Self::State) -> Option<Timestamp> {
        self.0.window_end(base)
    }

    fn end_of_used_window(&self, (base, _): &Self::State, at: Timestamp) -> Option<Timestamp> {
        self.0.window_end(base).filter(|_| self.0.used(base, at) > 0)
    }

    fn session(&self, (base, _): &Self::State) -> Timestamp {
        self.0.session(base)
    }
}

impl<A: Algorithm> Decorator<'_, A> {
    /// Returns `ends`, or the end of the bucket's window if that comes first, by both clocks.
    fn expiry_in_window(&self, state: &(A::State, ExpiryGroups), ends: Timestamp) -> Expiry {
        let ends = self.window_end(state).map_or(ends, |window| ends.min(groups::round_down_end(window)));
        Expiry { by_server: ends, by_bucket: state.1.clock.by_bucket(ends) }
    }

    /// Returns the time until `credits` are left in addition to those set aside. `None` if that never happens.
    fn wait_for_unreserved(&self, base: &A::State, credits: u64, aside: u64, at: Timestamp) -> Option<u64> {
        let wanted = credits.checked_add(aside).filter(|wanted| *wanted <= self.0.capacity())?;
        Some(self.0.wait_ns(base, wanted, at))
    }
}

impl<A: Algorithm<State: AlgorithmState>> Decorator<'_, A> {
    /// Decides an ask as [`decide::decide`] does, for a bucket with reservations.
    pub(super) fn decide_reserved(&self, state: &State, ask: Ask, at: Timestamp) -> Decision {
        let (outcome, state) = decide::decide(self, split(state), ask, at);
        Decision { outcome, state: state.map(join) }
    }

    /// Sets credits aside, all or none. If the bucket has no reservation yet, it gets this `generation`.
    fn reserve(
        &self,
        stored: Option<&State>,
        (Reservation { credits, ttl_seconds, .. }, generation): (Reservation, u64),
        at: Timestamp,
    ) -> (Decision, Expiry) {
        let Present { mut state, at, pulled_back } = decide::present(self, stored.and_then(split), at);
        let before = self.left(&state, at);
        if state.1.is_empty() {
            state.1 = ExpiryGroups::new(generation);
        }
        let expiry = self.expiry_in_window(&state, groups::round_up_end(at, ttl_seconds));
        let is_allowed = credits <= before;
        if is_allowed {
            state.1.add(credits, expiry.by_bucket, at);
        }
        let outcome = decide::outcome(self, &state, Ask::Take { cost: credits }, before, at);
        (Decision { outcome, state: (is_allowed || pulled_back).then(|| join(state)) }, expiry)
    }

    /// Frees credits that were set aside, if there are any, and counts `cost` credits that were used. If they were set aside
    /// under a larger limit, which has ended, the use of them counts as far as it fits, and is no debt.
    fn settle(&self, stored: Option<&State>, open: Option<OpenReservation>, cost: u64, at: Timestamp) -> Decision {
        let Present { mut state, at, pulled_back } = decide::present(self, stored.and_then(split), at);
        let before = self.left(&state, at);
        let is_freed = open.is_some_and(|open| state.1.remove(open.reservation.credits, open.expiry.by_bucket, at));
        let counted = match open {
            Some(open) if open.capacity > self.capacity() => {
                let of_reserved = cost.min(open.reservation.credits);
                cost - of_reserved + of_reserved.min(self.left(&state, at))
            }
            _ => cost,
        };
        if counted > 0 {
            self.take(&mut state, counted, at);
        }
        let outcome = decide::outcome(self, &state, SETTLED, before, at);
        let is_changed = is_freed || counted > 0 || pulled_back;
        Decision { outcome, state: is_changed.then(|| join(state)) }
    }

    /// Moves the end of `credits` that are set aside until `ends` (by the bucket's clock). They stay for `ttl_seconds`
    /// from now on, but never for less time than before.
    fn renew(
        &self,
        stored: Option<&State>,
        (credits, ends, ttl_seconds): (u64, Timestamp, u32),
        at: Timestamp,
    ) -> (Decision, Expiry) {
        let Present { mut state, at, .. } = decide::present(self, stored.and_then(split), at);
        let before = self.left(&state, at);
        let later = groups::round_up_end(at, ttl_seconds).max(state.1.clock.by_server(ends));
        let expiry = self.expiry_in_window(&state, later);
        if state.1.remove(credits, ends, at) {
            state.1.add(credits, expiry.by_bucket, at);
        }
        let outcome = decide::outcome(self, &state, SETTLED, before, at);
        (Decision { outcome, state: Some(join(state)) }, expiry)
    }

    /// Converts `ends` from the bucket's clock to the server's, as corrected by an ask at `at`.
    fn end_by_server(&self, state: &ReservedState, ends: Timestamp, at: Timestamp) -> Timestamp {
        let base = A::State::downcast(&state.base).map_or(Timestamp::EPOCH, |base| self.0.time(base));
        let mut clock = state.groups.clock;
        clock.set_back(decide::set_back_ns(base.max(state.groups.time), at).unwrap_or(0));
        clock.by_server(ends)
    }
}

/// Splits a state into the algorithm's own state and the reservations. Returns `None` if the state belongs to another
/// algorithm: such a bucket counts as fresh.
fn split<S: AlgorithmState>(state: &State) -> Option<(S, ExpiryGroups)> {
    match state {
        State::Reserved(state) => Some((S::downcast(&state.base)?.clone(), state.groups.clone())),
        base => Some((S::downcast(base)?.clone(), ExpiryGroups::new(0))),
    }
}

/// Joins both parts into one state. Without reservations, it is the algorithm's own state.
fn join<S: AlgorithmState>((base, groups): (S, ExpiryGroups)) -> State {
    let base = base.into_state();
    if groups.is_empty() { base } else { State::Reserved(Box::new(ReservedState { base, groups })) }
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
