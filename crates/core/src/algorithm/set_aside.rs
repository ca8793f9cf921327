//! Credits that are set aside in a bucket: other callers cannot take them.
//!
//! [`Decorator`] adds them to an algorithm. The algorithm's state is the same as without reservations. The credits left are
//! those that the algorithm reports, minus those set aside.

use super::decide::{self, Algorithm, Ask, Present};
use super::groups::{self, ExpiryGroups};
use super::limit::{AlgorithmState, Decision, ReservedState, State};
use super::record::Reservation;
use crate::clock::{NANOS_PER_MILLI, Timestamp};

/// An ask that is always allowed, and takes nothing.
const SETTLED: Ask = Ask::Refund { cost: 0 };

/// Algorithm `A`, with credits set aside.
pub(super) struct Decorator<'a, A>(pub &'a A);

/// The time when credits that are set aside become free, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expiry {
    pub by_server: Timestamp,
    pub by_bucket: Timestamp,
}

/// A reservation whose credits are set aside.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenReservation {
    pub reservation: Reservation,
    pub expiry: Expiry,
    pub generation: u64,
    /// Capacity of the limit under which they were set aside.
    pub capacity: u64,
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
            // More than the capacity is never left.
            if let Some(wanted) = credits.checked_add(aside).filter(|wanted| *wanted <= self.0.capacity()) {
                let wait = self.0.wait_ns(base, wanted, at);
                if at.plus(wait) < ends {
                    return wait.max(starts.since(at));
                }
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
        // Ends are whole milliseconds.
        let window = self.window_end(state).map(|window| window.minus(window.as_nanos() % NANOS_PER_MILLI));
        let ends = window.map_or(ends, |window| ends.min(window));
        Expiry { by_server: ends, by_bucket: state.1.clock.by_bucket(ends) }
    }
}

impl<A: Algorithm<State: AlgorithmState>> Decorator<'_, A> {
    /// Decides an ask as [`decide::decide`] does, for a bucket with reservations.
    pub(super) fn decide_reserved(&self, state: &State, ask: Ask, at: Timestamp) -> Decision {
        let (outcome, state) = decide::decide(self, split(state), ask, at);
        Decision { outcome, state: state.map(join) }
    }

    /// Sets credits aside, all or none. If the bucket has no reservation yet, it gets this `generation`.
    pub(super) fn reserve(
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
    pub(super) fn settle(
        &self,
        stored: Option<&State>,
        open: Option<OpenReservation>,
        cost: u64,
        at: Timestamp,
    ) -> Decision {
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
    pub(super) fn renew(
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
    pub(super) fn end_by_server(&self, state: &ReservedState, ends: Timestamp, at: Timestamp) -> Timestamp {
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
