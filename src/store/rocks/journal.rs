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
    write_length(record, key.len());
    record.extend_from_slice(key);
    write_length(record, value.len());
    record.extend_from_slice(value);
    record.len() - value.len()
}

/// Replaces the value at `offset` by a later one of the same length; false, and nothing done, when the lengths differ.
pub fn overwrite(record: &mut [u8], offset: usize, value: &[u8]) -> bool {
    let length = offset.checked_sub(LENGTH).and_then(|start| record.get(start..offset));
    if length != u32::try_from(value.len()).ok().map(u32::to_le_bytes).as_ref().map(<[u8; LENGTH]>::as_slice) {
        return false;
    }
    match record.get_mut(offset..offset + value.len()) {
        Some(earlier) => {
            earlier.copy_from_slice(value);
            true
        }
        None => false,
    }
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

fn write_length(record: &mut Vec<u8>, length: usize) {
    // Keys and values are bounded far below 4 GiB by the limits on requests and on logs.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    record.extend_from_slice(&length.to_le_bytes());
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
            prop_assert!(!overwrite(&mut record, at, &later[..8]));
            prop_assert!(overwrite(&mut record, at, &later));
            pairs.push((b"key".to_vec(), later.to_vec()));
            prop_assert_eq!(record, record_of(&pairs));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = changes(&bytes).count();
        }
    }
}
