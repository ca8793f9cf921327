//! The names of keys in Redis: buckets, their reservations, and the records of reservations and idempotent requests.
//!
//! A rule's fixed window has the name that Divvy 1.7.1 gives it:
//! `divvy:<operation>:<actor>:<creditLimit>:<resetSeconds>`. The operation's pairs are sorted by key, and joined
//! with spaces. The name of any other bucket is `divvy.<algorithm>:` and the
//! bytes of its key. No name in the original begins like this.
//!
//! In a Redis Cluster, buckets whose actors have the same value share a slot: see [`slot_value`].
//!
//! The reserved credits of a bucket have a key of their own, so that the original Divvy, and servers that do not
//! support reservations, still read the bucket. The key holds credits by their ends, and expires with the last of them.
//! Every script on a bucket subtracts them. In addition, each reservation and each idempotent request has a record with
//! a key of its own, which expires when it may be forgotten. Only Redis's memory bounds their number.
//!
//! The name of the key with reservations is derived from the bucket's name, so a script needs no further argument for
//! it. A hit must not name both keys: while a slot moves to another node, a cluster would refuse the hit (`TRYAGAIN`),
//! because most buckets have only one of the two. In a cluster, these keys begin with the tag of their slot, which the
//! script gets as an argument. Asks with records name all of their keys, and are refused while the slot moves.

use std::borrow::Cow;

use siphasher::sip128::SipHasher13;

use crate::topology::Layout;
use crate::topology::cluster::tag_of;
use divvy_core::algorithm::{CountBasis, FixedWindow, Limit};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::read_pair;
use divvy_store::Action;
use divvy_store::key::{self, KeyParts, Space};
use divvy_store::record_key::RecordSpace;

/// Prefix of the key with a bucket's reservations. The bucket's name follows.
pub const RESERVED: &str = "divvy.reserved:";
/// Prefixes of the keys of records.
const RESERVATION: &[u8] = b"divvy.reservation:";
const ANSWER: &[u8] = b"divvy.verdict:";

/// Returns the window's name, if the bucket is a rule's fixed window.
pub fn window(bucket: &[u8], limit: &Limit) -> Option<Vec<u8>> {
    let Limit::FixedWindow(window) = limit else { return None };
    let bucket = key::decode(bucket).filter(is_of_a_rule)?;
    let mut name = Vec::with_capacity(96);
    write_tag(&bucket, &mut name);
    write_operation(&bucket, &mut name);
    name.extend_from_slice(bucket.actor);
    write_numbers(window, &mut name);
    Some(name)
}

/// Returns the name of any other bucket.
pub fn other(bucket: &[u8], limit: &Limit) -> Vec<u8> {
    let mut name = Vec::with_capacity(64 + bucket.len());
    if let Some(bucket) = key::decode(bucket) {
        write_tag(&bucket, &mut name);
    }
    name.extend([b"divvy.".as_slice(), limit.kind().name().as_bytes(), b":", bucket].concat());
    name
}

fn is_of_a_rule(bucket: &KeyParts) -> bool {
    matches!(bucket.space, Space::Rule | Space::SlotOfActor | Space::SlotOfFirstField)
}

/// Writes `{0123456789abcdef}` before the name of a bucket that must share a cluster's slot with others. This is a hash
/// of the value that they have in common, because bytes from clients could contain braces. The hash is the same on all
/// servers and in all versions.
fn write_tag(bucket: &KeyParts, name: &mut Vec<u8>) {
    if let Some(value) = slot_value(bucket) {
        let hash = SipHasher13::new_with_keys(0, 0).hash(&value);
        name.extend_from_slice(format!("{{{:016x}}}", hash.h1).as_bytes());
    }
}

/// Returns the length of the tag at the start of the names of a rule's buckets, or 0 if they have no tag. `prefix` is
/// the prefix of their keys.
pub fn tag_length(prefix: &[u8]) -> usize {
    let has_tag = key::decode(prefix).is_some_and(|bucket| slot_value(&bucket).is_some());
    if has_tag { "{0123456789abcdef}".len() } else { 0 }
}

/// Returns the parts before and after the actor in the names of a rule's buckets, without a tag. `prefix` is the prefix of their
/// keys.
pub fn around_actor(prefix: &[u8], limit: &Limit) -> (Vec<u8>, Vec<u8>) {
    match (limit, key::decode(prefix)) {
        (Limit::FixedWindow(window), Some(bucket)) if is_of_a_rule(&bucket) => {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            write_operation(&bucket, &mut before);
            write_numbers(window, &mut after);
            (before, after)
        }
        _ => (other(prefix, limit).split_off(tag_length(prefix)), Vec::new()),
    }
}

/// Writes `divvy:<operation>:`.
fn write_operation(bucket: &KeyParts, name: &mut Vec<u8>) {
    name.extend_from_slice(b"divvy:");
    for (place, (key, value)) in bucket.pairs.iter().enumerate() {
        let before = if place > 0 { " " } else { "" };
        [before, key, "=", value].into_iter().for_each(|part| name.extend_from_slice(part.as_bytes()));
    }
    name.push(b':');
}

/// Writes `:<creditLimit>:<resetSeconds>`. The limit is always the rule's own, even if the actor has another limit. The seconds
/// are as JavaScript prints numbers: without a point if they are whole, and without superfluous zeros.
fn write_numbers(window: &FixedWindow, name: &mut Vec<u8>) {
    let credits = if let CountBasis::LeftOf(credits) = window.basis { credits } else { window.credits };
    let nanos = window.window_ns.get();
    let (whole, rest) = (nanos / NANOS_PER_SECOND, nanos % NANOS_PER_SECOND);
    name.extend_from_slice(format!(":{credits}:{whole}").as_bytes());
    if rest > 0 {
        name.extend_from_slice(format!(".{rest:09}").trim_end_matches('0').as_bytes());
    }
}

/// Returns the value of the bucket's actor that determines its slot. `None` if the bucket shares its slot with no
/// other.
pub(super) fn slot_value<'a>(bucket: &KeyParts<'a>) -> Option<Cow<'a, [u8]>> {
    match bucket.space {
        Space::SlotOfActor | Space::NamedInSlotOfActor | Space::DebtInSlotOfActor => Some(Cow::Borrowed(bucket.actor)),
        Space::SlotOfFirstField | Space::NamedInSlotOfFirstField | Space::DebtInSlotOfFirstField => {
            let mut actor = bucket.actor;
            Some(read_pair(&mut actor).map(|[_, value]| value).unwrap_or_default())
        }
        Space::Rule | Space::TokenBucket | Space::Throttle | Space::Counter | Space::Named | Space::Debt => None,
    }
}

/// Returns the name of the action's record, which has this key, without a tag. Returns `None` if the action has no record.
pub fn record(action: Action, key: &[u8]) -> Option<Vec<u8>> {
    let prefix = match action.record_space()? {
        RecordSpace::Reservations => RESERVATION,
        RecordSpace::Answers => ANSWER,
    };
    Some([prefix, key].concat())
}

/// Returns the keys of a call on the bucket with this name, whose asks have records with these names. Without records, the script
/// of a cluster gets the tag of the bucket's slot as its last argument.
pub fn keys(bucket: Vec<u8>, records: &[Vec<u8>], layout: Layout, arguments: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let tag = if layout == Layout::Cluster { tag_of(&bucket) } else { String::new() };
    if records.is_empty() {
        if !tag.is_empty() {
            arguments.push(tag.into());
        }
        return vec![bucket];
    }
    let reserved = [tag.as_bytes(), RESERVED.as_bytes(), &bucket].concat();
    let records = records.iter().map(|record| [tag.as_bytes(), record].concat());
    [bucket, reserved].into_iter().chain(records).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::{LeakyBucket, Limit, TokenBucket};
    use divvy_store::key::{self, Prefix, write_client_key};

    fn bucket(pairs: &[(&str, &str)], limit: &Limit, actor: &str) -> Vec<u8> {
        let mut bucket = Vec::new();
        Prefix::new(Space::Rule, pairs.iter().copied(), limit).write_key(actor, &mut bucket);
        bucket
    }

    fn window_name(pairs: &[(&str, &str)], nanos: u64, actor: &str) -> String {
        let limit = Limit::FixedWindow(FixedWindow::new(5, nanos).unwrap());
        String::from_utf8(window(&bucket(pairs, &limit, actor), &limit).unwrap()).unwrap()
    }

    #[test]
    fn fixed_window_of_a_rule_has_its_name_from_buttons_divvy() {
        let pairs = [("path", "/x y"), ("method", "GET")];
        assert_eq!(window_name(&pairs, 60 * NANOS_PER_SECOND, "1.2.3.4"), "divvy:method=GET path=/x y:1.2.3.4:5:60");
        assert_eq!(window_name(&[], NANOS_PER_SECOND, ""), "divvy:::5:1");
        assert_eq!(window_name(&[], NANOS_PER_SECOND / 4, "é"), "divvy::é:5:0.25");
    }

    #[test]
    fn buckets_that_share_a_slot_have_the_hash_of_a_value_as_their_tag() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, NANOS_PER_SECOND).unwrap());
        let tokens = Limit::TokenBucket(TokenBucket::new(1, 1, 1).unwrap());
        let key = |space, limit: &Limit, actor: &str| {
            let mut key = Vec::new();
            Prefix::new(space, [("a", "*")], limit).write_key(actor, &mut key);
            key
        };
        let by_one = window(&key(Space::SlotOfActor, &limit, "{x}y"), &limit).unwrap();
        assert_eq!(String::from_utf8(by_one.clone()).unwrap(), "{f2fe95a29960e9ab}divvy:a=*:{x}y:5:1");
        let by_two = other(&key(Space::SlotOfFirstField, &tokens, "tenant={x}y key=z"), &tokens);
        let tag = tag_length(&key(Space::SlotOfActor, &limit, ""));
        assert_eq!((tag, &by_two[..tag]), (18, &by_one[..tag]));
        let (before, after) = around_actor(&key(Space::SlotOfActor, &limit, ""), &limit);
        assert_eq!([before, after], [b"divvy:a=*:".to_vec(), b":5:1".to_vec()]);
        assert!(
            around_actor(&key(Space::SlotOfFirstField, &tokens, ""), &tokens).0.starts_with(b"divvy.token-bucket:")
        );
    }

    #[test]
    fn no_other_bucket_has_a_name_from_buttons_divvy() {
        let limit = Limit::TokenBucket(TokenBucket::new(1, 1, 1).unwrap());
        let rule = bucket(&[("a", "b")], &limit, "actor");
        assert_eq!(window(&rule, &limit), None);
        assert_eq!(other(&rule, &limit), [b"divvy.token-bucket:", rule.as_slice()].concat());
        let fixed = Limit::FixedWindow(FixedWindow::new(5, 1).unwrap());
        let mut client = Vec::new();
        write_client_key(Space::Throttle, &fixed, b"\0\xff", &mut client);
        assert_eq!(window(&client, &fixed), None, "a client's own bucket");
        assert_eq!(window(b"no key", &fixed), None);
    }

    #[test]
    fn buckets_with_the_same_first_value_share_a_slot() {
        let limit = Limit::LeakyBucket(LeakyBucket::new(9, 4, 70).unwrap());
        let slot = |space, actor: &str| {
            let mut key = Vec::new();
            Prefix::new(space, [("tenant", "*")], &limit).write_key(actor, &mut key);
            slot_value(&key::decode(&key).unwrap()).map(|value| String::from_utf8(value.into_owned()).unwrap())
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

    /// Returns the keys, and the number of arguments.
    fn names(bucket: &str, layout: Layout, records: &[&str]) -> (Vec<String>, usize) {
        let records: Vec<_> = records.iter().map(|record| record.as_bytes().to_vec()).collect();
        let mut arguments = Vec::new();
        let keys = keys(bucket.into(), &records, layout, &mut arguments);
        (keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect(), arguments.len())
    }

    #[test]
    fn all_keys_are_in_the_slot_of_the_bucket_and_a_hit_names_only_its_bucket() {
        let bucket = "{user1000}divvy:a=b:c:5:60";
        let one = names(bucket, Layout::OneServer, &["divvy.reservation:r", "divvy.verdict:s"]);
        let reserved = "divvy.reserved:{user1000}divvy:a=b:c:5:60";
        assert_eq!(one.0, [bucket, reserved, "divvy.reservation:r", "divvy.verdict:s"]);
        let tagged = names(bucket, Layout::Cluster, &["divvy.reservation:r"]);
        assert_eq!(
            tagged.0,
            [bucket.to_owned(), format!("{{8583}}{reserved}"), "{8583}divvy.reservation:r".to_owned()]
        );
        assert_eq!((one.1, tagged.1), (0, 0));
        assert_eq!(names(bucket, Layout::OneServer, &[]), (vec![bucket.to_owned()], 0));
        assert_eq!(names(bucket, Layout::Cluster, &[]), (vec![bucket.to_owned()], 1), "the tag");
    }
}
