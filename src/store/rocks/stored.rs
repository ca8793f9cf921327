//! Counters' own records: what the bytes under a key say. How the bytes are laid out is the business of
//! [`value`](crate::store::value) and [`key`](crate::store::key).

use crate::algorithm::{Limit, State};
use crate::clock::Timestamp;
use crate::store::error::StoreError;
use crate::store::{key, value};

/// A counter's state and when it expires, from its record; its key tells the limit.
///
/// # Errors
/// When either makes no sense.
pub fn decode(key: &[u8], stored: &[u8]) -> Result<(State, Timestamp), StoreError> {
    let limit = key::limit(key).ok_or_else(|| StoreError::new("a stored key makes no sense"))?;
    decode_as(&limit, stored)
}

/// As [`decode`], for a counter with this limit.
///
/// # Errors
/// When the record makes no sense.
pub fn decode_as(limit: &Limit, stored: &[u8]) -> Result<(State, Timestamp), StoreError> {
    let damaged = |damaged: value::Damaged| StoreError::new(damaged.to_string());
    Ok((value::decode(limit, stored).map_err(damaged)?, value::expiry(stored).map_err(damaged)?))
}
