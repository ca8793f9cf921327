//! Keys of buckets: their spaces, how they are written and read, and the numbers in them.
//!
//! A key consists of `version, algorithm, space, name, limit, actor`. The fields that identify the rule come first, so
//! one rule's buckets are one range of keys, and a changed limit has new buckets. Every field but the last has a
//! self-delimiting encoding, so no two buckets share a key. The prefix is the part that a rule's buckets share.

use divvy_core::algorithm::{CalendarWindow, CountBasis, Counter, Kind, Limit};
use divvy_core::calendar::Calendar;
use divvy_core::clock::NANOS_PER_SECOND;

/// First byte of every key. Another layout gets another number.
pub const VERSION: u8 = 1;

/// The kind of name that a bucket has. On disk, the spaces 4 to 15 are reserved for records of groups, reservations, leases,
/// limits of single actors, and idempotent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A rule of the rules file. The name is its operation.
    Rule = 0,
    /// A token bucket with a client's own limit. It has no name, and the client's key is the actor.
    TokenBucket = 1,
    /// A leaky bucket with a client's own limit, named in the same way.
    Throttle = 2,
    /// A counter with a name, which rules share. It counts the credits used. The key does not contain the number of
    /// credits.
    Named = 3,
    /// A rule that may be in a stack, in a Redis Cluster. The bucket is in the slot of its actor. Never on disk.
    SlotOfActor = 16,
    /// The same for an actor of several fields. The bucket is in the slot of the first field's value.
    SlotOfFirstField = 17,
    /// A counter with a name, in the slot of its actor.
    NamedInSlotOfActor = 18,
    /// The same for an actor of several fields, in the slot of the first field's value.
    NamedInSlotOfFirstField = 19,
    /// A fixed window with debt, in Redis. Never on disk. Windows of [`Space::Rule`] have names there that Button's
    /// Divvy reads, and must not be negative.
    Debt = 20,
    /// The same in the slot of its actor.
    DebtInSlotOfActor = 21,
    /// The same in the slot of the first field's value.
    DebtInSlotOfFirstField = 22,
    /// A client's own counter. It has no name, and the client's key is the actor.
    Counter = 23,
}

impl Space {
    /// The spaces of named counters.
    const NAMED: [Self; 3] = [Self::Named, Self::NamedInSlotOfActor, Self::NamedInSlotOfFirstField];
    const DEBT: [Self; 3] = [Self::Debt, Self::DebtInSlotOfActor, Self::DebtInSlotOfFirstField];
    const OTHERS: [Self; 6] =
        [Self::Rule, Self::TokenBucket, Self::Throttle, Self::SlotOfActor, Self::SlotOfFirstField, Self::Counter];
}

/// The byte that stands for calendar windows on disk, which are fixed windows otherwise.
const CALENDAR_WINDOW: u8 = 7;
/// The byte that stands for clients' counters on disk.
const COUNTER: u8 = 16;

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
    #[inline]
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
    // A lease counts against any limit, so that a changed limit does not grant as many leases again. A counter has no credits.
    if !matches!(limit, Limit::Concurrency(_) | Limit::Counter(_)) {
        write_number(out, limit.capacity());
    }
    if let (Limit::TokenBucket(_) | Limit::LeakyBucket(_), Some((refill, _))) = (limit, limit.rate()) {
        write_number(out, refill);
    }
    write_rhythm(out, limit);
}

/// Appends the fields before the limit.
fn write_head(out: &mut Vec<u8>, space: Space, pairs: &[(&str, &str)], limit: &Limit) {
    let tag = match limit {
        Limit::CalendarWindow(_) => CALENDAR_WINDOW,
        Limit::Counter(_) => COUNTER,
        limit => tag_of(limit.kind()),
    };
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

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The parts of a key, except its limit.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyParts<'a> {
    /// The kind of name.
    pub space: Space,
    /// The operation, sorted by key.
    pub pairs: Vec<(&'a str, &'a str)>,
    /// The actor, or a client's own key. Empty if the rule has one counter.
    pub actor: &'a [u8],
}

/// Decodes a key. Returns `None` if this module did not write it.
pub fn decode(key: &[u8]) -> Option<KeyParts<'_>> {
    let mut pairs = Vec::new();
    let (space, _, actor) = read(key, |key, value| pairs.push((key, value)), |_| None)?;
    Some(KeyParts { space, pairs, actor })
}

/// Returns a key without its actor, and the limit in it. For a named counter, leases and a client's counter, the limit only describes
/// the form of their states. The limit is `None` if this process does not have its calendar, because a client may have
/// invented the key.
///
/// Returns `None` if this module did not write the key.
pub fn split_limit(key: &[u8]) -> Option<(&[u8], Option<Limit>)> {
    let (_, limit, actor) = read(key, |_, _| (), Calendar::find)?;
    Some((key.strip_suffix(actor)?, limit))
}

/// Returns the same as [`split_limit`] for a key that a server has stored. Its calendar is loaded if no rule has loaded
/// it yet.
pub fn split_stored_limit(key: &[u8]) -> Option<(&[u8], Limit)> {
    let (_, limit, actor) = read(key, |_, _| (), Calendar::parse)?;
    Some((key.strip_suffix(actor)?, limit?))
}

/// Reads a key, and passes its pairs to `pair`. The limit is `None` if `find_calendar` does not find its calendar.
fn read<'a>(
    key: &'a [u8],
    mut pair: impl FnMut(&'a str, &'a str),
    find_calendar: impl FnOnce(&str) -> Option<Calendar>,
) -> Option<(Space, Option<Limit>, &'a [u8])> {
    let [VERSION, tag, space, rest @ ..] = key else { return None };
    let (tag, mut rest) = (*tag, rest);
    let mut spaces = Space::OTHERS.into_iter().chain(Space::NAMED).chain(Space::DEBT);
    let space = spaces.find(|known| *known as u8 == *space)?;
    for _ in 0..read_number(&mut rest)? {
        pair(read_text(&mut rest)?, read_text(&mut rest)?);
    }
    if tag == COUNTER {
        return Some((space, Some(Limit::Counter(Counter::default())), rest));
    }
    let is_named = Space::NAMED.contains(&space);
    let kind = Kind::ALL.into_iter().find(|kind| tag_of(*kind) == tag);
    // Named counters and leases have no credits in their keys.
    let credits = if is_named || kind == Some(Kind::Concurrency) { 1 } else { read_number(&mut rest)? };
    let limit = if tag == CALENDAR_WINDOW {
        let calendar = read_text(&mut rest).filter(|text| Calendar::is_text(text))?;
        find_calendar(calendar)
            .and_then(|calendar| CalendarWindow::new(credits, calendar.id()).ok())
            .map(Limit::CalendarWindow)
    } else {
        Some(read_limit(kind?, credits, is_named, &mut rest)?)
    };
    let limit = limit.map(|limit| if is_named { limit.counting(CountBasis::Used) } else { limit });
    Some((space, limit, rest))
}

/// Reads the rest of a limit, after its credits. The key of a named counter has no count of a leaky bucket, and may have a refill of 0.
fn read_limit(kind: Kind, credits: u64, is_named: bool, rest: &mut &[u8]) -> Option<Limit> {
    let mut number = || read_number(rest);
    let refill = match kind {
        Kind::TokenBucket => number()?.max(is_named.into()),
        Kind::LeakyBucket if !is_named => number()?,
        _ => 1,
    };
    let time_ns = if kind == Kind::Concurrency { NANOS_PER_SECOND } else { number()? };
    Limit::new(kind, credits, refill, time_ns).ok()
}

fn read_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    str::from_utf8(read_bytes(from)?).ok()
}

/// Appends a number.
#[inline]
pub fn write_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads a number at the front of `from`, and removes it.
#[inline]
pub fn read_number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads bytes at the front of `from`, preceded by their number, and removes them.
#[inline]
pub fn read_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(read_number(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::{CountBasis, FixedWindow, Kind, LeakyBucket, Limit, SlidingWindow, TokenBucket};
    use proptest::prelude::*;

    fn token_bucket() -> impl Strategy<Value = Limit> {
        (1..400u64, 1..400u64, 1..400u64).prop_map(|(capacity, refill, interval)| {
            Limit::TokenBucket(TokenBucket::new(capacity, refill, interval).unwrap())
        })
    }

    fn client_key(space: Space, limit: &Limit, key: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_client_key(space, limit, key, &mut out);
        out
    }

    #[test]
    fn named_counter_has_one_key_for_limits_that_differ_in_credits() {
        let fields = ["user".to_owned()];
        let key = |limit: Limit, refill| {
            let mut key = Vec::new();
            Prefix::named(Space::Named, "usage", &fields, None, &limit, refill).write_key("a", &mut key);
            let decoded = decode(&key).unwrap();
            assert_eq!((decoded.space, decoded.actor), (Space::Named, b"a".as_slice()));
            let (prefix, read) = split_stored_limit(&key).unwrap();
            assert_eq!(
                (prefix, read.kind(), read.count_basis()),
                (&key[..key.len() - 1], limit.kind(), CountBasis::Used)
            );
            key
        };
        let fixed = |credits, nanos| Limit::FixedWindow(FixedWindow::new(credits, nanos).unwrap());
        let sliding = |credits, nanos| Limit::SlidingWindow(SlidingWindow::new(credits, nanos).unwrap());
        let tokens = |credits, nanos| Limit::TokenBucket(TokenBucket::new(credits, credits, nanos).unwrap());
        let leaky = |capacity, count, nanos| Limit::LeakyBucket(LeakyBucket::new(capacity, count, nanos).unwrap());
        assert_eq!(key(fixed(5, 60), None), key(fixed(6, 60), None));
        assert_eq!(key(sliding(5, 60), None), key(sliding(6, 60), None));
        assert_eq!(key(tokens(5, 60), None), key(tokens(6, 60), None), "a refill brings all of them");
        assert_eq!(key(leaky(5, 5, 60), None), key(leaky(7, 6, 60), None));
        let keys = [
            key(fixed(5, 60), None),
            key(fixed(5, 61), None),
            key(sliding(5, 60), None),
            key(tokens(5, 60), None),
            key(tokens(5, 60), Some(5)),
            key(tokens(5, 61), None),
            key(leaky(5, 5, 60), None),
        ];
        let different: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn counter_has_one_key_for_all_bounds() {
        let usual = Limit::Counter(Counter::default());
        let bounded = Limit::Counter(Counter { lower: 3, saturates: true, ..Counter::default() });
        let key = client_key(Space::Counter, &bounded, b"a");
        assert_eq!(key, client_key(Space::Counter, &usual, b"a"));
        assert_eq!(decode(&key), Some(KeyParts { space: Space::Counter, pairs: vec![], actor: b"a" }));
        assert_eq!(split_stored_limit(&key), Some((&key[..key.len() - 1], usual)));
    }

    fn any_limit() -> impl Strategy<Value = Limit> {
        let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency).collect();
        (prop::sample::select(kinds), 1..1_000u64, 1..u64::MAX, 1..u64::MAX)
            .prop_map(|(kind, credits, refill, nanos)| Limit::new(kind, credits, refill, nanos).unwrap())
    }

    proptest! {
        #[test]
        fn key_reads_back(
            limit in any_limit(),
            pairs in prop::collection::vec((".{0,200}", ".{0,20}"), 0..5),
            actor in ".{0,20}",
        ) {
            let mut key = Vec::new();
            let borrowed = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let mut sorted: Vec<_> = borrowed.clone().collect();
            sorted.sort_unstable();
            Prefix::new(Space::Rule, borrowed, &limit).write_key(&actor, &mut key);
            let decoded = KeyParts { space: Space::Rule, pairs: sorted, actor: actor.as_bytes() };
            prop_assert_eq!(decode(&key), Some(decoded));
            let without_actor = &key[..key.len() - actor.len()];
            prop_assert_eq!(split_limit(&key), Some((without_actor, Some(limit))));
            prop_assert_eq!(split_stored_limit(&key), Some((without_actor, limit)));
        }

        #[test]
        fn client_key_reads_back(limit in any_limit(), actor in prop::collection::vec(any::<u8>(), 0..20)) {
            for space in [Space::Throttle, Space::TokenBucket] {
                let key = client_key(space, &limit, &actor);
                prop_assert_eq!(decode(&key), Some(KeyParts { space, pairs: vec![], actor: &actor }));
            }
        }

        #[test]
        fn decoding_foreign_keys_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut key = vec![VERSION, 1, 0];
            key.extend_from_slice(&bytes);
            if let Some(decoded) = decode(&key) {
                prop_assert!(bytes.ends_with(decoded.actor));
            }
        }

        #[test]
        fn two_buckets_have_two_keys(
            (one, other) in (token_bucket(), token_bucket()),
            (key, another) in (prop::collection::vec(any::<u8>(), 0..4), prop::collection::vec(any::<u8>(), 0..4)),
        ) {
            let same = client_key(Space::TokenBucket, &one, &key) == client_key(Space::TokenBucket, &other, &another);
            prop_assert_eq!(same, one == other && key == another);
        }
    }
}
