//! Keys of records: a bucket's reservations, and its answers to idempotent requests.
//!
//! A key consists of `version, tag, space, bucket, id, length of the bucket's key`. It contains the bucket's key, so that both are
//! in one stripe. No bucket's key begins like this.

use std::ops::Range;

use crate::key::VERSION;

/// The tag, in place of the algorithm in a bucket's key. Never reuse one.
const RECORD: u8 = 8;

/// The beginning of every record's key.
pub const PREFIX: &[u8] = &[VERSION, RECORD];
const HEAD: usize = PREFIX.len() + size_of::<u8>();
const LENGTH: usize = size_of::<u32>();

/// The kind of a record. Records of two kinds may have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordSpace {
    /// Reservations, open or committed.
    Reservations = 4,
    /// Answers to idempotent requests.
    Answers = 5,
}

/// Appends the key of the record `id` of the bucket whose key `write_bucket` appends.
pub fn write<T>(space: RecordSpace, id: &[u8], out: &mut Vec<u8>, write_bucket: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    out.extend_from_slice(PREFIX);
    out.push(space as u8);
    let start = out.len();
    let written = write_bucket(out);
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out.extend_from_slice(id);
    out.extend_from_slice(&length.to_le_bytes());
    written
}

/// The tag of exceptions for single actors, in place of the algorithm in a bucket's key. Never reuse it, or 9.
const EXCEPTION: u8 = 10;

/// The beginning of every exception's key.
pub const EXCEPTIONS: &[u8] = &[VERSION, EXCEPTION];

/// Returns whether this is the key of a counter, and not of a record or an exception.
pub fn is_counter(key: &[u8]) -> bool {
    !is_record(key) && !is_exception(key)
}

/// Returns whether this is the key of an exception for a single actor.
pub fn is_exception(key: &[u8]) -> bool {
    key.starts_with(EXCEPTIONS)
}

/// Returns whether this is the key of a record.
#[inline]
pub fn is_record(key: &[u8]) -> bool {
    key.get(1) == Some(&RECORD)
}

/// Returns the key of the record's bucket, and the record's id. `None` for the key of a bucket.
#[inline]
pub fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_space, rest) = key.strip_prefix(PREFIX)?.split_first()?;
    let (rest, length) = rest.split_last_chunk::<LENGTH>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// Returns the key itself if it is a bucket's, or the key of the record's bucket.
#[inline]
pub fn bucket(key: &[u8]) -> &[u8] {
    if is_record(key) { split(key).map_or(key, |(bucket, _)| bucket) } else { key }
}

/// Returns the range in `keys` of the bucket's key, for the record whose key is at `record`.
pub fn bucket_range(keys: &[u8], record: &Range<usize>) -> Range<usize> {
    let bucket = keys.get(record.clone()).and_then(split).map_or(0, |(bucket, _)| bucket.len());
    let start = record.start + HEAD;
    start..start + bucket
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn record_key_contains_its_bucket(bucket_key: Vec<u8>, id: Vec<u8>) {
            let mut key = Vec::new();
            for space in [RecordSpace::Reservations, RecordSpace::Answers] {
                key.clear();
                write(space, &id, &mut key, |out| out.extend_from_slice(&bucket_key));
                prop_assert!(is_record(&key));
                prop_assert_eq!(split(&key), Some((&*bucket_key, &*id)));
                prop_assert_eq!(bucket(&key), &*bucket_key);
                prop_assert_eq!(&key[bucket_range(&key, &(0..key.len()))], &*bucket_key);
            }
        }

        #[test]
        fn splitting_any_bytes_does_not_panic(bytes: Vec<u8>) {
            let _ = split(&bytes);
            let key = [&[1, 2], &*bytes].concat();
            prop_assert_eq!(bucket(&key), &*key);
        }
    }
}
