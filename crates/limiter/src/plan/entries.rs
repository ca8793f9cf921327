//! Entries of the plan: adds a request's actions alone, under an idempotency key, or to a group.

use std::collections::HashMap;

use siphasher::sip128::SipHasher13;

use super::Mark;
use super::effects::Intent;
use crate::store::{Action, Batch, Entry, record_key};
use divvy_core::algorithm::{Ask, Limit, ReservationAsk};
use divvy_core::clock::Timestamp;
use divvy_core::rules::Operation;

/// How actions on the same counter are merged in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// The actions belong to different requests, so their costs add up.
    Summed,
    /// The actions belong to one request. The largest cost counts once, and charges always take effect.
    AsOne,
}

/// A group that is being formed.
#[derive(Debug)]
pub(super) struct OpenGroup {
    pub together: Together,
    /// The plan before the group.
    pub start: Mark,
    /// Whether a rule without a counter denies the group. Then nothing may be taken, regardless of the counters.
    pub is_denied: bool,
    /// The record id of the group's reservations.
    pub record_id: Option<Vec<u8>>,
    /// Indexes of entries since the start that are not part of the group: canaries, tallies, and settlements that are
    /// requests of their own.
    pub apart: Vec<usize>,
}

/// The destination of new entries: the plan's batch, or the group that is being formed.
pub(super) struct Entries<'a> {
    pub batch: &'a mut Batch,
    pub group: Option<&'a mut OpenGroup>,
    pub key: Option<&'a mut IdempotencyKey>,
}

impl Entries<'_> {
    /// Returns whether entries are neither in a group nor under an idempotency key.
    #[inline]
    pub fn are_alone(&self) -> bool {
        self.group.is_none() && self.key.is_none()
    }

    /// Adds an action on the counter or record whose key and limit `write_key` writes. Returns the index of its entry, or `None`
    /// if there is no limit.
    ///
    /// In a group, actions on one counter become one. The lowest of their limits decides, except for those of allowed actors.
    pub fn add(
        &mut self,
        action: Action,
        at: Timestamp,
        is_canary: bool,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let entry = match (&mut self.key, action) {
            (Some(key), Action::Ask(ask)) if key.covers(ask, is_canary) => key.push(ask, self.batch, write_key),
            // Other actions are repeatable without a record.
            _ => self.batch.push_if(action, at, write_key),
        };
        match &mut self.group {
            Some(group) => Some(group.admit(entry?, is_canary, self.batch)),
            None => entry,
        }
    }

    /// Returns whether the group already contains another request for this entry's counter or for one of its leases.
    pub fn has_other_lease(&self, entry: usize) -> bool {
        let (Some(group), Some(key)) = (&self.group, self.batch.key_at(entry)) else { return false };
        if group.is_apart(entry) {
            return false;
        }
        let is_other = |known: &[u8]| known != key && record_key::bucket(known) == record_key::bucket(key);
        group.entries(self.batch).filter_map(|known| self.batch.key_at(known)).any(is_other)
    }
}

impl OpenGroup {
    /// Returns the indexes of the group's entries.
    pub fn entries(&self, batch: &Batch) -> impl Iterator<Item = usize> {
        (self.start.entries..batch.len()).filter(|entry| !self.is_apart(*entry))
    }

    /// Returns whether the entry takes effect apart from the group.
    fn is_apart(&self, entry: usize) -> bool {
        self.apart.binary_search(&entry).is_ok()
    }

    /// Decides whether the batch's last entry belongs to the group. A canary stays apart, and so does a tally, and a settlement that
    /// is a request of its own. If the group already has an entry for the same counter, both become one, under the lower limit, and so
    /// do tallies of one request. Returns the index of the entry.
    fn admit(&mut self, last: usize, is_canary: bool, batch: &mut Batch) -> usize {
        let Some(Entry { limit, action, .. }) = batch.entry(last).cloned() else { return last };
        let key = batch.key_at(last).unwrap_or_default();
        let is_apart = is_canary || action.is_tally() || (action.is_settlement() && self.together == Together::Summed);
        // Each idempotent request has a record of its own.
        let is_idempotent = matches!(action, Action::Idempotent { .. });
        let is_same =
            |known: &[u8]| known == key || (is_idempotent && record_key::bucket(known) == record_key::bucket(key));
        let is_known = |entry: &usize| {
            let has_same_action = |known: &Entry| known.action.is_tally() == action.is_tally();
            self.is_apart(*entry) == is_apart
                && batch.entry(*entry).is_some_and(has_same_action)
                && batch.key_at(*entry).is_some_and(is_same)
        };
        let counts_alone = is_canary || (is_apart && self.together == Together::Summed);
        let known = (self.start.entries..last).find(is_known).filter(|_| !counts_alone);
        self.apart.extend(Some(last).filter(|_| is_apart && known.is_none()));
        let Some(known) = known else { return last };
        batch.truncate(last);
        if let Some(entry) = batch.entries.get_mut(known) {
            // No limit denies a hit of an allowed actor.
            let is_allowed = |action: Action| matches!(action.ask(), Some(Ask::Count { .. }));
            if (is_allowed(action), limit.capacity()) < (is_allowed(entry.action), entry.limit.capacity()) {
                entry.limit = limit;
            }
            entry.action = merge(entry.action, action, self.together);
        }
        known
    }
}

fn merge(one: Action, other: Action, together: Together) -> Action {
    match (one, other) {
        // Another rule that shares the counter decides.
        (Action::Ask(Ask::Count { .. }), other) if together == Together::AsOne => other,
        (Action::Ask(one), Action::Ask(other)) if together == Together::Summed => Action::Ask(sum(one, other)),
        (Action::Idempotent { ask, fingerprint }, Action::Idempotent { ask: other, .. })
            if together == Together::Summed =>
        {
            Action::Idempotent { ask: sum(ask, other), fingerprint }
        }
        (Action::Ask(Ask::Charge { cost }), Action::Ask(Ask::Charge { cost: other })) => {
            Action::Ask(Ask::Charge { cost: cost.max(other) })
        }
        (Action::Ask(Ask::Tally { cost }), Action::Ask(Ask::Tally { cost: other })) => {
            Action::Ask(Ask::Tally { cost: cost.max(other) })
        }
        (
            Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }),
            Action::Reservation(ReservationAsk::Reserve { credits: other, .. }),
        ) => Action::Reservation(ReservationAsk::Reserve { credits: credits.max(other), ttl_seconds }),
        (one, _) => one,
    }
}

/// Returns one ask in place of two. The costs of takes add up. A look adds nothing to a take, and two looks need the
/// larger cost.
fn sum(one: Ask, other: Ask) -> Ask {
    let taken = |ask| match ask {
        Ask::Count { cost } | Ask::Take { cost } | Ask::Overdraw { cost } => Some(cost),
        _ => None,
    };
    let cost = match (taken(one), taken(other), one, other) {
        (Some(cost), Some(more), ..) => cost.saturating_add(more),
        (Some(cost), None, ..) | (None, Some(cost), ..) => cost,
        (None, None, Ask::Look { cost }, Ask::Look { cost: other }) => return Ask::Look { cost: cost.max(other) },
        (None, None, ..) => return other,
    };
    match (one, other) {
        // An allowed actor counts as if it came first. The others need credits besides.
        (Ask::Count { .. }, Ask::Count { .. }) => Ask::Count { cost },
        // A limit without debt takes precedence.
        (Ask::Take { .. }, _) | (_, Ask::Take { .. }) => Ask::Take { cost },
        (Ask::Overdraw { .. }, _) | (_, Ask::Overdraw { .. }) => Ask::Overdraw { cost },
        _ => Ask::Take { cost },
    }
}

/// The idempotency key of the requests that are being added, and the records so far.
#[derive(Debug)]
pub(super) struct IdempotencyKey {
    pub intent: Intent,
    pub key: Vec<u8>,
    pub fingerprint: u64,
    /// Number of records for each counter.
    pub records: HashMap<Vec<u8>, u32>,
}

impl IdempotencyKey {
    /// Returns the key under which a reservation with the client's own id counts where it sets nothing aside. The id with other terms
    /// has another key, because it may name the next reservation.
    pub fn of_reservation(id: &[u8], credits: u64, ttl_seconds: Option<u32>) -> Self {
        let key = [&credits.to_le_bytes()[..], &ttl_seconds.unwrap_or(0).to_le_bytes(), id].concat();
        Self { intent: Intent::Reserve, key, fingerprint: 0, records: HashMap::new() }
    }

    /// Returns whether the ask needs a record. In the group of a reservation, its record stands for what is taken.
    fn covers(&self, ask: Ask, is_canary: bool) -> bool {
        self.intent != Intent::Reserve || is_canary || matches!(ask, Ask::Tally { .. } | Ask::Count { .. })
    }

    /// Adds an ask with a record of its answer. See [`Batch::push_if`].
    ///
    /// If several hits or several rules use the same counter, it gets a record of each.
    pub fn push(
        &mut self,
        ask: Ask,
        batch: &mut Batch,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let mut counter = Vec::new();
        let limit = write_key(&mut counter)?;
        let number = self.records.entry(counter.clone()).or_default();
        let id = [&[letter(self.intent)][..], &number.to_be_bytes(), &self.key].concat();
        *number += 1;
        batch.push_idempotent(ask, (&id, self.fingerprint), |out| {
            out.extend_from_slice(&counter);
            Some(limit)
        })
    }
}

/// Returns the first letter of the record ids for this intent. Charges have other ids than hits, because a charge may
/// use the same key as the hit before it. A reservation's id is no idempotency key.
pub(super) fn letter(intent: Intent) -> u8 {
    match intent {
        Intent::Charge => b'c',
        Intent::Refund => b'r',
        Intent::Reserve => b's',
        _ => b'h',
    }
}

/// The content of a request under an idempotency key. A request with another payload is a different request. The
/// fingerprint is the same on all servers and in all versions, and ignores the order of an operation's pairs.
#[derive(Debug, Clone)]
pub struct Payload {
    pub(super) intent: Intent,
    bytes: Vec<u8>,
}

impl Payload {
    /// Creates the payload of a request with this intent, without operations.
    pub fn new(intent: Intent) -> Self {
        Self { intent, bytes: vec![letter(intent)] }
    }

    /// Adds an operation, with the client's own cost if there is one.
    pub fn add(&mut self, operation: &Operation, cost: Option<u64>) {
        let mut pairs: Vec<_> = operation.iter().collect();
        pairs.sort_unstable();
        self.write_number(pairs.len() as u64);
        for text in pairs.into_iter().flat_map(|(key, value)| [key, value]) {
            self.write_number(text.len() as u64);
            self.bytes.extend_from_slice(text.as_bytes());
        }
        self.write_number(cost.is_some().into());
        self.write_number(cost.unwrap_or(0));
    }

    /// Adds whether the operations are decided together or one by one.
    pub fn together(&mut self, is_together: bool) {
        self.write_number(is_together.into());
    }

    fn write_number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Returns a hash that identifies the request, the same on all servers and in all versions.
    pub fn fingerprint(&self) -> u64 {
        SipHasher13::new_with_keys(0, 0).hash(&self.bytes).h1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fingerprint(pairs: &[(String, String)], cost: Option<u64>) -> u64 {
        let mut operation = Operation::new();
        for (key, value) in pairs {
            operation.set(key, value);
        }
        let mut payload = Payload::new(Intent::Hit);
        payload.add(&operation, cost);
        payload.fingerprint()
    }

    /// Servers of several versions share a Redis: this must never change.
    #[test]
    fn fingerprints_never_change() {
        let pairs = [("method", "GET"), ("path", "/x")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(fingerprint(&pairs, None), 4_599_061_002_442_139_819);
        assert_eq!(fingerprint(&[], Some(u64::MAX)), 6_816_031_799_070_885_884);
    }

    proptest! {
        #[test]
        fn fingerprint_depends_on_pairs_and_cost_and_not_on_order(
            pairs in prop::collection::btree_map("[a-c=]{0,2}", "[a-c=]{0,2}", 0..4),
            other in prop::collection::btree_map("[a-c=]{0,2}", "[a-c=]{0,2}", 0..4),
            costs in (prop::option::of(0u64..3), prop::option::of(0u64..3)),
        ) {
            let list = |pairs: &std::collections::BTreeMap<String, String>| pairs.clone().into_iter().collect::<Vec<_>>();
            let (one, two) = (fingerprint(&list(&pairs), costs.0), fingerprint(&list(&other), costs.1));
            prop_assert_eq!(one == two, (&pairs, costs.0) == (&other, costs.1));
            let reversed: Vec<_> = list(&pairs).into_iter().rev().collect();
            prop_assert_eq!(fingerprint(&reversed, costs.0), one);
        }
    }
}
