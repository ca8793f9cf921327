//! The disk: the interface that the engine needs of a database. RocksDB implements it in production, and a simulated
//! disk in the model checker. Also decodes counters' own records, whose layout [`value`] and [`key`] define.

pub mod backup;
pub mod database;
pub mod directory;

use super::journal::SortedChanges;
use divvy_core::algorithm::{Limit, Record, State};
use divvy_core::clock::Timestamp;
use divvy_store::{StoreError, key, record_key, value};

/// The time that a write may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Enough for a copy into the page cache.
    None,
    /// Enough for RocksDB to delay the write while flushes or compactions are behind.
    Stalls,
    /// Enough for the write to reach stable storage.
    Fsync,
}

/// The places that a read may search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only memory.
    Memory,
    /// Memory and disk.
    Disk,
}

/// A callback for the record of a counter (if it has one), and the position of its key among the requested ones.
pub type EachCounter<'a> = dyn FnMut(usize, Result<Option<&[u8]>, StoreError>) + 'a;

/// A callback for a journal record and the number of its commit.
pub type EachRecord<'a> = dyn FnMut(u64, &[u8]) -> Result<(), StoreError> + 'a;

/// An open database of counters and journal records. After a crash it holds the journal up to some point in time, at
/// least to the last successful [`Disk::sync`]. Counters' own records are permanent.
///
/// An error from any write or sync is final: the database must be reopened.
pub trait Disk: Send + Sync + 'static {
    /// Reads counters' records. Calls `each` for every one within `reach`.
    fn counters(&self, keys: &[&[u8]], reach: Reach, each: &mut EachCounter<'_>);

    /// Appends a journal record, unless it is empty. If the write would have to wait longer than `patience` allows,
    /// writes nothing and returns `None`.
    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>>;

    /// Calls `each` with the journal records `first` to `last`, in order.
    fn read_journal(&self, first: u64, last: u64, each: &mut EachRecord<'_>) -> Result<(), StoreError>;

    /// Writes counters' own records to stable storage.
    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError>;

    /// Drops the journal records up to and including `number`.
    fn clear_journal(&self, number: u64) -> Result<(), StoreError>;

    /// Forces everything that was written before this call to stable storage.
    fn sync(&self) -> Result<(), StoreError>;

    /// Records how much of the journal is on stable storage, so that a later start notices if it is missing.
    fn note_synced(&self) {}
}

/// Decodes records of many counters. Records of one rule tend to follow each other, and share a prefix of their keys,
/// so the limit in the prefix is decoded once for all of them.
#[derive(Debug, Default)]
pub struct Decoder {
    last: Option<(Box<[u8]>, Limit)>,
}

impl Decoder {
    /// Decodes a counter's state and expiry from its record. The limit comes from its key.
    ///
    /// # Errors
    /// Either cannot be decoded.
    pub fn decode(&mut self, key: &[u8], stored: &[u8]) -> Result<(State, Timestamp), StoreError> {
        decode_counter(&self.limit(key)?, stored)
    }

    /// Loads the calendar of a reservation with this key, if its bucket has one. So the reservation can be settled even
    /// if no rule uses that calendar anymore.
    pub fn note_record(&mut self, key: &[u8], record: &Record) {
        if record.is_reservation()
            && let Some((bucket, _)) = record_key::split(key)
        {
            // An invalid key has no calendar.
            let _ = self.limit(bucket);
        }
    }

    /// Decodes the limit in a counter's key.
    ///
    /// # Errors
    /// The key cannot be decoded.
    pub fn limit(&mut self, key: &[u8]) -> Result<Limit, StoreError> {
        match &self.last {
            // No field of the limit depends on the bytes after the prefix.
            Some((prefix, limit)) if key.starts_with(prefix) => Ok(*limit),
            _ => {
                let read = key::split_stored_limit(key);
                let (prefix, limit) = read.ok_or_else(|| StoreError::new("a stored key is malformed"))?;
                self.last = Some((prefix.into(), limit));
                Ok(limit)
            }
        }
    }
}

/// Decodes the state and the expiry of a counter with this limit from its record.
///
/// # Errors
/// The record cannot be decoded.
pub fn decode_counter(limit: &Limit, stored: &[u8]) -> Result<(State, Timestamp), StoreError> {
    Ok((value::decode(limit, stored)?, value::expiry(stored)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_store::key::{Prefix, Space};
    use divvy_store::testing::window;

    /// A key that starts like the previous one but continues differently has another limit.
    #[test]
    fn each_key_is_decoded_with_its_own_limit() {
        let mut decoder = Decoder::default();
        let limits = [window(1, 60), window(2, 60), window(1, 61), window(300, 60)];
        for turn in 0..40 {
            let limit = limits[turn * turn % limits.len()];
            let mut key = Vec::new();
            Prefix::new(Space::Rule, [("ip", "*")], &limit).write_key(turn.to_string(), &mut key);
            assert_eq!(decoder.limit(&key).unwrap(), limit);
        }
        assert!(decoder.limit(b"no key of ours").is_err());
    }
}
