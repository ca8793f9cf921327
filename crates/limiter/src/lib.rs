//! The limiter: turns requests into a plan, and returns an answer to each of them.
//!
//! Every front calls the limiter, and nothing below it. A [`PlanBuilder`] turns requests and rules into a [`Plan`], the
//! store applies it, and a [`Report`] reads the answers. This module contains no protocol and no socket. Decisions use
//! the time when the plan was begun.

mod active_rules;
mod admin;
mod caller_task;
mod heavy_hitters;
mod penalties;
mod plan;
mod refusal;
mod register;
mod report;
pub mod store;
mod turn;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::sync::Notify;

use self::active_rules::tops_of;
pub use self::active_rules::{ActiveRules, CounterNames};
pub use self::admin::{counters, exceptions, inspection};
pub use self::caller_task::CallerTask;
pub use self::heavy_hitters::DEFAULT_TOP_MEMORY;
use self::heavy_hitters::Top;
use self::plan::REQUEST_WEIGHT;
pub use self::plan::effects::{Intent, Settlement};
pub use self::plan::{DEFAULT_MAX_RESERVATION_TTL, Payload, Plan, PlanBuilder, ReservationId, Reserve, Together};
pub use self::refusal::{
    AdminError, BadReservationId, ErrorClass, LimiterError, MAX_CLIENT_ID, MAX_ID_TEXT, MAX_IDEMPOTENCY_KEY,
    MAX_TOGETHER, Refusal, RefusedMember, Remedy,
};
use self::register::Register;
pub use self::register::memory::{DEFAULT_MAX_ACTOR_LIMITS, DEFAULT_MAX_OVERRIDES};
pub use self::register::owner::ALL_RULES;
pub use self::report::{GivenShare, Report, Reserved, Settled, Standing, Verdict, lasting_seconds};
use self::turn::Lane;
pub use self::turn::{Answers, Asked};
pub use crate::store::StoreError;
pub use crate::store::key::Space;
use crate::store::{Backend, ENTRY_WEIGHT, Store};
pub use divvy_core::algorithm::{Limit, Outcome, Resolution};
use divvy_core::calendar::Calendar;
use divvy_core::clock::{Clock, Timestamp};
pub use divvy_core::rules::{Jitter, OverrideKind, Scope};
pub use divvy_telemetry::metrics::RuleCount;
use divvy_telemetry::metrics::{Metric, Metrics};

/// The rules in force, a store, a clock, and metrics.
pub struct Limiter {
    active: ArcSwapOption<ActiveRules>,
    store: Backend,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// `None` if the actors of rules are not ranked.
    top: Option<Top>,
    /// Notified when the store has denied actors of rules with a penalty.
    has_denials: Notify,
    exceptions: Register,
    /// Whether the blocks that rules set differ in length by actor.
    jitter: Jitter,
    max_reservation_ttl: u32,
    lanes: ThreadLocal<Arc<Mutex<Lane>>>,
}

impl Limiter {
    /// Creates a limiter. Without rules, it answers only requests with their own limit.
    pub fn new(active: Option<ActiveRules>, store: Backend, clock: Clock, metrics: Arc<Metrics>) -> Self {
        let limiter = Self {
            active: ArcSwapOption::empty(),
            store,
            exceptions: Register::new(clock.now()),
            clock,
            metrics,
            top: Top::new(DEFAULT_TOP_MEMORY),
            has_denials: Notify::new(),
            jitter: Jitter::default(),
            max_reservation_ttl: DEFAULT_MAX_RESERVATION_TTL,
            lanes: ThreadLocal::new(),
        };
        if let Some(active) = active {
            limiter.replace_rules(active);
        }
        limiter
    }

    /// Returns the limiter with another maximum TTL of reservations.
    pub fn with_max_reservation_ttl(self, seconds: u32) -> Self {
        Self { max_reservation_ttl: seconds, ..self }
    }

    /// Returns the limiter with another bound on the number of limits of single actors.
    pub fn with_max_actor_limits(mut self, max: usize) -> Self {
        self.exceptions.memory.limits.max = max;
        self
    }

    /// Returns the limiter with another bound on the number of blocks and allows.
    pub fn with_max_overrides(mut self, max: usize) -> Self {
        self.exceptions.memory.overrides.max = max;
        self
    }

    /// Returns the limiter with blocks of another length, for tests.
    pub fn with_jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns the limiter with another bound on the memory for ranking the actors of rules (bytes). With 0, they are not
    /// ranked. Nothing may have been applied before.
    pub fn with_top_memory(mut self, bytes: usize) -> Self {
        self.top = Top::new(bytes);
        if let Some(active) = self.active.swap(None).and_then(Arc::into_inner) {
            self.replace_rules(active);
        }
        self
    }

    /// Returns the rules in force. `None` until the first rules are loaded.
    pub fn active_rules(&self) -> Option<Arc<ActiveRules>> {
        self.active.load_full()
    }

    /// Puts these rules in force for every batch that begins from now on. Batches under way keep their rules.
    pub fn replace_rules(&self, mut active: ActiveRules) {
        active.set_exceptions(&self.exceptions);
        active.tops = match self.top {
            Some(_) => tops_of(&active.rules, self.active.load().as_deref()),
            None => Vec::new(),
        };
        self.active.store(Some(Arc::new(active)));
        // A rule says whether its blocks are about addresses.
        self.exceptions.memory.journal.reset();
    }

    /// Returns the store, for callers that need its own features.
    pub fn store(&self) -> &Backend {
        &self.store
    }

    /// Checks whether the store can currently answer hits, and whether its limits and blocks of actors have ever been read.
    ///
    /// # Errors
    /// The store's error.
    pub async fn check_store(&self) -> Result<(), StoreError> {
        self.store.check().await?;
        if self.store.is_shared() && !self.exceptions.has_been_read.load(Relaxed) {
            return Err(StoreError::Unreachable("its limits and blocks of actors have not been read yet".into()));
        }
        Ok(())
    }

    /// Follows the changes of exceptions for single actors in the store since the last call.
    ///
    /// # Errors
    /// The store's error. The exceptions in memory stay in force.
    pub async fn follow_exceptions(&self) -> Result<(), StoreError> {
        self.exceptions.follow(&self.store, self.clock).await
    }

    /// Drops some of the expired exceptions for single actors from memory, and from a store that no other server writes to. If
    /// rules have no memory for ranking actors, idle ones return theirs.
    ///
    /// # Errors
    /// The store's error. Expired exceptions are not in force, and are dropped later, or after the next start.
    pub async fn drop_expired(&self) -> Result<(), StoreError> {
        if let Some(active) = self.active_rules()
            && active.tops.iter().any(|of_rule| of_rule.top.is_without_room())
        {
            active.tops.iter().for_each(|of_rule| of_rule.top.drop_idle(self.now()));
        }
        self.exceptions.drop_expired(&self.store, self.clock).await
    }

    /// Returns the number of counters in the store, as exactly as the store knows it.
    ///
    /// # Errors
    /// The store's error.
    pub async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.store.approximate_len().await
    }

    /// Returns the store's own metrics. This may take a few system calls.
    pub fn store_metrics(&self) -> Vec<Metric> {
        let mut metrics = self.store.metrics();
        metrics.extend(self.exception_metrics());
        metrics.extend(self.top_metrics());
        metrics.push(Metric::gauge(
            "divvy_calendars",
            "Calendars in memory: those of rules since the start, and of stored reservations.",
            Calendar::count() as u64,
        ));
        metrics
    }

    /// Returns the time for decisions, by divvy's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the metrics that the limiter shares with its callers.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Begins a new plan under the rules in force, dated now. It refuses requests outside of the scope.
    pub fn begin(&self, builder: &mut PlanBuilder, scope: &Scope) {
        self.begin_under(builder, self.active.load_full(), scope);
    }

    /// Begins a new plan under rules that were pinned before, dated now. See [`Limiter::begin`].
    pub fn begin_under(&self, builder: &mut PlanBuilder, active: Option<Arc<ActiveRules>>, scope: &Scope) {
        self.begin_dated(builder, active, scope, self.clock.now());
    }

    /// Begins a new plan under the rules in force, dated `now`. This is for simulations, whose time no clock shows.
    pub fn begin_at(&self, builder: &mut PlanBuilder, now: Timestamp) {
        self.begin_dated(builder, self.active.load_full(), &Scope::EVERYTHING, now);
    }

    fn begin_dated(&self, builder: &mut PlanBuilder, active: Option<Arc<ActiveRules>>, scope: &Scope, now: Timestamp) {
        let (max_ttl, has_seal) = (self.max_reservation_ttl, self.store.seal().is_known());
        builder.begin(active, scope, now, (max_ttl, has_seal), self.exceptions.everywhere());
    }

    /// Applies the plan to the store, and counts the answers. If the future is dropped, they do not count: see [`Limiter::ask`] for
    /// callers that may leave.
    pub async fn apply(&self, plan: &mut Plan) {
        if plan.is_empty() {
            return;
        }
        let Metrics { batches, hits, .. } = &*self.metrics;
        let begun = self.clock.now();
        let mut done = begun;
        if !plan.batch.is_empty() {
            match plan.batch.weight() <= MAX_PART {
                true => self.store.apply(&mut plan.batch).await,
                false => Box::pin(self.apply_in_parts(plan)).await,
            }
            done = self.clock.now();
            batches.store_duration.observe(done.since(begun), 1);
        }
        batches.requests.observe(plan.len() as u64, 1);
        if plan.hits > 0 {
            hits.duration.observe(done.since(plan.now()), plan.hits);
        }
        // Entries without an outcome never reached the store.
        let report = plan.report();
        let failed = report.count(&self.metrics);
        if failed > 0 {
            batches.store_errors.inc_by(failed);
        }
        if let Some(top) = &self.top {
            report.count_top(top);
        }
        report.note_denials(&self.has_denials, &self.metrics);
    }

    /// Applies a batch that would occupy its thread for a long time, and yields between its parts. A group is never divided.
    async fn apply_in_parts(&self, plan: &mut Plan) {
        plan.batch.outcomes.clear();
        for range in plan.batch.parts(MAX_PART) {
            let mut part = plan.batch.part(&range.collect::<Vec<_>>());
            self.store.apply(&mut part).await;
            plan.batch.outcomes.extend(part.outcomes);
            tokio::task::yield_now().await;
        }
    }

    /// Parses an id from a client. This does not ask the store.
    ///
    /// # Errors
    /// No server on this store made the id, or this server does not have the key yet.
    pub fn read_id(&self, text: &[u8]) -> Result<ReservationId, Refusal> {
        Ok(ReservationId::parse(text, &self.store.seal().key()?)?)
    }

    /// Writes an id for a client.
    ///
    /// # Errors
    /// This server does not have the key yet. It makes no reservations until then.
    pub fn write_id(&self, id: ReservationId) -> Result<String, Refusal> {
        Ok(id.into_text(&self.store.seal().key()?))
    }

    /// Returns the maximum weight of `count` requests that arrived in this many bytes. Each uses at most as many
    /// counters as rules can match, and the key of each counter is at most as long as the request.
    pub fn weight_of(&self, bytes: usize, count: usize) -> usize {
        let most_counters = self.active.load().as_ref().map_or(1, |active| active.most_counters);
        let of_requests = count.saturating_mul(REQUEST_WEIGHT + most_counters * ENTRY_WEIGHT);
        bytes.saturating_mul(most_counters).saturating_add(of_requests)
    }
}

/// Maximum weight of the actions that the store applies at once (bytes, see [`Plan::weight`]). A larger batch is
/// applied in parts, and other batches run between them.
pub const MAX_PART: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests;
