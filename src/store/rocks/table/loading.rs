//! Loading counters and records into the table, and what it knows about the records in RocksDB.

use super::slot::Tags;
use super::{KeyHash, Record, Table};
use crate::algorithm::{Record as RecordBeside, State};
use crate::clock::Timestamp;
use crate::store::rocks::commit::segment_marks::Mark;
use crate::store::rocks::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A change that was found in the journal when the store was opened.
pub struct Replayed {
    pub hash: KeyHash,
    pub what: Found,
    /// The number of the segment that it was in.
    pub segment: u32,
}

/// What a change in the journal says of a counter, or of a record beside one.
pub enum Found {
    Counter(Record),
    Record(Option<RecordBeside>),
}

impl Table {
    /// Makes changes of one stripe that were found in the journal when the store was opened.
    pub fn replay(&self, stripe: usize, changes: impl Iterator<Item = Replayed>) {
        let mut stripe = self.stripe(stripe);
        for Replayed { hash, what, segment } in changes {
            let state = match what {
                Found::Counter(state) => state,
                Found::Record(record) => {
                    stripe.load_record(hash.high, record);
                    continue;
                }
            };
            let index = stripe.find(hash.high);
            if index.is_none() {
                self.make_room(&mut stripe);
            }
            let tags = Tags { recorded: false, mark: segment as Mark, ..stripe.loaded_tags(0, false) };
            let (state, expires) = state.unzip();
            stripe.note_time(state.as_ref());
            stripe.set(index, hash.high, state, expires.unwrap_or_default(), tags);
        }
        self.count_excess(&mut stripe);
    }

    /// A record that was in RocksDB when nothing had left the table yet. The counter is loaded if there is room. No
    /// write-back may run.
    pub fn note_record(&self, hash: KeyHash, record: Option<(State, Timestamp)>) {
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        stripe.note_time(record.as_ref().map(|(state, _)| state));
        if let Some(index) = stripe.find(hash.high) {
            let slot = stripe.slot(index);
            // The record of one that was forgotten is deleted by now if that is written back.
            if !slot.tags().recorded && (slot.is_live() || !self.marks.is_clean(slot.tags().mark)) {
                stripe.retag(index, Tags { recorded: true, ..slot.tags() });
            }
            return;
        }
        // What has left may have changed since.
        if stripe.holds_all || stripe.has_given_way() {
            return;
        }
        match record {
            Some((state, expires)) if stripe.has_room() => {
                let tags = stripe.loaded_tags(self.marks.clean_mark(), false);
                stripe.set(None, hash.high, Some(state), expires, tags);
            }
            _ => stripe.note_no_room(),
        }
    }

    /// Every record was noted. A stripe that nothing has left holds all there is.
    pub fn noted_records(&self) {
        self.needs_records.store(false, Relaxed);
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            stripe.holds_all = !stripe.has_given_way();
            if !stripe.holds_all {
                self.needs_records.store(true, Relaxed);
            }
        }
        self.knows_records.store(true, Release);
    }

    /// It is unknown which counters have records, until all records are noted again.
    pub fn forget_records(&self) {
        self.knows_records.store(false, Release);
        self.stripes.iter().for_each(|stripe| stripe.lock().forget_records());
    }

    /// Whether it is known which counters have records.
    pub fn knows_records(&self) -> bool {
        self.knows_records.load(Acquire)
    }

    /// The store holds no counter but those in the table.
    pub fn holds_all(&self) {
        self.needs_records.store(false, Relaxed);
        self.stripes.iter().for_each(|stripe| stripe.lock().holds_all = true);
        self.knows_records.store(true, Release);
    }
}
