//! Why a request got no verdict.

use super::error::{ErrorClass, LimiterError, Remedy};
use super::plan::{BadReservationId, MAX_CLIENT_ID, MAX_ID_TEXT, MAX_IDEMPOTENCY_KEY};
use crate::rules::{BadCost, MAX_STACK};
use crate::store::StoreError;

/// Why a request got no verdict.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    #[error("no rules are loaded")]
    NoRules,
    /// By a rule's `costField`. Nothing was taken, from no counter.
    #[error(transparent)]
    Cost(#[from] BadCost),
    #[error("more than {MAX_STACK} rules must allow this request: remove `matchPolicy = and` from some of them")]
    TooManyRules,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "nothing was charged: the rule [{rule}] is a sliding-log, which cannot count more than its limit; `algorithm = \
         sliding-window` can"
    )]
    CannotCharge { rule: String },
    #[error(
        "nothing was reserved: the rule [{rule}] is a sliding-log, which cannot set credits aside; `algorithm = \
         sliding-window` can"
    )]
    CannotReserve { rule: String },
    #[error("a reservation needs at least 1 credit")]
    NoCredits,
    #[error("TTL 0 is below the minimum of 1 s")]
    ZeroTtl,
    #[error("TTL {ttl_seconds} exceeds the maximum of {max} s")]
    LongTtl { ttl_seconds: u32, max: u32 },
    #[error("a reservation's id has 1 to {MAX_CLIENT_ID} bytes")]
    BadClientId,
    #[error("this id belongs to a reservation of other credits or for another time: choose another id")]
    DifferentReservation,
    #[error(
        "leases with different names, or a lease and something else, cannot be taken together from the rule [{rule}]"
    )]
    LeasesTogether { rule: String },
    #[error(
        "nothing was reserved: the actors are too long, and an id for them would have more than {MAX_ID_TEXT} characters"
    )]
    LongReservation,
    #[error(transparent)]
    BadReservationId(#[from] BadReservationId),
    #[error("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY} bytes")]
    BadIdempotencyKey,
    #[error("this idempotency key was used for another request less than a minute ago: choose another key")]
    DifferentRequest,
    #[error("nothing was charged: this reservation has ended, and no rule has its counter anymore")]
    NoReservation,
    #[error("the rule [{rule}] limits concurrency: it gives leases, and counts no hits")]
    TakesLeases { rule: String },
    #[error("the rule [{rule}] limits concurrency, and has no holdField that names its leases")]
    NoHoldField { rule: String },
    #[error(
        "the rule [{rule}] limits concurrency: the field '{field}', its holdField, must name the lease in 1 to \
         {MAX_CLIENT_ID} bytes"
    )]
    BadHold { rule: String, field: String },
    #[error("nothing was reserved: the rule [{rule}] needs a time (TTL) after which the reservation ends")]
    NoTtl { rule: String },
    #[error("nothing was charged: the rule [{rule}], which answers this operation, counts no costs")]
    NothingToCharge { rule: String },
}

impl LimiterError for Refusal {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoRules | Self::TooManyRules => ErrorClass::RulesMistake,
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
    /// Its place among the requests of the group.
    pub index: usize,
    pub refusal: Refusal,
}
