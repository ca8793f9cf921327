//! Keys of records that belong to a bucket: those of its reservations.
//!
//! `version, tag, space, bucket, id, length of the bucket's key`: the bucket is in the key, so that both can be kept in one
//! place. No key of a bucket begins so.

use std::ops::Range;

/// The layout, as that of buckets' keys.
const VERSION: u8 = 1;
/// Stands where a bucket's key has its algorithm; never reuse one.
const RECORD: u8 = 8;
/// The space of reservations.
const RESERVATIONS: u8 = 4;

const HEAD: [u8; 3] = [VERSION, RECORD, RESERVATIONS];
const LENGTH: usize = size_of::<u32>();

/// What the key of every record begins with.
pub const PREFIX: &[u8] = &HEAD;

/// Appends the key of the record called `id` of the bucket whose key `write_bucket` appends.
pub fn write<T>(id: &[u8], out: &mut Vec<u8>, write_bucket: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    out.extend_from_slice(&HEAD);
    let start = out.len();
    let written = write_bucket(out);
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out.extend_from_slice(id);
    out.extend_from_slice(&length.to_le_bytes());
    written
}

/// Whether it is the key of a record.
#[inline]
pub fn is_record(key: &[u8]) -> bool {
    key.get(1) == Some(&RECORD)
}

/// The key of the record's bucket, and the record's id; `None` for the key of a bucket.
pub fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, length) = key.strip_prefix(&HEAD)?.split_last_chunk::<LENGTH>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

/// The key of the bucket that it is, or belongs to.
#[inline]
pub fn bucket(key: &[u8]) -> &[u8] {
    if is_record(key) { split(key).map_or(key, |(bucket, _)| bucket) } else { key }
}

/// Where among `keys` the bucket's key is of the record whose key is at `record`.
pub fn bucket_range(keys: &[u8], record: &Range<usize>) -> Range<usize> {
    let bucket = keys.get(record.clone()).and_then(split).map_or(0, |(bucket, _)| bucket.len());
    let start = record.start + HEAD.len();
    start..start + bucket
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_names_its_bucket(bucket_key: Vec<u8>, id: Vec<u8>) {
            let mut key = Vec::new();
            write(&id, &mut key, |out| out.extend_from_slice(&bucket_key));
            prop_assert!(is_record(&key));
            prop_assert_eq!(split(&key), Some((&*bucket_key, &*id)));
            prop_assert_eq!(bucket(&key), &*bucket_key);
        }

        #[test]
        fn any_bytes_are_taken_apart_or_not(bytes: Vec<u8>) {
            let _ = split(&bytes);
            let key = [&[1, 2], &*bytes].concat();
            prop_assert_eq!(bucket(&key), &*key);
        }
    }
}
