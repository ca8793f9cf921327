//! The limiter: a plan of requests in, an answer to each of them out.
//!
//! Every front calls this and nothing below it. A [`PlanBuilder`] turns requests and rules into a [`Plan`], the store applies
//! it, and a [`Report`] reads the answers. Nothing here knows a protocol or a socket. Decisions go by the time at which the
//! plan was begun.

mod admin;
mod apply;
mod error;
mod limit_registry;
mod plan;
mod policy;
mod refusal;
mod report;
mod sealing;
mod verdict;

use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub use self::admin::{counters, limits, status};
pub use self::apply::MAX_PART;
use self::apply::{Applying, applied};
pub use self::error::{ErrorClass, LimiterError, Remedy};
pub use self::limit_registry::DEFAULT_MAX_ACTOR_LIMITS;
use self::limit_registry::LimitRegistry;
use self::plan::REQUEST_WEIGHT;
pub use self::plan::table::{Intent, Settlement};
pub use self::plan::{
    BadReservationId, DEFAULT_MAX_RESERVATION_TTL, MAX_CLIENT_ID, MAX_ID_TEXT, MAX_IDEMPOTENCY_KEY, MAX_TOGETHER,
    Payload, Plan, PlanBuilder, ReservationId, Reserve, Together,
};
pub use self::policy::{CounterNames, Policy};
pub use self::refusal::{Refusal, RefusedMember};
pub use self::report::{Applied, Report, Reserved, Settled, Standing, lasting_seconds};
pub use self::verdict::Verdict;
pub use crate::algorithm::{Limit, Outcome, Resolution};
use crate::calendar::Calendar;
use crate::clock::{Clock, Timestamp};
use crate::metrics::{Metric, Metrics};
pub use crate::store::key::Space;
use crate::store::{Backend, ENTRY_WEIGHT, Store};
pub use crate::store::{Origin, StoreError};

/// The rules in force, a store, a clock, and metrics.
pub struct Limiter {
    policy: ArcSwapOption<Policy>,
    store: Backend,
    clock: Clock,
    metrics: Arc<Metrics>,
    limits: LimitRegistry,
    max_reservation_ttl: u32,
}

impl Limiter {
    /// Without a policy, it answers only requests with their own limit.
    pub fn new(policy: Option<Policy>, store: Backend, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let limits = LimitRegistry::new(clock.now());
        let max_reservation_ttl = DEFAULT_MAX_RESERVATION_TTL;
        let limiter = Self { policy: ArcSwapOption::empty(), store, clock, metrics, limits, max_reservation_ttl };
        if let Some(policy) = policy {
            limiter.replace_policy(policy);
        }
        limiter
    }

    /// Returns the limiter with another longest time of a reservation.
    pub fn with_max_reservation_ttl(self, seconds: u32) -> Self {
        Self { max_reservation_ttl: seconds, ..self }
    }

    /// Returns the limiter with another bound on the number of limits of single actors.
    pub fn with_max_actor_limits(mut self, max: usize) -> Self {
        self.limits.max = max;
        self
    }

    /// Returns the rules in force. `None` before the first ones are loaded.
    pub fn policy(&self) -> Option<Arc<Policy>> {
        self.policy.load_full()
    }

    /// Puts `policy` in force for every batch that begins from now on; those under way keep the one they began with.
    pub fn replace_policy(&self, mut policy: Policy) {
        policy.set_actor_limits(&self.limits.memory);
        self.policy.store(Some(Arc::new(policy)));
    }

    /// Returns the store, for callers that know its kind.
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

    /// The store's measurements of itself. They may take the time of a few system calls.
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

    /// Returns the time for decisions, by divvy's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Metrics that the limiter shares with everything that asks it.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Begins a new plan under the rules in force, dated now.
    pub fn begin(&self, builder: &mut PlanBuilder) {
        self.begin_under(builder, self.policy.load_full());
    }

    /// Begins a new plan under rules that were pinned before, dated now.
    pub fn begin_under(&self, builder: &mut PlanBuilder, policy: Option<Arc<Policy>>) {
        self.begin_dated(builder, policy, self.clock.now());
    }

    /// Begins a new plan under the rules in force, dated `now`: for simulations, whose time no clock shows.
    pub fn begin_at(&self, builder: &mut PlanBuilder, now: Timestamp) {
        self.begin_dated(builder, self.policy.load_full(), now);
    }

    fn begin_dated(&self, builder: &mut PlanBuilder, policy: Option<Arc<Policy>>, now: Timestamp) {
        let has_seal = self.store.seal().is_known();
        builder.begin(policy, now, self.max_reservation_ttl, has_seal);
    }

    /// Has the store apply the plan, and counts the answers.
    pub async fn apply(&self, plan: Plan) -> Applied {
        if plan.is_empty() {
            return applied(plan);
        }
        let Metrics { batches, hits, .. } = &*self.metrics;
        let begun = self.clock.now();
        let mut done = begun;
        let applied = if plan.batch.is_empty() {
            applied(plan)
        } else {
            let applied = Applying::new(&self.store, &self.metrics, plan).finish().await;
            done = self.clock.now();
            batches.store_duration.observe(done.since(begun), 1);
            applied
        };
        let plan = &applied.plan;
        batches.requests.observe(plan.len() as u64, 1);
        if plan.hits > 0 {
            hits.duration.observe(done.since(plan.now()), plan.hits);
        }
        let failed = applied.report().count(&self.metrics);
        if failed > 0 {
            batches.store_errors.inc_by(failed);
        }
        applied
    }

    /// The greatest weight of `count` requests that came in this many bytes. Each asks at most as many counters as rules can
    /// match, and the key of each counter has at most the request's bytes.
    pub fn weight_of(&self, bytes: usize, count: usize) -> usize {
        let most_counters = self.policy.load().as_ref().map_or(1, |policy| policy.most_counters);
        let of_requests = count.saturating_mul(REQUEST_WEIGHT + most_counters * ENTRY_WEIGHT);
        bytes.saturating_mul(most_counters).saturating_add(of_requests)
    }
}

#[cfg(test)]
mod tests;
