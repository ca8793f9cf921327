//! The door: a batch of requests in, a verdict each out.
//!
//! Every front calls this and nothing below it; the types in an answer are exported here. Rules choose the buckets, the
//! store decides, and the outcomes become verdicts and are counted. Nothing here knows a protocol or a socket, and
//! decisions go by the time at which the batch began.

mod count;
pub mod counters;

use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::algorithm::Ask;
pub use crate::algorithm::{Limit, Outcome};
use crate::calendar::Calendar;
use crate::clock::{Clock, Timestamp};
use crate::metrics::{Metric, Metrics, RuleHits};
use crate::rules::{ActorFields, BadCost, MatchPolicy, Operation, Quota, Rule, RuleSet, Scratch};
pub use crate::store::StoreError;
pub use crate::store::key::Space;
use crate::store::key::{self, Prefix};
use crate::store::{Action, Backend, Batch, Store};

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
    /// As [`Outcome::retry_ns`]: until the same request would be granted, when it was denied and ever will be.
    pub retry_ns: Option<u64>,
}

impl Verdict {
    /// Of a rule that counts nothing.
    fn uncounted(allowed: bool, credit: u64) -> Self {
        Self { allowed, credit, reset_ns: 0, retry_ns: None }
    }
}

impl From<Outcome> for Verdict {
    fn from(Outcome { allowed, left, reset_ns, retry_ns, .. }: Outcome) -> Self {
        Self { allowed, credit: left, reset_ns, retry_ns }
    }
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
    /// Where the hits of each rule are counted.
    hits: Vec<RuleHits>,
}

#[derive(Debug)]
struct Bucket {
    limit: Limit,
    /// By which its windows end.
    calendar: Option<Calendar>,
    prefix: Prefix,
    /// The rule's `actorField`.
    actor: ActorFields,
}

impl Bucket {
    /// The limit as it is for an ask at `now`.
    fn limit_at(&self, now: Timestamp) -> Limit {
        match (self.limit, self.calendar) {
            (Limit::CalendarWindow(limit), Some(calendar)) => Limit::CalendarWindow(calendar.dated(limit, now)),
            (limit, _) => limit,
        }
    }
}

impl Policy {
    /// A rule with a label goes on counting in `metrics` where one with that label has counted before.
    pub fn new(rules: RuleSet, metrics: &Metrics) -> Self {
        let buckets = rules
            .rules()
            .iter()
            .map(|rule| match rule.quota {
                Quota::Limited(limit) => Some(Bucket {
                    limit,
                    calendar: rule.settings.calendar,
                    prefix: Prefix::new(Space::Rule, rule.pairs(), &limit),
                    actor: ActorFields::new(&rule.actor_fields),
                }),
                Quota::Never | Quota::Always { .. } => None,
            })
            .collect();
        let hits = |rule: &Rule| metrics.hits.rule(rule.label.as_deref(), rule.match_policy == MatchPolicy::Canary);
        let hits = rules.rules().iter().map(hits).collect();
        Self { rules, buckets, hits }
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }
}

/// Rules, a store, a clock, and the counts of what it all came to.
pub struct Limiter {
    policy: ArcSwapOption<Policy>,
    store: Backend,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Limiter {
    /// Without a policy only requests that carry their own limit are answered.
    pub fn new(policy: Option<Policy>, store: Backend, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self { policy: ArcSwapOption::new(policy.map(Arc::new)), store, clock, metrics }
    }

    pub fn policy(&self) -> Option<Arc<Policy>> {
        self.policy.load_full()
    }

    /// Puts `policy` in force for every batch that begins from now on; those under way keep the one they began with.
    pub fn replace_policy(&self, policy: Policy) {
        self.policy.store(Some(Arc::new(policy)));
    }

    pub fn store(&self) -> &Backend {
        &self.store
    }

    /// Whether the store can answer hits just now.
    ///
    /// # Errors
    /// The store's.
    pub async fn check_store(&self) -> Result<(), StoreError> {
        self.store.check().await
    }

    /// The number of counters that the store remembers, as exact as it knows it.
    ///
    /// # Errors
    /// The store's.
    pub async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.store.approximate_len().await
    }

    /// What the store measures about itself. It may take the time of a few system calls.
    pub fn store_metrics(&self) -> Vec<Metric> {
        self.store.metrics()
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What all that ask the limiter count in, too.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Empties `requests`, dates them, and pins the rules by which all of them are answered.
    pub fn begin(&self, requests: &mut Requests) {
        self.begin_under(requests, self.policy.load_full());
    }

    /// As [`Limiter::begin`], under rules that were pinned before.
    pub fn begin_under(&self, requests: &mut Requests, policy: Option<Arc<Policy>>) {
        requests.batch.begin(self.clock.now());
        requests.asked.clear();
        requests.matched.clear();
        requests.hits = 0;
        requests.policy = policy;
    }

    /// Applies the batch: afterwards each request has its answer.
    pub async fn apply(&self, requests: &mut Requests) {
        if requests.is_empty() {
            return;
        }
        let Metrics { batches, hits, .. } = &*self.metrics;
        let begun = self.clock.now();
        let mut done = begun;
        if !requests.batch.is_empty() {
            self.store.apply(&mut requests.batch).await;
            done = self.clock.now();
            batches.store_duration.observe(done.since(begun), 1);
        }
        batches.requests.observe(requests.len() as u64, 1);
        if requests.hits > 0 {
            hits.duration.observe(done.since(requests.batch.now()), requests.hits);
        }
        requests.count_answers(&self.metrics);
    }
}

/// A batch of requests on their way through the limiter. Reused: its buffers keep their capacity.
#[derive(Debug, Default)]
pub struct Requests {
    policy: Option<Arc<Policy>>,
    batch: Batch,
    asked: Vec<Asked>,
    /// The rules that each request matched, one request after the other.
    matched: Vec<Matched>,
    /// How many of the requests are hits that rules were asked about.
    hits: u64,
    scratch: Scratch,
}

/// One request, and where its answer comes from.
#[derive(Debug)]
enum Asked {
    /// Nothing was asked of the store.
    Refused(Refusal),
    /// The client's own bucket, by its entry in the batch.
    Bucket(usize),
    /// The rules it matched, canaries first; the last one answers.
    Rules(Range<usize>),
}

/// A rule that a request matched, and what it comes to.
#[derive(Debug, Clone, Copy)]
struct Matched {
    rule: usize,
    is_hit: bool,
    answer: Answer,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The rule counts nothing.
    Uncounted(Verdict),
    /// The outcome of this entry of the batch.
    Counted(usize),
}

impl Requests {
    /// What its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.batch.memory()
            + self.asked.capacity() * size_of::<Asked>()
            + self.matched.capacity() * size_of::<Matched>()
    }

    pub fn len(&self) -> usize {
        self.asked.len()
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Adds a request about `operation`; its answer will be under the number of requests that came before it.
    pub fn push(&mut self, operation: &Operation, intent: Intent) {
        self.push_at_cost(operation, intent, None);
    }

    /// As [`Requests::push`], and when a cost is given, that is what the request takes, whatever the rules'
    /// `costField`s say. A hit of cost 0 takes nothing, and is allowed when a hit of cost 1 would be.
    pub fn push_at_cost(&mut self, operation: &Operation, intent: Intent, cost: Option<u64>) {
        let (entries, matched) = (self.batch.len(), self.matched.len());
        // Taken and put back: to clone it for each request would cost two atomic operations.
        let policy = self.policy.take();
        let asked = match &policy {
            None => Asked::Refused(Refusal::NoRules),
            Some(policy) => match self.push_matches(policy, operation, intent, cost) {
                Ok(()) => {
                    self.hits += u64::from(intent == Intent::Hit);
                    Asked::Rules(matched..self.matched.len())
                }
                Err(refusal) => {
                    self.batch.truncate(entries);
                    self.matched.truncate(matched);
                    Asked::Refused(refusal)
                }
            },
        };
        self.policy = policy;
        self.asked.push(asked);
    }

    /// Adds a request that needs no rule: `ask` of the bucket that the client calls `key`, under the client's own
    /// `limit`, at the client's own time if it gives one. [`Requests::outcome`] has its answer.
    pub fn push_bucket(&mut self, space: Space, key: &[u8], limit: Limit, ask: Ask, at: Option<Timestamp>) {
        let at = at.unwrap_or(self.batch.now());
        let entry = self.batch.push(limit, Action::Ask(ask), at, |out| key::write_client_key(space, &limit, key, out));
        self.asked.push(Asked::Bucket(entry));
    }

    /// Adds a request for `cost` credits of the counter that `operation` has under a `limit` of the client's own: the
    /// one that a rule of just these pairs and this limit would have. A cost of 0 means what it means for
    /// [`Requests::push_at_cost`]. [`Requests::outcome`] has its answer.
    pub fn push_limited(&mut self, operation: &Operation, limit: Limit, cost: u64) {
        let prefix = Prefix::new(Space::Rule, operation.iter(), &limit);
        let action = Action::Ask(hit(cost));
        let entry = self.batch.push(limit, action, self.batch.now(), |key| prefix.write_key("", key));
        self.asked.push(Asked::Bucket(entry));
    }

    /// # Errors
    /// The request is refused, and what was pushed for it has to be taken back.
    fn push_matches(
        &mut self,
        policy: &Policy,
        operation: &Operation,
        intent: Intent,
        cost: Option<u64>,
    ) -> Result<(), Refusal> {
        let now = self.batch.now();
        for (index, rule) in policy.rules.matches(operation, &mut self.scratch) {
            let cost = || rule.cost(operation, cost);
            let action = match intent {
                Intent::Hit => Action::Ask(hit(cost()?)),
                Intent::Peek => Action::Ask(look(cost()?)),
                Intent::Forget => Action::Forget,
            };
            // A peek is about the answer alone, and canaries do not answer.
            if rule.match_policy == MatchPolicy::Canary && intent == Intent::Peek {
                continue;
            }
            let answer = match (policy.buckets.get(index).and_then(Option::as_ref), rule.quota) {
                (Some(bucket), _) => {
                    let entry = self.batch.push(bucket.limit_at(now), action, now, |key| {
                        key.extend_from_slice(bucket.prefix.as_bytes());
                        bucket.actor.write(operation, key);
                    });
                    Answer::Counted(entry)
                }
                (None, Quota::Always { credit }) => Answer::Uncounted(Verdict::uncounted(true, credit)),
                (None, _) => Answer::Uncounted(Verdict::uncounted(false, 0)),
            };
            self.matched.push(Matched { rule: index, is_hit: intent == Intent::Hit, answer });
        }
        Ok(())
    }

    /// Why the first request that is refused already, before the batch is applied, is refused.
    pub fn first_refusal(&self) -> Option<&Refusal> {
        self.asked.iter().find_map(|asked| match asked {
            Asked::Refused(refusal) => Some(refusal),
            Asked::Bucket(_) | Asked::Rules(_) => None,
        })
    }

    /// Lets go of the rules once all is answered: a connection that then idles for long shall not keep replaced ones in
    /// memory.
    pub fn release_policy(&mut self) {
        self.policy = None;
    }

    /// The verdict on request `index`, once the batch is applied.
    ///
    /// # Errors
    /// When there are no rules, the request's cost cannot be told, or the store failed for any of its counters.
    pub fn verdict(&self, index: usize) -> Result<Verdict, Refusal> {
        let Some((last, canaries)) = self.matched(index)?.split_last() else { return Err(Refusal::NoRules) };
        for canary in canaries {
            self.answer(canary)?;
        }
        self.answer(last)
    }

    /// The rule that answers request `index`, and its place among the rules; none where no rule was asked.
    pub fn rule(&self, index: usize) -> Option<(usize, &Rule)> {
        let place = self.matched(index).ok()?.last()?.rule;
        Some((place, self.policy.as_ref()?.rules.rules().get(place)?))
    }

    /// The limit of the rule that answers request `index`, as it is at this time; `None` where it counts nothing.
    pub fn limit(&self, index: usize) -> Option<Limit> {
        match self.matched(index).ok()?.last()?.answer {
            Answer::Counted(entry) => self.batch.limit(entry),
            Answer::Uncounted(_) => None,
        }
    }

    /// The outcome of request `index`, one of [`Requests::push_bucket`]'s or [`Requests::push_limited`]'s, once the batch is applied.
    ///
    /// # Errors
    /// When the store failed for its bucket.
    pub fn outcome(&self, index: usize) -> Result<Outcome, Refusal> {
        match self.asked.get(index) {
            Some(Asked::Bucket(entry)) => Ok(self.batch.outcome(*entry)?),
            Some(Asked::Refused(refusal)) => Err(refusal.clone()),
            Some(Asked::Rules(_)) | None => Err(Refusal::NoRules),
        }
    }

    fn matched(&self, index: usize) -> Result<&[Matched], Refusal> {
        match self.asked.get(index) {
            Some(Asked::Rules(range)) => Ok(self.matched.get(range.clone()).unwrap_or_default()),
            Some(Asked::Refused(refusal)) => Err(refusal.clone()),
            Some(Asked::Bucket(_)) | None => Err(Refusal::NoRules),
        }
    }

    fn answer(&self, matched: &Matched) -> Result<Verdict, Refusal> {
        match matched.answer {
            Answer::Uncounted(verdict) => Ok(verdict),
            Answer::Counted(entry) => Ok(self.batch.outcome(entry)?.into()),
        }
    }

    /// How many counters request `index`, an [`Intent::Forget`], has forgotten.
    ///
    /// # Errors
    /// As [`Requests::verdict`].
    pub fn forgotten(&self, index: usize) -> Result<usize, Refusal> {
        self.matched(index)?.iter().try_fold(0, |count, matched| match matched.answer {
            Answer::Counted(entry) => Ok(count + usize::from(self.batch.outcome(entry)?.allowed)),
            Answer::Uncounted(_) => Ok(count),
        })
    }
}

/// What a rule's hit asks of its counter. A gateway that charges afterwards asks first with a cost of 0: to take nothing
/// is always possible, so the hit looks whether one credit is left instead.
fn hit(cost: u64) -> Ask {
    if cost == 0 { look(0) } else { Ask::Take { cost } }
}

/// What a peek at such a hit asks.
fn look(cost: u64) -> Ask {
    Ask::Look { cost: cost.max(1) }
}

#[cfg(test)]
mod tests;
