//! How a request's actions become entries of the plan: on their own, under an idempotency key, or in a group that is being
//! formed.

use super::contents::Plan;
use super::idempotency_key::IdempotencyKey;
use crate::algorithm::{Ask, Limit, ReservationAsk};
use crate::clock::Timestamp;
use crate::store::{Action, Batch, record_key};

/// How the requests of a group ask a counter that several of them concern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// They are requests of their own: their costs add up.
    Summed,
    /// They are parts of one request: the largest cost counts, once. Charges take effect in any case.
    AsOne,
}

/// A group that is being formed. Its entries are the last ones of the plan's batch.
#[derive(Debug)]
pub(super) struct OpenGroup {
    together: Together,
    pub first_entry: usize,
    pub first_member: usize,
    pub first_request: usize,
    /// A rule without a counter denies: nothing may be taken, regardless of the counters.
    pub is_denied: bool,
    /// The record id of all that the group reserves.
    pub record_id: Option<Vec<u8>>,
    /// Entries that are not part of the group: canaries, and settlements of requests of their own.
    pub apart: Batch,
    /// The owner of each of these entries.
    pub owners: Vec<Owner>,
}

/// The member or request that gets the outcome of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    /// The member with the index `place`.
    Member { place: usize, is_canary: bool },
    /// The request with this index.
    Request(usize),
}

/// Where entries are added: to the plan's batch, or to the group that is being formed.
pub(super) struct Entries<'a> {
    pub batch: &'a mut Batch,
    pub group: Option<&'a mut OpenGroup>,
    pub key: Option<&'a mut IdempotencyKey>,
}

impl Entries<'_> {
    /// Adds an action on the counter or record whose key and limit `write_key` writes. Returns the index of its entry, or `None`
    /// if there is no limit. The index of an entry that is kept apart from a group is corrected when the group is closed.
    ///
    /// In a group, actions on one counter become one. The lowest of their limits decides.
    #[inline]
    pub fn add(
        &mut self,
        action: Action,
        at: Timestamp,
        owner: Owner,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let key = self.key.as_deref_mut();
        match &mut self.group {
            None => push(self.batch, key, action, at, write_key),
            Some(group) => group.add(action, at, owner, self.batch, key, write_key),
        }
    }

    /// Whether the group already contains another request for this counter or one of its leases.
    pub fn has_other_lease(&self, write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>) -> bool {
        let Some(group) = &self.group else { return false };
        let mut key = Vec::new();
        write_key(&mut key);
        let known = (group.first_entry..self.batch.len()).filter_map(|entry| self.batch.key_at(entry));
        known.filter(|known| **known != key).any(|known| record_key::bucket(known) == record_key::bucket(&key))
    }

    /// Limits what the entry takes or reserves to what its counter can hold.
    pub fn clamp(&mut self, entry: usize, owner: Owner) {
        match (&mut self.group, owner) {
            (Some(group), Owner::Member { is_canary: true, .. }) => group.apart.clamp(entry),
            _ => self.batch.clamp(entry),
        }
    }
}

impl OpenGroup {
    pub fn new(together: Together, plan: &Plan) -> Self {
        let mut apart = Batch::default();
        apart.begin(plan.now());
        Self {
            together,
            first_entry: plan.batch.len(),
            first_member: plan.members.len(),
            first_request: plan.requests.len(),
            is_denied: false,
            record_id: None,
            apart,
            owners: Vec::new(),
        }
    }

    fn add(
        &mut self,
        action: Action,
        at: Timestamp,
        owner: Owner,
        batch: &mut Batch,
        key: Option<&mut IdempotencyKey>,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let is_canary = matches!(owner, Owner::Member { is_canary: true, .. });
        if is_canary || (action.is_settlement() && self.together == Together::Summed) {
            let entry = push(&mut self.apart, key, action, at, write_key);
            self.owners.extend(entry.map(|_| owner));
            return entry;
        }
        let mut text = Vec::new();
        let limit = write_key(&mut text)?;
        let is_idempotent = key.is_some();
        let is_same = |entry: &usize| batch.key_at(*entry).is_some_and(|known| is_same(known, &text, is_idempotent));
        if let Some(known) = (self.first_entry..batch.len()).find(is_same) {
            let entry = batch.entry_mut(known)?;
            entry.action = merge(entry.action, action, self.together);
            if limit.capacity() < entry.limit.capacity() {
                entry.limit = limit;
            }
            return Some(known);
        }
        let write_key = |out: &mut Vec<u8>| {
            out.extend_from_slice(&text);
            Some(limit)
        };
        push(batch, key, action, at, write_key)
    }
}

/// Adds an entry to the batch, with a record of its answer if there is an idempotency key.
#[inline]
fn push(
    batch: &mut Batch,
    key: Option<&mut IdempotencyKey>,
    action: Action,
    at: Timestamp,
    write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
) -> Option<usize> {
    match key {
        None => batch.push_if(action, at, write_key),
        Some(key) => key.push(action, at, batch, write_key),
    }
}

/// Whether an entry with the key `known` concerns the counter or record `text`. Entries have the keys of their records if there
/// is an idempotency key.
fn is_same(known: &[u8], text: &[u8], is_idempotent: bool) -> bool {
    known == text || (is_idempotent && record_key::bucket(known) == text)
}

fn merge(one: Action, other: Action, together: Together) -> Action {
    match (one, other) {
        (Action::Ask(one), Action::Ask(other)) if together == Together::Summed => Action::Ask(sum(one, other)),
        (Action::Idempotent { ask, fingerprint }, Action::Ask(other)) if together == Together::Summed => {
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
        (Ask::Take { cost }, Ask::Take { cost: more }) => Ask::Take { cost: cost.saturating_add(more) },
        (Ask::Look { cost }, Ask::Look { cost: other }) => Ask::Look { cost: cost.max(other) },
        (Ask::Overdraw { cost }, Ask::Overdraw { cost: more }) => Ask::Overdraw { cost: cost.saturating_add(more) },
        // The rule without debt decides.
        (Ask::Take { cost }, Ask::Overdraw { cost: more }) | (Ask::Overdraw { cost }, Ask::Take { cost: more }) => {
            Ask::Take { cost: cost.saturating_add(more) }
        }
        (take @ (Ask::Take { .. } | Ask::Overdraw { .. }), _) => take,
        (_, other) => other,
    }
}
