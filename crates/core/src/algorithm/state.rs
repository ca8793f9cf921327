//! The state of a bucket: one type for all algorithms.

use super::decide::Outcome;
use super::groups::ExpiryGroups;
use super::{ConcurrencyState, LeakyBucketState, SlidingLogState, SlidingWindowState, TokenBucketState, WindowState};

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
    /// State of a fixed window or a calendar window.
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
