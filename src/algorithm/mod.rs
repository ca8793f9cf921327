//! Pure decisions: (limit, state, ask, time) → (outcome, new state).
//!
//! One file an algorithm, and here the closed set of them. No clock, no I/O, no keys and no rules live here: time is
//! a parameter and state is a value, so that every promise of an algorithm can be tested by properties.

pub mod fixed_window;

use crate::clock::Timestamp;
pub use fixed_window::FixedWindow;

/// How a bucket is limited. Its numbers are part of the bucket's identity: other numbers, another bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    FixedWindow(FixedWindow),
}

/// What a bucket remembers between two asks, one variant an algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    FixedWindow(fixed_window::State),
}

/// What a caller wants from a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Would `cost` credits be granted? Takes nothing and changes nothing.
    Look { cost: u64 },
    /// Take `cost` credits, all or none. A cost of 0 is always granted.
    Take { cost: u64 },
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub allowed: bool,
    /// Credits left after the ask.
    pub left: u64,
    /// Nanoseconds until the bucket holds more credits (each algorithm's module says how many); 0 when it is full.
    pub reset_ns: u64,
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
            Limit::FixedWindow(limit) => {
                let state = match state {
                    Some(State::FixedWindow(state)) => Some(*state),
                    _ => None,
                };
                let (outcome, state) = limit.decide(state, ask, at);
                Decision { outcome, state: state.map(State::FixedWindow) }
            }
        }
    }

    /// Nanoseconds after `at` when a bucket in `state` is as good as a fresh one and may be forgotten.
    pub fn lifetime_ns(&self, state: &State, at: Timestamp) -> u64 {
        match (self, state) {
            (Limit::FixedWindow(_), State::FixedWindow(state)) => state.ends.since(at),
        }
    }
}
