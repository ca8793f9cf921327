//! Reasons why a request got no verdict.

use super::error::{ErrorClass, LimiterError, Remedy};
use super::plan::{BadReservationId, MAX_CLIENT_ID, MAX_ID_TEXT, MAX_IDEMPOTENCY_KEY};
use crate::store::StoreError;
use divvy_core::rules::{BadCost, MAX_STACK};

/// The reason why a request got no verdict.
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
        "nothing was charged: the rule [{rule}] is a sliding-log, which cannot count more than its limit; `algorithm = \
         sliding-window` can"
    )]
    CannotCharge {
        /// Header of the rule.
        rule: String,
    },
    /// A reservation from a sliding log, which cannot set credits aside.
    #[error(
        "nothing was reserved: the rule [{rule}] is a sliding-log, which cannot set credits aside; `algorithm = \
         sliding-window` can"
    )]
    CannotReserve {
        /// Header of the rule.
        rule: String,
    },
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
    #[error("requests that are decided together must all take the same lease from the rule [{rule}]")]
    LeasesTogether {
        /// Header of the rule.
        rule: String,
    },
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
    #[error("the rule [{rule}] limits concurrency: it gives leases, and counts no hits")]
    TakesLeases {
        /// Header of the rule.
        rule: String,
    },
    /// A gateway needs a lease from a concurrency rule that names no field for it.
    #[error("the rule [{rule}] limits concurrency, and has no holdField that names its leases")]
    NoHoldField {
        /// Header of the rule.
        rule: String,
    },
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
    #[error("nothing was reserved: the rule [{rule}] needs a time (TTL) after which the reservation ends")]
    NoTtl {
        /// Header of the rule.
        rule: String,
    },
    /// The rule that answers does not count costs.
    #[error("nothing was charged: the rule [{rule}], which answers this operation, counts no costs")]
    NothingToCharge {
        /// Header of the rule.
        rule: String,
    },
}

impl LimiterError for Refusal {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoRules | Self::TooManyRules => ErrorClass::RulesMistake,
            Self::OutOfScope => ErrorClass::Forbidden,
            Self::Cost(_)
            | Self::NoTtl { .. }
            | Self::NoCredits
            | Self::ZeroTtl
            | Self::LongTtl { .. }
            | Self::BadClientId
            | Self::LongReservation
            | Self::BadIdempotencyKey => ErrorClass::BadRequest,
            Self::CannotCharge { .. }
            | Self::NothingToCharge { .. }
            | Self::CannotReserve { .. }
            | Self::TakesLeases { .. } => ErrorClass::UnsuitableRule,
            Self::NoHoldField { .. } | Self::BadHold { .. } | Self::LeasesTogether { .. } => ErrorClass::UnnamedLease,
            Self::BadReservationId(_) | Self::NoReservation => ErrorClass::NotFound,
            Self::DifferentReservation | Self::DifferentRequest => ErrorClass::ReusedName,
            Self::Store(error) => error.class(),
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoRules => Some(Remedy::LoadRules),
            Self::TakesLeases { .. } => Some(Remedy::TakeLease),
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
