//! Records of exceptions for single actors in the database.
//!
//! Limits are in a family of their own. Overrides are among the counters' records, under a tag of their own, so that earlier
//! versions can open the database, and compactions drop the expired ones.
//!
//! A key consists of the register's prefix, the exception's owner, a zero byte and the actor. A value consists of the
//! exception's expiry (nanoseconds since 1970, little-endian; all bits set means never) and its bytes.

use super::database::Database;
use crate::clock::Timestamp;
use crate::store::contract::{
    EXCEPTIONS_PER_PAGE, Exception, ExceptionChange, ExceptionCursor, ExceptionPage, Override, Register, StoreError,
};
use crate::store::record_key;

/// First byte of every limit's key: the version of the layout of keys and values.
const LIMITS_VERSION: u8 = 1;

/// Returns the beginning of every key of the register.
fn prefix(register: Register) -> &'static [u8] {
    match register {
        Register::Limits => &[LIMITS_VERSION],
        Register::Overrides => record_key::OVERRIDES,
    }
}

/// Returns whether the override with this key and value can be read.
pub fn is_readable_override(key: &[u8], value: &[u8]) -> bool {
    decode::<Override>(key, value).is_some()
}

/// Stores the changes, on stable storage if `sync` is set. Otherwise, a removed exception may return after a power cut.
pub fn write<E: Exception>(database: &Database, changes: &[ExceptionChange<E>], sync: bool) -> Result<(), StoreError> {
    database.write_exceptions(
        E::REGISTER,
        changes.iter().map(|change| (key(change), change.value.as_ref().map(value))),
        sync,
    )
}

/// Reads the page of exceptions after `known`, in the order of their keys. The page is empty if `known` covers all of
/// them.
pub fn read<E: Exception>(database: &Database, known: &ExceptionCursor) -> Result<ExceptionPage<E>, StoreError> {
    let after = match known {
        ExceptionCursor::Nothing => None,
        ExceptionCursor::Key(key) => Some(&**key),
        ExceptionCursor::All | ExceptionCursor::Change { .. } => {
            return Ok(ExceptionPage::nothing(ExceptionCursor::All));
        }
    };
    let mut stored = database.exceptions(E::REGISTER, prefix(E::REGISTER), after);
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

fn key<E: Exception>(ExceptionChange { owner, actor, .. }: &ExceptionChange<E>) -> Vec<u8> {
    [prefix(E::REGISTER), owner.as_bytes(), &[0], actor.as_bytes()].concat()
}

fn value<E: Exception>(exception: &E) -> Vec<u8> {
    let expires = exception.expires().unwrap_or(Timestamp::MAX).as_nanos();
    [expires.to_le_bytes().as_slice(), &exception.to_bytes()].concat()
}

fn decode<E: Exception>(key: &[u8], value: &[u8]) -> Option<ExceptionChange<E>> {
    let named = key.strip_prefix(prefix(E::REGISTER))?;
    let (owner, actor) = named.split_at(named.iter().position(|byte| *byte == 0)?);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let (expires, bytes) = value.split_first_chunk()?;
    let expires = Timestamp::from_nanos(u64::from_le_bytes(*expires));
    let exception = E::from_bytes(bytes, (expires != Timestamp::MAX).then_some(expires))?;
    Some(ExceptionChange { owner: text(owner)?, actor: text(actor.get(1..)?)?, value: Some(exception) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract::ActorLimit;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn record_reads_back(owner in "[a-z0-9_-]{1,9}", actor in ".{0,20}", credits: u64, expires in prop::option::of(0..u64::MAX)) {
            let limit = ActorLimit { credits, expires: expires.map(Timestamp::from_nanos) };
            let change = ExceptionChange { owner, actor, value: Some(limit) };
            prop_assert_eq!(decode(&key(&change), &value(&limit)), Some(change));
        }

        #[test]
        fn foreign_bytes_are_not_a_limit(key in prop::collection::vec(any::<u8>(), 0..9), value in prop::collection::vec(any::<u8>(), 0..40)) {
            let is_one = decode::<ActorLimit>(&key, &value).is_some();
            prop_assert!(!is_one || value.len() == 16);
        }
    }
}
