//! Records of limits of single actors in the database.
//!
//! A key is the layout's version, the rule's label, a zero byte and the actor; a value is when the limit expires
//! (nanoseconds since 1970, all bits set: never) and its credits, both little-endian.

use super::database::Database;
use crate::clock::Timestamp;
use crate::store::contract::{ActorLimit, LIMITS_PER_PAGE, LimitChange, LimitCursor, LimitPage, StoreError};

/// First byte of every key: the version of the layout of keys and values.
const VERSION: u8 = 1;

/// Makes the changes, with `sync` on stable storage. Without it, a removed limit may be back after a power cut.
pub fn write(database: &Database, changes: &[LimitChange], sync: bool) -> Result<(), StoreError> {
    database.write_limits(changes.iter().map(|change| (key(change), change.limit.map(value))), sync)
}

/// Reads the page of limits after `known`, in the order of their keys. The page is empty if `known` covers all limits.
pub fn read(database: &Database, known: &LimitCursor) -> Result<LimitPage, StoreError> {
    let after = match known {
        LimitCursor::Nothing => None,
        LimitCursor::Key(key) => Some(&**key),
        LimitCursor::All | LimitCursor::Change { .. } => return Ok(LimitPage::nothing(LimitCursor::All)),
    };
    let mut limits = database.limits(after);
    let changes = limits.by_ref().take(LIMITS_PER_PAGE).map(|limit| {
        let (key, value) = limit?;
        decode(&key, &value).ok_or_else(|| StoreError::new("the record of an actor's limit is malformed"))
    });
    let changes: Vec<_> = changes.collect::<Result<_, _>>()?;
    let is_last = limits.next().is_none();
    let known = match changes.last() {
        Some(last) if !is_last => LimitCursor::Key(key(last).into()),
        _ => LimitCursor::All,
    };
    Ok(LimitPage { changes, known, starts_over: after.is_none(), is_last })
}

fn key(LimitChange { rule, actor, .. }: &LimitChange) -> Vec<u8> {
    [&[VERSION], rule.as_bytes(), &[0], actor.as_bytes()].concat()
}

fn value(limit: ActorLimit) -> Vec<u8> {
    let expires = limit.expires.unwrap_or(Timestamp::MAX).as_nanos();
    [expires.to_le_bytes(), limit.credits.to_le_bytes()].concat()
}

fn decode(key: &[u8], value: &[u8]) -> Option<LimitChange> {
    let [VERSION, named @ ..] = key else { return None };
    let (rule, actor) = named.split_at(named.iter().position(|byte| *byte == 0)?);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let (words, []) = value.as_chunks::<8>() else { return None };
    let [expires, credits] = words else { return None };
    let expires = Timestamp::from_nanos(u64::from_le_bytes(*expires));
    let limit =
        ActorLimit { credits: u64::from_le_bytes(*credits), expires: (expires != Timestamp::MAX).then_some(expires) };
    Some(LimitChange { rule: text(rule)?, actor: text(actor.get(1..)?)?, limit: Some(limit) })
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn record_reads_back(rule in "[a-z0-9_-]{1,9}", actor in ".{0,20}", credits: u64, expires in prop::option::of(0..u64::MAX)) {
            let limit = ActorLimit { credits, expires: expires.map(Timestamp::from_nanos) };
            let change = LimitChange { rule, actor, limit: Some(limit) };
            prop_assert_eq!(decode(&key(&change), &value(limit)), Some(change));
        }

        #[test]
        fn foreign_bytes_are_not_a_limit(key in prop::collection::vec(any::<u8>(), 0..9), value in prop::collection::vec(any::<u8>(), 0..40)) {
            let is_one = decode(&key, &value).is_some();
            prop_assert!(!is_one || value.len() == 16);
        }
    }
}
