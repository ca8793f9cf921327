//! Records of exceptions for single actors in the database.
//!
//! They are among the counters' records, under a tag of their own, and not in a family of their own. So the compaction filter
//! drops those that a killed server left and that have expired since, restoring a backup reads and checks them with everything
//! else, and a start reads them as one range of keys. Builds before the release of 0.2.0 kept limits in RocksDB's default
//! family, and blocks and allows under another tag.
//!
//! A key consists of the tag, the exception's owner, a zero byte and the actor. A value consists of the exception's expiry
//! (nanoseconds since 1970, little-endian; all bits set means never) and its text.

use super::database::Database;
use divvy_core::clock::Timestamp;
use divvy_store::contract::{
    EXCEPTIONS_PER_PAGE, Exception, ExceptionChange, ExceptionCursor, ExceptionPage, StoreError,
};
use divvy_store::record_key;

/// Returns whether the exception with this key and value can be read.
pub fn is_readable(key: &[u8], value: &[u8]) -> bool {
    decode(key, value).is_some()
}

/// Stores the changes, on stable storage if `sync` is set. Otherwise, a removed exception may return after a power cut.
pub fn write(database: &Database, changes: &[ExceptionChange], sync: bool) -> Result<(), StoreError> {
    database.write_exceptions(changes.iter().map(|change| (key(change), change.value.as_ref().map(value))), sync)
}

/// Reads the page of exceptions after `known`, in the order of their keys. The page is empty if `known` covers all of
/// them.
pub fn read(database: &Database, known: &ExceptionCursor) -> Result<ExceptionPage, StoreError> {
    let after = match known {
        ExceptionCursor::Nothing => None,
        ExceptionCursor::Key(key) => Some(&**key),
        ExceptionCursor::All | ExceptionCursor::Change { .. } => {
            return Ok(ExceptionPage::nothing(ExceptionCursor::All));
        }
    };
    let mut stored = database.entries(record_key::EXCEPTIONS, after);
    let changes = stored.by_ref().take(EXCEPTIONS_PER_PAGE).map(|record| {
        let (key, value) = record?;
        decode(&key, &value).ok_or_else(|| StoreError::new("the record of an actor's limit or block is malformed"))
    });
    let changes: Vec<_> = changes.collect::<Result<_, _>>()?;
    let is_last = stored.next().is_none();
    let known = match changes.last() {
        Some(last) if !is_last => ExceptionCursor::Key(key(last).into()),
        _ => ExceptionCursor::All,
    };
    Ok(ExceptionPage { changes, known, starts_over: after.is_none(), is_last })
}

fn key(ExceptionChange { owner, actor, .. }: &ExceptionChange) -> Vec<u8> {
    [record_key::EXCEPTIONS, owner.as_bytes(), &[0], actor.as_bytes()].concat()
}

fn value(exception: &Exception) -> Vec<u8> {
    let expires = exception.expires().unwrap_or(Timestamp::MAX).as_nanos();
    [expires.to_le_bytes().as_slice(), exception.to_text().as_bytes()].concat()
}

fn decode(key: &[u8], value: &[u8]) -> Option<ExceptionChange> {
    let named = std::str::from_utf8(key.strip_prefix(record_key::EXCEPTIONS)?).ok()?;
    let (owner, actor) = named.split_once('\0')?;
    let (expires, text) = value.split_first_chunk()?;
    let expires = Timestamp::from_nanos(u64::from_le_bytes(*expires));
    let expires = (expires != Timestamp::MAX).then_some(expires);
    let exception = Exception::from_text(owner, std::str::from_utf8(text).ok()?, expires)?;
    Some(ExceptionChange { owner: owner.to_owned(), actor: actor.to_owned(), value: Some(exception) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn record_reads_back(label in "[a-z0-9_-]{1,9}", actor in ".{0,20}", credits: u64, expires in prop::option::of(0..u64::MAX)) {
            let ends = expires.map(Timestamp::from_nanos);
            let exceptions = [("limit", Exception::limit(credits, ends)), ("block", Exception::by_hand(Some(&actor), ends))];
            for (kind, exception) in exceptions {
                let change = ExceptionChange {
                    owner: format!("{kind}:{label}"),
                    actor: actor.clone(),
                    value: Some(exception.clone()),
                };
                prop_assert_eq!(decode(&key(&change), &value(&exception)), Some(change));
            }
        }

        #[test]
        fn foreign_bytes_are_not_an_exception(
            name in prop::collection::vec(any::<u8>(), 0..9), value in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            prop_assert!(!is_readable(&name, &value));
            prop_assert!(!is_readable(&[record_key::EXCEPTIONS, &name].concat(), &value));
        }
    }
}
