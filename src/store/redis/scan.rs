//! Listing a rule's buckets: their names by `SCAN`, what they hold by looking at them.
//!
//! `SCAN` goes through all keys of the database, this rule's or not, so a page may be empty long before the last one;
//! and it may name a key twice. In a cluster, one shard is gone through after the other.

use std::fmt;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::scripts::{TAG_LENGTH, around_actor, have_tags};
use super::wire::{Call, Failure, Reply};
use crate::store::contract::Listing;

/// What to look for.
pub struct Scan {
    /// Each name begins with a tag, which is another one for other actors.
    have_tags: bool,
    before: Vec<u8>,
    after: Vec<u8>,
    count: usize,
}

/// The actors that a page of `SCAN` names, and where to go on.
pub struct Scanned {
    pub actors: Vec<Vec<u8>>,
    pub next: Option<String>,
}

/// Where a page begins. It ends with the processes that it is of: each has an order of its own for its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Of the slot map that the shard's number is of; 0 where there are no shards.
    pub map: u64,
    pub shard: usize,
    /// Which process of Redis knows [`Cursor::position`]; of no matter at the start of a shard.
    pub process: u64,
    /// Redis's own cursor; 0: at the start.
    pub position: u64,
}

/// A page of one server.
pub struct ServerPage {
    pub actors: Vec<Vec<u8>>,
    pub process: u64,
    /// 0: this was its last page.
    pub next: u64,
}

impl Scan {
    pub fn of(listing: &Listing) -> Self {
        let (before, after) = around_actor(&listing.prefix, &listing.limit);
        Self { have_tags: have_tags(&listing.prefix), before, after, count: listing.count }
    }

    /// Asks for a page of one server: which process that is, and then its keys from this position on.
    pub fn calls(&self, position: u64) -> [Call; 2] {
        let tag = if self.have_tags { b"?".repeat(TAG_LENGTH) } else { Vec::new() };
        let pattern = [tag, escaped(&self.before), b"*".to_vec(), escaped(&self.after)].concat();
        [Call::ServerInfo, Call::Scan { cursor: position, pattern, count: self.count }]
    }

    pub fn read(&self, [info, page]: [Reply; 2]) -> Result<ServerPage, Failure> {
        let foreign = |wanted| move |_| Failure::Foreign(wanted);
        let info: String = redis::from_redis_value(info.value()?).map_err(foreign("INFO is not text"))?;
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
        let page =
            redis::from_redis_value(page.value()?).map_err(foreign("a page of SCAN is not a cursor and names"))?;
        let (next, names): (u64, Vec<Vec<u8>>) = page;
        let actors = names.iter().filter_map(|name| self.actor(name)).map(<[u8]>::to_vec).collect();
        Ok(ServerPage { actors, process: FixedState::default().hash_one(run_id), next })
    }

    fn actor<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let name = name.get(if self.have_tags { TAG_LENGTH } else { 0 }..)?;
        name.strip_prefix(self.before.as_slice())?.strip_suffix(self.after.as_slice())
    }
}

impl Cursor {
    /// Where the first page begins.
    fn start(map: u64) -> Self {
        Self { map, shard: 0, process: 0, position: 0 }
    }

    /// Where a page begins that is to go on at `text`, in this slot map; `None`: at the start.
    pub fn resume(text: Option<&str>, map: u64) -> Result<Self, Failure> {
        let Some(text) = text else { return Ok(Self::start(map)) };
        Self::parse(text).filter(|cursor| cursor.map == map).ok_or_else(|| Failure::cursor(text))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':');
        let map = u64::from_str_radix(parts.next()?, 16).ok()?;
        let shard = parts.next()?.parse().ok()?;
        let process = u64::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { map, shard, process, position: parts.next()?.parse().ok()? })
    }

    /// Whether a page that begins here may come from that process.
    pub fn is_of(&self, process: u64) -> bool {
        self.position == 0 || self.process == process
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}:{:x}:{}", self.map, self.shard, self.process, self.position)
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
        assert_eq!(scan.actor(&[b"divvy.leaky-bucket:".as_slice(), &bucket].concat()), Some(b"me".as_slice()));
    }

    #[test]
    fn what_means_something_in_a_glob_is_escaped() {
        assert_eq!(escaped(b"a*b?c[d]e\\"), b"a\\*b\\?c\\[d\\]e\\\\");
    }

    #[test]
    fn a_cursor_reads_back_and_anything_else_is_refused() {
        let cursor = Cursor { map: u64::MAX, shard: 2, process: 0xab, position: 1 << 60 };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for text in ["", "17", "1:2:3", "1:2:3:x", "x:2:3:4", "1:2:3:4:5", "1:-2:3:4"] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
        assert!(cursor.is_of(0xab) && !cursor.is_of(0xac) && Cursor::start(7).is_of(0xac));
    }
}
