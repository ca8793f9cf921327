//! Runs the steps of one case at simulated times, on the limiter that also serves requests and a store in memory.

use std::collections::HashMap;
use std::sync::Arc;

use super::cases::{ActorLimit, Step, StepIntent};
use divvy_core::clock::{Clock, Timestamp, ceil_seconds};
use divvy_core::json::{Object, WholeNumber};
use divvy_core::rules::Operation;
use divvy_core::units::Time;
use divvy_limiter::exceptions::{ExceptionTarget, ExceptionTerms};
use divvy_limiter::store::{Backend, MemoryStore};
use divvy_limiter::{
    ActiveRules, Intent, Jitter, Limiter, Plan, PlanBuilder, ReservationId, Reserve, Scope, Settlement, Standing,
    Verdict,
};
use divvy_server::http::describe_error;
use divvy_telemetry::metrics::Metrics;

pub struct Simulation<'a> {
    pub limiter: Limiter,
    start: Timestamp,
    /// The reservations by their names in the case; `None` if the reservation was denied.
    reservations: HashMap<&'a str, Option<ReservationId>>,
}

impl<'a> Simulation<'a> {
    /// Starts at `start` with an empty store.
    pub fn new(policy: ActiveRules, metrics: &Arc<Metrics>, start: Timestamp) -> Self {
        let store = Backend::Memory(MemoryStore::default());
        let limiter = Limiter::new(Some(policy), store, Clock::system(), Arc::clone(metrics)).with_jitter(Jitter::Off);
        Self { limiter, start, reservations: HashMap::new() }
    }

    /// Returns the policy, for another simulation. The counters and the limits of actors are lost.
    pub fn into_policy(self) -> Option<ActiveRules> {
        let policy = self.limiter.active_rules();
        drop(self.limiter);
        Arc::into_inner(policy?)
    }

    /// Runs a step at this time since the start, and returns its answer.
    ///
    /// # Errors
    /// The text of the error that a client would get over HTTP.
    pub async fn run(&mut self, step: &'a Step, Time(at): Time) -> Result<Answer, String> {
        let now = self.start.plus(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
        let Step { cost, ttl, id, idempotency_key, limit, .. } = step;
        if let Some(Object(ActorLimit { rule, actor, credits })) = limit {
            let (target, everything) = (ExceptionTarget::limit(rule, actor), &Scope::EVERYTHING);
            let changed = match credits {
                Some(WholeNumber(credits)) => {
                    let terms = ExceptionTerms { credits: Some(*credits), ..ExceptionTerms::default() };
                    self.limiter.set_exception(target, terms, everything).await
                }
                None => self.limiter.remove_exception(target, None, everything).await.map(drop),
            };
            return changed.map(|()| Answer::default()).map_err(|error| describe_error(&error));
        }
        let cost = cost.as_ref().map(|WholeNumber(cost)| *cost);
        let ttl_seconds = ttl.map(|ttl| u32::try_from(ttl.whole_seconds()).unwrap_or(u32::MAX));
        let operation: Operation = step.pairs().collect();
        // The reader of the file has found all fields that the intent needs.
        let id = id.as_deref().unwrap_or_default();
        let intent = match step.intent.unwrap_or_default() {
            StepIntent::Reserve => {
                let reserve = Reserve { credits: cost.unwrap_or(1), ttl_seconds, id: None };
                let applied = self.apply(now, |builder| builder.add_reservation(&operation, reserve)).await;
                let reserved = applied.report().reserved(0).map_err(|refusal| describe_error(&refusal))?;
                self.reservations.insert(id, reserved.id);
                return answer(&applied);
            }
            StepIntent::Commit => {
                let settlement = Settlement::Commit { cost: cost.unwrap_or_default() };
                return self.settle(id, settlement, now).await;
            }
            StepIntent::Release => return self.settle(id, Settlement::Release, now).await,
            StepIntent::Renew => return self.settle(id, Settlement::Renew { ttl_seconds }, now).await,
            StepIntent::Peek => Intent::Peek,
            StepIntent::Charge => Intent::Charge,
            StepIntent::Refund => Intent::Refund,
            StepIntent::Hit => Intent::Hit,
        };
        let add = |builder: &mut PlanBuilder| match idempotency_key {
            None => builder.add(&operation, intent, cost),
            Some(key) => builder.add_idempotent(&operation, intent, cost, key.as_bytes()),
        };
        answer(&self.apply(now, add).await)
    }

    async fn settle(&self, name: &str, settlement: Settlement, now: Timestamp) -> Result<Answer, String> {
        let Some(Some(id)) = self.reservations.get(name) else {
            return Err(format!("the reservation {name:?} was not granted"));
        };
        let applied = self.apply(now, |builder| builder.settle(id, settlement)).await;
        let report = applied.report();
        let answer = match settlement {
            Settlement::Commit { .. } => report.committed(0).map(|settled| Answer::of_counter(settled.verdict)),
            Settlement::Release => report.settled(0).map(|settled| Answer::of_change(settled.is_released())),
            Settlement::Renew { ttl_seconds } => {
                report.settled(0).map(|settled| Answer::of_change(settled.lasts_seconds(ttl_seconds).is_some()))
            }
            Settlement::Return { .. } => report.settled(0).map(|settled| Answer::of_change(settled.is_returned())),
        };
        answer.map_err(|refusal| describe_error(&refusal))
    }

    async fn apply(&self, now: Timestamp, add: impl FnOnce(&mut PlanBuilder)) -> Plan {
        let mut builder = PlanBuilder::default();
        self.limiter.begin_at(&mut builder, now);
        add(&mut builder);
        let mut plan = builder.build();
        self.limiter.apply(&mut plan).await;
        // A server does this right after its answer.
        self.limiter.count_denials(false).await;
        plan
    }
}

/// Returns the answer to the first request, by the rule that decides it.
fn answer(plan: &Plan) -> Result<Answer, String> {
    plan.report().standing(0).map(Answer::of_rule).map_err(|refusal| describe_error(&refusal))
}

/// An answer. Fields that the step's intent does not have are `None`.
#[derive(Debug, Default)]
pub struct Answer {
    pub allowed: Option<bool>,
    pub remaining: Option<u64>,
    pub balance: Option<i64>,
    /// Seconds until the reset, rounded up.
    pub reset: Option<u64>,
    /// The index of the rule that answers.
    pub rule: Option<usize>,
}

impl Answer {
    /// Returns the answer to a request that rules decide about.
    pub fn of_rule(standing: Standing<'_>) -> Self {
        let allowed = Some(standing.verdict.allowed);
        Self { allowed, rule: Some(standing.place), ..Self::of_counter(standing.verdict) }
    }

    /// Returns the answer with the state of a counter.
    pub fn of_counter(verdict: Verdict) -> Self {
        Self {
            remaining: Some(verdict.credit),
            balance: Some(verdict.balance()),
            reset: Some(ceil_seconds(verdict.reset_ns)),
            ..Self::default()
        }
    }

    /// Returns the answer to a request that changes a reservation.
    pub fn of_change(is_done: bool) -> Self {
        Self { allowed: Some(is_done), ..Self::default() }
    }
}
