//! The door: a batch of requests in, a verdict each out.
//!
//! Every front calls this and nothing below it; the types in an answer are exported here. Rules choose the buckets, the
//! store decides, and the outcomes become verdicts and are counted. Nothing here knows a protocol or a socket, and
//! decisions go by the time at which the batch began.

mod actor_limits;
mod answering;
mod applying;
mod asking;
mod count;
pub mod counters;
pub mod limits;
mod once;
mod policy;
mod reservations;
mod together;

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub use self::answering::Standing;
use self::applying::Applying;
pub use self::applying::MAX_PART;
use self::asking::hit;
use self::limits::{DEFAULT_MAX_ACTOR_LIMITS, Limits};
use self::once::Named;
pub use self::once::{MAX_IDEMPOTENCY_KEY, Payload};
pub use self::policy::{CounterNames, Policy};
pub use self::reservations::{
    BadReservationId, DEFAULT_MAX_RESERVATION_TTL, Fate, MAX_CLIENT_ID, MAX_ID_TEXT, ReservationId, Reserve, Reserved,
    Settled, lasting_seconds,
};
use self::reservations::{Postponed, Settling};
pub use self::together::MAX_TOGETHER;
use self::together::{Gathered, Set};
use crate::algorithm::Ask;
pub use crate::algorithm::{Limit, Outcome};
use crate::calendar::Calendar;
use crate::clock::{Clock, Timestamp};
use crate::metrics::{Metric, Metrics};
use crate::rules::{BadCost, MAX_STACK, Operation, Scratch};
pub use crate::store::key::Space;
use crate::store::key::{self, Prefix};
use crate::store::{Action, Backend, Batch, ENTRY_WEIGHT, Store};
pub use crate::store::{Origin, StoreError};

/// Memory that a request takes apart from its counters (bytes).
const REQUEST_WEIGHT: usize = 128;

/// Why a request got no verdict.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refusal {
    #[error("no rules are loaded: start the server with a rules file (divvy serve CONFIG)")]
    NoRules,
    /// By a rule's `costField`. Nothing was taken, from no counter.
    #[error(transparent)]
    Cost(#[from] BadCost),
    #[error("more than {MAX_STACK} rules must allow this request: remove `matchPolicy = and` from some of them")]
    TooManyRules,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "nothing was charged: the rule [{rule}] is a sliding-log, which cannot count more than its limit; `algorithm = \
         sliding-window` can"
    )]
    CannotCharge { rule: String },
    #[error(
        "nothing was reserved: the rule [{rule}] is a sliding-log, which cannot set credits aside; `algorithm = \
         sliding-window` can"
    )]
    CannotReserve { rule: String },
    #[error("a reservation is of at least 1 credit, and for 1 to {max} seconds (--max-reservation-ttl)")]
    BadReservation { max: u32 },
    #[error("a client's own id of a reservation has 1 to {MAX_CLIENT_ID} bytes")]
    BadClientId,
    #[error("there is a reservation with this id already, of other credits or for another time: choose another id")]
    DifferentReservation,
    #[error(
        "leases of different names, or a lease and something else, cannot be taken together from the rule [{rule}]"
    )]
    LeasesTogether { rule: String },
    #[error(
        "nothing was reserved: the actors are so long that the reservation's id would have more than {MAX_ID_TEXT} characters"
    )]
    LongReservation,
    #[error(transparent)]
    BadReservationId(#[from] BadReservationId),
    #[error("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY} bytes")]
    BadIdempotencyKey,
    #[error("this idempotency key was used for another request less than a minute ago: choose another key")]
    DifferentRequest,
    #[error("nothing was charged: this reservation has ended, and no rule has its counter any more")]
    NoReservation,
    #[error(
        "the rule [{rule}] limits what runs at once: take a lease with DIVVY.RESERVE (AMOUNT 1) or POST /v1/reservations, and \
         release it when the work is done"
    )]
    TakesLeases { rule: String },
    #[error(
        "the rule [{rule}] limits what runs at once, and has no holdField to name leases by: gateways cannot take any"
    )]
    NoHoldField { rule: String },
    #[error(
        "the rule [{rule}] limits what runs at once: the field '{field}', its holdField, must name the lease in 1 to \
         {MAX_CLIENT_ID} bytes"
    )]
    BadHold { rule: String, field: String },
    #[error("nothing was reserved: the rule [{rule}] needs a time (TTL) after which the reservation ends")]
    NoTtl { rule: String },
    #[error("nothing was charged: the rule [{rule}], which answers this operation, counts no costs")]
    NothingToCharge { rule: String },
}

/// The answer to a hit or a peek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// Credits left now.
    pub credit: u64,
    /// Nanoseconds until more credits, as the rule's algorithm defines it.
    pub reset_ns: u64,
    /// Credits below 0, when none is left: see [`Outcome::owed`].
    pub owed: u64,
    /// As [`Outcome::retry_ns`]: until the same request would be granted, when it was denied and ever will be.
    pub retry_ns: Option<u64>,
}

impl Verdict {
    /// Of a rule that counts nothing.
    fn uncounted(allowed: bool, credit: u64) -> Self {
        Self { allowed, credit, reset_ns: 0, owed: 0, retry_ns: None }
    }

    /// What is left, below 0 where more was used than there is; the nearest number of 64 bits.
    pub fn balance(&self) -> i64 {
        let balance = i128::from(self.credit) - i128::from(self.owed);
        i64::try_from(balance).unwrap_or(if self.owed > 0 { i64::MIN } else { i64::MAX })
    }
}

impl From<Outcome> for Verdict {
    fn from(Outcome { allowed, left, owed, reset_ns, retry_ns, .. }: Outcome) -> Self {
        Self { allowed, credit: left, reset_ns, owed, retry_ns }
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
    /// Count what was used already, whatever is left.
    Charge,
    /// Give back, up to what was taken.
    Refund,
    /// Take credit, and a lease of each rule about what runs at once: the one that its `holdField` names. What gateways ask
    /// before a request.
    Enter,
    /// As [`Intent::Enter`]; from a rule with debt, as [`Intent::Charge`] does, if there is any cost.
    EnterOrCharge,
    /// As [`Intent::Refund`], and free the leases that [`Intent::Enter`] took, if it did.
    Leave,
    /// Set credit aside: see [`Requests::push_reserve`].
    Reserve,
}

impl Intent {
    /// Whether rules are asked to allow it, and what they say is counted.
    fn is_hit(self) -> bool {
        matches!(self, Self::Hit | Self::Enter | Self::EnterOrCharge | Self::Reserve)
    }
}

/// Rules, a store, a clock, and the counts of what it all came to.
pub struct Limiter {
    policy: ArcSwapOption<Policy>,
    store: Backend,
    clock: Clock,
    metrics: Arc<Metrics>,
    limits: Limits,
    max_reservation_ttl: u32,
}

impl Limiter {
    /// Without a policy only requests that carry their own limit are answered.
    pub fn new(policy: Option<Policy>, store: Backend, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self::with_limits(policy, store, clock, metrics, DEFAULT_MAX_ACTOR_LIMITS)
    }

    /// As [`Limiter::new`], with up to `max_limits` limits of single actors.
    pub fn with_limits(
        policy: Option<Policy>,
        store: Backend,
        clock: Clock,
        metrics: Arc<Metrics>,
        max_limits: usize,
    ) -> Self {
        let limits = Limits::new(max_limits, clock.now());
        let max_reservation_ttl = DEFAULT_MAX_RESERVATION_TTL;
        let limiter = Self { policy: ArcSwapOption::empty(), store, clock, metrics, limits, max_reservation_ttl };
        if let Some(policy) = policy {
            limiter.replace_policy(policy);
        }
        limiter
    }

    /// The limiter, with reservations for up to so many seconds.
    pub fn with_max_reservation_ttl(self, seconds: u32) -> Self {
        Self { max_reservation_ttl: seconds, ..self }
    }

    pub fn policy(&self) -> Option<Arc<Policy>> {
        self.policy.load_full()
    }

    /// Puts `policy` in force for every batch that begins from now on; those under way keep the one they began with.
    pub fn replace_policy(&self, mut policy: Policy) {
        policy.know(self.limits.memory());
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
        let mut metrics = self.store.metrics();
        metrics.extend(self.limits_metrics());
        metrics.push(Metric::gauge(
            "divvy_calendars",
            "Calendars in memory: those of rules since the start, and of stored reservations.",
            Calendar::count() as f64,
        ));
        metrics
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
        requests.sets.clear();
        requests.settling.clear();
        requests.postponed.clear();
        requests.has_seal = self.store.seal().is_known();
        requests.max_reservation_ttl = self.max_reservation_ttl;
        requests.together = None;
        requests.named = None;
        requests.hits = 0;
        requests.policy = policy;
    }

    /// Applies the batch: afterwards each request has its answer.
    pub async fn apply(&self, requests: &mut Requests) {
        if requests.is_empty() {
            return;
        }
        let Metrics { batches, hits, .. } = &*self.metrics;
        if !requests.postponed.is_empty() {
            Box::pin(self.ask_postponed(requests)).await;
        }
        let begun = self.clock.now();
        let mut done = begun;
        if !requests.batch.is_empty() {
            Applying { limiter: self, requests, part: None }.done().await;
            done = self.clock.now();
            batches.store_duration.observe(done.since(begun), 1);
        }
        batches.requests.observe(requests.len() as u64, 1);
        if requests.hits > 0 {
            hits.duration.observe(done.since(requests.batch.now()), requests.hits);
        }
        let failed = requests.count(&self.metrics);
        if failed > 0 {
            batches.store_errors.inc_by(failed);
        }
    }

    /// The greatest weight of `count` requests that came in this many bytes. Each asks at most as many counters as rules can
    /// match, and the key of each counter has at most the request's bytes.
    pub fn weight_of(&self, bytes: usize, count: usize) -> usize {
        let most_counters = self.policy.load().as_ref().map_or(1, |policy| policy.most_counters());
        let of_requests = count.saturating_mul(REQUEST_WEIGHT + most_counters * ENTRY_WEIGHT);
        bytes.saturating_mul(most_counters).saturating_add(of_requests)
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
    /// What must all allow before any of their counters is changed.
    sets: Vec<Set>,
    /// Rules of a stack, before they are asked.
    stack: Vec<usize>,
    /// What is asked of counters by requests that are taken together.
    together: Option<Box<Gathered>>,
    /// The buckets of reservations that are settled, one request after the other.
    settling: Vec<Settling>,
    /// Requests about reservations that wait until their calendars are known.
    postponed: Vec<Postponed>,
    /// Whether the key is known that seals the ids of reservations.
    has_seal: bool,
    /// The reservation that is being asked for, or the key of what is answered once.
    named: Option<Box<Named>>,
    /// The longest time of a reservation (seconds).
    max_reservation_ttl: u32,
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
    /// Likewise, by its place among what is gathered.
    GatheredBucket(usize),
    /// A limit of the client's own that allows nothing.
    Barred { is_hit: bool, next_window_ns: u64 },
    /// The rules it matched, canaries first.
    Rules(Range<usize>),
    /// Likewise, of a request that is answered once.
    Once(Range<usize>),
    /// The buckets of the reservation that it settles.
    Settling(Range<usize>),
}

/// A rule that a request matched, and what it comes to.
#[derive(Debug, Clone, Copy)]
struct Matched {
    rule: usize,
    is_canary: bool,
    /// As what it is counted in the rule's metrics.
    counted_as: CountedAs,
    answer: Answer,
}

impl Matched {
    fn is_settlement(&self) -> bool {
        matches!(self.counted_as, CountedAs::Charge | CountedAs::Refund | CountedAs::Release)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountedAs {
    Nothing,
    Hit,
    /// A hit that is answered once.
    HitOnce,
    Charge,
    Refund,
    Release,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    /// The rule counts nothing.
    Uncounted { allowed: bool, credit: u64 },
    /// The outcome of this entry of the batch.
    Counted(usize),
    /// That of what is gathered at this place, which is not in the batch yet.
    Gathered(usize),
}

impl Requests {
    /// From now on, requests come from there, in later batches, too: what clients of one address may have the store remember
    /// is bounded.
    pub fn set_origin(&mut self, origin: Option<Origin>) {
        self.batch.set_origin(origin);
    }

    /// What its buffers hold, used or not (bytes).
    pub fn memory(&self) -> usize {
        self.batch.memory()
            + self.asked.capacity() * size_of::<Asked>()
            + self.matched.capacity() * size_of::<Matched>()
            + self.sets.capacity() * size_of::<Set>()
            + self.stack.capacity() * size_of::<usize>()
            + self.settling.capacity() * size_of::<Settling>()
            + self.postponed.capacity() * size_of::<Postponed>()
    }

    /// Memory that the requests take until they are answered, rather too much than too little (bytes).
    #[inline]
    pub fn weight(&self) -> usize {
        self.batch.weight() + self.asked.len() * REQUEST_WEIGHT
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
                    self.hits += u64::from(intent.is_hit());
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

    /// Adds a request about `cost` credits of the counter that `operation` has under a `limit` of the client's own: the
    /// one that a rule of just these pairs and this limit, without debt, would have. `intent` is to enter or to leave. A cost of 0
    /// means what it means for [`Requests::push_at_cost`]. [`Requests::outcome`] has its answer.
    pub fn push_limited(&mut self, operation: &Operation, limit: Limit, intent: Intent, cost: u64) {
        let prefix = Prefix::new(Space::Rule, operation.iter(), &limit);
        let now = self.batch.now();
        let write_key = |key: &mut Vec<u8>| {
            prefix.write_key("", key);
            Some(limit)
        };
        let ask = if intent == Intent::Leave { Ask::Refund { cost } } else { hit(cost) };
        let asked = match &mut self.together {
            Some(gathered) if intent.is_hit() => {
                gathered.add(Action::Ask(ask), now, write_key).map(Asked::GatheredBucket)
            }
            _ => self.batch.push_if(Action::Ask(ask), now, write_key).map(Asked::Bucket),
        };
        self.asked.extend(asked);
    }

    /// Adds a request under a limit of the client's own that allows nothing in any window of `window_ns`. There is nothing to count,
    /// and nothing to give back. Waiting does not help, but the windows go by the clock, and the time until the next one is the
    /// one to ask again. [`Requests::outcome`] has its answer.
    pub fn push_barred(&mut self, window_ns: NonZeroU64, intent: Intent) {
        let is_hit = intent.is_hit();
        let next_window_ns = window_ns.get() - self.batch.now().as_nanos() % window_ns;
        if let Some(gathered) = &mut self.together {
            gathered.is_denied |= is_hit;
        }
        self.asked.push(Asked::Barred { is_hit, next_window_ns });
    }

    /// Adds a request that is refused already.
    pub fn push_refused(&mut self, refusal: impl Into<Refusal>) {
        self.asked.push(Asked::Refused(refusal.into()));
    }

    /// The first request that is refused already, before the batch is applied, and why.
    pub fn first_refusal(&self) -> Option<(usize, &Refusal)> {
        self.refusals().next()
    }

    /// The requests that are refused already, before the batch is applied, and why.
    pub fn refusals(&self) -> impl Iterator<Item = (usize, &Refusal)> {
        self.asked.iter().enumerate().filter_map(|(index, asked)| match asked {
            Asked::Refused(refusal) => Some((index, refusal)),
            Asked::Bucket(_)
            | Asked::GatheredBucket(_)
            | Asked::Barred { .. }
            | Asked::Rules(_)
            | Asked::Once(_)
            | Asked::Settling(_) => None,
        })
    }

    /// Lets go of the rules once all is answered: a connection that then idles for long shall not keep replaced ones in
    /// memory.
    pub fn release_policy(&mut self) {
        self.policy = None;
    }

    /// The outcome of request `index`, one of [`Requests::push_bucket`]'s, [`Requests::push_limited`]'s or
    /// [`Requests::push_barred`]'s, once the batch is applied.
    ///
    /// # Errors
    /// When the store failed for its bucket.
    pub fn outcome(&self, index: usize) -> Result<Outcome, Refusal> {
        match self.asked.get(index) {
            Some(Asked::Bucket(entry)) => Ok(self.batch.outcome(*entry)?),
            Some(&Asked::Barred { is_hit, next_window_ns }) => Ok(Outcome {
                allowed: !is_hit,
                before: 0,
                left: 0,
                owed: 0,
                reset_ns: next_window_ns,
                retry_ns: is_hit.then_some(next_window_ns),
                session: Timestamp::EPOCH,
                fate: Fate::Done,
            }),
            Some(Asked::Refused(refusal)) => Err(refusal.clone()),
            Some(Asked::GatheredBucket(_) | Asked::Rules(_) | Asked::Once(_) | Asked::Settling(_)) | None => {
                Err(Refusal::NoRules)
            }
        }
    }

    #[inline]
    fn matched(&self, index: usize) -> Result<&[Matched], Refusal> {
        match self.asked.get(index) {
            Some(Asked::Rules(range)) => Ok(self.matched.get(range.clone()).unwrap_or_default()),
            Some(Asked::Once(range)) => {
                let matched = self.matched.get(range.clone()).unwrap_or_default();
                self.judge_once(matched).map(|()| matched)
            }
            Some(Asked::Refused(refusal)) => Err(refusal.clone()),
            Some(Asked::Bucket(_) | Asked::GatheredBucket(_) | Asked::Barred { .. } | Asked::Settling(_)) | None => {
                Err(Refusal::NoRules)
            }
        }
    }

    /// How many counters request `index`, an [`Intent::Forget`], has forgotten.
    ///
    /// # Errors
    /// As [`Requests::verdict`].
    pub fn forgotten(&self, index: usize) -> Result<usize, Refusal> {
        self.matched(index)?.iter().try_fold(0, |count, matched| match matched.answer {
            Answer::Counted(entry) => Ok(count + usize::from(self.batch.outcome(entry)?.allowed)),
            Answer::Uncounted { .. } | Answer::Gathered(_) => Ok(count),
        })
    }
}

#[cfg(test)]
mod tests;
