//! An idempotency key, and the records that the requests under it have.

use std::collections::HashMap;

use super::table::Intent;
use crate::algorithm::Limit;
use crate::clock::Timestamp;
use crate::store::{Action, Batch};

/// The idempotency key of the requests that are being added, and the records that it has by now.
#[derive(Debug)]
pub(super) struct IdempotencyKey {
    pub intent: Intent,
    pub key: Vec<u8>,
    pub fingerprint: u64,
    /// Index of the request that is being added.
    pub request: usize,
    /// How often each counter was asked under the key.
    pub asked: HashMap<Vec<u8>, u32>,
}

impl IdempotencyKey {
    /// Record id of the current ask for this counter. A counter that several hits or several rules ask has a record of each.
    /// Charges have other ids than hits, because both may be about the same thing.
    fn record_id(&mut self, counter: &[u8]) -> Vec<u8> {
        let number = self.asked.entry(counter.to_owned()).or_default();
        let id = [&[letter(self.intent)][..], &number.to_be_bytes(), &self.key].concat();
        *number += 1;
        id
    }

    /// Adds an entry, with a record of its answer if the action is an ask. See [`Batch::push_if`].
    pub fn push(
        &mut self,
        action: Action,
        at: Timestamp,
        batch: &mut Batch,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let mut counter = Vec::new();
        let limit = write_key(&mut counter)?;
        let write_key = |out: &mut Vec<u8>| {
            out.extend_from_slice(&counter);
            Some(limit)
        };
        match action {
            Action::Ask(ask) => {
                let request = u32::try_from(self.request).unwrap_or(u32::MAX);
                batch.push_idempotent(ask, (&self.record_id(&counter), self.fingerprint, request), write_key)
            }
            // These are repeatable as they are.
            Action::Forget | Action::Reservation(_) | Action::Idempotent { .. } => batch.push_if(action, at, write_key),
        }
    }
}

/// First letter of the record ids for this intent. Charges have other ids than hits, because both may be about the same thing.
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
