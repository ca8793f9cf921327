//! Arguments of commands about buckets, reservations, counters, limits, blocks and allows.

use super::pairs::Pairs;
use crate::access::Category;
use crate::algorithm::{Ask, Limit};
use crate::clock::Timestamp;
use crate::rules::OverrideKind;

/// A request for a bucket with the client's own limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketAsk<'a> {
    /// The client's name for the bucket: any bytes.
    pub key: &'a [u8],
    /// Part of the bucket's identity.
    pub limit: Limit,
    /// The action on the bucket, and its cost in tokens.
    pub ask: Ask,
    /// The client's time; `None` for the server's.
    pub at: Option<Timestamp>,
}

/// A request for a reservation: `key=value… AMOUNT n [TTL seconds] [ID text]`.
#[derive(Debug, Clone, Copy)]
pub struct ReserveAsk<'a> {
    /// The operation to reserve for.
    pub pairs: Pairs<'a>,
    /// Credits to set aside, at least 1.
    pub credits: u64,
    /// TTL. `None` is valid only if the matching rules give leases, whose TTL the rule determines.
    pub ttl_seconds: Option<u32>,
    /// The client's name for the reservation: any bytes.
    pub id: Option<&'a [u8]>,
}

/// The cursor that begins a listing, and the one that ends it.
pub const START: &str = "0";

/// A request for counters of a rule: `name | key=value… [ACTOR actor] [CURSOR cursor] [COUNT count]`.
#[derive(Debug, Clone, Copy)]
pub struct CountersAsk<'a> {
    /// The rule to list.
    pub rule: NamedRule<'a>,
    /// The actor; `None` for the counters of all actors.
    pub actor: Option<&'a str>,
    /// The cursor; `None` for the start.
    pub cursor: Option<&'a str>,
    /// Wanted size of the page, at least 1. `None` for the default.
    pub count: Option<usize>,
}

/// A rule, by its name or its operation.
#[derive(Debug, Clone, Copy)]
pub enum NamedRule<'a> {
    /// Its label, `default`, or its position, as in `rule-1`.
    Name(&'a str),
    /// The operation that the rule has to match.
    Operation(Pairs<'a>),
}

/// A request for the actors of a rule that take the most: `rule [DENIED | TAKEN] [LAST 60 | 3600] [COUNT n]`.
#[derive(Debug, Clone, Copy)]
pub struct TopAsk<'a> {
    /// The rule.
    pub rule: NamedRule<'a>,
    /// The order of the actors.
    pub order: TopOrder,
    /// The time over which they are counted.
    pub window: TopWindow,
    /// Wanted number of actors, at least 1. `None` for the default.
    pub count: Option<usize>,
}

/// The order of a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopOrder {
    /// Denied requests.
    Denied,
    /// Credits that were taken.
    Taken,
}

/// The time over which a ranking counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopWindow {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl TopWindow {
    /// Parses its length in seconds.
    pub(super) fn parse(seconds: &[u8]) -> Option<Self> {
        match seconds {
            b"60" => Some(Self::Minute),
            b"3600" => Some(Self::Hour),
            _ => None,
        }
    }
}

/// A request for the status of an actor: `field=value… [CURSOR cursor] [COUNT count]`.
#[derive(Debug, Clone, Copy)]
pub struct StatusAsk<'a> {
    /// The fields of the actor, with their values.
    pub actor: Pairs<'a>,
    /// `None`: from the start.
    pub cursor: Option<&'a str>,
    /// Wanted size of the page, at least 1. `None` for the default.
    pub count: Option<usize>,
}

/// A request for the limit of an actor: `rule actor`.
#[derive(Debug, Clone, Copy)]
pub struct LimitAsk<'a> {
    /// The rule's label.
    pub rule: &'a str,
    /// Value of the rule's actor fields, as in the listing of counters.
    pub actor: &'a str,
}

/// A request for limits: `[RULE rule] [CURSOR cursor] [COUNT count]`.
#[derive(Debug, Clone, Copy)]
pub struct LimitsAsk<'a> {
    /// The rule; `None` for the limits of all rules.
    pub rule: Option<&'a str>,
    /// The cursor; `None` for the start.
    pub cursor: Option<&'a str>,
    /// Wanted size of the page, at least 1. `None` for the default.
    pub count: Option<usize>,
}

/// A block or an allow, as `DIVVY.BLOCK SET` and `DIVVY.ALLOW SET` ask for it.
#[derive(Debug, Clone, Copy)]
pub struct OverrideAsk<'a> {
    /// A block or an allow.
    pub kind: OverrideKind,
    /// The rule and the actor.
    pub of: LimitAsk<'a>,
    /// Seconds until it ends. `None`: it lasts until it is removed.
    pub seconds: Option<u64>,
    /// The operator's reason.
    pub reason: Option<&'a str>,
}

/// A question about users.
#[derive(Debug, Clone, Copy)]
pub enum AclAsk<'a> {
    /// `ACL WHOAMI`: the name of the connection's user.
    WhoAmI,
    /// `ACL LIST`: all users.
    List,
    /// `ACL GETUSER name`
    GetUser(&'a [u8]),
    /// `ACL CAT`: the categories.
    Categories,
    /// `ACL CAT category`: the commands of a category.
    Commands(Category),
}
