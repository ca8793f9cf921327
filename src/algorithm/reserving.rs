//! An algorithm with credits set aside beside it: what is reserved is not there for others, whatever the algorithm is.
//!
//! The algorithm's state is as it would be without reservations, and goes on as it would. What is left is what it leaves,
//! less what is set aside.

use super::ask::{Ask, Outcome};
use super::decide::{self, Algorithm, Present};
use super::reserved::{self, Reserved};
use super::{Decision, Kept, State};
use crate::clock::Timestamp;

/// What a bucket remembers while anything of it is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserving {
    /// The algorithm's own state.
    pub base: State,
    pub reserved: Reserved,
}

/// Wants nothing, and is always allowed.
const SETTLED: Ask = Ask::Refund { cost: 0 };

/// `A`, with credits set aside.
struct Beside<'a, A>(&'a A);

impl<A: Algorithm> Algorithm for Beside<'_, A> {
    type State = (A::State, Reserved);

    fn capacity(&self) -> u64 {
        self.0.capacity()
    }

    fn fresh(&self, at: Timestamp) -> Self::State {
        (self.0.fresh(at), Reserved::new(0))
    }

    fn time(&self, (base, reserved): &Self::State) -> Timestamp {
        self.0.time(base).max(reserved.time)
    }

    fn advanced(&self, (base, reserved): &Self::State, at: Timestamp) -> Self::State {
        let mut reserved = reserved.clone();
        reserved.advance(at);
        (self.0.advanced(base, at), reserved)
    }

    fn pulled_back(&self, state: &Self::State, at: Timestamp) -> Self::State {
        let (base, mut reserved) = state.clone();
        reserved.clock.set_back(self.time(state).since(at));
        reserved.time = at;
        (if self.0.time(&base) > at { self.0.pulled_back(&base, at) } else { base }, reserved)
    }

    fn used(&self, (base, reserved): &Self::State, at: Timestamp) -> u64 {
        self.0.used(base, at).saturating_add(reserved.credits())
    }

    fn take(&self, (base, _): &mut Self::State, credits: u64, at: Timestamp) {
        self.0.take(base, credits, at);
    }

    fn give_back(&self, (base, _): &mut Self::State, credits: u64) {
        self.0.give_back(base, credits);
    }

    /// From one group's end to the next as much is set aside: the first of these times in which the algorithm itself leaves
    /// enough besides is the one.
    fn wait_ns(&self, (base, reserved): &Self::State, credits: u64, at: Timestamp) -> u64 {
        let mut aside = reserved.credits();
        let mut starts = at;
        for group in reserved.groups() {
            let ends = reserved.clock.by_server(group.ends);
            if let Some(wait) = self.wait_beside(base, credits, aside, at)
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

    fn window_end(&self, (base, _): &Self::State) -> Option<Timestamp> {
        self.0.window_end(base)
    }

    fn session(&self, (base, _): &Self::State) -> Timestamp {
        self.0.session(base)
    }
}

impl<A: Algorithm> Beside<'_, A> {
    /// That end, or that of the bucket's window, if it has one that comes first.
    fn within_window(&self, state: &(A::State, Reserved), ends: Timestamp) -> Ends {
        let ends = self.window_end(state).map_or(ends, |window| ends.min(reserved::not_after(window)));
        Ends { by_server: ends, by_bucket: state.1.clock.by_bucket(ends) }
    }

    /// Until so many credits are left besides those set aside; `None` when there never are as many.
    fn wait_beside(&self, base: &A::State, credits: u64, aside: u64, at: Timestamp) -> Option<u64> {
        let wanted = credits.checked_add(aside).filter(|wanted| *wanted <= self.0.capacity())?;
        Some(self.0.wait_ns(base, wanted, at))
    }
}

/// As [`decide::decide`], of a bucket of which something is reserved.
pub(super) fn decide<A: Algorithm<State: Kept>>(limit: &A, held: &Reserving, ask: Ask, at: Timestamp) -> Decision {
    let (outcome, state) = decide::decide(&Beside(limit), taken_apart(held).as_ref(), ask, at);
    Decision { outcome, state: state.map(put_together) }
}

/// What setting credits aside comes to.
pub(super) struct Changed {
    pub outcome: Outcome,
    pub is_allowed: bool,
    pub state: Option<State>,
    /// When the credits that were set aside are free again.
    pub ends: Ends,
}

/// When credits that are set aside are free again, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub by_server: Timestamp,
    pub by_bucket: Timestamp,
}

/// Sets `credits` aside for so many seconds, all or none. The bucket is of this `generation` if it has no reservation yet.
pub(super) fn reserve<A: Algorithm<State: Kept>>(
    limit: &A,
    stored: Option<&State>,
    (credits, ttl_seconds, generation): (u64, u32, u64),
    at: Timestamp,
) -> Changed {
    let limit = &Beside(limit);
    let Present { mut state, at, pulled_back } = present(limit, stored, at);
    let before = limit.left(&state, at);
    let is_allowed = credits <= before;
    if state.1.is_empty() {
        state.1 = Reserved::new(generation);
    }
    let ends = limit.within_window(&state, reserved::end(at, ttl_seconds));
    if is_allowed {
        state.1.add(credits, ends.by_bucket, at);
    }
    let outcome = decide::outcome(limit, &state, Ask::Take { cost: credits }, before, at);
    Changed { outcome, is_allowed, state: (is_allowed || pulled_back).then(|| put_together(state)), ends }
}

/// Frees `credits` that were set aside until `ends`, by the bucket's clock, and counts `cost` that was used.
pub(super) fn settle<A: Algorithm<State: Kept>>(
    limit: &A,
    stored: Option<&State>,
    (credits, ends, cost): (u64, Timestamp, u64),
    at: Timestamp,
) -> Decision {
    let limit = &Beside(limit);
    let Present { mut state, at, pulled_back } = present(limit, stored, at);
    let before = limit.left(&state, at);
    let freed = state.1.remove(credits, ends, at);
    if cost > 0 {
        limit.take(&mut state, cost, at);
    }
    let outcome = decide::outcome(limit, &state, SETTLED, before, at);
    let is_changed = freed || cost > 0 || pulled_back;
    Decision { outcome, state: is_changed.then(|| put_together(state)) }
}

/// Has `credits` that are set aside until `ends`, by the bucket's clock, be so for so many seconds from now on, and never for
/// less than they are.
pub(super) fn renew<A: Algorithm<State: Kept>>(
    limit: &A,
    stored: Option<&State>,
    (credits, ends, ttl_seconds): (u64, Timestamp, u32),
    at: Timestamp,
) -> Changed {
    let limit = &Beside(limit);
    let Present { mut state, at, .. } = present(limit, stored, at);
    let before = limit.left(&state, at);
    let later = reserved::end(at, ttl_seconds).max(state.1.clock.by_server(ends));
    let later = limit.within_window(&state, later);
    if state.1.remove(credits, ends, at) {
        state.1.add(credits, later.by_bucket, at);
    }
    let outcome = decide::outcome(limit, &state, SETTLED, before, at);
    Changed { outcome, is_allowed: true, state: Some(put_together(state)), ends: later }
}

/// When an ask at `at` finds that what is set aside in a bucket until `ends`, by the bucket's clock, is free again.
pub(super) fn end_by_server<A: Algorithm<State: Kept>>(
    limit: &A,
    held: &Reserving,
    ends: Timestamp,
    at: Timestamp,
) -> Timestamp {
    let base = A::State::of(&held.base).map_or(Timestamp::EPOCH, |base| limit.time(base));
    let mut clock = held.reserved.clock;
    clock.set_back(decide::set_back_ns(base.max(held.reserved.time), at).unwrap_or(0));
    clock.by_server(ends)
}

/// The bucket's state as an ask at `at` finds it, also if nothing is reserved.
fn present<A: Algorithm<State: Kept>>(
    limit: &Beside<'_, A>,
    stored: Option<&State>,
    at: Timestamp,
) -> Present<(A::State, Reserved)> {
    let stored = stored.and_then(|state| match state {
        State::Reserving(held) => taken_apart(held),
        base => Some((A::State::of(base)?.clone(), Reserved::new(0))),
    });
    decide::present(limit, stored.as_ref(), at)
}

/// `None` for the state of another algorithm, which counts as fresh.
fn taken_apart<S: Kept>(held: &Reserving) -> Option<(S, Reserved)> {
    Some((S::of(&held.base)?.clone(), held.reserved.clone()))
}

/// A bucket of which nothing is reserved is as any other.
fn put_together<S: Kept>((base, reserved): (S, Reserved)) -> State {
    let base = base.into_state();
    if reserved.is_empty() { base } else { State::Reserving(Box::new(Reserving { base, reserved })) }
}
