//! Journal records: what one commit changed, packed into one value.
//!
//! A record is a run of changes, each `key length, key, value length, value` with lengths as 32-bit little-endian
//! numbers; a value of length 0 says that the bucket is forgotten. Values are absolute, so replaying a record twice, or
//! a record whose changes have long reached the counters, changes nothing. Nothing here talks to RocksDB.

const LENGTH: usize = size_of::<u32>();

/// One change of one bucket.
#[derive(Debug, PartialEq, Eq)]
pub struct Change<'a> {
    pub key: &'a [u8],
    /// The bucket's new value; empty when it is forgotten.
    pub value: &'a [u8],
}

/// A record that ends in the middle of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a journal record ends in the middle of a change")]
pub struct Truncated;

/// Appends a change; returns the offset at which its value lies.
pub fn append(record: &mut Vec<u8>, key: &[u8], value: &[u8]) -> usize {
    append_with(record, key, |out| out.extend_from_slice(value))
}

/// As [`append`], with the value that `write_value` appends.
pub fn append_with(record: &mut Vec<u8>, key: &[u8], write_value: impl FnOnce(&mut Vec<u8>)) -> usize {
    record.extend_from_slice(&length_of(key));
    record.extend_from_slice(key);
    record.extend_from_slice(&[0; LENGTH]);
    let value_at = record.len();
    write_value(record);
    let (before, value) = record.split_at_mut(value_at);
    if let Some(length) = before.last_chunk_mut() {
        *length = length_of(value);
    }
    value_at
}

/// Replaces the value at `offset` by a later one of the same length, the one that `write_value` appends; false, and
/// nothing done, when the lengths differ.
pub fn overwrite_with(record: &mut Vec<u8>, offset: usize, write_value: impl FnOnce(&mut Vec<u8>)) -> bool {
    let end = record.len();
    // Written at the end first: in memory that was just used, unlike a buffer of its own would be.
    write_value(record);
    let (earlier, later) = record.split_at_mut(end);
    let earlier_length = offset.checked_sub(LENGTH).and_then(|start| earlier.get(start..offset));
    let is_as_long = earlier_length == Some(&length_of(later));
    let place = earlier.get_mut(offset..offset + later.len()).filter(|_| is_as_long);
    let is_replaced = place.is_some();
    if let Some(place) = place {
        place.copy_from_slice(later);
    }
    record.truncate(end);
    is_replaced
}

/// The changes of a record, in the order in which they were made. Ends after the first error.
pub fn changes(mut record: &[u8]) -> impl Iterator<Item = Result<Change<'_>, Truncated>> {
    std::iter::from_fn(move || {
        if record.is_empty() {
            return None;
        }
        let change = read_change(&mut record);
        if change.is_err() {
            record = &[];
        }
        Some(change)
    })
}

/// The keys of `changes`, which this process has packed itself.
pub fn keys(changes: &[u8]) -> impl Iterator<Item = &[u8]> {
    self::changes(changes).map_while(Result::ok).map(|change| change.key)
}

fn read_change<'a>(record: &mut &'a [u8]) -> Result<Change<'a>, Truncated> {
    let key = read_bytes(record)?;
    let value = read_bytes(record)?;
    Ok(Change { key, value })
}

fn read_bytes<'a>(record: &mut &'a [u8]) -> Result<&'a [u8], Truncated> {
    let (length, rest) = record.split_first_chunk::<LENGTH>().ok_or(Truncated)?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(Truncated)?;
    *record = rest;
    Ok(bytes)
}

fn length_of(bytes: &[u8]) -> [u8; LENGTH] {
    // Keys and values are bounded far below 4 GiB by the limits on requests and on logs.
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

    fn pairs() -> impl Strategy<Value = Pairs> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20);
        prop::collection::vec((bytes(), bytes()), 0..8)
    }

    fn record_of(pairs: &Pairs) -> Vec<u8> {
        let mut record = Vec::new();
        for (key, value) in pairs {
            let at = append(&mut record, key, value);
            assert_eq!(&record[at..], value);
        }
        record
    }

    proptest! {
        #[test]
        fn a_record_reads_back(pairs in pairs()) {
            let record = record_of(&pairs);
            let read: Result<Pairs, _> =
                changes(&record).map(|c| c.map(|c| (c.key.to_vec(), c.value.to_vec()))).collect();
            prop_assert_eq!(read, Ok(pairs));
        }

        #[test]
        fn a_later_value_takes_the_place_of_an_earlier_one_of_its_length(mut pairs in pairs(), later: [u8; 9]) {
            let mut record = record_of(&pairs);
            let at = append(&mut record, b"key", &[0; 9]);
            let before = record.clone();
            prop_assert!(!overwrite_with(&mut record, at, |out| out.extend_from_slice(&later[..8])));
            prop_assert_eq!(&record, &before);
            prop_assert!(overwrite_with(&mut record, at, |out| out.extend_from_slice(&later)));
            pairs.push((b"key".to_vec(), later.to_vec()));
            prop_assert_eq!(record, record_of(&pairs));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = changes(&bytes).count();
        }
    }
}
