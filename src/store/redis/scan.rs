//! Listing a rule's buckets: their names by `SCAN`, what they hold by looking at them.
//!
//! `SCAN` goes through all keys of the database, this rule's or not, so a page may be empty long before the last one;
//! and it may name a key twice. A cursor is Redis's own.

use super::call::{Call, Failure, Reply};
use super::key::around_actor;
use crate::store::listing::invalid_cursor;
use crate::store::{Listing, StoreError};

/// A page of `SCAN` to ask for.
pub(super) struct Scan {
    before: Vec<u8>,
    after: Vec<u8>,
    cursor: u64,
    count: usize,
}

/// The actors that a page of `SCAN` names, and where to go on.
pub(super) struct Scanned {
    pub actors: Vec<Vec<u8>>,
    pub next: Option<String>,
}

impl Scan {
    pub(super) fn of(listing: &Listing) -> Result<Self, StoreError> {
        let (before, after) = around_actor(&listing.prefix, &listing.limit);
        let cursor = match &listing.cursor {
            None => 0,
            Some(cursor) => cursor.parse().map_err(|_| invalid_cursor(cursor))?,
        };
        Ok(Self { before, after, cursor, count: listing.count })
    }

    pub(super) fn call(&self) -> Call {
        let pattern = [escaped(&self.before), b"*".to_vec(), escaped(&self.after)].concat();
        Call::Scan { cursor: self.cursor, pattern, count: self.count }
    }

    pub(super) fn read(&self, reply: Reply) -> Result<Scanned, Failure> {
        let (next, names): (u64, Vec<Vec<u8>>) =
            redis::from_redis_value(reply).map_err(|_| Failure::Foreign("a page of SCAN is no cursor and names"))?;
        let actors = names.iter().filter_map(|name| self.actor(name)).map(<[u8]>::to_vec).collect();
        Ok(Scanned { actors, next: (next != 0).then(|| next.to_string()) })
    }

    fn actor<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        name.strip_prefix(self.before.as_slice())?.strip_suffix(self.after.as_slice())
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
        Scan::of(&Listing { prefix, limit, cursor: None, count: 10, now: Timestamp::EPOCH }).unwrap()
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
}
