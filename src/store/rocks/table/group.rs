//! Groups in the table: counters that change together or not at all.
//!
//! The stripes of a group are locked in order, each once. All is decided on what is there, then all is changed, behind
//! the gate that keeps a commit from taking half of it. How one counter changes is the table's business. A counter and a
//! record beside it change together, too.

use std::sync::Arc;

use smallvec::SmallVec;

use super::stripe::{Found, Stripe};
use super::{KeyHash, Record, Surroundings, Table};
use crate::algorithm::RecordChange;
use crate::clock::Timestamp;
use crate::store::bounds::{Share, Shares};
use crate::store::contract::{Change, Entry, Outcomes, StoreError, Unit};
use crate::store::group::{self, Budgets, EntryDecision};
use crate::store::record_key;
use crate::store::rocks::sync::MutexGuard;

/// A counter of the group.
struct Member<'a> {
    index: usize,
    key: &'a [u8],
    entry: &'a Entry,
    hash: KeyHash,
    /// The record beside it that the entry is about, in the same stripe.
    beside: Option<Beside<'a>>,
    /// Where it is in its stripe, until a counter is added there.
    place: Option<usize>,
    /// Its record, if it had to be read.
    record: Record,
    /// When the group was decided, it existed, and RocksDB had a record of it. It may leave the table while others change.
    exists: bool,
    is_recorded: bool,
}

/// A record beside a counter, by its key and what stands for that.
#[derive(Clone, Copy)]
struct Beside<'a> {
    key: &'a [u8],
    hash: KeyHash,
}

/// The stripes of a group, locked, by their numbers.
struct Stripes<'a>(SmallVec<[(usize, MutexGuard<'a, Stripe>); USUAL]>);

/// Counters of a group for which nothing is allocated.
const USUAL: usize = 4;

impl Table {
    /// Applies the entries of `group` to their counters, all or none, as [`Table::act`] does one, and adds what they come to
    /// to `outcomes`. `load` gives the record of one of them. Returns the commit that makes what these outcomes saw durable;
    /// 0 when it has long been. `None`, and nothing is changed, when `load` gives nothing.
    ///
    /// # Errors
    /// As [`Table::act`]'s; nothing is changed or added then.
    pub fn act_together<'a>(
        &self,
        group: Unit<'a>,
        now: Timestamp,
        surroundings: Surroundings<'_>,
        shares: &Shares,
        outcomes: &mut Outcomes,
        mut load: impl FnMut((usize, &'a [u8], &'a Entry), u32) -> Result<Option<Record>, StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let _gate = self.gate.read();
        let mut members: SmallVec<[_; USUAL]> = group.members().map(|member| Member::new(self, member)).collect();
        let mut stripes = Stripes::lock(self, &members);
        for Member { index, key, entry, hash, beside, place, record, .. } in &mut members {
            let stripe = stripes.of(*hash);
            if beside.is_some() {
                // Before anything is decided: what is found must still be counted when it changes.
                stripe.records.advance(now);
            }
            *place = stripe.find(hash.high);
            if place.is_none() && !stripe.holds_all {
                let Some(read) = load((*index, key, entry), *stripe.departures(hash.high))? else { return Ok(None) };
                stripe.loaded += 1;
                *record = read;
            }
        }
        let (mut decided, mut durable_after) = stripes.decide(&mut members, surroundings, shares)?;
        let mut has_added = false;
        // Decisions are large: they stay where they are.
        for (member, EntryDecision { outcome, change, record, share }) in members.iter_mut().zip(&mut decided) {
            let stripe = stripes.of(member.hash);
            stripe.acted += 1;
            if has_added {
                member.place = stripe.find(member.hash.high);
            }
            has_added |= member.place.is_none();
            let change = std::mem::replace(change, Change::Keep);
            durable_after = durable_after.max(self.make(stripe, member, change, now, surroundings));
            if let Some(beside) = member.beside {
                let record = (*record, share.take());
                durable_after = durable_after.max(self.make_record(stripe, beside, record, surroundings));
            }
            outcomes.push(Ok(*outcome));
        }
        Ok(Some(durable_after))
    }

    /// Makes the change of one counter; there is room for it. Returns the commit that it belongs to.
    fn make(
        &self,
        stripe: &mut Stripe,
        member: &mut Member<'_>,
        change: Change,
        now: Timestamp,
        surroundings: Surroundings<'_>,
    ) -> u64 {
        let Member { key, entry, hash, place, ref mut record, exists, is_recorded, .. } = *member;
        let state = match (change, place) {
            (Change::Set(state), _) => {
                stripe.begun += i64::from(!exists);
                Some(state)
            }
            (Change::Clear, _) => {
                stripe.begun -= 1;
                surroundings.counters.forget();
                None
            }
            (Change::Keep, Some(place)) => {
                stripe.touch(place);
                return 0;
            }
            (Change::Keep, None) => {
                if let Some((state, expires)) = record.take() {
                    self.keep_loaded(stripe, hash, state, expires);
                }
                return 0;
            }
        };
        self.set((stripe, place), (hash, key, entry), state, is_recorded, now, surroundings.group);
        stripe.changed_in
    }

    /// Makes the change of a record beside a counter; there is room for it. Returns the commit that makes what is known of it
    /// durable.
    fn make_record(
        &self,
        stripe: &mut Stripe,
        Beside { key, hash }: Beside<'_>,
        (change, share): (RecordChange, Option<Arc<Share>>),
        Surroundings { group, .. }: Surroundings<'_>,
    ) -> u64 {
        if change != RecordChange::Keep {
            self.change(stripe, hash, group, false);
        }
        Self::change_record(stripe, hash, key, change, share);
        stripe.all_durable_after()
    }
}

impl<'a> Member<'a> {
    fn new(table: &Table, (index, key, entry): (usize, &'a [u8], &'a Entry)) -> Self {
        let bucket = record_key::bucket(key);
        let hash = table.hasher.hash(bucket);
        let beside = entry.action.has_record().then(|| Beside { key, hash: table.hasher.hash_of_record(key, hash) });
        Self { index, key: bucket, entry, hash, beside, place: None, record: None, exists: false, is_recorded: false }
    }
}

impl<'a> Stripes<'a> {
    fn lock(table: &'a Table, members: &[Member<'_>]) -> Self {
        let mut numbers: SmallVec<[_; USUAL]> = members.iter().map(|member| member.hash.stripe()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self(numbers.into_iter().map(|number| (number, table.stripe(number))).collect())
    }

    #[expect(clippy::indexing_slicing, reason = "every member's stripe is there")]
    fn of(&mut self, hash: KeyHash) -> &mut Stripe {
        let place = self.place(hash);
        &mut self.0[place].1
    }

    fn place(&self, hash: KeyHash) -> usize {
        self.0.partition_point(|(number, _)| *number < hash.stripe())
    }

    /// What the group comes to, and the commit that makes what this rests on durable. Notes what is known of its counters.
    #[expect(clippy::indexing_slicing, reason = "every member's stripe is there")]
    fn decide(
        &self,
        members: &mut [Member<'_>],
        Surroundings { health, counters, records, .. }: Surroundings<'_>,
        shares: &Shares,
    ) -> Result<(Vec<EntryDecision>, u64), StoreError> {
        let (mut seen_in, mut needs_disk) = (0, false);
        let mut found: SmallVec<[_; USUAL]> = SmallVec::new();
        for Member { entry, hash, beside, place, record, exists, is_recorded, .. } in members {
            let stripe = &self.0[self.place(*hash)].1;
            *is_recorded = place.map_or(record.is_some(), |place| stripe.slot(place).tags().recorded);
            seen_in = seen_in.max(place.map_or(0, |place| stripe.durable_after(place)));
            let state = match (*place, record) {
                (None, Some((state, _))) => Found::Outside(state),
                (place, _) => stripe.found(place),
            };
            *exists = state.state().is_some();
            needs_disk |= !*exists || beside.is_some();
            let record = beside.and_then(|beside| stripe.records.get(&beside.hash.high));
            found.push((*entry, state, record));
        }
        let members =
            found.iter().map(|(entry, state, record)| group::Member { entry, bucket: state.state(), record: *record });
        let (decided, room) = group::decide(members, Budgets { counters, records, shares })?;
        // As of a single counter: what is refused must leave no trace, and what cannot be written must not be changed.
        if (needs_disk || decided.iter().any(|decided| decided.change != Change::Keep))
            && let Some(fault) = health.fault()
        {
            return Err(fault);
        }
        room.keep();
        Ok((decided, seen_in))
    }
}
