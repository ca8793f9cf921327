//! An idempotency key, and the records of its requests.

use std::collections::HashMap;

use super::table::Intent;
use crate::store::Batch;
use divvy_core::algorithm::{Ask, Limit};

/// The idempotency key of the requests that are being added, and the records so far.
#[derive(Debug)]
pub(super) struct IdempotencyKey {
    pub intent: Intent,
    pub key: Vec<u8>,
    pub fingerprint: u64,
    /// Index of the request that is being added.
    pub request: usize,
    /// Number of records for each counter.
    pub records: HashMap<Vec<u8>, u32>,
}

impl IdempotencyKey {
    /// Adds an ask with a record of its answer. See [`Batch::push_if`].
    ///
    /// If several hits or several rules use the same counter, it gets a record of each.
    pub fn push(
        &mut self,
        ask: Ask,
        batch: &mut Batch,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let mut counter = Vec::new();
        let limit = write_key(&mut counter)?;
        let number = self.records.entry(counter.clone()).or_default();
        let id = [&[letter(self.intent)][..], &number.to_be_bytes(), &self.key].concat();
        *number += 1;
        let request = u32::try_from(self.request).unwrap_or(u32::MAX);
        batch.push_idempotent(ask, (&id, self.fingerprint, request), |out| {
            out.extend_from_slice(&counter);
            Some(limit)
        })
    }
}

/// Returns the first letter of the record ids for this intent. Charges have other ids than hits, because a charge may
/// use the same key as the hit before it.
pub(super) fn letter(intent: Intent) -> u8 {
    match intent {
        Intent::Charge => b'c',
        Intent::Refund => b'r',
        Intent::Hit
        | Intent::Enter
        | Intent::EnterOrCharge
        | Intent::Leave
        | Intent::Peek
        | Intent::Forget
        | Intent::Reserve => b'h',
    }
}
