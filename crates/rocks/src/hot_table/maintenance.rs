//! The upkeep of the table: loading, write-backs, expiry, and giving back memory.
//!
//! The table keeps track of the records in RocksDB while it loads counters. In a write-back, it decides which counters are due, and
//! writes the values of their records. It forgets expired counters after a compaction has dropped their records.
//!
//! Reservations and answers to requests with an idempotency key are records, too. Each lives in its bucket's stripe, in
//! memory until it ends, and in the journal with its bucket. Such records do not count as counters, and need no look-up.

use std::collections::HashSet;

use super::slots::{Slot, SlotState, Tags};
use super::stripe::Stripe;
use super::{CounterRecord, GroupBarrier, HotTable, KeyHash};
use crate::journal;
use crate::journal::Mark;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use divvy_core::algorithm::{Record, State, WindowState};
use divvy_core::clock::Timestamp;
use divvy_store::{StoreError, record_key, value};

/// Changes of one stripe that were found in the journal when the store was opened, oldest first.
#[derive(Debug, Default)]
pub struct ReplayedChanges {
    /// The counters' new slots. One with a state outside has no index yet.
    counters: Vec<Slot>,
    /// The states outside of these slots, in their order.
    outside: Vec<State>,
    /// The hashes of records with their new contents; `None` if the record was forgotten.
    records: Vec<(u64, Option<Record>)>,
}

impl ReplayedChanges {
    /// Adds a change of a counter; `None` if it was forgotten. The journal segment with this number contains the change.
    pub fn push_counter(&mut self, hash: KeyHash, counter: CounterRecord, segment: u32) {
        let state = match counter {
            None => SlotState::Absent,
            Some((State::FixedWindow(WindowState { ends, count }), _)) if Slot::fits(count) => {
                SlotState::Window { ends: ends.as_nanos(), count }
            }
            Some((state, expires)) => {
                self.outside.push(state);
                SlotState::Outside { expires: expires.as_nanos(), index: 0 }
            }
        };
        let tags = Tags { used: false, recorded: false, epoch: 0, mark: segment as Mark };
        self.counters.push(Slot::new(hash.high, state, tags));
    }

    /// Adds a change of a record; `None` if it was forgotten.
    pub fn push_record(&mut self, hash: KeyHash, record: Option<Record>) {
        self.records.push((hash.high, record));
    }
}

/// Sums over all stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Counters in the table.
    pub counters: u64,
    pub bytes: u64,
    /// Actions that needed no look-up in RocksDB.
    pub hits: u64,
    /// Actions on counters that had to be looked up.
    pub misses: u64,
    /// Number of counters without a record in RocksDB, minus the records without a counter. The sum of this and the
    /// number of records is the number of counters. It is exact if records are known and no write-back runs.
    pub unrecorded: i64,
}

impl HotTable {
    /// Makes the changes of one stripe that were found in the journal when the store was opened. Leaves none of them.
    pub fn replay(&self, stripe: usize, ReplayedChanges { counters, outside, records }: &mut ReplayedChanges) {
        let mut stripe = self.stripe(stripe);
        records.drain(..).for_each(|(hash, record)| stripe.load_record(hash, record, &self.records));
        let mut outside = outside.drain(..);
        for slot in counters.drain(..) {
            let state = match slot.state() {
                SlotState::Absent => None,
                SlotState::Window { ends, count } => {
                    Some(State::FixedWindow(WindowState { ends: Timestamp::from_nanos(ends), count }))
                }
                SlotState::Outside { .. } => outside.next(),
            };
            let index = stripe.slots.find(slot.hash);
            if index.is_none() {
                self.make_room(&mut stripe);
            }
            let tags = Tags { recorded: false, ..stripe.loaded_tags(slot.tags().mark, false) };
            stripe.note_time(state.as_ref());
            stripe.set(index, slot.hash, state, Timestamp::from_nanos(slot.expires()), tags);
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
                let tags = stripe.loaded_tags(self.marks.clean() as Mark, false);
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
        if stripe.durable_after(index) > self.commits.done() {
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
            self.counters.forget();
        }
        // This includes late counters: from now on, their tags say that they have no record.
        if may_have_record {
            journal::stage(changes, key, |_| ());
        }
        if is_late {
            let tags = self.change(stripe, hash, false);
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
                    return;
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
            })?;
        }
        Ok(())
    }

    /// Forgets counters that had expired by `now`, if their records were current. A compaction of all counters that
    /// began later has dropped these records. A counter with a later change is left to its write-back.
    pub fn forget_expired(&self, now: Timestamp) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            let is_expired = |slot: &Slot| {
                slot.is_live() && slot.expires() <= now.as_nanos() && self.marks.is_clean(slot.tags().mark)
            };
            for index in stripe.slots.find_all(is_expired) {
                let tags = stripe.slots.at(index).tags();
                stripe.clear(index, Tags { recorded: false, ..tags });
            }
        }
    }

    /// Loads a record while the store opens. It counts, regardless of the bounds.
    pub fn load_record(&self, hash: KeyHash, record: Record) {
        self.stripe(hash.stripe()).load_record(hash.high, Some(record), &self.records);
    }

    /// Drops the records that may be forgotten at `now`, which is earlier than before if the clock `was_set_back`.
    pub fn sweep_records(&self, now: Timestamp, was_set_back: bool) {
        for stripe in &self.stripes {
            let records = &mut stripe.lock().records;
            if was_set_back { records.advance(now) } else { records.sweep(now) }
        }
    }

    /// Adds up the stripes, one after the other.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            usage.counters += stripe.slots.len() as u64;
            usage.bytes += stripe.bytes() as u64;
            usage.hits += stripe.acted - stripe.loaded;
            usage.misses += stripe.loaded;
            usage.unrecorded += stripe.unrecorded;
        }
        usage
    }

    /// Returns the memory beyond that, for counters whose records are not current (bytes).
    pub fn excess(&self) -> usize {
        self.excess.load(Relaxed)
    }

    /// Gives back memory beyond the bound, as far as records are current.
    pub fn give_back(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            if stripe.counted_excess > 0 {
                stripe.give_back(&self.marks);
                self.count_excess(&mut stripe);
            }
        }
    }

    /// Counts the memory that the stripe, which the caller holds, takes beyond its bound.
    pub(super) fn count_excess(&self, stripe: &mut Stripe) {
        let excess = stripe.excess();
        let counted = std::mem::replace(&mut stripe.counted_excess, excess);
        // The sum of all stripes is never less than the part of one.
        match excess.checked_sub(counted) {
            Some(0) => {}
            Some(more) => drop(self.excess.fetch_add(more, Relaxed)),
            None => drop(self.excess.fetch_sub(counted - excess, Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests;
