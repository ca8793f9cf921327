//! Reasons why an operator's request failed.

use crate::refusal::{ErrorClass, LimiterError, Refusal, Remedy};
use crate::register::owner::Class;
use crate::store::StoreError;
use divvy_core::rules::{ActorPrefix, MAX_RESET_SECONDS, Network, NetworkError, QuotaError};

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
    #[error("rule '{rule}' has one counter for all: the actor must be empty")]
    NoActors { rule: String },
    #[error("rule '{rule}' counts by {}: write the actor as '{}'", .fields.join(" and "), example(.fields))]
    OtherActor { rule: String, fields: Vec<String> },
    #[error(
        "the actors of the rule {rule:?} are networks of other lengths: `actorPrefix = {prefix}`; name an address, or its network"
    )]
    OtherNetwork { rule: String, prefix: ActorPrefix },
    #[error("the actor is longer than {MAX_ACTOR} bytes")]
    LongActor,
    #[error("{0}")]
    Credits(QuotaError),
    #[error("a limit has a number of credits")]
    NoCredits,
    #[error("a limit lasts from 1 to {MAX_LASTS_SECONDS} seconds")]
    Lasts,
    #[error("there are {len} {class}, and the maximum is {max}{}: remove some", describe_use(*.len, *.used, *.max))]
    Full { class: Class, len: usize, used: usize, max: usize },
    #[error("{0}")]
    ImpossibleActor(ImpossibleActor),
    #[error("{0}")]
    BadBlock(BadBlock),
    #[error("it belongs to another owner, or to an operator")]
    OtherOwner,
    #[error("unknown cursor: send the one from the previous page")]
    Cursor,
    #[error("actors are not ranked: start the server with a --top-memory above 0")]
    NoTop,
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A reason why no hit of a rule ever has an actor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImpossibleActor {
    #[error("the rule '{rule}' counts by {field}: write the actor as '{actor}', without '{field}='")]
    NamesField { rule: String, field: String, actor: String },
    #[error(
        "the rule '{rule}' counts each {field} by itself, so its actors are no networks: to block or allow a network, name all rules: \
         '*' {field}={network}"
    )]
    Network { rule: String, field: String, network: Network },
    #[error("the rule '{rule}' only counts requests whose {field} matches {condition}, which '{value}' does not")]
    OtherValue { rule: String, field: String, condition: String, value: String },
    #[error("no check has '{value}' as {field}: {what}; {fix}")]
    NoCheck { field: String, value: String, what: String, fix: String },
}

/// A reason why a block or an allow is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadBlock {
    #[error("with the rule *, write the actor as field=value or field=network, such as ip=10.0.0.0/8")]
    NoField,
    #[error("the field's name is empty, has more than {MAX_FIELD} bytes, or has spaces or control characters")]
    Field,
    #[error("blocks and allows have no patterns; write a network, such as ip=10.0.0.0/8, or one value")]
    Pattern,
    #[error("there are blocks and allows for all rules about {MAX_FIELDS} fields, and the maximum is {MAX_FIELDS}")]
    ManyFields,
    #[error("{value} is not a network in its usual form: {error}; {}", .error.fix())]
    Network { value: String, error: NetworkError },
    #[error("it lasts from 1 to {MAX_LASTS_SECONDS} seconds")]
    Lasts,
    #[error("the reason has more than {MAX_REASON} bytes, or control characters")]
    Reason,
    #[error(
        "the owner has more than {MAX_PROGRAM} bytes, is empty, or has spaces, control characters or letters beyond ASCII"
    )]
    Owner,
}

impl LimiterError for AdminError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoSuchName(_) | Self::NoSuchOperation(_) | Self::NoRuleCountsBy(_) | Self::NoTop => {
                ErrorClass::NotFound
            }
            Self::NoActors { .. } | Self::OtherActor { .. } | Self::OtherNetwork { .. } | Self::OtherOwner => {
                ErrorClass::UnsuitableRule
            }
            Self::Unlabeled(_)
            | Self::AmbiguousOperation(_)
            | Self::Uncounted(_)
            | Self::LongActor
            | Self::Credits(_)
            | Self::Lasts
            | Self::NoCredits
            | Self::ImpossibleActor(_)
            | Self::BadBlock(_)
            | Self::Cursor => ErrorClass::BadRequest,
            Self::Full { .. } => ErrorClass::Full,
            Self::Refused(refusal) => refusal.class(),
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

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self::Refused(error.into())
    }
}

/// Says how much of the maximum is used, unless the number of entries says it.
fn describe_use(len: usize, used: usize, max: usize) -> String {
    if len < max { format!(" (long ones count as several: {used} are used)") } else { String::new() }
}

/// Returns `user=… path=…`.
fn example(fields: &[String]) -> String {
    fields.iter().map(|field| format!("{field}=…")).collect::<Vec<_>>().join(" ")
}
