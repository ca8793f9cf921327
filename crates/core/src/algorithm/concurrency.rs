//! Limits on concurrent requests. The credits are leases. Each lease is a reservation, which ends when it is released
//! or when its TTL has passed.
//!
//! Nothing is ever used up. So a bucket only has to remember its reservations, and the latest time that it has seen.
//! The reply's numbers: `left` is the number of free leases, and `reset_ns` is the time until the next lease expires.

use std::num::NonZeroU32;

use super::decide::{Algorithm, InvalidLimit};
use crate::clock::Timestamp;

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
pub struct State {
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
    type State = State;

    fn capacity(&self) -> u64 {
        self.leases
    }

    fn fresh(&self, at: Timestamp) -> State {
        State { time: at }
    }

    fn time(&self, state: &State) -> Timestamp {
        state.time
    }

    fn advanced(&self, _state: State, at: Timestamp) -> State {
        State { time: at }
    }

    fn pulled_back(&self, _state: State, at: Timestamp) -> State {
        State { time: at }
    }

    fn used(&self, _state: &State, _at: Timestamp) -> u64 {
        0
    }

    /// Does nothing, because a lease uses nothing up.
    fn take(&self, _state: &mut State, _credits: u64, _at: Timestamp) {}

    fn give_back(&self, _state: &mut State, _credits: u64) {}

    fn wait_ns(&self, _state: &State, _credits: u64, _at: Timestamp) -> u64 {
        0
    }
}
