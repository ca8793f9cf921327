//! Records in the table: reservations, and answers to requests with an idempotency key. Each lives in its bucket's
//! stripe, in memory until it ends, and in the journal with its bucket. Records do not count as counters, and need no
//! look-up.

use super::{KeyHash, Table};
use crate::algorithm::Record;
use crate::clock::Timestamp;
use crate::store::bounds::RecordBudgets;
#[cfg(all(test, not(feature = "model")))]
use crate::store::bounds::RecordCount;
use crate::store::rocks::commit::journal::{self, Change};
use crate::store::value;

impl Table {
    /// Loads a record while the store opens.
    pub fn load_record(&self, hash: KeyHash, record: Record) {
        self.stripe(hash.stripe()).load_record(hash.high, Some(record));
    }

    /// Drops the records that may be forgotten at `now`, which is earlier than before if the clock `was_set_back`.
    pub fn sweep_records(&self, now: Timestamp, was_set_back: bool) {
        for stripe in &self.stripes {
            let records = &mut stripe.lock().records;
            if was_set_back { records.advance(now) } else { records.sweep(now) }
        }
    }

    /// Counts the records that were found when the store was opened.
    pub fn share_records(&self, budgets: &RecordBudgets) {
        self.stripes.iter().for_each(|stripe| stripe.lock().records.share(|record| budgets.found(record)));
    }

    #[cfg(all(test, not(feature = "model")))]
    pub fn records(&self) -> RecordCount {
        let mut count = RecordCount::default();
        self.stripes.iter().for_each(|stripe| count += stripe.lock().records.count());
        count
    }

    /// Writes back a record as this commit has it: a later change of it is in a later segment. A record that has ended
    /// is not written. No stored record ends later than its last change says, except those that are forgotten.
    pub(super) fn write_back_record(change: &Change<'_>, now: Timestamp, changes: &mut Vec<u8>) {
        let has_ended = value::expiry(change.value).is_ok_and(|expires| expires <= now);
        if !has_ended {
            journal::stage(changes, change.key, |out| out.extend_from_slice(change.value));
        }
    }

    /// Stages the record as it is now.
    pub(super) fn stage_record(&self, hash: KeyHash, key: &[u8], changes: &mut Vec<u8>) {
        let stripe = self.stripe(hash.stripe());
        journal::stage(changes, key, |out| {
            if let Some(record) = stripe.records.get(&hash.high) {
                value::encode_record(record, out);
            }
        });
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests;
