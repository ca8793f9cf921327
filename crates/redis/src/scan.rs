//! Lists the actors of a rule by `SCAN`.
//!
//! `SCAN` visits all keys of the database, including other rules' buckets, so a page may be empty long before the last
//! one. It may return a key twice. In a cluster, it visits one shard after the other.

use std::fmt;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use tokio::time::Instant;

use super::scripts::names::{around_actor, tag_length};
use super::topology::Target;
use super::topology::cluster::Shard;
use super::wire::{Call, Failure};
use divvy_store::Listing;

/// The names of the buckets to list: an optional tag, the part before the actor, the actor, and the part after the actor.
struct Names {
    /// The length of the tag that each name begins with, which differs between actors.
    tag_length: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// The position of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor {
    /// Version of the list of shards. 0 if there is one server.
    shards: u64,
    shard: usize,
    /// Id of the Redis process that the position belongs to. Each process has its own order of keys.
    process: u64,
    /// Redis's own cursor. At the start of a shard it is 0, which is valid in any process.
    position: u64,
}

/// Returns the actors in a page of `SCAN`, and the cursor of the next page, if there is one.
///
/// In a cluster, a cursor is valid as long as no slot has moved to another node. Otherwise, keys could be left out.
pub async fn scan(
    target: &Target,
    listing: &Listing,
    deadline: Instant,
) -> Result<(Vec<Vec<u8>>, Option<String>), Failure> {
    target.look_up(deadline).await?;
    let shards = target.shards(deadline).await?;
    let begin = Cursor::resume(listing.cursor.as_deref(), shards.version)?;
    let shard = shards.list.get(begin.shard).ok_or(Failure::NoNode)?;
    let (actors, next) = scan_shard(shard, listing, begin, deadline).await.map_err(|failure| shard.locate(failure))?;
    Ok((actors, (next.shard < shards.list.len()).then(|| next.to_string())))
}

async fn scan_shard(
    shard: &Shard,
    listing: &Listing,
    begin: Cursor,
    deadline: Instant,
) -> Result<(Vec<Vec<u8>>, Cursor), Failure> {
    let names = Names::of(listing);
    let (position, count) = (begin.position.to_string(), listing.count.to_string());
    let calls = [
        Call::command(&[b"INFO", b"server"]),
        Call::command(&[b"SCAN", position.as_bytes(), b"MATCH", &names.pattern(), b"COUNT", count.as_bytes()]),
    ];
    let [info, page] = shard.client.ask_all(calls, deadline).await?;
    let info: String = info.decode("INFO is not text")?;
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
    let process = FixedState::default().hash_one(run_id);
    let (position, found): (u64, Vec<Vec<u8>>) = page.decode("a page of SCAN is not a cursor and names")?;
    if !begin.is_known_to(process) {
        return Err(Failure::Cursor(begin.to_string()));
    }
    let actors = found.iter().filter_map(|name| names.actor(name)).map(<[u8]>::to_vec).collect();
    let shard = if position == 0 { begin.shard + 1 } else { begin.shard };
    Ok((actors, Cursor { shard, process, position, ..begin }))
}

impl Names {
    fn of(listing: &Listing) -> Self {
        let (before, after) = around_actor(&listing.prefix, &listing.limit);
        Self { tag_length: tag_length(&listing.prefix), before, after }
    }

    /// Returns the glob that matches the names.
    fn pattern(&self) -> Vec<u8> {
        [b"?".repeat(self.tag_length), escaped(&self.before), b"*".to_vec(), escaped(&self.after)].concat()
    }

    fn actor<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let name = name.get(self.tag_length..)?;
        name.strip_prefix(self.before.as_slice())?.strip_suffix(self.after.as_slice())
    }
}

impl Cursor {
    /// Parses a cursor, given the current version of the shards. Without a text, returns the start.
    fn resume(text: Option<&str>, shards: u64) -> Result<Self, Failure> {
        let Some(text) = text else { return Ok(Self { shards, shard: 0, process: 0, position: 0 }) };
        let known = Self::parse(text).filter(|cursor| cursor.shards == shards);
        known.ok_or_else(|| Failure::Cursor(text.to_owned()))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ':');
        let shards = u64::from_str_radix(parts.next()?, 16).ok()?;
        let shard = parts.next()?.parse().ok()?;
        let process = u64::from_str_radix(parts.next()?, 16).ok()?;
        Some(Self { shards, shard, process, position: parts.next()?.parse().ok()? })
    }

    /// Returns whether a page that begins here may come from that process.
    fn is_known_to(&self, process: u64) -> bool {
        self.position == 0 || self.process == process
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{}:{:x}:{}", self.shards, self.shard, self.process, self.position)
    }
}

/// Returns a glob that matches only `text`.
fn escaped(text: &[u8]) -> Vec<u8> {
    let backslash = |byte: &u8| b"*?[]\\^-".contains(byte).then_some(b'\\');
    text.iter().flat_map(|byte| backslash(byte).into_iter().chain([*byte])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::{FixedWindow, LeakyBucket, Limit};
    use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
    use divvy_store::key::{Prefix, Space};

    fn names(pairs: &[(&str, &str)], limit: Limit) -> Names {
        let prefix = Prefix::new(Space::Rule, pairs.iter().copied(), &limit).as_bytes().into();
        Names::of(&Listing { prefix, limit, cursor: None, count: 10, now: Timestamp::EPOCH })
    }

    #[test]
    fn actor_is_parsed_from_the_name_of_a_window() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, 60 * NANOS_PER_SECOND).unwrap());
        let names = names(&[("path", "/x/*"), ("method", "GET")], limit);
        assert_eq!(names.actor(b"divvy:method=GET path=/x/*:1.2.3.4:5:60"), Some(b"1.2.3.4".as_slice()));
        assert_eq!(names.actor(b"divvy:method=GET path=/x/*::5:60"), Some(b"".as_slice()));
        assert_eq!(names.actor(b"divvy:method=GET path=/x/*:a:5:61"), None, "another limit");
    }

    #[test]
    fn actor_is_parsed_from_the_name_of_any_other_bucket() {
        let limit = Limit::LeakyBucket(LeakyBucket::new(5, 5, NANOS_PER_SECOND).unwrap());
        let names = names(&[("a", "*")], limit);
        let mut bucket = Vec::new();
        Prefix::new(Space::Rule, [("a", "*")], &limit).write_key("me", &mut bucket);
        assert_eq!(names.actor(&[b"divvy.leaky-bucket:".as_slice(), &bucket].concat()), Some(b"me".as_slice()));
    }

    #[test]
    fn special_characters_of_globs_are_escaped() {
        assert_eq!(escaped(b"a*b?c[d]e\\"), b"a\\*b\\?c\\[d\\]e\\\\");
    }

    #[test]
    fn cursor_reads_back_and_other_texts_are_refused() {
        let cursor = Cursor { shards: u64::MAX, shard: 2, process: 0xab, position: 1 << 60 };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for text in ["", "17", "1:2:3", "1:2:3:x", "x:2:3:4", "1:2:3:4:5", "1:-2:3:4"] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
        assert!(Cursor::resume(None, 7).unwrap().is_known_to(0xac));
        assert!(cursor.is_known_to(0xab) && !cursor.is_known_to(0xac));
    }
}
