//! The names of buckets in Redis.
//!
//! A rule's fixed window has the name that Divvy 1.7.1 gives it:
//! `divvy:<operation>:<actor>:<creditLimit>:<resetSeconds>`. The operation's pairs are sorted by key, as JavaScript
//! sorts texts (by UTF-16 unit), and joined with spaces. The name of any other bucket is `divvy.<algorithm>:` and the
//! bytes of its key. No name in the original begins like this.

use std::borrow::Cow;

use siphasher::sip128::SipHasher13;

use super::slot_value::slot_value;
use divvy_core::algorithm::{CountBasis, FixedWindow, Limit};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_store::key::{self, KeyParts, Space};

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
    for (place, (key, value)) in in_utf16_order(&bucket.pairs).iter().enumerate() {
        if place > 0 {
            name.push(b' ');
        }
        name.extend_from_slice(key.as_bytes());
        name.push(b'=');
        name.extend_from_slice(value.as_bytes());
    }
    name.push(b':');
}

/// Sorts the pairs of a bucket's key, which are in the order of their UTF-8 bytes. The order of UTF-16 units differs only between
/// a character beyond U+FFFF, which begins with a unit from 0xD800, and a character from U+E000 to U+FFFF.
fn in_utf16_order<'a>(pairs: &'a [(&'a str, &'a str)]) -> Cow<'a, [(&'a str, &'a str)]> {
    // The smallest first byte of characters from U+E000 on.
    const FIRST_BYTE: u8 = 0xEE;
    if pairs.iter().all(|(key, _)| key.bytes().all(|byte| byte < FIRST_BYTE)) {
        return Cow::Borrowed(pairs);
    }
    let mut sorted = pairs.to_vec();
    sorted.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
    Cow::Owned(sorted)
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

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::TokenBucket;
    use divvy_store::key::{Prefix, write_client_key};

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
    fn keys_are_sorted_by_utf_16_units_like_in_buttons_divvy() {
        // U+FFEE comes before U+10000 by code point, and after it by UTF-16 unit (0xD800 0xDC00).
        let pairs = [("\u{ffee}", "1"), ("\u{10000}", "2"), ("a", "3")];
        assert_eq!(window_name(&pairs, NANOS_PER_SECOND, ""), "divvy:a=3 \u{10000}=2 \u{ffee}=1::5:1");
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
}
