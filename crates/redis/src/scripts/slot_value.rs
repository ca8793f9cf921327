//! The value that determines the slot of a bucket in a Redis Cluster. Buckets with the same value share a slot.

use std::borrow::Cow;

use divvy_store::key::{KeyParts, Space};

/// Returns the value of the bucket's actor that determines its slot. `None` if the bucket shares its slot with no
/// other.
pub(super) fn slot_value<'a>(bucket: &KeyParts<'a>) -> Option<Cow<'a, [u8]>> {
    match bucket.space {
        Space::SlotOfActor | Space::NamedInSlotOfActor | Space::DebtInSlotOfActor => Some(Cow::Borrowed(bucket.actor)),
        Space::SlotOfFirstField | Space::NamedInSlotOfFirstField | Space::DebtInSlotOfFirstField => {
            Some(first_value(bucket.actor))
        }
        Space::Rule | Space::TokenBucket | Space::Throttle | Space::Named | Space::Debt => None,
    }
}

/// Returns the first value of an actor that has several fields: `a` of `tenant=a "a key"="b c"`. Strings are bare, or
/// in quotes with a backslash before each quote and backslash.
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

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::algorithm::{LeakyBucket, Limit};
    use divvy_store::key::{self, Prefix};

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
}
