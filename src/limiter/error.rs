//! The classes of errors. A front derives its code from the class alone.

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
    /// No rule, reservation or limit has this name.
    NotFound,
    /// The name belongs to a different request or reservation.
    ReusedName,
    /// A bound on what is stored is reached.
    Full,
    /// The store failed. The request may succeed later.
    StoreFailure,
}

/// An error that the limiter answers with.
pub trait LimiterError: Display {
    fn class(&self) -> ErrorClass;
}

impl LimiterError for StoreError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::InvalidCursor(_) | Self::Impossible(_) => ErrorClass::BadRequest,
            Self::Failed(_) | Self::Unreachable(_) | Self::Overloaded(_) => ErrorClass::StoreFailure,
        }
    }
}
