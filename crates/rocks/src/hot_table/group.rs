//! Groups in the table: counters that change together or not at all.
//!
//! A group locks its stripes in order, each once. It decides on the current state of all its counters, and then changes
//! all of them. A gate prevents a commit from taking only half of the changes. A counter and a record of its bucket
//! also change together.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::stripe::Stripe;
use super::{CounterRecord, HotTable, KeyHash};
use crate::journal;
use crate::sync::MutexGuard;
use divvy_core::algorithm::{RecordChange, State};
use divvy_core::clock::Timestamp;
use divvy_store::group::{self, Budgets, EntryDecision};
use divvy_store::{Change, Entry, Outcomes, Share, StoreError, Unit, record_key, value};

/// A counter of the group.
struct Member<'a> {
    key: &'a [u8],
    entry: &'a Entry,
    hash: KeyHash,
    /// Index of its stripe among the locked ones.
    stripe: usize,
    /// Key of the record that the entry is about, with its hash. The record is in the same stripe.
    record_key: Option<(&'a [u8], KeyHash)>,
    /// Index in its stripe, valid until a counter is added there.
    slot: Option<usize>,
    /// The counter's record, if it had to be read. Boxed, because that is rare, and members are moved.
    loaded: Option<Box<(State, Timestamp)>>,
    /// Whether the counter had a record in RocksDB when the group was decided. It may leave the table while others change.
    is_recorded: bool,
}

/// The locked stripes of a group, in the order of their numbers.
struct Stripes<'a>(SmallVec<[MutexGuard<'a, Stripe>; USUAL_SIZE]>);

/// Size of a group that needs no allocations.
const USUAL_SIZE: usize = 4;

impl HotTable {
    /// Applies the entries of `group` to their counters, all or none, and adds their outcomes to `outcomes`. (For one
    /// entry, see [`HotTable::act`].) `load` returns the record of one counter, and `decisions` is a buffer. Returns the
    /// commit that makes the state behind these outcomes durable; 0 if that has long been durable. If `load` returns
    /// `None`, so does this function, and nothing changes.
    ///
    /// # Errors
    /// See [`HotTable::act`]. Nothing is changed or added then.
    pub fn act_together<'a>(
        &self,
        group: Unit<'a>,
        now: Timestamp,
        decisions: &mut Vec<EntryDecision>,
        outcomes: &mut Outcomes,
        mut load: impl FnMut((usize, &'a [u8], &'a Entry), u32) -> Result<Option<CounterRecord>, StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let _gate = self.gate.read();
        let mut members: SmallVec<[_; USUAL_SIZE]> = SmallVec::new();
        // Pushed one by one, because `collect` would copy each.
        group.members().for_each(|(_, key, entry)| members.push(Member::new(self, key, entry)));
        let mut stripes = Stripes::lock(self, &mut members);
        for (index, member) in (group.first..).zip(&mut members) {
            let Member { key, entry, hash, stripe, record_key, slot, loaded, .. } = member;
            let stripe = stripes.at(*stripe);
            if record_key.is_some() {
                // This comes before the decision, because a record that the decision finds must still be counted when
                // it changes.
                stripe.records.advance(now);
            }
            *slot = stripe.slots.find(hash.high);
            if slot.is_none() && !stripe.holds_all {
                let Some(record) = load((index, key, entry), *stripe.evictions(hash.high))? else { return Ok(None) };
                stripe.loaded += 1;
                *loaded = record.map(Box::new);
            }
            // A refused group has looked up its counters, too.
            stripe.acted += 1;
        }
        let mut durable_after = stripes.decide(self, &mut members, decisions)?;
        let mut has_added = false;
        // Decisions are large, so they stay in place.
        for (member, EntryDecision { outcome, change, record, share }) in members.iter_mut().zip(decisions) {
            let change = std::mem::replace(change, Change::Keep);
            let stripe = stripes.at(member.stripe);
            if has_added {
                member.slot = stripe.slots.find(member.hash.high);
            }
            has_added |= member.slot.is_none();
            durable_after = durable_after.max(self.make_change(stripe, member, change, now));
            if let Some(key) = member.record_key {
                durable_after = durable_after.max(self.make_record_change(stripe, key, *record, share.take()));
            }
            outcomes.push(Ok(*outcome));
        }
        Ok(Some(durable_after))
    }

    /// Makes the change of one counter. There must be room for it. Returns the commit that the change belongs to.
    #[inline]
    fn make_change(&self, stripe: &mut Stripe, member: &mut Member<'_>, change: Change, now: Timestamp) -> u64 {
        let Member { key, entry, hash, slot, ref mut loaded, is_recorded, .. } = *member;
        let state = match change {
            Change::Set(state) => Some(state),
            Change::Clear => {
                self.counters.forget();
                None
            }
            Change::Keep => {
                if let Some(index) = slot {
                    stripe.touch(index);
                } else if let Some((state, expires)) = loaded.take().map(|loaded| *loaded) {
                    self.keep_loaded(stripe, hash, state, expires);
                }
                return 0;
            }
        };
        self.set((stripe, slot), (hash, key, entry), state, is_recorded, now);
        stripe.changed_in
    }

    /// Makes the change of a record. There must be room for it. A new record gets the share. Returns the commit that
    /// makes the record durable.
    fn make_record_change(
        &self,
        stripe: &mut Stripe,
        (key, hash): (&[u8], KeyHash),
        change: RecordChange,
        share: Option<Share>,
    ) -> u64 {
        if change != RecordChange::Keep {
            self.change(stripe, hash, false);
        }
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
        stripe.all_durable_after()
    }
}

impl<'a> Member<'a> {
    #[inline]
    fn new(table: &HotTable, key: &'a [u8], entry: &'a Entry) -> Self {
        let bucket = record_key::bucket(key);
        let hash = table.hasher.hash(bucket);
        let has_record = entry.action.has_record();
        let record_key = has_record.then(|| (key, table.hasher.hash_of_record(key, hash)));
        Self { key: bucket, entry, hash, stripe: 0, record_key, slot: None, loaded: None, is_recorded: false }
    }
}

impl<'a> Stripes<'a> {
    /// Locks the members' stripes, each once.
    #[inline]
    fn lock(table: &'a HotTable, members: &mut [Member<'_>]) -> Self {
        let mut numbers: SmallVec<[_; USUAL_SIZE]> = members.iter().map(|member| member.hash.stripe()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        for member in members {
            member.stripe = numbers.binary_search(&member.hash.stripe()).unwrap_or_default();
        }
        Self(numbers.iter().map(|number| table.stripe(*number)).collect())
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a member has the index of its stripe")]
    fn at(&mut self, index: usize) -> &mut Stripe {
        &mut self.0[index]
    }

    /// Decides the group into `decisions`, and records what it learns about the counters. Returns the commit that makes
    /// the state behind the decision durable.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a member has the index of its stripe")]
    fn decide(
        &self,
        HotTable { health, counters, records, .. }: &HotTable,
        members: &mut [Member<'_>],
        decisions: &mut Vec<EntryDecision>,
    ) -> Result<u64, StoreError> {
        let (mut durable_after, mut needs_disk) = (0, false);
        let mut found: SmallVec<[_; USUAL_SIZE]> = SmallVec::new();
        for Member { entry, stripe, record_key, slot, loaded, is_recorded, .. } in members {
            let stripe = &self.0[*stripe];
            *is_recorded = slot.map_or(loaded.is_some(), |index| stripe.slots.at(index).tags().recorded);
            durable_after = durable_after.max(slot.map_or(0, |index| stripe.durable_after(index)));
            let state = match (*slot, loaded) {
                (None, Some(loaded)) => Some(Cow::Borrowed(&loaded.0)),
                (slot, _) => stripe.state(slot),
            };
            needs_disk |= state.is_none() || record_key.is_some();
            let record = record_key.and_then(|(_, hash)| stripe.records.get(&hash.high));
            found.push(group::Member { entry, bucket: state, record });
        }
        let room = group::decide(&found, Budgets { counters, records }, decisions)?;
        // A refused entry leaves no trace, and a change that cannot be written is not made: see `HotTable::act`.
        if let Some(fault) = health.fault()
            && (needs_disk || decisions.iter().any(|decision| decision.change != Change::Keep))
        {
            return Err(fault);
        }
        room.keep();
        Ok(durable_after)
    }
}
