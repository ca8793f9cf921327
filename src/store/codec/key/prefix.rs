//! Writes keys.

use super::space::Space;
use crate::algorithm::{Kind, Limit};
use crate::calendar::Calendar;
use crate::store::codec::version::VERSION;

/// Everything of a key but the actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(Box<[u8]>);

impl Prefix {
    /// The prefix of the buckets that `pairs` (an operation, in any order) names under `limit`.
    pub fn new<'a>(space: Space, pairs: impl IntoIterator<Item = (&'a str, &'a str)>, limit: &Limit) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_unstable();
        let mut bytes = Vec::new();
        write_prefix(&mut bytes, space, &pairs, limit);
        Self(bytes.into())
    }

    /// The prefix of the counters called `name`, which these fields make actors of. Of the limit, only what does not depend
    /// on its credits is part of it; `refill` is how much a token bucket's refill brings, if not all of them.
    ///
    /// `space` is one of those of counters with names.
    pub fn named(space: Space, name: &str, actor_fields: &[String], limit: &Limit, refill: Option<u64>) -> Self {
        let fields = actor_fields.iter().map(|field| ("actorField", field.as_str()));
        let pairs: Vec<_> = std::iter::once(("counter", name)).chain(fields).collect();
        let mut bytes = Vec::new();
        write_head(&mut bytes, space, &pairs, limit);
        if matches!(limit, Limit::TokenBucket(_)) {
            write_number(&mut bytes, refill.unwrap_or(0));
        }
        write_rhythm(&mut bytes, limit);
        Self(bytes.into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends the whole key of `actor`'s bucket to `out`.
    pub fn write_key(&self, actor: impl AsRef<[u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
        out.extend_from_slice(actor.as_ref());
    }
}

/// Appends the whole key of the bucket that a client calls `key` and limits by itself.
///
/// Such a key is made for each request, so it is written where it is needed and allocates nothing of its own.
pub fn write_client_key(space: Space, limit: &Limit, key: &[u8], out: &mut Vec<u8>) {
    write_prefix(out, space, &[], limit);
    out.extend_from_slice(key);
}

fn write_prefix(out: &mut Vec<u8>, space: Space, pairs: &[(&str, &str)], limit: &Limit) {
    write_head(out, space, pairs, limit);
    // Leases are held under any limit: a change of the limit must not hand out as many again.
    if limit.kind() != Kind::Concurrency {
        write_number(out, limit.capacity());
    }
    if let (Limit::TokenBucket(_) | Limit::LeakyBucket(_), Some((refill, _))) = (limit, limit.rate()) {
        write_number(out, refill);
    }
    write_rhythm(out, limit);
}

/// What stands before the limit.
fn write_head(out: &mut Vec<u8>, space: Space, pairs: &[(&str, &str)], limit: &Limit) {
    out.extend_from_slice(&[VERSION, algorithm_tag(limit), space as u8]);
    write_number(out, pairs.len() as u64);
    for (key, value) in pairs {
        write_text(out, key);
        write_text(out, value);
    }
}

/// Appends when credits come back.
fn write_rhythm(out: &mut Vec<u8>, limit: &Limit) {
    if let Limit::CalendarWindow(limit) = limit {
        // Only a number that was never given out has no calendar.
        let calendar = Calendar::of(limit.calendar).map(|calendar| calendar.to_string());
        write_text(out, &calendar.unwrap_or_default());
    } else if let Some((_, time_ns)) = limit.rate() {
        write_number(out, time_ns);
    }
}

/// The byte that tells the algorithms apart on disk; never reuse one. 8 to 15 are reserved.
fn algorithm_tag(limit: &Limit) -> u8 {
    match limit {
        Limit::FixedWindow(_) => 1,
        Limit::SlidingWindow(_) => 2,
        Limit::SlidingLog(_) => 3,
        Limit::TokenBucket(_) => 4,
        Limit::LeakyBucket(_) => 5,
        Limit::Concurrency(_) => 6,
        Limit::CalendarWindow(_) => 7,
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// An unsigned LEB128 number: seven bits a byte, the lowest first, the high bit set on all but the last.
fn write_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
