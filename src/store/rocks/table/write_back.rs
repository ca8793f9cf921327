//! The table's part in a write-back: which counters are due, and what their records have to be.

use std::collections::HashSet;

use super::slot::Tags;
use super::{BetweenGroups, KeyHash, Table, stage};
use crate::clock::Timestamp;
use crate::store::bounds::CounterBudget;
use crate::store::contract::StoreError;
use crate::store::record_key;
use crate::store::rocks::commit::group_commit::GroupCommit;
use crate::store::rocks::commit::journal;
use crate::store::rocks::commit::segment_marks::Mark;

/// Which counters a write-back writes: those whose last change lies in segment `through` or earlier.
pub struct Due<'a> {
    pub through: u32,
    /// By which counters have expired.
    pub now: Timestamp,
    pub group: &'a GroupCommit,
    pub budget: &'a CounterBudget,
}

impl Table {
    /// A commit in the journal has `change`. If its counter is due: stages in `changes` what its record has to be. It
    /// counts as recorded.
    ///
    /// Only what is committed becomes a record: one counter's part of a group, or a hit that was never acknowledged, must not
    /// outlive a crash alone.
    ///
    /// A counter that has expired is forgotten instead: true then. `is_late` says of a counter whether a change of it may
    /// outlive the segment in the journal: then forgetting it has to be a change as well.
    pub fn write_back(
        &self,
        change: &journal::Change<'_>,
        &Due { through, now, group, budget }: &Due<'_>,
        is_late: impl FnOnce(KeyHash) -> bool,
        changes: &mut Vec<u8>,
    ) -> bool {
        let key = change.key;
        if record_key::is_record(key) {
            Self::write_back_record(change, now, changes);
            return false;
        }
        let hash = self.hasher.hash(key);
        let mut guard = self.stripe(hash.stripe());
        let stripe = &mut *guard;
        let Some(index) = stripe.find(hash.high) else { return false };
        let slot = stripe.slot(index);
        let tags = slot.tags();
        if self.marks.is_clean(tags.mark) {
            return false;
        }
        if stripe.durable_after(index) > group.done() {
            // The last change of the key that the write-back comes to is its last before that one, or a later segment has it.
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
            stripe.begun -= 1;
            budget.forget();
        }
        // A late one's, too: a compaction may drop it, and the count would rest on a record that is not there.
        if may_have_record {
            journal::stage(changes, key, |_| ());
        }
        if is_late {
            let tags = self.change(stripe, hash, group, false);
            stripe.clear(index, Tags { used: false, ..tags });
            stage(stripe, hash.high, index, key);
        } else {
            stripe.clear(index, Tags { recorded: false, ..tags });
        }
        slot.is_live()
    }

    /// If the counter is about to be clean with segment `through`: it is not yet, since its last change is in the next
    /// segment, or will be. If it left the table, that change might be gone; and if a compaction dropped its record, the next
    /// start would find a counter that is not counted.
    pub fn stays_in_journal(&self, hash: KeyHash, through: u32) {
        let mut stripe = self.stripe(hash.stripe());
        let Some(index) = stripe.find(hash.high) else { return };
        let tags = stripe.slot(index).tags();
        if !self.marks.is_clean(tags.mark) && self.marks.number(tags.mark) <= through {
            stripe.retag(index, Tags { mark: through.wrapping_add(1) as Mark, ..tags });
        }
    }

    /// Stages the counters that these records changed as they are now, once each, for the open segment.
    ///
    /// # Errors
    /// When a record is damaged.
    pub fn change_again<'a>(
        &self,
        _: &BetweenGroups<'_>,
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
                if record_key::is_record(change.key) {
                    self.stage_record(hash, change.key, changes);
                } else {
                    let mut stripe = self.stripe(hash.stripe());
                    if let Some(index) = stripe.find(hash.high) {
                        let tags = Tags { mark: self.marks.open() as Mark, ..stripe.slot(index).tags() };
                        stripe.retag(index, tags);
                        journal::stage(changes, change.key, |out| stripe.write_value(index, out));
                    }
                }
                Ok::<_, StoreError>(())
            })?;
        }
        Ok(())
    }
}
