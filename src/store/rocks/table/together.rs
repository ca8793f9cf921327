//! Groups in the table: counters that change together or not at all.
//!
//! The stripes of a group are locked in order, each once. All is decided on what is there, then all is changed, behind
//! the gate that keeps a commit from taking half of it. How one counter changes is the table's business.

use super::super::stripe::{Found, Stripe};
use super::super::sync::MutexGuard;
use super::{KeyHash, Record, Surroundings, Table};
use crate::algorithm::Outcome;
use crate::clock::Timestamp;
use crate::store::batch::{Change, Entry, Unit};
use crate::store::error::StoreError;
use crate::store::together::{self, Decided};

/// What a group came to.
pub struct ActedTogether {
    /// In the order of its entries.
    pub outcomes: Vec<Outcome>,
    /// The commit that makes what these outcomes saw durable; 0 when it has long been.
    pub durable_after: u64,
}

/// A counter of the group.
struct Member<'a> {
    index: usize,
    key: &'a [u8],
    entry: &'a Entry,
    hash: KeyHash,
    /// Its record, if it had to be read.
    record: Record,
}

/// What the table knew of a counter when the group was decided. Some may leave while others are changed.
struct Known {
    exists: bool,
    is_recorded: bool,
}

/// The stripes of a group, locked, by their numbers.
struct Stripes<'a>(Vec<(usize, MutexGuard<'a, Stripe>)>);

impl Table {
    /// Applies the entries of `group` to their counters, all or none, as [`Table::act`] does one. `load` gives the record of
    /// one of them.
    ///
    /// # Errors
    /// As [`Table::act`]'s; nothing is changed then.
    pub fn act_together<'a>(
        &self,
        group: Unit<'a>,
        now: Timestamp,
        surroundings: Surroundings<'_>,
        mut load: impl FnMut((usize, &'a [u8], &'a Entry), u32) -> Result<Option<Record>, StoreError>,
    ) -> Result<Option<ActedTogether>, StoreError> {
        let _gate = self.gate.read();
        let mut members: Vec<_> = group.members().map(|member| Member::new(self, member)).collect();
        let mut stripes = Stripes::lock(self, &members);
        for Member { index, key, entry, hash, record } in &mut members {
            let stripe = stripes.of(*hash);
            if stripe.find(hash.high).is_none() && !stripe.holds_all {
                let Some(read) = load((*index, key, entry), *stripe.departures(hash.high))? else { return Ok(None) };
                stripe.loaded += 1;
                *record = read;
            }
        }
        let (decided, known, seen_in) = stripes.decide(&members, group.entries, surroundings)?;
        let mut acted = ActedTogether { outcomes: Vec::with_capacity(decided.len()), durable_after: seen_in };
        for ((member, known), Decided { outcome, change }) in members.into_iter().zip(known).zip(decided) {
            let stripe = stripes.of(member.hash);
            stripe.acted += 1;
            let changed_in = self.make(stripe, member, known, change, now, surroundings);
            acted.durable_after = acted.durable_after.max(changed_in);
            acted.outcomes.push(outcome);
        }
        Ok(Some(acted))
    }

    /// Makes the change of one counter; there is room for it. Returns the commit that it belongs to.
    fn make(
        &self,
        stripe: &mut Stripe,
        Member { key, entry, hash, record, .. }: Member<'_>,
        known: Known,
        change: Change,
        now: Timestamp,
        surroundings: Surroundings<'_>,
    ) -> u64 {
        match (change, stripe.find(hash.high)) {
            (Change::Set(state), index) => {
                stripe.begun += i64::from(!known.exists);
                self.set((stripe, index), (hash, key, entry), Some(state), known.is_recorded, now, surroundings.group);
                stripe.changed_in
            }
            (Change::Keep | Change::Clear, Some(index)) => {
                stripe.touch(index);
                0
            }
            (Change::Keep | Change::Clear, None) => {
                if let Some((state, expires)) = record {
                    self.keep_loaded(stripe, hash, state, expires);
                }
                0
            }
        }
    }
}

impl<'a> Member<'a> {
    fn new(table: &Table, (index, key, entry): (usize, &'a [u8], &'a Entry)) -> Self {
        Self { index, key, entry, hash: table.hash(key), record: None }
    }
}

impl<'a> Stripes<'a> {
    fn lock(table: &'a Table, members: &[Member<'_>]) -> Self {
        let mut numbers: Vec<_> = members.iter().map(|member| member.hash.stripe()).collect();
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

    /// What the group comes to, what is known of its counters, and the commit that makes this durable.
    #[expect(clippy::indexing_slicing, reason = "every member's stripe is there")]
    fn decide(
        &self,
        members: &[Member<'_>],
        entries: &[Entry],
        Surroundings { health, budget, .. }: Surroundings<'_>,
    ) -> Result<(Vec<Decided>, Vec<Known>, u64), StoreError> {
        let mut seen_in = 0;
        let (mut found, mut known) = (Vec::with_capacity(members.len()), Vec::with_capacity(members.len()));
        for Member { hash, record, .. } in members {
            let stripe = &self.0[self.place(*hash)].1;
            let index = stripe.find(hash.high);
            let state = match (index, record) {
                (None, Some((state, _))) => Found::Outside(state),
                (index, _) => stripe.found(index),
            };
            let is_recorded = index.map_or(record.is_some(), |index| stripe.slot(index).tags().recorded);
            seen_in = seen_in.max(index.map_or(0, |index| stripe.durable_after(index)));
            known.push(Known { exists: state.state().is_some(), is_recorded });
            found.push(state);
        }
        let (decided, room) = together::decide(entries, |place| found.get(place).and_then(Found::state), budget)?;
        let changes = decided.iter().any(|decided| decided.change != Change::Keep);
        // As of a single counter: what is refused must leave no trace, and what cannot be written must not be changed.
        if (changes || known.iter().any(|known| !known.exists))
            && let Some(fault) = health.fault()
        {
            return Err(fault);
        }
        room.keep();
        Ok((decided, known, seen_in))
    }
}
