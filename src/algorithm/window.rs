//! Windows whose credits all come back at once, when the window ends. Fixed windows and calendar windows differ in when
//! they end.

use std::num::NonZeroU64;

use super::count_basis::CountBasis;
use super::decide::Algorithm;
use crate::clock::Timestamp;

/// A window that has begun. Two words: `ends`, `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The end of the window.
    pub ends: Timestamp,
    /// Credits left in the window, or used, depending on the limit's [`CountBasis`].
    pub count: u64,
}

/// A limit whose credits come in windows.
pub(super) trait Window {
    fn credits(&self) -> NonZeroU64;

    fn count_basis(&self) -> CountBasis;

    /// Returns the end of the window that contains `at`.
    fn end(&self, at: Timestamp) -> Timestamp;

    /// Returns the beginning of the window, or the latest time that is certainly not after it.
    fn begin(&self, state: &State) -> Timestamp;
}

impl<W: Window> Algorithm for W {
    type State = State;

    fn capacity(&self) -> u64 {
        self.credits().get()
    }

    fn fresh(&self, at: Timestamp) -> State {
        State { ends: self.end(at), count: self.count_basis().count(0) }
    }

    fn time(&self, state: &State) -> Timestamp {
        self.begin(state)
    }

    fn advanced(&self, state: State, at: Timestamp) -> State {
        if at < state.ends { state } else { self.fresh(at) }
    }

    fn pulled_back(&self, state: State, at: Timestamp) -> State {
        State { ends: self.end(at), ..state }
    }

    fn used(&self, state: &State, _at: Timestamp) -> u64 {
        self.count_basis().used(state.count)
    }

    fn take(&self, state: &mut State, credits: u64, _at: Timestamp) {
        state.count = self.count_basis().count(self.count_basis().used(state.count).saturating_add(credits));
    }

    fn give_back(&self, state: &mut State, credits: u64) {
        state.count = self.count_basis().count(self.count_basis().used(state.count).saturating_sub(credits));
    }

    fn window_end(&self, state: &State) -> Option<Timestamp> {
        Some(state.ends)
    }

    fn wait_ns(&self, state: &State, credits: u64, at: Timestamp) -> u64 {
        if credits <= self.left(state, at) { 0 } else { state.ends.since(at) }
    }
}
