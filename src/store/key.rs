//! Bucket keys: the bytes under which a bucket is remembered.
//!
//! `version, algorithm, space, name, limit, actor`: everything that identifies the rule comes first and the actor last,
//! so one rule's buckets are one range of keys, and a change of a limit makes another bucket. Every field but the last
//! is self-delimiting, so no two buckets share a key. Nothing here knows how a bucket is stored.

use std::borrow::Cow;

use crate::algorithm::{
    CalendarWindow, Concurrency, FixedWindow, Kind, LeakyBucket, Limit, SlidingLog, SlidingWindow, Tally, TokenBucket,
};
use crate::calendar::Calendar;

/// Begins every key: the layout of keys and values. Another layout gets another number.
const VERSION: u8 = 1;

/// Who names the buckets. On disk the spaces 4 to 15 are reserved: for records of groups, reservations, leases, limits of
/// single actors, and requests that may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A rule of the rules file: the name is its operation.
    Rule = 0,
    /// A client that brings its own token bucket: without a name, the client's key is the actor.
    TokenBucket = 1,
    /// A client that brings its own leaky bucket: likewise.
    Throttle = 2,
    /// Counters with a name, which rules share: they count what was used, and their credits are no part of the key.
    Named = 3,
    /// A rule that may be in a stack, in a Redis Cluster, never on disk: the bucket is in the slot of its actor,
    SlotOfActor = 16,
    /// or, when that is made of several fields, in that of the first field's value.
    SlotOfFirstField = 17,
    /// Counters with a name, in a Redis Cluster: as those of rules.
    NamedInSlotOfActor = 18,
    NamedInSlotOfFirstField = 19,
    /// A fixed window with debt, in Redis, never on disk. Those of [`Space::Rule`] have the original's names there, and what
    /// the original takes for one must not be below 0 as a rule.
    Debt = 20,
    DebtInSlotOfActor = 21,
    DebtInSlotOfFirstField = 22,
}

impl Space {
    const ALL: [Self; 11] = [
        Self::Rule,
        Self::TokenBucket,
        Self::Throttle,
        Self::Named,
        Self::SlotOfActor,
        Self::SlotOfFirstField,
        Self::NamedInSlotOfActor,
        Self::NamedInSlotOfFirstField,
        Self::Debt,
        Self::DebtInSlotOfActor,
        Self::DebtInSlotOfFirstField,
    ];

    fn is_named(self) -> bool {
        matches!(self, Self::Named | Self::NamedInSlotOfActor | Self::NamedInSlotOfFirstField)
    }
}

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

/// A key taken apart: everything but the limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    pub space: Space,
    /// The operation, sorted by key.
    pub pairs: Vec<(&'a str, &'a str)>,
    pub actor: &'a [u8],
}

/// Takes a key apart; `None` when this module did not write it.
pub fn decode(key: &[u8]) -> Option<Decoded<'_>> {
    let mut pairs = Vec::new();
    let (space, _, actor) = read(key, |key, value| pairs.push((key, value)))?;
    Some(Decoded { space, pairs, actor })
}

impl Decoded<'_> {
    /// What decides about the bucket's slot in a Redis Cluster, where it shares one with others: a value of its actor.
    pub fn slot(&self) -> Option<Cow<'_, [u8]>> {
        match self.space {
            Space::SlotOfActor | Space::NamedInSlotOfActor | Space::DebtInSlotOfActor => {
                Some(Cow::Borrowed(self.actor))
            }
            Space::SlotOfFirstField | Space::NamedInSlotOfFirstField | Space::DebtInSlotOfFirstField => {
                Some(first_value(self.actor))
            }
            Space::Rule | Space::TokenBucket | Space::Throttle | Space::Named | Space::Debt => None,
        }
    }
}

/// The first value of an actor that is made of several fields: `a` of `tenant=a "a key"="b c"`. Strings are bare, or in
/// quotes with a backslash before each quote and backslash.
fn first_value(actor: &[u8]) -> Cow<'_, [u8]> {
    let mut rest = actor;
    read_string(&mut rest);
    rest = rest.strip_prefix(b"=").unwrap_or(rest);
    read_string(&mut rest)
}

fn read_string<'a>(from: &mut &'a [u8]) -> Cow<'a, [u8]> {
    let Some(quoted) = from.strip_prefix(b"\"") else {
        let end = from.iter().position(|byte| matches!(byte, b'=' | b' ')).unwrap_or(from.len());
        let (bare, rest) = from.split_at(end);
        *from = rest;
        return Cow::Borrowed(bare);
    };
    let mut string = Vec::new();
    let mut bytes = quoted.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => break,
            b'\\' => string.extend(bytes.next()),
            byte => string.push(*byte),
        }
    }
    *from = bytes.as_slice();
    Cow::Owned(string)
}

/// A key without its actor, and the limit in it. For a named counter and for leases, the limit says only what their states
/// look like. The limit is `None` if its calendar is not known in this process: a client may have made the key up.
///
/// Returns `None` if this module did not write the key.
pub fn split_limit(key: &[u8]) -> Option<(&[u8], Option<Limit>)> {
    let (space, limit, actor) = read(key, |_, _| ())?;
    Some((key.strip_suffix(actor)?, limit.find(space, Calendar::find)))
}

/// Like [`split_limit`], for a key that a server has stored: its calendar is loaded if no rule has done so yet.
pub fn split_stored_limit(key: &[u8]) -> Option<(&[u8], Limit)> {
    let (space, limit, actor) = read(key, |_, _| ())?;
    Some((key.strip_suffix(actor)?, limit.find(space, Calendar::parse)?))
}

/// A limit as a key has it.
enum KeyLimit<'a> {
    Whole(Limit),
    /// The calendar's text, which may name no calendar.
    OfCalendar {
        credits: u64,
        calendar: &'a str,
    },
}

impl KeyLimit<'_> {
    fn find(self, space: Space, find_calendar: impl FnOnce(&str) -> Option<Calendar>) -> Option<Limit> {
        let limit = match self {
            Self::Whole(limit) => limit,
            Self::OfCalendar { credits, calendar } => {
                Limit::CalendarWindow(CalendarWindow::new(credits, find_calendar(calendar)?.id()).ok()?)
            }
        };
        Some(if space.is_named() { limit.counting(Tally::Used) } else { limit })
    }
}

/// Reads a key, giving its pairs to `pair`.
fn read<'a>(key: &'a [u8], mut pair: impl FnMut(&'a str, &'a str)) -> Option<(Space, KeyLimit<'a>, &'a [u8])> {
    let [VERSION, algorithm, space, rest @ ..] = key else { return None };
    let space = Space::ALL.into_iter().find(|known| *known as u8 == *space)?;
    let mut rest = rest;
    for _ in 0..read_number(&mut rest)? {
        pair(read_text(&mut rest)?, read_text(&mut rest)?);
    }
    let is_named = space.is_named();
    // A named counter has no credits in its key.
    let credits = if is_named || *algorithm == 6 { 1 } else { read_number(&mut rest)? };
    let limit = if *algorithm == 7 {
        let calendar = read_text(&mut rest).filter(|text| Calendar::is_text(text))?;
        KeyLimit::OfCalendar { credits, calendar }
    } else {
        KeyLimit::Whole(read_limit(*algorithm, credits, is_named, &mut rest)?)
    };
    Some((space, limit, rest))
}

/// Reads the rest of a limit after its credits. A named counter's key has no leaky bucket's count, and may have a refill of 0.
fn read_limit(algorithm: u8, credits: u64, is_named: bool, rest: &mut &[u8]) -> Option<Limit> {
    let mut number = || read_number(rest);
    Some(match algorithm {
        1 => Limit::FixedWindow(FixedWindow::new(credits, number()?).ok()?),
        2 => Limit::SlidingWindow(SlidingWindow::new(credits, number()?).ok()?),
        3 => Limit::SlidingLog(SlidingLog::new(credits, number()?).ok()?),
        4 => {
            let refill = number()?.max(is_named.into());
            Limit::TokenBucket(TokenBucket::new(credits, refill, number()?).ok()?)
        }
        5 => {
            let count = if is_named { 1 } else { number()? };
            Limit::LeakyBucket(LeakyBucket::new(credits, count, number()?).ok()?)
        }
        6 => Limit::Concurrency(Concurrency::new(1, 1).ok()?),
        _ => return None,
    })
}

fn read_text<'a>(from: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::try_from(read_number(from)?).ok()?;
    let (text, rest) = from.split_at_checked(length)?;
    *from = rest;
    str::from_utf8(text).ok()
}

fn read_number(from: &mut &[u8]) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use super::*;
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
    fn buckets_with_the_same_first_value_share_a_slot_however_it_is_written() {
        let limit = Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap());
        let slot = |space, actor: &str| {
            let mut key = Vec::new();
            Prefix::new(space, [("tenant", "*")], &limit).write_key(actor, &mut key);
            decode(&key).unwrap().slot().map(|value| String::from_utf8(value.into_owned()).unwrap())
        };
        assert_eq!(slot(Space::Rule, "a"), None);
        for (value, actor) in [
            ("a", "tenant=a key=b"),
            ("a b", r#"tenant="a b" key=b"#),
            ("x=\"y\\", r#""the tenant"="x=\"y\\" key=b"#),
            ("", "tenant= key=b"),
            ("{a}", "tenant={a}"),
        ] {
            assert_eq!(slot(Space::SlotOfFirstField, actor).as_deref(), Some(value), "{actor}");
            assert_eq!(slot(Space::SlotOfActor, value).as_deref(), Some(value));
        }
        for odd in ["", "=", "\"", "a", "a=\"\\"] {
            assert!(slot(Space::SlotOfFirstField, odd).is_some());
        }
    }

    #[test]
    fn a_counter_with_a_name_has_the_same_key_under_every_limit_of_its_rhythm() {
        let fields = ["user".to_owned()];
        let key = |limit: Limit, refill| {
            let mut key = Vec::new();
            Prefix::named(Space::Named, "usage", &fields, &limit, refill).write_key("a", &mut key);
            let decoded = decode(&key).unwrap();
            assert_eq!((decoded.space, decoded.actor), (Space::Named, b"a".as_slice()));
            let (prefix, read) = split_stored_limit(&key).unwrap();
            assert_eq!((prefix, read.kind(), read.tally()), (&key[..key.len() - 1], limit.kind(), Tally::Used));
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
    fn a_client_s_bucket_is_no_rule_s_and_no_other_space_s() {
        let limit = Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap());
        let mut rule = Vec::new();
        Prefix::new(Space::Rule, [], &limit).write_key("key", &mut rule);
        let [tokens, throttle] = [Space::TokenBucket, Space::Throttle].map(|space| client_key(space, &limit, b"key"));
        assert!(rule != tokens && tokens != throttle && throttle != rule);
    }

    fn any_limit() -> impl Strategy<Value = Limit> {
        (0..5, 1..1_000u64, 1..u64::MAX, 1..u64::MAX).prop_map(|(which, credits, number, nanos)| match which {
            0 => Limit::FixedWindow(FixedWindow::new(credits, nanos).unwrap()),
            1 => Limit::SlidingWindow(SlidingWindow::new(credits, nanos).unwrap()),
            2 => Limit::SlidingLog(SlidingLog::new(credits, nanos).unwrap()),
            3 => Limit::TokenBucket(TokenBucket::new(credits, number, nanos).unwrap()),
            _ => Limit::LeakyBucket(LeakyBucket::new(credits, number, nanos).unwrap()),
        })
    }

    proptest! {
        #[test]
        fn a_key_reads_back(
            limit in any_limit(),
            pairs in prop::collection::vec((".{0,200}", ".{0,20}"), 0..5),
            actor in ".{0,20}",
        ) {
            let mut key = Vec::new();
            let borrowed = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()));
            let mut sorted: Vec<_> = borrowed.clone().collect();
            sorted.sort_unstable();
            Prefix::new(Space::Rule, borrowed, &limit).write_key(&actor, &mut key);
            let decoded = Decoded { space: Space::Rule, pairs: sorted, actor: actor.as_bytes() };
            prop_assert_eq!(decode(&key), Some(decoded));
            let without_actor = &key[..key.len() - actor.len()];
            prop_assert_eq!(split_limit(&key), Some((without_actor, Some(limit))));
            prop_assert_eq!(split_stored_limit(&key), Some((without_actor, limit)));
        }

        #[test]
        fn a_client_s_key_reads_back(limit in any_limit(), actor in prop::collection::vec(any::<u8>(), 0..20)) {
            let key = client_key(Space::Throttle, &limit, &actor);
            prop_assert_eq!(decode(&key), Some(Decoded { space: Space::Throttle, pairs: vec![], actor: &actor }));
        }

        #[test]
        fn foreign_bytes_are_no_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
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
