//! The classes of errors, and their remedies. A front derives its code from the class alone, and has its own words for
//! the remedy.

use std::fmt::Display;

use crate::store::StoreError;

/// The kind of mistake or failure behind an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Only the operator can correct it: the rules are missing, or contradict what divvy can do.
    RulesMistake,
    /// The request is malformed or out of bounds.
    BadRequest,
    /// The rule that the request is about cannot do what is asked.
    UnsuitableRule,
    /// The request does not name its lease as the rule needs it.
    UnnamedLease,
    /// The user has no right to ask this.
    Forbidden,
    /// No rule, reservation or limit has this name.
    NotFound,
    /// The name belongs to a different request or reservation.
    ReusedName,
    /// A bound on what is stored is reached.
    Full,
    /// The store failed. The request may succeed later.
    StoreFailure,
}

/// A step by the client or the operator that removes the cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// Start the server with rules.
    LoadRules,
    /// Look up the names of rules.
    ListRules,
    /// Reserve in place of hitting.
    TakeLease,
    /// Raise the longest time of a reservation.
    RaiseMaxTtl,
    /// Raise the number of limits for single actors.
    RaiseMaxActorLimits,
}

/// An error that the limiter answers with.
pub trait LimiterError: Display {
    /// Returns the class. A front derives its code from it.
    fn class(&self) -> ErrorClass;

    /// Returns the step that removes the cause. `None` if no general one is known.
    fn remedy(&self) -> Option<Remedy> {
        None
    }
}

impl LimiterError for StoreError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::InvalidCursor(_) | Self::Impossible(_) => ErrorClass::BadRequest,
            Self::Failed(_) | Self::Unreachable(_) | Self::Overloaded(_) => ErrorClass::StoreFailure,
        }
    }
}
