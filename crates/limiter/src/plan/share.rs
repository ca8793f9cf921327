//! Shares of counters for clients: requests for them, and their ids.
//!
//! An id is a [`ReservationId`] with one record: of the answer to the share's return, so that a repeated return has no further
//! effect. The record's id holds the share's end and credits. The id is sealed, so a client cannot return more.

use super::builder::PlanBuilder;
use super::effects::Intent;
use super::reservation::{NamedRecord, ReservationId, new_record_id};
use crate::refusal::Refusal;
use crate::store::record_key::{self, RecordSpace};
use crate::store::unknown_seal_key;
use divvy_core::algorithm::record::REMEMBERED_NS;
use divvy_core::clock::Timestamp;
use divvy_core::rules::Operation;

/// Time after which a share is not taken back. The answer to its return must be remembered longer, or it could be returned twice.
const RETURNABLE_NS: u64 = REMEMBERED_NS / 4;

/// First letter of the record ids of shares. The record ids of reservations begin with `c` or `s`.
const LETTER: u8 = b'g';
/// More than the key of a record adds to the counter's.
const MOST_ADDED: usize = 64;

impl PlanBuilder {
    /// Adds a request for a share of at most `want` credits, at least 1.
    pub fn add_share(&mut self, operation: &Operation, want: u64) {
        if want == 0 {
            self.add_refused(Refusal::NoCredits);
        } else if self.has_seal {
            self.add(operation, Intent::Share, Some(want));
        } else {
            // The client could not get an id to return the share with.
            self.add_refused(unknown_seal_key());
        }
    }

    /// Returns the maximum length of the id in the answer to the last request, for a share (characters).
    pub fn share_id_length(&self) -> usize {
        let counter = self.plan.batch.len().checked_sub(1).and_then(|last| self.plan.batch.key_at(last));
        ReservationId::text_length(std::iter::once(counter.map_or(0, <[u8]>::len) + MOST_ADDED))
    }
}

/// Returns the id for a share of the counter with this key. It was taken at `taken` by the store's clock.
pub(crate) fn share_id(rule: u32, counter: &[u8], credits: u32, [taken, ends]: [Timestamp; 2]) -> ReservationId {
    let [_, unique @ ..] = new_record_id();
    let [taken, ends] = [taken, ends].map(|time| time.as_nanos().to_le_bytes());
    let id = [&[LETTER][..], &ends, &credits.to_le_bytes(), &taken, &unique].concat();
    let mut key = Vec::new();
    record_key::write(RecordSpace::Answers, &id, &mut key, |out| out.extend_from_slice(counter));
    ReservationId::new(std::iter::once(NamedRecord { rule, run: None, key: &key }))
}

/// Returns the end and the credits of the share with this record id, as far as it may be returned at `now`. `None` if it is a
/// reservation's.
pub(super) fn read_share(record_id: &[u8], now: Timestamp) -> Option<(Timestamp, u32)> {
    let (ends, rest) = record_id.strip_prefix(&[LETTER])?.split_first_chunk()?;
    let (credits, rest) = rest.split_first_chunk()?;
    let (taken, _) = rest.split_first_chunk()?;
    let [taken, ends] = [taken, ends].map(|time| Timestamp::from_nanos(u64::from_le_bytes(*time)));
    let is_over = now.since(taken) > RETURNABLE_NS;
    Some((ends, if is_over { 0 } else { u32::from_le_bytes(*credits) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to the return is remembered for a minute. Later, a return would have effect again.
    #[test]
    fn share_is_returned_only_while_its_return_is_remembered() {
        let [taken, ends] = [1_000, 90_000].map(|seconds| Timestamp::from_secs(seconds).unwrap());
        let id = share_id(7, b"counter", 30, [taken, ends]);
        let record = id.records().next().unwrap();
        let (counter, record_id) = record_key::split(record.key).unwrap();
        assert_eq!((counter, record.key.len() <= counter.len() + MOST_ADDED), (&b"counter"[..], true));
        for (after, credits) in [(0, 30), (RETURNABLE_NS, 30), (RETURNABLE_NS + 1, 0), (REMEMBERED_NS, 0)] {
            assert_eq!(read_share(record_id, taken.plus(after)), Some((ends, credits)));
        }
        assert_eq!(read_share(&new_record_id(), taken), None);
    }
}
