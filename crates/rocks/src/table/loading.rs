//! Loads counters and records into the table, and keeps track of the records in RocksDB.

use super::slot::Tags;
use super::{CounterRecord, KeyHash, Table};
use crate::commit::segment_marks::Mark;
use crate::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use divvy_core::algorithm::Record;

/// A change that was found in the journal when the store was opened.
pub struct ReplayedChange {
    pub hash: KeyHash,
    pub value: ReplayedValue,
    /// The number of the segment that contains it.
    pub segment: u32,
}

/// The new value of a counter or of a record; `None` if it was forgotten.
pub enum ReplayedValue {
    Counter(CounterRecord),
    Record(Option<Record>),
}

impl Table {
    /// Makes changes of one stripe that were found in the journal when the store was opened.
    pub fn replay(&self, stripe: usize, changes: impl Iterator<Item = ReplayedChange>) {
        let mut stripe = self.stripe(stripe);
        for ReplayedChange { hash, value, segment } in changes {
            let counter = match value {
                ReplayedValue::Counter(counter) => counter,
                ReplayedValue::Record(record) => {
                    stripe.load_record(hash.high, record);
                    continue;
                }
            };
            let index = stripe.slots.find(hash.high);
            if index.is_none() {
                self.make_room(&mut stripe);
            }
            let tags = Tags { recorded: false, mark: segment as Mark, ..stripe.loaded_tags(0, false) };
            let (state, expires) = counter.unzip();
            stripe.note_time(state.as_ref());
            stripe.set(index, hash.high, state, expires.unwrap_or_default(), tags);
        }
        self.count_excess(&mut stripe);
    }

    /// Notes a record that was in RocksDB before any counter left the table. Loads the counter if there is room. No
    /// write-back may run.
    pub fn note_record(&self, hash: KeyHash, record: CounterRecord) {
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        stripe.note_time(record.as_ref().map(|(state, _)| state));
        if let Some(index) = stripe.slots.find(hash.high) {
            let slot = stripe.slots.at(index);
            // If the counter was forgotten and that is written back, its record has been deleted since.
            if !slot.tags().recorded && (slot.is_live() || !self.marks.is_clean(slot.tags().mark)) {
                stripe.retag(index, Tags { recorded: true, ..slot.tags() });
            }
            return;
        }
        // A counter that has left the table may have changed since.
        if stripe.holds_all || stripe.lacks_counters {
            return;
        }
        match record {
            Some((state, expires)) if stripe.has_room() => {
                let tags = stripe.loaded_tags(self.marks.clean_mark(), false);
                stripe.set(None, hash.high, Some(state), expires, tags);
            }
            _ => stripe.lacks_counters = true,
        }
    }

    /// Notes that every record was noted, or that the store has no records. A stripe that no counter has left holds all of
    /// its counters.
    pub fn noted_records(&self) {
        self.needs_records.store(false, Relaxed);
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            stripe.holds_all = !stripe.lacks_counters;
            if !stripe.holds_all {
                self.needs_records.store(true, Relaxed);
            }
        }
        self.knows_records.store(true, Release);
    }

    /// Forgets which counters have records, until all records are noted again.
    pub fn forget_records(&self) {
        self.knows_records.store(false, Release);
        self.stripes.iter().for_each(|stripe| stripe.lock().forget_records());
    }

    /// Returns whether the table knows which counters have records.
    pub fn knows_records(&self) -> bool {
        self.knows_records.load(Acquire)
    }
}
