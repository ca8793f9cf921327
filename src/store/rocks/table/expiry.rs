//! Expired counters: those whose records compactions drop, and those that sweeps forget.

use super::slot::Tags;
use super::{Table, stage};
use crate::clock::Timestamp;
use crate::store::bounds::CounterBudget;
use crate::store::contract::StoreError;
use crate::store::record_key;
use crate::store::rocks::commit::group_commit::GroupCommit;

impl Table {
    /// A compaction drops a record of this counter, because it has expired. Whether that may have been its latest
    /// record: not when the table knows of a later one, or that the counter is forgotten.
    pub fn record_dropped(&self, key: &[u8], value: &[u8]) -> bool {
        if record_key::is_record(key) {
            return false;
        }
        let hash = self.hasher.hash(key);
        let mut stripe = self.stripe(hash.stripe());
        let Some(index) = stripe.find(hash.high) else { return true };
        let slot = stripe.slot(index);
        let mut latest = Vec::new();
        stripe.write_value(index, &mut latest);
        let is_latest = slot.is_live() && self.marks.is_clean(slot.tags().mark) && latest == value;
        if is_latest {
            stripe.clear(index, Tags { recorded: false, ..slot.tags() });
        }
        is_latest
    }

    /// Forgets the counter if it has expired; the caller deletes its record then. `load` tells when its record in RocksDB
    /// expires. Nothing waits for that to be durable: an expired counter may come back after a crash. True if it is one
    /// less.
    ///
    /// # Errors
    /// Those of `load`; nothing is changed then.
    pub fn sweep(
        &self,
        key: &[u8],
        now: Timestamp,
        group: &GroupCommit,
        budget: &CounterBudget,
        load: impl FnOnce() -> Result<Option<Timestamp>, StoreError>,
    ) -> Result<bool, StoreError> {
        let hash = self.hasher.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        match stripe.find(hash.high) {
            Some(index) => {
                let slot = stripe.slot(index);
                if !slot.is_live() || slot.expires() > now.as_nanos() {
                    return Ok(false);
                }
                // Its last change may still be in the journal: the next start must not take it for the counter.
                let tags = self.change(stripe, hash, group, false);
                stripe.clear(index, tags);
                stage(stripe, hash.high, index, key);
            }
            None => {
                if load()?.is_none_or(|expires| expires > now) {
                    return Ok(false);
                }
                // A hit that comes before the record is deleted must not take it for the counter.
                self.make_room(stripe);
                let tags = Tags { recorded: false, ..stripe.loaded_tags(self.marks.clean_mark(), true) };
                stripe.set(None, hash.high, None, now, tags);
            }
        }
        stripe.begun -= 1;
        budget.forget();
        Ok(true)
    }
}
