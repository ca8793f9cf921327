//! Records in the table: reservations, and answers to requests with an idempotency key. Each lives in its bucket's
//! stripe, in memory until it ends, and in the journal with its bucket. Records do not count as counters, and need no
//! look-up.

use super::{KeyHash, Table};
use divvy_core::algorithm::Record;
use divvy_core::clock::Timestamp;
use divvy_store::bounds::RecordBudgets;
#[cfg(test)]
use divvy_store::bounds::RecordCount;

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

    #[cfg(test)]
    pub fn records(&self) -> RecordCount {
        let mut count = RecordCount::default();
        self.stripes.iter().for_each(|stripe| count += stripe.lock().records.count());
        count
    }
}

#[cfg(test)]
mod tests;
