//! Counters' own records, decoded. [`value`] and [`key`] define the layout.

use divvy_core::algorithm::{Limit, Record, State};
use divvy_core::clock::Timestamp;
use divvy_store::contract::StoreError;
use divvy_store::{key, record_key, value};

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
        decode_as(&self.limit(key)?, stored)
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
pub fn decode_as(limit: &Limit, stored: &[u8]) -> Result<(State, Timestamp), StoreError> {
    let damaged = |damaged: value::DamagedValue| StoreError::new(damaged.to_string());
    Ok((value::decode(limit, stored).map_err(damaged)?, value::expiry(stored).map_err(damaged)?))
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
