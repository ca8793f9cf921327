//! Classes of errors, and their remedies. A front derives its code from the class alone, and describes the remedy in
//! its own words.

use std::fmt::Display;

use crate::store::StoreError;

/// The kind of mistake or failure behind an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Only the operator can correct the error: rules are missing, or contradict each other.
    RulesMistake,
    /// The request is malformed or out of bounds.
    BadRequest,
    /// The rule that the request is about does not support the request.
    UnsuitableRule,
    /// The request does not name its lease in the way that the rule requires.
    UnnamedLease,
    /// The user has no right to ask this.
    Forbidden,
    /// No rule, reservation or limit has this name.
    NotFound,
    /// The name belongs to a different request or reservation.
    ReusedName,
    /// The store has reached one of its bounds.
    Full,
    /// The store failed. The request may succeed later.
    StoreFailure,
}

/// A step that removes the cause of an error, for the client or the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Start the server with rules.
    LoadRules,
    /// Look up the names of rules.
    ListRules,
    /// Reserve instead of hitting.
    TakeLease,
    /// Raise the maximum TTL of reservations.
    RaiseMaxTtl,
    /// Raise the maximum number of limits for single actors.
    RaiseMaxActorLimits,
    /// Raise the maximum number of blocks and allows.
    RaiseMaxBlocks,
}

/// An error in the limiter's answer.
pub trait LimiterError: Display {
    /// Returns the class, which determines a front's code.
    fn class(&self) -> ErrorClass;

    /// Returns the step that removes the cause. `None` if there is no general one.
    fn remedy(&self) -> Option<Remedy> {
        None
    }
}

impl LimiterError for StoreError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::InvalidCursor(_) | Self::Impossible(_) => ErrorClass::BadRequest,
            Self::Failed(_) | Self::Unreachable(_) | Self::Overloaded(_) | Self::Outdated(_) => {
                ErrorClass::StoreFailure
            }
        }
    }
}
