//! Idempotent requests: a client that got no answer may send a request again under the same key. The module `algorithm`
//! decides what counters remember, and for how long.

use std::collections::HashMap;

use siphasher::sip128::SipHasher13;

use super::builder::PlanBuilder;
use super::entries::{IdempotencyKey, letter};
use super::table::Intent;
use crate::refusal::{MAX_IDEMPOTENCY_KEY, Refusal};
use divvy_core::rules::Operation;

/// The content of a request under an idempotency key. A request with another payload is a different request. The
/// fingerprint is the same on all servers and in all versions, and ignores the order of an operation's pairs.
#[derive(Debug, Clone)]
pub struct Payload {
    intent: Intent,
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

impl PlanBuilder {
    /// Adds a hit, a charge or a refund under the client's idempotency `key`. If the key is invalid, the request is refused.
    pub fn add_idempotent(&mut self, operation: &Operation, intent: Intent, cost: Option<u64>, key: &[u8]) {
        let mut payload = Payload::new(intent);
        payload.add(operation, cost);
        if let Err(refusal) = self.idempotent(key, &payload, |builder| builder.add(operation, intent, cost)) {
            self.add_refused(refusal);
        }
    }

    /// Adds the requests of `add` under the client's idempotency `key`. `payload` describes all of them.
    ///
    /// # Errors
    /// The key is invalid. Then nothing is added.
    pub fn idempotent<T>(
        &mut self,
        key: &[u8],
        payload: &Payload,
        add: impl FnOnce(&mut Self) -> T,
    ) -> Result<T, Refusal> {
        if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY {
            return Err(Refusal::BadIdempotencyKey);
        }
        self.key = Some(Box::new(IdempotencyKey {
            intent: payload.intent,
            key: key.to_owned(),
            fingerprint: payload.fingerprint(),
            request: self.plan.requests.len(),
            records: HashMap::new(),
        }));
        let added = add(self);
        self.key = None;
        Ok(added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
