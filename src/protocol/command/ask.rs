//! What the commands about buckets and about many counters ask for.

use super::pairs::Pairs;
use crate::algorithm::{Ask, Limit};
use crate::clock::Timestamp;

/// What a request asks of a bucket that it describes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketAsk<'a> {
    /// The client's name for the bucket: any bytes.
    pub key: &'a [u8],
    /// Part of the bucket's identity.
    pub limit: Limit,
    pub ask: Ask,
    /// The client's time; `None`: the server's.
    pub at: Option<Timestamp>,
}

/// What is to be set aside: `key=value… AMOUNT n [TTL seconds] [ID text]`.
#[derive(Debug, Clone, Copy)]
pub struct ReserveAsk<'a> {
    pub pairs: Pairs<'a>,
    pub credits: u64,
    pub ttl_seconds: Option<u32>,
    /// The client's own name of the reservation: any bytes.
    pub id: Option<&'a [u8]>,
}

/// The cursor that begins a listing, and the one that ends it.
pub const START: &str = "0";

/// Which counters of which rule: `label | key=value… [ACTOR actor] [CURSOR cursor] [COUNT count]`.
#[derive(Debug, Clone, Copy)]
pub struct CountersAsk<'a> {
    pub rule: NamedRule<'a>,
    /// `None`: every actor's.
    pub actor: Option<&'a str>,
    /// `None`: from the start.
    pub cursor: Option<&'a str>,
    pub count: Option<usize>,
}

/// How a rule is named.
#[derive(Debug, Clone, Copy)]
pub enum NamedRule<'a> {
    Label(&'a str),
    Operation(Pairs<'a>),
}

/// Whose limit: `rule actor`.
#[derive(Debug, Clone, Copy)]
pub struct LimitAsk<'a> {
    /// The rule's label.
    pub rule: &'a str,
    pub actor: &'a str,
}

/// Which limits: `[RULE rule] [CURSOR cursor] [COUNT count]`.
#[derive(Debug, Clone, Copy)]
pub struct LimitsAsk<'a> {
    /// `None`: of all rules.
    pub rule: Option<&'a str>,
    /// `None`: from the start.
    pub cursor: Option<&'a str>,
    pub count: Option<usize>,
}
