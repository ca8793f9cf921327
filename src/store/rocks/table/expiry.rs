//! Expired counters: those whose records compactions drop, and those that sweeps forget.

use super::Table;
use super::admission::Admission;
use super::slot::Tags;
use crate::clock::Timestamp;
use crate::store::contract::StoreError;
use crate::store::record_key;

impl Table {
    /// Records that a compaction drops an expired record of this counter. Returns whether that may have been its latest
    /// record. It was not if the table has a later state, or has recorded that the counter is forgotten.
    pub fn record_dropped(&self, key: &[u8], value: &[u8]) -> bool {
        if record_key::is_record(key) {
            return false;
        }
        let hash = self.hasher.hash(key);
        let mut stripe = self.stripe(hash.stripe());
        let Some(index) = stripe.slots.find(hash.high) else { return true };
        let slot = stripe.slots.at(index);
        let mut latest = Vec::new();
        stripe.write_value(index, &mut latest);
        let is_latest = slot.is_live() && self.marks.is_clean(slot.tags().mark) && latest == value;
        if is_latest {
            stripe.clear(index, Tags { recorded: false, ..slot.tags() });
        }
        is_latest
    }

    /// Forgets the counter if it has expired, and returns whether it did. The caller then deletes its record. `load`
    /// returns the expiry of the record in RocksDB. Nothing waits until this is durable: an expired counter may come
    /// back after a crash.
    ///
    /// # Errors
    /// Returns the error of `load`. Nothing changes then.
    pub fn sweep(
        &self,
        key: &[u8],
        now: Timestamp,
        admission: &Admission,
        load: impl FnOnce() -> Result<Option<Timestamp>, StoreError>,
    ) -> Result<bool, StoreError> {
        let hash = self.hasher.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        match stripe.slots.find(hash.high) {
            Some(index) => {
                let slot = stripe.slots.at(index);
                if !slot.is_live() || slot.expires() > now.as_nanos() {
                    return Ok(false);
                }
                // The counter's last change may still be in the journal, and the next start must not restore the
                // counter from it.
                let tags = self.change(stripe, hash, &admission.commits, false);
                stripe.clear(index, tags);
                stripe.stage(hash.high, index, key);
            }
            None => {
                if load()?.is_none_or(|expires| expires > now) {
                    return Ok(false);
                }
                // A hit before the record is deleted must not use the record.
                self.make_room(stripe);
                let tags = Tags { recorded: false, ..stripe.loaded_tags(self.marks.clean_mark(), true) };
                stripe.set(None, hash.high, None, now, tags);
            }
        }
        stripe.begun -= 1;
        admission.counters.forget();
        Ok(true)
    }
}
