//! The door: a batch of requests in, a verdict each out.
//!
//! Every front calls this and nothing below it. Here rules choose the buckets, the store decides, and the outcomes
//! become verdicts. Nothing here knows a protocol or a socket, and the clock is read once per batch.

use std::ops::Range;
use std::sync::Arc;

use crate::algorithm::{Ask, Limit, Outcome};
use crate::clock::{Clock, Timestamp};
use crate::rules::{BadCost, MatchPolicy, Operation, Quota, RuleSet, Scratch};
use crate::store::key::{self, Prefix, Space};
use crate::store::{Action, Backend, Batch, Store, StoreError};

/// Why a request got no verdict.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    #[error("no rules are loaded: start the server with a rules file (divvy serve CONFIG)")]
    NoRules,
    /// By a rule's `costField`. Nothing was taken, from no counter.
    #[error(transparent)]
    Cost(#[from] BadCost),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The answer to a hit or a peek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// Credits left now.
    pub credit: u64,
    /// Nanoseconds until more credits, as the rule's algorithm defines it.
    pub reset_ns: u64,
}

/// What a request wants with its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Take credit.
    Hit,
    /// Tell what a hit would answer, without taking.
    Peek,
    /// Forget every counter that a hit would take from.
    Forget,
}

/// The rules with the bucket of each, ready to serve.
#[derive(Debug)]
pub struct Policy {
    rules: RuleSet,
    /// The bucket of each rule; `None` where the rule counts nothing.
    buckets: Vec<Option<Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    limit: Limit,
    prefix: Prefix,
}

impl Policy {
    pub fn new(rules: RuleSet) -> Self {
        let buckets = rules
            .rules()
            .iter()
            .map(|rule| match rule.quota {
                Quota::Limited(limit) => Some(Bucket { limit, prefix: Prefix::new(Space::Rule, rule.pairs(), &limit) }),
                Quota::Never | Quota::Always { .. } => None,
            })
            .collect();
        Self { rules, buckets }
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }
}

/// Rules, a store and a clock.
pub struct Limiter {
    policy: Option<Arc<Policy>>,
    store: Backend,
    clock: Clock,
}

impl Limiter {
    /// Without a policy only requests that carry their own limit are answered.
    pub fn new(policy: Option<Policy>, store: Backend, clock: Clock) -> Self {
        Self { policy: policy.map(Arc::new), store, clock }
    }

    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_deref()
    }

    pub fn store(&self) -> &Backend {
        &self.store
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Empties `requests`, dates them, and pins the rules by which all of them are answered.
    pub fn begin(&self, requests: &mut Requests) {
        requests.batch.begin(self.clock.now());
        requests.asked.clear();
        requests.policy.clone_from(&self.policy);
    }

    /// Applies the batch: afterwards each request has its answer.
    pub async fn apply(&self, requests: &mut Requests) {
        if !requests.batch.is_empty() {
            self.store.apply(&mut requests.batch).await;
        }
    }
}

/// A batch of requests on their way through the limiter. Reused: its buffers keep their capacity.
#[derive(Debug, Default)]
pub struct Requests {
    policy: Option<Arc<Policy>>,
    batch: Batch,
    asked: Vec<Asked>,
    scratch: Scratch,
}

/// One request: its entries in the batch, canaries first, and where its answer comes from.
#[derive(Debug)]
struct Asked {
    entries: Range<usize>,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// Nothing was asked of the store.
    Refused(Refusal),
    /// The rule that answers counts nothing.
    Uncounted(Verdict),
    /// The last entry.
    Counted,
}

impl Requests {
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Adds a request about `operation`; its answer will be under the number of requests that came before it.
    pub fn push(&mut self, operation: &Operation, intent: Intent) {
        let first = self.batch.len();
        let answer = match self.policy.clone() {
            None => Answer::Refused(Refusal::NoRules),
            Some(policy) => self.push_matches(&policy, operation, intent).unwrap_or_else(|refusal| {
                self.batch.truncate(first);
                Answer::Refused(refusal)
            }),
        };
        self.asked.push(Asked { entries: first..self.batch.len(), answer });
    }

    /// Adds a request that needs no rule: `ask` of the bucket that the client calls `key`, under the client's own
    /// `limit`, at the client's own time if it gives one. [`Requests::outcome`] has its answer.
    pub fn push_bucket(&mut self, space: Space, key: &[u8], limit: Limit, ask: Ask, at: Option<Timestamp>) {
        let at = at.unwrap_or(self.batch.now());
        let entry = self.batch.push(limit, Action::Ask(ask), at, |out| key::write_client_key(space, &limit, key, out));
        self.asked.push(Asked { entries: entry..entry + 1, answer: Answer::Counted });
    }

    /// # Errors
    /// The request is refused, and what was pushed for it has to be taken back.
    fn push_matches(&mut self, policy: &Policy, operation: &Operation, intent: Intent) -> Result<Answer, Refusal> {
        let now = self.batch.now();
        let mut answer = Answer::Refused(Refusal::NoRules);
        for (index, rule) in policy.rules.matches(operation, &mut self.scratch) {
            let action = match intent {
                Intent::Hit => Action::Ask(Ask::Take { cost: rule.cost(operation)? }),
                Intent::Peek => Action::Ask(Ask::Look { cost: rule.cost(operation)? }),
                Intent::Forget => Action::Forget,
            };
            let is_canary = rule.match_policy == MatchPolicy::Canary;
            let bucket = policy.buckets.get(index).and_then(Option::as_ref);
            // A peek is about the answer alone, and canaries do not answer.
            if let Some(bucket) = bucket
                && !(is_canary && intent == Intent::Peek)
            {
                let actor = rule.actor_field.as_deref().and_then(|field| operation.get(field)).unwrap_or_default();
                self.batch.push(bucket.limit, action, now, |key| bucket.prefix.write_key(actor, key));
            }
            if !is_canary {
                answer = match rule.quota {
                    Quota::Limited(_) => Answer::Counted,
                    Quota::Never => Answer::Uncounted(Verdict { allowed: false, credit: 0, reset_ns: 0 }),
                    Quota::Always { credit } => Answer::Uncounted(Verdict { allowed: true, credit, reset_ns: 0 }),
                };
            }
        }
        Ok(answer)
    }

    /// The verdict on request `index`, once the batch is applied.
    ///
    /// # Errors
    /// When there are no rules, the request's cost cannot be told, or the store failed for any of its counters.
    pub fn verdict(&self, index: usize) -> Result<Verdict, Refusal> {
        let asked = self.asked.get(index).ok_or(Refusal::NoRules)?;
        match (&asked.answer, self.last_outcome(asked)?) {
            (Answer::Uncounted(verdict), _) => Ok(*verdict),
            (Answer::Counted, Some(Outcome { allowed, left, reset_ns, .. })) => {
                Ok(Verdict { allowed, credit: left, reset_ns })
            }
            (Answer::Refused(refusal), _) => Err(refusal.clone()),
            (Answer::Counted, None) => Err(Refusal::NoRules),
        }
    }

    /// The outcome of request `index`, one of [`Requests::push_bucket`]'s, once the batch is applied.
    ///
    /// # Errors
    /// When the store failed for its bucket.
    pub fn outcome(&self, index: usize) -> Result<Outcome, Refusal> {
        let asked = self.asked.get(index).ok_or(Refusal::NoRules)?;
        self.last_outcome(asked)?.ok_or(Refusal::NoRules)
    }

    /// What the last of a request's counters came to, when there is one and the store failed for none.
    fn last_outcome(&self, asked: &Asked) -> Result<Option<Outcome>, Refusal> {
        let mut last = None;
        for entry in asked.entries.clone() {
            last = Some(self.batch.outcome(entry)?);
        }
        Ok(last)
    }

    /// How many counters request `index`, an [`Intent::Forget`], has forgotten.
    ///
    /// # Errors
    /// As [`Requests::verdict`].
    pub fn forgotten(&self, index: usize) -> Result<usize, Refusal> {
        let asked = self.asked.get(index).ok_or(Refusal::NoRules)?;
        if let Answer::Refused(refusal) = &asked.answer {
            return Err(refusal.clone());
        }
        asked.entries.clone().try_fold(0, |count, entry| Ok(count + usize::from(self.batch.outcome(entry)?.allowed)))
    }
}

#[cfg(test)]
mod tests;
