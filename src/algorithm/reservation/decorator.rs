//! Any algorithm, with credits set aside. Other callers cannot take these.
//!
//! The algorithm's state is the same as without reservations. A bucket has the credits that the algorithm leaves, less those set
//! aside.

use super::super::ask::Ask;
use super::super::decide::{self, Algorithm, Present};
use super::super::record::Reservation;
use super::super::state::{AlgorithmState, Decision, ReservedState, State};
use super::groups::{self, ExpiryGroups};
use crate::clock::Timestamp;

/// Wants nothing, and is always allowed.
const SETTLED: Ask = Ask::Refund { cost: 0 };

/// `A`, with credits set aside.
struct Decorator<'a, A>(&'a A);

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

    /// Between the ends of two groups the same number of credits is set aside. The wait ends in the first of these intervals in
    /// which the algorithm leaves enough in addition to them.
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

    fn session(&self, (base, _): &Self::State) -> Timestamp {
        self.0.session(base)
    }
}

impl<A: Algorithm> Decorator<'_, A> {
    /// Returns the expiry at `ends`, or at the end of the bucket's window if that comes first.
    fn expiry_in_window(&self, state: &(A::State, ExpiryGroups), ends: Timestamp) -> Expiry {
        let ends = self.window_end(state).map_or(ends, |window| ends.min(groups::round_down_end(window)));
        Expiry { by_server: ends, by_bucket: state.1.clock.by_bucket(ends) }
    }

    /// Returns the time until `credits` are left in addition to those set aside; `None` if there never are as many.
    fn wait_for_unreserved(&self, base: &A::State, credits: u64, aside: u64, at: Timestamp) -> Option<u64> {
        let wanted = credits.checked_add(aside).filter(|wanted| *wanted <= self.0.capacity())?;
        Some(self.0.wait_ns(base, wanted, at))
    }
}

/// Decides like [`decide::decide`], for a bucket with reservations.
pub(in crate::algorithm) fn decide<A: Algorithm<State: AlgorithmState>>(
    limit: &A,
    state: &State,
    ask: Ask,
    at: Timestamp,
) -> Decision {
    let (outcome, state) = decide::decide(&Decorator(limit), split(state), ask, at);
    Decision { outcome, state: state.map(join) }
}

/// The time at which credits that are set aside are free again, by both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Expiry {
    pub by_server: Timestamp,
    pub by_bucket: Timestamp,
}

/// Sets credits aside, all or none. The bucket is of this `generation` if it has no reservation yet.
pub(in crate::algorithm) fn reserve<A: Algorithm<State: AlgorithmState>>(
    limit: &A,
    stored: Option<&State>,
    (Reservation { credits, ttl_seconds }, generation): (Reservation, u64),
    at: Timestamp,
) -> (Decision, Expiry) {
    let limit = &Decorator(limit);
    let Present { mut state, at, pulled_back } = decide::present(limit, stored.and_then(split), at);
    let before = limit.left(&state, at);
    if state.1.is_empty() {
        state.1 = ExpiryGroups::new(generation);
    }
    let expiry = limit.expiry_in_window(&state, groups::round_up_end(at, ttl_seconds));
    let is_allowed = credits <= before;
    if is_allowed {
        state.1.add(credits, expiry.by_bucket, at);
    }
    let outcome = decide::outcome(limit, &state, Ask::Take { cost: credits }, before, at);
    (Decision { outcome, state: (is_allowed || pulled_back).then(|| join(state)) }, expiry)
}

/// Frees `credits` that were set aside until `ends`, by the bucket's clock, and counts `cost` that was used.
pub(in crate::algorithm) fn settle<A: Algorithm<State: AlgorithmState>>(
    limit: &A,
    stored: Option<&State>,
    (credits, ends, cost): (u64, Timestamp, u64),
    at: Timestamp,
) -> Decision {
    let limit = &Decorator(limit);
    let Present { mut state, at, pulled_back } = decide::present(limit, stored.and_then(split), at);
    let before = limit.left(&state, at);
    let is_freed = state.1.remove(credits, ends, at);
    if cost > 0 {
        limit.take(&mut state, cost, at);
    }
    let outcome = decide::outcome(limit, &state, SETTLED, before, at);
    let is_changed = is_freed || cost > 0 || pulled_back;
    Decision { outcome, state: is_changed.then(|| join(state)) }
}

/// Moves the end of `credits` that are set aside until `ends`, by the bucket's clock: they stay for `ttl_seconds` from now on, but
/// never for less time than before.
pub(in crate::algorithm) fn renew<A: Algorithm<State: AlgorithmState>>(
    limit: &A,
    stored: Option<&State>,
    (credits, ends, ttl_seconds): (u64, Timestamp, u32),
    at: Timestamp,
) -> (Decision, Expiry) {
    let limit = &Decorator(limit);
    let Present { mut state, at, .. } = decide::present(limit, stored.and_then(split), at);
    let before = limit.left(&state, at);
    let later = groups::round_up_end(at, ttl_seconds).max(state.1.clock.by_server(ends));
    let expiry = limit.expiry_in_window(&state, later);
    if state.1.remove(credits, ends, at) {
        state.1.add(credits, expiry.by_bucket, at);
    }
    let outcome = decide::outcome(limit, &state, SETTLED, before, at);
    (Decision { outcome, state: Some(join(state)) }, expiry)
}

/// Returns the server's time, as an ask at `at` finds it, when credits are free that are set aside until `ends`, by the bucket's
/// clock.
pub(in crate::algorithm) fn end_by_server<A: Algorithm<State: AlgorithmState>>(
    limit: &A,
    state: &ReservedState,
    ends: Timestamp,
    at: Timestamp,
) -> Timestamp {
    let base = A::State::downcast(&state.base).map_or(Timestamp::EPOCH, |base| limit.time(base));
    let mut clock = state.groups.clock;
    clock.set_back(decide::set_back_ns(base.max(state.groups.time), at).unwrap_or(0));
    clock.by_server(ends)
}

/// Returns `None` for the state of another algorithm, which counts as fresh.
fn split<S: AlgorithmState>(state: &State) -> Option<(S, ExpiryGroups)> {
    match state {
        State::Reserved(state) => Some((S::downcast(&state.base)?.clone(), state.groups.clone())),
        base => Some((S::downcast(base)?.clone(), ExpiryGroups::new(0))),
    }
}

/// Returns the algorithm's own state if nothing is reserved.
fn join<S: AlgorithmState>((base, groups): (S, ExpiryGroups)) -> State {
    let base = base.into_state();
    if groups.is_empty() { base } else { State::Reserved(Box::new(ReservedState { base, groups })) }
}
