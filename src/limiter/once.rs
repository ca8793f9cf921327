//! Requests that are answered once: a client that got no answer may send one again under the same key. What the counters
//! remember, and for how long, is decided below.

use std::collections::HashMap;

use siphasher::sip128::SipHasher13;

use super::reservations::Reserving;
use super::{Answer, Asked, Fate, Intent, Limit, Matched, Refusal, Requests};
use crate::clock::Timestamp;
use crate::rules::Operation;
use crate::store::{Action, Batch};

/// Bytes of a client's key, at most.
pub const MAX_IDEMPOTENCY_KEY: usize = 255;

/// Stands for all that a client asks for under a key: what differs in it is another request. It is the same on all servers, and
/// in all versions, and takes no notice of the order of an operation's pairs.
#[derive(Debug, Clone)]
pub struct Payload {
    intent: Intent,
    bytes: Vec<u8>,
}

impl Payload {
    pub fn new(intent: Intent) -> Self {
        Self { intent, bytes: vec![kind(intent)] }
    }

    /// That the next one asked for is this, at a cost of the client's own if it gives one.
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

    /// That they are to be taken together, or one by one.
    pub fn together(&mut self, is_together: bool) {
        self.write_number(is_together.into());
    }

    fn write_number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    pub fn fingerprint(&self) -> u64 {
        SipHasher13::new_with_keys(0, 0).hash(&self.bytes).h1
    }
}

/// What the requests that are being added have a name for.
#[derive(Debug)]
pub(super) enum Named {
    Reservation(Reserving),
    Once(AskedOnce),
}

/// The key of what is asked once, and which records it has by now.
#[derive(Debug)]
pub(super) struct AskedOnce {
    intent: Intent,
    key: Vec<u8>,
    fingerprint: u64,
    /// The first of the requests under this key.
    first: usize,
    /// The one that is being added.
    pub request: usize,
    /// How often each counter was asked by them.
    asked: HashMap<Vec<u8>, u32>,
}

impl AskedOnce {
    /// The name of the record of what is asked of the counter with this key now. A counter that is asked by several hits of one
    /// request, or by several rules, has a record of each. Charges are called otherwise than hits: both may be about the
    /// same thing.
    fn name(&mut self, counter: &[u8]) -> Vec<u8> {
        let number = self.asked.entry(counter.to_owned()).or_default();
        let name = [&[kind(self.intent)][..], &number.to_be_bytes(), &self.key].concat();
        *number += 1;
        name
    }

    /// As [`Batch::push_if`].
    pub fn push(
        &mut self,
        action: Action,
        at: Timestamp,
        batch: &mut Batch,
        write_key: impl FnOnce(&mut Vec<u8>) -> Option<Limit>,
    ) -> Option<usize> {
        let mut counter = Vec::new();
        let limit = write_key(&mut counter)?;
        let write_key = |out: &mut Vec<u8>| {
            out.extend_from_slice(&counter);
            Some(limit)
        };
        match action {
            Action::Ask(ask) => {
                let request = u32::try_from(self.request).unwrap_or(u32::MAX);
                batch.push_idempotent(ask, (&self.name(&counter), self.fingerprint, request), write_key)
            }
            // These are repeatable as they are.
            Action::Forget | Action::Reservation(_) | Action::Idempotent { .. } => batch.push_if(action, at, write_key),
        }
    }
}

fn kind(intent: Intent) -> u8 {
    match intent {
        Intent::Charge => b'c',
        Intent::Refund => b'r',
        Intent::Hit
        | Intent::Enter
        | Intent::EnterOrCharge
        | Intent::Leave
        | Intent::Peek
        | Intent::Forget
        | Intent::Reserve => b'h',
    }
}

impl Requests {
    /// Adds a hit, a charge or a refund, as [`Requests::push_at_cost`] does, that is answered once under the client's `key`.
    pub fn push_once(&mut self, operation: &Operation, intent: Intent, cost: Option<u64>, key: &[u8]) {
        let mut payload = Payload::new(intent);
        payload.add(operation, cost);
        if self.begin_once(key, &payload) {
            self.push_at_cost(operation, intent, cost);
            self.end_once();
        }
    }

    /// The requests from here on, up to [`Requests::end_once`], are one that is answered once under the client's `key`. False,
    /// and a request is added that is refused, when it is none.
    pub fn begin_once(&mut self, key: &[u8], payload: &Payload) -> bool {
        if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY {
            self.push_refused(Refusal::BadIdempotencyKey);
            return false;
        }
        self.named = Some(Box::new(Named::Once(AskedOnce {
            intent: payload.intent,
            key: key.to_owned(),
            fingerprint: payload.fingerprint(),
            first: self.asked.len(),
            request: self.asked.len(),
            asked: HashMap::new(),
        })));
        true
    }

    /// See [`Requests::begin_once`].
    pub fn end_once(&mut self) {
        let Some(Named::Once(AskedOnce { first, .. })) = self.named.take().map(|named| *named) else { return };
        for asked in self.asked.iter_mut().skip(first) {
            if let Asked::Rules(range) = asked {
                *asked = Asked::Once(range.clone());
            }
        }
    }

    /// Whether the requests that are answered once were answered before, by every counter that they asked.
    ///
    /// # Errors
    /// The first of them under a key that another request had.
    pub fn are_replayed(&self) -> Result<bool, usize> {
        let (mut is_any, mut are_all) = (false, true);
        for (index, asked) in self.asked.iter().enumerate() {
            let Asked::Once(range) = asked else { continue };
            let matched = self.matched.get(range.clone()).unwrap_or_default();
            self.judge_once(matched).map_err(|_| index)?;
            for matched in
                matched.iter().filter(|matched| !matched.is_canary && matches!(matched.answer, Answer::Counted(_)))
            {
                is_any = true;
                are_all &= self.fate(matched) == Some(Fate::Repeated);
            }
        }
        Ok(is_any && are_all)
    }

    /// Judges the rules that a request matched which is answered once.
    ///
    /// # Errors
    /// When another one had its key. What canaries say of that is no answer.
    pub(super) fn judge_once(&self, matched: &[Matched]) -> Result<(), Refusal> {
        let mut answering = matched.iter().filter(|matched| !matched.is_canary);
        match answering.any(|matched| self.fate(matched) == Some(Fate::Different)) {
            true => Err(Refusal::DifferentRequest),
            false => Ok(()),
        }
    }

    /// What became of what was asked of the rule's counter; `None` where nothing was counted, or the store failed.
    pub(super) fn fate(&self, matched: &Matched) -> Option<Fate> {
        match matched.answer {
            Answer::Counted(entry) => self.batch.fate(entry),
            Answer::Uncounted { .. } | Answer::Gathered(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fingerprint(pairs: &[(String, String)], cost: Option<u64>) -> u64 {
        let mut operation = Operation::new();
        pairs.iter().for_each(|(key, value)| operation.set(key, value));
        let mut payload = Payload::new(Intent::Hit);
        payload.add(&operation, cost);
        payload.fingerprint()
    }

    /// Servers of several versions share a Redis: this must never change.
    #[test]
    fn a_fingerprint_is_the_same_for_ever() {
        let pairs = [("method", "GET"), ("path", "/x")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(fingerprint(&pairs, None), 4_599_061_002_442_139_819);
        assert_eq!(fingerprint(&[], Some(u64::MAX)), 6_816_031_799_070_885_884);
    }

    proptest! {
        #[test]
        fn what_differs_is_another_request_and_the_order_of_pairs_is_none(
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
