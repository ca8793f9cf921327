//! Reasons why a request got no verdict, and bounds on requests. A front derives its code from the class of an error alone, and
//! describes the remedy in its own words.

use std::fmt::Display;

use crate::store::StoreError;
use divvy_core::rules::{BadCost, MAX_STACK};

/// Maximum number of requests in a group.
pub const MAX_TOGETHER: usize = 16;
/// Maximum length of a name that a client gives a reservation (bytes).
pub const MAX_CLIENT_ID: usize = 255;
/// Maximum length of an idempotency key (bytes).
pub const MAX_IDEMPOTENCY_KEY: usize = 255;
/// Maximum length of an id (characters), so that it fits into a URL.
pub const MAX_ID_TEXT: usize = 8 * 1024 + 16;

/// The error for a text that is not a reservation's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown reservation id; send the one in the reservation's answer")]
pub struct BadReservationId;

/// The reason why a request got no verdict. A rule is named by its header.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    /// The limiter has no rules yet.
    #[error("no rules are loaded")]
    NoRules,
    /// A rule, an actor or a limit of the request is not in the user's scope. The text names none of them.
    #[error("this is outside the scope of your user")]
    OutOfScope,
    /// The value of a rule's `costField` is invalid. No counter was changed.
    #[error(transparent)]
    Cost(#[from] BadCost),
    /// A request would need more than [`MAX_STACK`] rules to allow it.
    #[error("more than {MAX_STACK} rules must allow this request: remove `matchPolicy = and` from some of them")]
    TooManyRules,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A charge for a sliding log, which cannot exceed its limit.
    #[error(
        "nothing was charged: the rule [{0}] is a sliding-log, which cannot count more than its limit; `algorithm = \
         sliding-window` can"
    )]
    CannotCharge(String),
    /// A reservation from a sliding log, which cannot set credits aside.
    #[error(
        "nothing was reserved: the rule [{0}] is a sliding-log, which cannot set credits aside; `algorithm = \
         sliding-window` can"
    )]
    CannotReserve(String),
    /// A reservation of no credits.
    #[error("a reservation needs at least 1 credit")]
    NoCredits,
    /// A reservation with a TTL of 0.
    #[error("TTL 0 is below the minimum of 1 s")]
    ZeroTtl,
    /// A reservation with a TTL beyond the server's maximum.
    #[error("TTL {ttl_seconds} exceeds the maximum of {max} s")]
    LongTtl {
        /// The requested TTL.
        ttl_seconds: u32,
        /// The server's maximum.
        max: u32,
    },
    /// The client's name for a reservation is empty or too long.
    #[error("a reservation's id has 1 to {MAX_CLIENT_ID} bytes")]
    BadClientId,
    /// The name belongs to a reservation with other terms.
    #[error("this id belongs to a reservation with another amount or TTL: choose another id")]
    DifferentReservation,
    /// The members of a group want different leases from one concurrency rule.
    #[error("requests that are decided together must all take the same lease from the rule [{0}]")]
    LeasesTogether(String),
    /// A reservation's id would be too long for its actors.
    #[error(
        "nothing was reserved: the actors are too long, and an id for them would have more than {MAX_ID_TEXT} characters"
    )]
    LongReservation,
    /// The id of a reservation is not valid.
    #[error(transparent)]
    BadReservationId(#[from] BadReservationId),
    /// The idempotency key is empty or too long.
    #[error("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY} bytes")]
    BadIdempotencyKey,
    /// The key was used for another request, which is still remembered.
    #[error("this idempotency key was used for another request less than a minute ago: choose another key")]
    DifferentRequest,
    /// A commit finds neither the reservation nor a rule with its counter.
    #[error("nothing was charged: this reservation has ended, and no rule has its counter anymore")]
    NoReservation,
    /// A hit on a concurrency rule, which grants only leases.
    #[error("the rule [{0}] limits concurrency: it gives leases, and counts no hits")]
    TakesLeases(String),
    /// A gateway needs a lease from a concurrency rule that names no field for it.
    #[error("the rule [{0}] limits concurrency, and has no holdField that names its leases")]
    NoHoldField(String),
    /// The field that names the lease is missing or too long.
    #[error(
        "the rule [{rule}] limits concurrency: the field '{field}', its holdField, must name the lease in 1 to \
         {MAX_CLIENT_ID} bytes"
    )]
    BadHold {
        /// Header of the rule.
        rule: String,
        /// The rule's `holdField`.
        field: String,
    },
    /// The rule reserves for a given time, but the request has no TTL.
    #[error("nothing was reserved: the rule [{0}] needs a time (TTL) after which the reservation ends")]
    NoTtl(String),
    /// The rule that answers does not count costs.
    #[error("nothing was charged: the rule [{0}], which answers this operation, counts no costs")]
    NothingToCharge(String),
}

impl LimiterError for Refusal {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoRules | Self::TooManyRules => ErrorClass::RulesMistake,
            Self::OutOfScope => ErrorClass::Forbidden,
            Self::Cost(_)
            | Self::NoTtl(_)
            | Self::NoCredits
            | Self::ZeroTtl
            | Self::LongTtl { .. }
            | Self::BadClientId
            | Self::LongReservation
            | Self::BadIdempotencyKey => ErrorClass::BadRequest,
            Self::CannotCharge(_) | Self::NothingToCharge(_) | Self::CannotReserve(_) | Self::TakesLeases(_) => {
                ErrorClass::UnsuitableRule
            }
            Self::NoHoldField(_) | Self::BadHold { .. } | Self::LeasesTogether(_) => ErrorClass::UnnamedLease,
            Self::BadReservationId(_) | Self::NoReservation => ErrorClass::NotFound,
            Self::DifferentReservation | Self::DifferentRequest => ErrorClass::ReusedName,
            Self::Store(error) => error.class(),
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoRules => Some(Remedy::LoadRules),
            Self::TakesLeases(_) => Some(Remedy::TakeLease),
            Self::LongTtl { .. } => Some(Remedy::RaiseMaxTtl),
            _ => None,
        }
    }
}

/// A request that was refused, with all others of its group.
#[derive(Debug)]
pub struct RefusedMember {
    /// Its index among the requests of the group.
    pub index: usize,
    /// The reason for the refusal.
    pub refusal: Refusal,
}

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
