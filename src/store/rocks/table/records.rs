//! The records beside counters in the table, of reservations and of asks that are answered once: each in its bucket's stripe, in
//! memory until it ends, and in the journal with its bucket. None of them counts as a counter, and none needs a look-up. What a record says is decided elsewhere.

use std::sync::Arc;

use super::stripe::Stripe;
use super::{KeyHash, Table};
use crate::algorithm::{Record, RecordChange};
use crate::clock::Timestamp;
#[cfg(all(test, not(feature = "model")))]
use crate::store::bounds::RecordCount;
use crate::store::bounds::{RecordBudgets, Share};
use crate::store::rocks::commit::journal::{self, Change};
use crate::store::value;

impl Table {
    /// Makes the change of a record in its stripe, which the caller holds and where a change has begun. A new record has this
    /// share.
    pub(super) fn change_record(
        stripe: &mut Stripe,
        hash: KeyHash,
        key: &[u8],
        change: RecordChange,
        share: Option<Arc<Share>>,
    ) {
        match change {
            RecordChange::Keep => {}
            RecordChange::Set(record) => {
                journal::stage(&mut stripe.staged, key, |out| value::encode_record(&record, out));
                stripe.records.set(hash.high, record, share);
            }
            RecordChange::Clear => {
                journal::stage(&mut stripe.staged, key, |_| ());
                stripe.records.remove(&hash.high);
            }
        }
    }

    /// A record that was found when the store was opened, or `None`: that it was forgotten.
    pub fn load_record(&self, hash: KeyHash, record: Option<Record>) {
        self.stripe(hash.stripe()).load_record(hash.high, record);
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

    /// As [`Table::write_back`], for a record beside a counter. It is written as this commit has it: a later change is in a
    /// later segment. One that has ended need not be written, and none has a record that ends later than its last change
    /// says, but for those that are forgotten.
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
