//! Reasons why a request got no verdict, and bounds on requests. A front derives its code from the class of an error alone, and
//! describes the remedy in its own words.

use std::fmt::Display;

use crate::register::owner::Class;
use crate::store::StoreError;
use divvy_core::rules::{BadCost, MAX_RESET_SECONDS, MAX_STACK, Misspelling, NetworkError, QuotaError};

/// Maximum number of requests in a group.
pub const MAX_TOGETHER: usize = 16;
/// Maximum length of a name that a client gives a reservation (bytes).
pub const MAX_CLIENT_ID: usize = 255;
/// Maximum length of an idempotency key (bytes).
pub const MAX_IDEMPOTENCY_KEY: usize = 255;
/// Maximum length of an id (characters), so that it fits into a URL.
pub const MAX_ID_TEXT: usize = 8 * 1024 + 16;
/// Maximum number of characters of a name that an error repeats. A client may have sent a very long one.
const SHOWN: usize = 200;

/// Returns the start of a text, for an error.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

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
    /// A charge or a reservation for a sliding log, which can neither exceed its limit nor set credits aside.
    #[error(
        "nothing was counted: the rule [{0}] is a sliding-log, which is neither charged nor sets credits aside; `algorithm = \
         sliding-window` can"
    )]
    CountsEvents(String),
    /// A reservation of no credits.
    #[error("a reservation or a share needs at least 1 credit")]
    NoCredits,
    /// A reservation with a TTL of 0, or beyond the server's maximum.
    #[error("TTL {ttl_seconds} is not from 1 s to the maximum of {max} s")]
    BadTtl {
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
    /// A hit in a group on a rule that counts denied hits.
    #[error(
        "the rule [{0}] counts hits that are denied (`overrun = count`, or `quotaGroup`), so hits that it matches are not taken together \
         with others"
    )]
    CountsDenials(String),
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
    /// A request for a share of a counter that gives none.
    #[error(
        "the rule [{0}] gives no shares: its algorithm or its `overrun` does not allow that, or it counts nothing, or denies with others"
    )]
    GivesNoShare(String),
    /// A request for a share of several counters.
    #[error("several rules must allow this operation, and a share is of one counter: send hits")]
    SharesTogether,
    /// A saturating increment would change a counter by more than 64 bits hold. The text is Valkey's.
    #[error("applied increment would overflow")]
    LongIncrement,
}

impl LimiterError for Refusal {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoRules | Self::TooManyRules => ErrorClass::RulesMistake,
            Self::OutOfScope => ErrorClass::Forbidden,
            Self::Cost(_)
            | Self::NoTtl(_)
            | Self::NoCredits
            | Self::BadTtl { .. }
            | Self::BadClientId
            | Self::LongReservation
            | Self::LongIncrement
            | Self::BadIdempotencyKey => ErrorClass::BadRequest,
            Self::GivesNoShare(_)
            | Self::SharesTogether
            | Self::CountsDenials(_)
            | Self::CountsEvents(_)
            | Self::NothingToCharge(_)
            | Self::TakesLeases(_) => ErrorClass::UnsuitableRule,
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
            Self::BadTtl { .. } => Some(Remedy::RaiseMaxTtl),
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
            Self::Failed(_) | Self::Unreachable(_) | Self::Overloaded(_) => ErrorClass::StoreFailure,
        }
    }
}

/// Maximum lifetime of a limit: 100 years (seconds).
pub const MAX_LASTS_SECONDS: u64 = MAX_RESET_SECONDS;
/// Maximum number of fields that blocks and allows for all rules are about. Each request looks for them all.
pub(super) const MAX_FIELDS: usize = 32;
/// Maximum length of an actor with a limit of its own (bytes).
pub(super) const MAX_ACTOR: usize = 4_096;
/// Maximum length of the field's name in a block or an allow of all rules (bytes).
pub(super) const MAX_FIELD: usize = 256;
/// Maximum length of the reason for a block or an allow (bytes).
pub(super) const MAX_REASON: usize = 256;
/// Maximum length of the name of a program that owns blocks (bytes).
pub(super) const MAX_PROGRAM: usize = 64;

/// A reason why counters or limits of actors cannot be listed or changed.
#[derive(Debug, Clone, thiserror::Error)]
#[expect(missing_docs, reason = "each variant has a text")]
pub enum AdminError {
    #[error("no rule is called '{0}'")]
    NoSuchName(String),
    #[error(
        "rule '{0}' is named by its position, which may change: set `label = NAME` in the rule, and name it by its label"
    )]
    Unlabeled(String),
    #[error("no rule has the operation '{0}'; write it as the rules file does, patterns included")]
    NoSuchOperation(String),
    #[error("more than one rule has the operation '{0}'; give them labels, and name the rule by its label")]
    AmbiguousOperation(String),
    #[error("no rule counts by exactly {0}: give all fields of a rule's actorField, and no others")]
    NoRuleCountsBy(String),
    #[error("rule '{0}' counts nothing: it allows everything or denies everything")]
    Uncounted(String),
    #[error("rule '{rule}' {expected}")]
    OtherActor { rule: String, expected: String },
    #[error("the actor is longer than {MAX_ACTOR} bytes")]
    LongActor,
    #[error("{0}")]
    Credits(QuotaError),
    #[error("a limit has a number of credits")]
    NoCredits,
    #[error("it lasts from 1 to {MAX_LASTS_SECONDS} seconds")]
    Lasts,
    #[error(
        "there are {len} {class}, and the maximum is {max}: remove some (long ones count as several: {used} are used)"
    )]
    Full { class: Class, len: usize, used: usize, max: usize },
    #[error("no hit of the rule '{rule}' has the actor '{actor}': {fix}")]
    NoHit { rule: String, actor: String, fix: String },
    #[error("no check has '{value}' as {field}: {what}; {fix}")]
    NoCheck { field: String, value: String, what: String, fix: String },
    #[error(
        "with the rule *, write the actor as field=value or field=network, such as ip=10.0.0.0/8; the field's name has 1 to \
         {MAX_FIELD} bytes, without spaces or control characters"
    )]
    NoField,
    #[error("blocks and allows have no patterns; write a network, such as ip=10.0.0.0/8, or one value")]
    Pattern,
    #[error("there are blocks and allows for all rules about {MAX_FIELDS} fields, and the maximum is {MAX_FIELDS}")]
    ManyFields,
    #[error("{value} is not a network in its usual form: {error}; {}", .error.fix())]
    BadNetwork { value: String, error: NetworkError },
    #[error("the reason has more than {MAX_REASON} bytes, or control characters")]
    BadReason,
    #[error(
        "the owner has more than {MAX_PROGRAM} bytes, is empty, or has spaces, control characters or letters beyond ASCII"
    )]
    BadOwner,
    #[error("it belongs to another owner, or to an operator")]
    OtherOwner,
    #[error("unknown cursor: send the one from the previous page")]
    Cursor,
    #[error("actors are not ranked: start the server with a --top-memory above 0")]
    NoTop,
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl LimiterError for AdminError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoSuchName(_) | Self::NoSuchOperation(_) | Self::NoRuleCountsBy(_) | Self::NoTop => {
                ErrorClass::NotFound
            }
            Self::OtherActor { .. } | Self::OtherOwner => ErrorClass::UnsuitableRule,
            Self::Full { .. } => ErrorClass::Full,
            Self::Refused(refusal) => refusal.class(),
            // The request is wrong as it is.
            _ => ErrorClass::BadRequest,
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoSuchName(_) | Self::NoRuleCountsBy(_) => Some(Remedy::ListRules),
            Self::Full { class: Class::Limits, .. } => Some(Remedy::RaiseMaxActorLimits),
            Self::Full { class: Class::Overrides, .. } => Some(Remedy::RaiseMaxBlocks),
            Self::Refused(refusal) => refusal.remedy(),
            _ => None,
        }
    }
}

impl AdminError {
    /// Returns the error for a value that no check has in this field.
    pub(crate) fn no_check(field: &str, value: &str, Misspelling { what, fix }: Misspelling) -> Self {
        Self::NoCheck { field: field.to_owned(), value: shown(value), what, fix }
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error.into())
    }
}
