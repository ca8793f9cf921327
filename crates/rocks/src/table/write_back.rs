//! The table's part in a write-back: which counters are due, and the values of their records.

use std::collections::HashSet;

use super::admission::Admission;
use super::slot::Tags;
use super::{GroupBarrier, KeyHash, Table};
use crate::commit::journal;
use crate::commit::segment_marks::Mark;
use divvy_core::clock::Timestamp;
use divvy_store::contract::StoreError;
use divvy_store::{record_key, value};

impl Table {
    /// Writes back a counter that a commit in the journal changed, if its last change is in segment `through` or
    /// earlier. Stages the new value of its record in `changes`.
    ///
    /// Only committed changes become records. A crash must not leave a part of a group, or a hit that was never
    /// acknowledged.
    ///
    /// Returns true if the counter has expired by `now`, and is forgotten instead. `is_late` says whether a change of a
    /// counter may outlive the segment in the journal. Forgetting such a counter must be a change, too.
    pub fn write_back(
        &self,
        change: &journal::Change<'_>,
        (through, now): (u32, Timestamp),
        admission: &Admission,
        is_late: impl FnOnce(KeyHash) -> bool,
        changes: &mut Vec<u8>,
    ) -> bool {
        let key = change.key;
        if record_key::is_record(key) {
            // The record is written with the value in this commit, because a later change is in a later segment. No
            // stored record ends later than its last change says, except those that are forgotten.
            let has_ended = value::expiry(change.value).is_ok_and(|expires| expires <= now);
            if !has_ended {
                journal::stage(changes, key, |out| out.extend_from_slice(change.value));
            }
            return false;
        }
        let hash = self.hasher.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        let Some(index) = stripe.slots.find(hash.high) else { return false };
        let slot = stripe.slots.at(index);
        let tags = slot.tags();
        if self.marks.is_clean(tags.mark) {
            return false;
        }
        if stripe.durable_after(index) > admission.commits.done() {
            // The counter has a later change that is not committed. Of the changes in this pass, the last one wins. A
            // later segment may have yet another one.
            journal::stage(changes, key, |out| out.extend_from_slice(change.value));
            stripe.retag(index, Tags { recorded: !change.value.is_empty(), ..tags });
            return false;
        }
        if self.marks.number(tags.mark) > through {
            // A later segment has that change.
            return false;
        }
        if slot.is_live() && slot.expires() > now.as_nanos() {
            journal::stage(changes, key, |out| stripe.write_value(index, out));
            stripe.retag(index, Tags { recorded: true, ..tags });
            return false;
        }
        let is_late = slot.is_live() && is_late(hash);
        let may_have_record = tags.recorded || !self.knows_records();
        if slot.is_live() {
            admission.counters.forget();
        }
        // This includes late counters: from now on, their tags say that they have no record.
        if may_have_record {
            journal::stage(changes, key, |_| ());
        }
        if is_late {
            let tags = self.change(stripe, hash, &admission.commits, false);
            stripe.clear(index, Tags { used: false, ..tags });
            stripe.stage(hash.high, index, key);
        } else {
            stripe.clear(index, Tags { recorded: false, ..tags });
        }
        slot.is_live()
    }

    /// Prevents a counter from becoming clean with segment `through`, because its last change is, or will be, in the
    /// next segment. If the counter left the table, that change might be lost.
    pub fn stays_in_journal(&self, hash: KeyHash, through: u32) {
        let mut stripe = self.stripe(hash.stripe());
        let Some(index) = stripe.slots.find(hash.high) else { return };
        let tags = stripe.slots.at(index).tags();
        if !self.marks.is_clean(tags.mark) && self.marks.number(tags.mark) <= through {
            stripe.retag(index, Tags { mark: through.wrapping_add(1) as Mark, ..tags });
        }
    }

    /// Stages the current states of the counters that these records changed, once each, for the open segment.
    ///
    /// # Errors
    /// A record is damaged.
    pub fn change_again<'a>(
        &self,
        _: &GroupBarrier<'_>,
        records: impl Iterator<Item = &'a [u8]>,
        changes: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let mut seen = HashSet::new();
        for record in records {
            journal::each_change(record, |change| {
                let hash = self.hasher.hash_of(change.key);
                if !seen.insert(hash) {
                    return Ok(());
                }
                let mut stripe = self.stripe(hash.stripe());
                if record_key::is_record(change.key) {
                    journal::stage(changes, change.key, |out| {
                        if let Some(record) = stripe.records.get(&hash.high) {
                            value::encode_record(record, out);
                        }
                    });
                } else if let Some(index) = stripe.slots.find(hash.high) {
                    let tags = Tags { mark: self.marks.open() as Mark, ..stripe.slots.at(index).tags() };
                    stripe.retag(index, tags);
                    journal::stage(changes, change.key, |out| stripe.write_value(index, out));
                }
                Ok::<_, StoreError>(())
            })?;
        }
        Ok(())
    }
}
