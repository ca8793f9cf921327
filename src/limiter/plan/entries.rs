//! How a request's actions become entries of the plan: on their own, under an idempotency key, or in a group that is being
//! formed.

use super::contents::Mark;
use super::idempotency_key::IdempotencyKey;
use crate::algorithm::{Ask, Limit, ReservationAsk};
use crate::clock::Timestamp;
use crate::store::{Action, Batch, Entry, record_key};

/// How the requests of a group ask a counter that several of them concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// They are requests of their own: their costs add up.
    Summed,
    /// They are parts of one request: the largest cost counts, once. Charges take effect in any case.
    AsOne,
}

/// A group that is being formed.
#[derive(Debug)]
pub(super) struct OpenGroup {
    together: Together,
    /// The plan before the group.
    pub start: Mark,
    /// A rule without a counter denies: nothing may be taken, regardless of the counters.
    pub is_denied: bool,
    /// The record id of all that the group reserves.
    pub record_id: Option<Vec<u8>>,
    /// Entries since the start that are not part of the group, by index: canaries, and settlements of requests of their own.
    pub apart: Vec<usize>,
}

/// Where entries are added: to the plan's batch, or to the group that is being formed.
pub(super) struct Entries<'a> {
    pub batch: &'a mut Batch,
    pub group: Option<&'a mut OpenGroup>,
    pub key: Option<&'a mut IdempotencyKey>,
}

impl Entries<'_> {
    /// Adds an action on the counter or record whose key and limit `write_key` writes. Returns the index of its entry, or `None`
    /// if there is no limit.
    ///
    /// In a group, actions on one counter become one. The lowest of their limits decides.
    // Inlined, because it runs for each rule of each hit.
    #[inline(always)]
    pub fn add(
        &mut self,
        action: Action,
        at: Timestamp,
        is_canary: bool,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let entry = match (&mut self.key, action) {
            (Some(key), Action::Ask(ask)) => key.push(ask, self.batch, write_key),
            // Other actions are repeatable as they are.
            _ => self.batch.push_if(action, at, write_key),
        };
        match &mut self.group {
            Some(group) => Some(group.admit(entry?, is_canary, self.batch)),
            None => entry,
        }
    }

    /// Whether this entry is in the group, with another request for its counter or one of its leases.
    pub fn has_other_lease(&self, entry: usize) -> bool {
        let (Some(group), Some(key)) = (&self.group, self.batch.key_at(entry)) else { return false };
        if group.apart.binary_search(&entry).is_ok() {
            return false;
        }
        let is_other = |known: &[u8]| known != key && record_key::bucket(known) == record_key::bucket(key);
        group.entries(self.batch).filter_map(|known| self.batch.key_at(known)).any(is_other)
    }
}

impl OpenGroup {
    pub fn new(together: Together, start: Mark) -> Self {
        Self { together, start, is_denied: false, record_id: None, apart: Vec::new() }
    }

    /// The group's entries, by index.
    pub fn entries(&self, batch: &Batch) -> impl Iterator<Item = usize> {
        (self.start.entries..batch.len()).filter(|entry| self.apart.binary_search(entry).is_err())
    }

    /// Takes the batch's last entry into the group: apart, as an entry of its own, or merged with the entry for the same
    /// counter. Returns its index.
    fn admit(&mut self, last: usize, is_canary: bool, batch: &mut Batch) -> usize {
        let Some(Entry { limit, action, .. }) = batch.entry(last).cloned() else { return last };
        if is_canary || (action.is_settlement() && self.together == Together::Summed) {
            self.apart.push(last);
            return last;
        }
        let key = batch.key_at(last).unwrap_or_default();
        // Idempotent requests have records of their own.
        let is_idempotent = matches!(action, Action::Idempotent { .. });
        let is_same =
            |known: &[u8]| known == key || (is_idempotent && record_key::bucket(known) == record_key::bucket(key));
        let is_known = |entry: &usize| *entry != last && batch.key_at(*entry).is_some_and(is_same);
        let Some(known) = self.entries(batch).find(is_known) else { return last };
        batch.truncate(last);
        if let Some(entry) = batch.entry_mut(known) {
            entry.action = merge(entry.action, action, self.together);
            if limit.capacity() < entry.limit.capacity() {
                entry.limit = limit;
            }
        }
        known
    }
}

fn merge(one: Action, other: Action, together: Together) -> Action {
    match (one, other) {
        (Action::Ask(one), Action::Ask(other)) if together == Together::Summed => Action::Ask(sum(one, other)),
        (Action::Idempotent { ask, fingerprint }, Action::Idempotent { ask: other, .. })
            if together == Together::Summed =>
        {
            Action::Idempotent { ask: sum(ask, other), fingerprint }
        }
        (Action::Ask(Ask::Charge { cost }), Action::Ask(Ask::Charge { cost: other })) => {
            Action::Ask(Ask::Charge { cost: cost.max(other) })
        }
        (
            Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }),
            Action::Reservation(ReservationAsk::Reserve { credits: other, .. }),
        ) => Action::Reservation(ReservationAsk::Reserve { credits: credits.max(other), ttl_seconds }),
        (one, _) => one,
    }
}

/// The ask for as much as both. To look for one credit takes none, and what is taken is there to be looked at.
fn sum(one: Ask, other: Ask) -> Ask {
    match (one, other) {
        (Ask::Look { cost }, Ask::Look { cost: other }) => Ask::Look { cost: cost.max(other) },
        (Ask::Overdraw { cost }, Ask::Overdraw { cost: more }) => Ask::Overdraw { cost: cost.saturating_add(more) },
        // A rule without debt decides.
        (Ask::Take { cost } | Ask::Overdraw { cost }, Ask::Take { cost: more } | Ask::Overdraw { cost: more }) => {
            Ask::Take { cost: cost.saturating_add(more) }
        }
        (take @ (Ask::Take { .. } | Ask::Overdraw { .. }), _) => take,
        (_, other) => other,
    }
}
