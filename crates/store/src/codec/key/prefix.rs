//! Writes keys. The prefix is the part that a rule's buckets share.

use super::space::Space;
use crate::codec::leb128::write_number;
use crate::codec::version::VERSION;
use divvy_core::algorithm::{Kind, Limit};
use divvy_core::calendar::Calendar;

/// The byte that stands for calendar windows on disk, which are fixed windows otherwise.
pub(super) const CALENDAR_WINDOW: u8 = 7;

/// A key without its actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix(Box<[u8]>);

impl Prefix {
    /// Returns the prefix of a rule's buckets. `pairs` are its operation, in any order.
    pub fn new<'a>(space: Space, pairs: impl IntoIterator<Item = (&'a str, &'a str)>, limit: &Limit) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_unstable();
        let mut bytes = Vec::new();
        write_prefix(&mut bytes, space, &pairs, limit);
        Self(bytes.into())
    }

    /// Returns the prefix of the named counters `name`, in a space for such counters. Their actors have these fields. One field
    /// may be counted by networks, as `actorPrefix` says.
    /// Only the parts of the limit that do not depend on its credits are in the prefix. `refill` is the size of a token
    /// bucket's refill, if it does not refill the whole bucket.
    pub fn named(
        space: Space,
        name: &str,
        actor_fields: &[String],
        actor_prefix: Option<&str>,
        limit: &Limit,
        refill: Option<u64>,
    ) -> Self {
        let fields = actor_fields.iter().map(|field| ("actorField", field.as_str()));
        let networks = actor_prefix.map(|prefix| ("actorPrefix", prefix));
        let pairs: Vec<_> = std::iter::once(("counter", name)).chain(fields).chain(networks).collect();
        let mut bytes = Vec::new();
        write_head(&mut bytes, space, &pairs, limit);
        if matches!(limit, Limit::TokenBucket(_)) {
            write_number(&mut bytes, refill.unwrap_or(0));
        }
        write_rhythm(&mut bytes, limit);
        Self(bytes.into())
    }

    /// Returns the bytes that every key of the rule begins with.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends the key of `actor`'s bucket to `out`.
    pub fn write_key(&self, actor: impl AsRef<[u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
        out.extend_from_slice(actor.as_ref());
    }
}

/// Appends the key of a bucket whose limit and name, `key`, come from the client.
///
/// Every request writes such a key, so this allocates nothing.
pub fn write_client_key(space: Space, limit: &Limit, key: &[u8], out: &mut Vec<u8>) {
    write_prefix(out, space, &[], limit);
    out.extend_from_slice(key);
}

fn write_prefix(out: &mut Vec<u8>, space: Space, pairs: &[(&str, &str)], limit: &Limit) {
    write_head(out, space, pairs, limit);
    // A lease counts against any limit, so that a changed limit does not grant as many leases again.
    if limit.kind() != Kind::Concurrency {
        write_number(out, limit.capacity());
    }
    if let (Limit::TokenBucket(_) | Limit::LeakyBucket(_), Some((refill, _))) = (limit, limit.rate()) {
        write_number(out, refill);
    }
    write_rhythm(out, limit);
}

/// Appends the fields before the limit.
fn write_head(out: &mut Vec<u8>, space: Space, pairs: &[(&str, &str)], limit: &Limit) {
    let tag = if matches!(limit, Limit::CalendarWindow(_)) { CALENDAR_WINDOW } else { tag_of(limit.kind()) };
    out.extend_from_slice(&[VERSION, tag, space as u8]);
    write_number(out, pairs.len() as u64);
    for (key, value) in pairs {
        write_text(out, key);
        write_text(out, value);
    }
}

/// Appends the time until credits come back: a window, or the interval of a refill.
fn write_rhythm(out: &mut Vec<u8>, limit: &Limit) {
    if let Limit::CalendarWindow(limit) = limit {
        // Every id that was issued has a calendar.
        let calendar = Calendar::of(limit.calendar).map(|calendar| calendar.to_string());
        write_text(out, &calendar.unwrap_or_default());
    } else if let Some((_, time_ns)) = limit.rate() {
        write_number(out, time_ns);
    }
}

/// Returns the byte that stands for the algorithm on disk. Never reuse one. 8 to 15 are reserved.
fn tag_of(kind: Kind) -> u8 {
    match kind {
        Kind::FixedWindow => 1,
        Kind::SlidingWindow => 2,
        Kind::SlidingLog => 3,
        Kind::TokenBucket => 4,
        Kind::LeakyBucket => 5,
        Kind::Concurrency => 6,
    }
}

/// Returns the algorithm with this byte; `None` for an unknown one and that of calendar windows.
pub(super) fn kind_of(tag: u8) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| tag_of(*kind) == tag)
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}
