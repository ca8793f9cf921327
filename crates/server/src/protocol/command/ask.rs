//! Arguments of commands about buckets, reservations and users.

use super::pairs::Pairs;
use divvy_access::Category;
use divvy_core::algorithm::{Ask, Limit};
use divvy_core::clock::Timestamp;

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

/// A question about users.
#[derive(Debug, Clone, Copy)]
pub enum AclAsk<'a> {
    /// `ACL WHOAMI`: the name of the connection's user.
    WhoAmI,
    /// `ACL GETUSER name`
    GetUser(&'a [u8]),
    /// `ACL CAT`: the categories.
    Categories,
    /// `ACL CAT category`: the commands of a category.
    Commands(Category),
}
