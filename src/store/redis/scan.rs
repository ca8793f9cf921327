//! Listing a rule's buckets: their names by `SCAN`, what they hold by looking at them.
//!
//! `SCAN` goes through all keys of the database, this rule's or not, so a page may be empty long before the last one;
//! and it may name a key twice. In a cluster, one shard is gone through after the other.

use std::fmt;

use super::call::{Call, Failure, Reply};
use super::key::around_actor;
use crate::store::Listing;

/// What to look for.
pub(super) struct Scan {
    before: Vec<u8>,
    after: Vec<u8>,
    count: usize,
}

/// The actors that a page of `SCAN` names, and where to go on.
pub(super) struct Scanned {
    pub actors: Vec<Vec<u8>>,
    pub next: Option<String>,
}

/// Where a page begins in a cluster; elsewhere it is Redis's own cursor alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShardCursor {
    /// Of the slot map that the shard's number is of.
    pub version: u64,
    pub shard: usize,
    pub cursor: u64,
}

impl Scan {
    pub(super) fn of(listing: &Listing) -> Self {
        let (before, after) = around_actor(&listing.prefix, &listing.limit);
        Self { before, after, count: listing.count }
    }

    /// A page of one server, which begins at Redis's cursor.
    pub(super) fn call(&self, cursor: u64) -> Call {
        let pattern = [escaped(&self.before), b"*".to_vec(), escaped(&self.after)].concat();
        Call::Scan { cursor, pattern, count: self.count }
    }

    /// The actors on the page, and where the server goes on; 0: nowhere.
    pub(super) fn read(&self, reply: Reply) -> Result<(Vec<Vec<u8>>, u64), Failure> {
        let (next, names): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|_| Failure::Foreign("a page of SCAN is no cursor and names"))?;
        Ok((names.iter().filter_map(|name| self.actor(name)).map(<[u8]>::to_vec).collect(), next))
    }

    fn actor<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        name.strip_prefix(self.before.as_slice())?.strip_suffix(self.after.as_slice())
    }
}

impl ShardCursor {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let version = u64::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { version, shard: parts.next()?.parse().ok()?, cursor: parts.next()?.parse().ok()? })
    }
}

impl fmt::Display for ShardCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}:{}", self.version, self.shard, self.cursor)
    }
}

/// `text` as a glob that matches it and nothing else.
fn escaped(text: &[u8]) -> Vec<u8> {
    let mut glob = Vec::with_capacity(text.len());
    for byte in text {
        if b"*?[]\\^-".contains(byte) {
            glob.push(b'\\');
        }
        glob.push(*byte);
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindow, LeakyBucket, Limit};
    use crate::clock::{NANOS_PER_SECOND, Timestamp};
    use crate::store::key::{Prefix, Space};

    fn scan(pairs: &[(&str, &str)], limit: Limit) -> Scan {
        let prefix = Prefix::new(Space::Rule, pairs.iter().copied(), &limit).as_bytes().into();
        Scan::of(&Listing { prefix, limit, cursor: None, count: 10, now: Timestamp::EPOCH })
    }

    #[test]
    fn the_actor_is_read_out_of_a_window_s_name() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, 60 * NANOS_PER_SECOND).unwrap());
        let scan = scan(&[("path", "/x/*"), ("method", "GET")], limit);
        assert_eq!(scan.actor(b"divvy:method=GET path=/x/*:1.2.3.4:5:60"), Some(b"1.2.3.4".as_slice()));
        assert_eq!(scan.actor(b"divvy:method=GET path=/x/*::5:60"), Some(b"".as_slice()));
        assert_eq!(scan.actor(b"divvy:method=GET path=/x/*:a:5:61"), None, "another limit");
    }

    #[test]
    fn the_actor_is_read_out_of_any_other_bucket_s_name() {
        let limit = Limit::LeakyBucket(LeakyBucket::new(5, 5, NANOS_PER_SECOND).unwrap());
        let scan = scan(&[("a", "*")], limit);
        let mut bucket = Vec::new();
        Prefix::new(Space::Rule, [("a", "*")], &limit).write_key("me", &mut bucket);
        assert_eq!(scan.actor(&super::super::key::other(&bucket, &limit)), Some(b"me".as_slice()));
    }

    #[test]
    fn what_means_something_in_a_glob_is_escaped() {
        assert_eq!(escaped(b"a*b?c[d]e\\"), b"a\\*b\\?c\\[d\\]e\\\\");
    }

    #[test]
    fn a_shard_s_cursor_reads_back_and_anything_else_is_refused() {
        let cursor = ShardCursor { version: u64::MAX, shard: 2, cursor: 1 << 60 };
        assert_eq!(ShardCursor::parse(&cursor.to_string()), Some(cursor));
        for text in ["", "17", "1:2", "1:2:x", "x:2:3", "1:2:3:4", "1:-2:3"] {
            assert_eq!(ShardCursor::parse(text), None, "{text}");
        }
    }
}
