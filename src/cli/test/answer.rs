//! The answer to a step.

use crate::clock::ceil_seconds;
use crate::limiter::{Standing, Verdict};

/// An answer. Fields that the step's intent does not have are `None`.
#[derive(Debug, Default)]
pub struct Answer {
    pub allowed: Option<bool>,
    pub remaining: Option<u64>,
    pub balance: Option<i64>,
    /// Seconds until the reset, rounded up.
    pub reset: Option<u64>,
    /// The index of the rule that answered.
    pub rule: Option<usize>,
}

impl Answer {
    /// Returns the answer to a request that rules decide about.
    pub fn of_rule(standing: Standing<'_>) -> Self {
        let allowed = Some(standing.verdict.allowed);
        Self { allowed, rule: Some(standing.place), ..Self::of_counter(standing.verdict) }
    }

    /// Returns the answer with the state of a counter.
    pub fn of_counter(verdict: Verdict) -> Self {
        Self {
            remaining: Some(verdict.credit),
            balance: Some(verdict.balance()),
            reset: Some(ceil_seconds(verdict.reset_ns)),
            ..Self::default()
        }
    }

    /// Returns the answer to a request that changes a reservation.
    pub fn of_change(is_done: bool) -> Self {
        Self { allowed: Some(is_done), ..Self::default() }
    }
}
