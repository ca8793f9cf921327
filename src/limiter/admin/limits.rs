//! Limits of single actors, as operators and their programs see them: set, told, removed, listed; and how a server learns
//! of those that its store keeps.
//!
//! A limit is kept before it is in force, and in force before it is acknowledged.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::yield_now;

use super::counters::{CountersError, RuleName, place, shown};
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::limiter::Limiter;
use crate::limiter::error::{ErrorClass, LimiterError, Remedy};
pub use crate::limiter::policy::ListedLimits;
use crate::limiter::policy::{ActorLimits, Cursor, DEFAULT_RULE, Policy};
use crate::limiter::refusal::Refusal;
use crate::metrics::Metric;
use crate::rules::{ActorFields, QuotaError, Rule, Settings};
use crate::store::{ActorLimit, Followed, LimitChange, Store, StoreError};

/// The longest time that a limit may be set for: 100 years (seconds).
pub const MAX_LASTS_SECONDS: u64 = crate::rules::MAX_RESET_SECONDS;
/// A server that could not follow for longer reads all limits again: the store may have forgotten removals by then.
const TOO_LONG_NS: u64 = 30 * 60 * NANOS_PER_SECOND;
/// Limits that are over and are dropped at once, at most: a limit that is set waits for one such batch.
const FORGOTTEN_AT_ONCE: usize = 1_000;
/// Time between two readings of all limits. A replica that takes over may have lost changes, and only this finds them.
const READ_ALL_EVERY_NS: u64 = 60 * 60 * NANOS_PER_SECOND;

/// A limit, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub rule: String,
    pub actor: String,
    pub credits: u64,
    /// Nanoseconds until it ends; `None`: it stays until it is removed.
    pub ends_ns: Option<u64>,
    /// It is not in force: no rule that counts has this label, or the rule cannot have this limit or this actor.
    pub is_orphan: bool,
}

/// A page of limits, in no particular order. It may be empty and not the last one.
#[derive(Debug, Clone, Default)]
pub struct LimitsPage {
    pub limits: Vec<Told>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// Why a limit is not set, told or listed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LimitError {
    #[error(transparent)]
    Rule(CountersError),
    #[error("rule '{rule}' has one counter for all: the actor must be empty")]
    NoActors { rule: String },
    #[error("rule '{rule}' counts by {}: write the actor as '{}'", .fields.join(" and "), example(.fields))]
    OtherActor { rule: String, fields: Vec<String> },
    #[error("the actor is longer than {MAX_ACTOR} bytes")]
    LongActor,
    #[error("{0}")]
    Credits(QuotaError),
    #[error("a limit lasts from 1 to {MAX_LASTS_SECONDS} seconds")]
    Lasts,
    #[error("there are {len} limits of actors, and the maximum is {max}: remove some")]
    Full { len: usize, max: usize },
    #[error("the cursor is not one of a page before")]
    Cursor,
    #[error(transparent)]
    Store(StoreError),
}

impl LimiterError for LimitError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Rule(error) => error.class(),
            Self::NoActors { .. } | Self::OtherActor { .. } => ErrorClass::UnsuitableRule,
            Self::LongActor | Self::Credits(_) | Self::Lasts | Self::Cursor => ErrorClass::BadRequest,
            Self::Full { .. } => ErrorClass::Full,
            Self::Store(error) => error.class(),
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Rule(error) => error.remedy(),
            Self::Full { .. } => Some(Remedy::RaiseMaxActorLimits),
            _ => None,
        }
    }
}

/// The longest actor that may have a limit of its own (bytes).
pub const MAX_ACTOR: usize = 4_096;

/// `user=… path=…`
fn example(fields: &[String]) -> String {
    fields.iter().map(|field| format!("{field}=…")).collect::<Vec<_>>().join(" ")
}

impl Limiter {
    /// Gives one actor of the rule with this label `credits` in place of the rule's, for a time or until it is removed. What
    /// the actor has used stays used. In force from the next batch.
    ///
    /// # Errors
    /// See [`LimitError`]; nothing has changed then, but that after a failure of the store the limit may be kept.
    pub async fn set_limit(
        &self,
        rule: &str,
        actor: &str,
        credits: u64,
        lasts: Option<Duration>,
    ) -> Result<(), LimitError> {
        let policy = self.policy().ok_or(LimitError::Rule(Refusal::NoRules.into()))?;
        let (label, limited) = counted(&policy, rule)?;
        let actor = canonical(limited, actor)?;
        let settings = Settings { credit_limit: credits, ..limited.settings };
        if let Some(error) = settings.quota().err().and_then(|errors| errors.into_iter().next()) {
            return Err(LimitError::Credits(error));
        }
        if lasts.is_some_and(|lasts| !(1..=MAX_LASTS_SECONDS).contains(&lasts.as_secs())) {
            return Err(LimitError::Lasts);
        }
        let limits = &self.limits;
        let _alone = limits.known.lock().await;
        let now = self.now();
        if limits.memory.len() >= limits.max && limits.memory.of_label(label).get(actor.as_bytes(), now).is_none() {
            self.drop_from_memory(ActorLimits::ALL, now);
            if limits.memory.len() >= limits.max {
                return Err(LimitError::Full { len: limits.memory.len(), max: limits.max });
            }
        }
        let expires = lasts.map(|lasts| now.plus(lasts.as_secs() * NANOS_PER_SECOND));
        let limit = Some(ActorLimit { credits, expires });
        self.change(LimitChange { rule: label.to_owned(), actor, limit }).await.map(drop)
    }

    /// The actor's limit, if it has one of its own.
    ///
    /// # Errors
    /// When there is no such rule, and no limit of one that was.
    pub fn limit_of(&self, rule: &str, actor: &str) -> Result<Option<Told>, LimitError> {
        let (label, actor) = self.named(rule, actor)?;
        let now = self.now();
        let limit = self.limits.memory.of_label(&label).get(actor.as_bytes(), now);
        let policy = self.policy();
        Ok(limit
            .map(|limit| told(LimitChange { rule: label, actor, limit: Some(limit) }, limit, policy.as_deref(), now)))
    }

    /// Takes the actor's limit away; whether it had one.
    ///
    /// # Errors
    /// Same as [`Limiter::limit_of`], and if the store fails. The limit may be gone then.
    pub async fn remove_limit(&self, rule: &str, actor: &str) -> Result<bool, LimitError> {
        let (rule, actor) = self.named(rule, actor)?;
        let _alone = self.limits.known.lock().await;
        let is_known = self.limits.memory.of_label(&rule).get(actor.as_bytes(), self.now()).is_some();
        let was_there = self.change(LimitChange { rule, actor, limit: None }).await?;
        Ok(was_there.unwrap_or(is_known))
    }

    /// A page of at most `count` limits, orphans included.
    ///
    /// # Errors
    /// If the cursor is invalid, and if neither a rule nor a limit has the label.
    pub fn limits(&self, of: ListedLimits<'_>, cursor: Option<&str>, count: usize) -> Result<LimitsPage, LimitError> {
        let place = cursor.map(|cursor| Cursor::parse(cursor).ok_or(LimitError::Cursor)).transpose()?;
        let policy = self.policy();
        if let (Some(rule), Some(policy)) = (of.rule, &policy)
            && !self.limits.memory.knows(rule)
        {
            counted(policy, rule)?;
        }
        let now = self.now();
        let (changes, next) = self.limits.memory.page(of, place.as_ref(), count, now);
        let told = |change: LimitChange| change.limit.map(|limit| told(change, limit, policy.as_deref(), now));
        Ok(LimitsPage {
            limits: changes.into_iter().filter_map(told).collect(),
            next: next.map(|next| next.to_string()),
        })
    }

    /// Follows the limits in the store since the last time.
    ///
    /// # Errors
    /// The store's: what is known stays in force.
    pub async fn follow_limits(&self) -> Result<(), StoreError> {
        let limits = &self.limits;
        let mut known = limits.known.lock().await;
        let begun = self.now();
        let followed = Timestamp::from_nanos(limits.followed.load(Relaxed));
        let is_due = self.store.is_shared() && begun.since(known.read_all) > READ_ALL_EVERY_NS;
        if begun.since(followed) > TOO_LONG_NS || (is_due && !known.starts_over) {
            known.followed = Followed::Nothing;
        }
        loop {
            let page = self.store.follow_limits(known.followed.clone()).await;
            let page = page.inspect_err(|_| _ = limits.failures.fetch_add(1, Relaxed))?;
            if page.starts_over {
                known.starts_over = true;
                limits.told.fetch_add(1, Relaxed);
            }
            for change in &page.changes {
                limits.apply(change);
            }
            known.followed = page.known;
            if page.is_last {
                break;
            }
        }
        if std::mem::take(&mut known.starts_over) {
            limits.memory.keep_told(limits.told.load(Relaxed));
            known.read_all = begun;
        }
        limits.followed.store(begun.as_nanos(), Relaxed);
        Ok(())
    }

    /// Drops some of the limits that are over, from memory and from a store that no other server writes to. Limits can be set
    /// in between, and a limit that is set again stays.
    ///
    /// # Errors
    /// The store's: what is over is not in force, and is dropped later, or after the next start.
    pub async fn drop_expired_limits(&self) -> Result<(), StoreError> {
        let shards = ActorLimits::next_shards(self.limits.looked_through.load(Relaxed));
        self.limits.looked_through.store(shards.end, Relaxed);
        for shard in shards {
            // Nobody waits for more than one shard.
            self.drop_from_memory(shard..shard + 1, self.now());
            yield_now().await;
        }
        while self.forget_some().await? {
            yield_now().await;
        }
        Ok(())
    }

    /// Drops from memory some of the limits in these shards that are over at `now`, if there are any.
    fn drop_from_memory(&self, shards: Range<usize>, now: Timestamp) {
        let dropped = self.limits.memory.drop_expired(shards, FORGOTTEN_AT_ONCE, now);
        if !self.store.is_shared() && !dropped.is_empty() {
            self.limits.over.lock().extend(dropped);
        }
    }

    /// Has the store forget some of the limits that were dropped from memory. Returns whether there may be more.
    async fn forget_some(&self) -> Result<bool, StoreError> {
        let limits = &self.limits;
        // A limit that is set during this write must reach the store after it.
        let _alone = limits.known.lock().await;
        // They leave the queue once the store has forgotten them, so nothing is lost if the caller stops waiting.
        let oldest: Vec<_> = limits.over.lock().iter().take(FORGOTTEN_AT_ONCE).cloned().collect();
        if oldest.is_empty() {
            return Ok(false);
        }
        let count = oldest.len();
        let forgotten: Vec<_> = oldest.into_iter().filter(|change| !limits.memory.has(change)).collect();
        if !forgotten.is_empty() {
            self.store.forget_limits(forgotten).await?;
        }
        limits.over.lock().drain(..count);
        Ok(true)
    }

    /// How many limits belong to no rule that counts.
    pub fn orphaned_limits(&self) -> usize {
        let policy = self.policy();
        let known: HashSet<_> = policy.iter().flat_map(|policy| policy.labels_that_count()).collect();
        self.limits.memory.orphans(|label| known.contains(label))
    }

    pub(in crate::limiter) fn limits_metrics(&self) -> Vec<Metric> {
        let (memory, failures) = (&self.limits.memory, self.limits.failures.load(Relaxed));
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX) as f64;
        let mut metrics = vec![
            Metric::gauge("divvy_actor_limits", "Actors with a limit of their own.", count(memory.len())),
            Metric::gauge(
                "divvy_actor_limits_orphaned",
                "Limits of actors whose rule is gone.",
                count(self.orphaned_limits()),
            ),
        ];
        if self.store.is_shared() {
            let age_ns = self.now().since(Timestamp::from_nanos(self.limits.followed.load(Relaxed)));
            metrics.extend([
                Metric::counter(
                    "divvy_actor_limits_failures_total",
                    "How often the limits of actors could not be read from Redis.",
                    failures,
                ),
                Metric::gauge(
                    "divvy_actor_limits_age_seconds",
                    "Seconds since the limits of actors were last read from Redis, or since the start.",
                    age_ns as f64 / NANOS_PER_SECOND as f64,
                ),
            ]);
        }
        metrics
    }

    /// Keeps the change, then makes it known. Whoever calls has the changes to itself. Returns whether there was a limit
    /// before, if only the store knows.
    async fn change(&self, change: LimitChange) -> Result<Option<bool>, LimitError> {
        let was_there = self.store.change_limit(change.clone(), self.now()).await.map_err(LimitError::Store)?;
        self.limits.apply(&change);
        Ok(was_there)
    }

    /// The label and the actor as limits have them: of a rule, or of one that was.
    fn named(&self, rule: &str, actor: &str) -> Result<(String, String), LimitError> {
        // A listed limit can be removed even if its rule is gone.
        if self.limits.memory.knows(rule)
            && self.limits.memory.of_label(rule).get(actor.as_bytes(), self.now()).is_some()
        {
            return Ok((rule.to_owned(), actor.to_owned()));
        }
        let policy = self.policy().ok_or(LimitError::Rule(Refusal::NoRules.into()))?;
        match counted(&policy, rule) {
            Ok((label, limited)) => Ok((label.to_owned(), canonical(limited, actor)?)),
            Err(_) if self.limits.memory.knows(rule) => Ok((rule.to_owned(), actor.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// The limit as it is told under these rules.
fn told(
    LimitChange { rule, actor, .. }: LimitChange,
    limit: ActorLimit,
    policy: Option<&Policy>,
    now: Timestamp,
) -> Told {
    let fits = |limited: &Rule| Settings { credit_limit: limit.credits, ..limited.settings }.quota().is_ok();
    let is_hit = |limited: &Rule| canonical(limited, &actor).is_ok_and(|canonical| canonical == actor);
    let is_in_force = policy.is_some_and(|policy| {
        counted(policy, &rule).is_ok_and(|(label, limited)| label == rule && fits(limited) && is_hit(limited))
    });
    let ends_ns = limit.expires.map(|expires| expires.since(now));
    Told { rule, actor, credits: limit.credits, ends_ns, is_orphan: !is_in_force }
}

/// The rule with this label, and what limits call it.
fn counted<'a>(policy: &'a Policy, label: &str) -> Result<(&'a str, &'a Rule), LimitError> {
    let name = RuleName::Label(label);
    let place = place(policy, name).map_err(LimitError::Rule)?;
    let rule = policy.rules().rules().get(place).filter(|_| policy.bucket(place).is_some());
    let rule = rule.ok_or_else(|| LimitError::Rule(CountersError::Uncounted(shown(name))))?;
    Ok((rule.label.as_deref().unwrap_or(DEFAULT_RULE), rule))
}

/// The actor as hits make it.
fn canonical(rule: &Rule, actor: &str) -> Result<String, LimitError> {
    if actor.len() > MAX_ACTOR {
        return Err(LimitError::LongActor);
    }
    let label = || rule.label.clone().unwrap_or_else(|| DEFAULT_RULE.to_owned());
    match rule.actor_fields.as_slice() {
        [] if actor.is_empty() => Ok(String::new()),
        [] => Err(LimitError::NoActors { rule: label() }),
        [_] => Ok(actor.to_owned()),
        fields => {
            let canonical = ActorFields::new(fields).canonical(actor);
            canonical.ok_or_else(|| LimitError::OtherActor { rule: label(), fields: fields.to_vec() })
        }
    }
}

#[cfg(test)]
mod tests;
