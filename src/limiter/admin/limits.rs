//! Limits of single actors: operators and their programs set, show, remove and list them. A server also follows the
//! changes of the limits in its store.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub use super::error::MAX_LASTS_SECONDS;
use super::error::{AdminError, ImpossibleActor, MAX_ACTOR};
use super::rule_name::{RuleName, SHOWN, lasting_name};
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::limiter::Limiter;
use crate::limiter::policy::{Policy, labels};
use crate::limiter::refusal::Refusal;
use crate::limiter::register::table::Cursor;
pub use crate::limiter::register::table::ExceptionFilter;
use crate::metrics::Metric;
use crate::rules::{ActorFields, Misspelling, Network, NetworkError, Rule, Scope, Settings, Spellings};
use crate::store::{ActorLimit, Changed, ExceptionChange};

/// A limit of a single actor, under the rules in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedLimit {
    /// The rule's label.
    pub rule: String,
    /// The actor, in the form that hits give it.
    pub actor: String,
    /// Credits in place of the rule's. 0 denies every hit.
    pub credits: u64,
    /// Nanoseconds until the limit expires. `None` if it lasts until it is removed.
    pub ends_ns: Option<u64>,
    /// Whether the limit is not in force: no rule with a counter has this label, or the rule cannot have this limit or
    /// this actor.
    pub is_orphan: bool,
}

impl ListedLimit {
    fn new(rule: String, actor: String, limit: ActorLimit, policy: Option<&Policy>, now: Timestamp) -> Self {
        let suits = |found: &Rule| {
            let has_quota = Settings { credit_limit: limit.credits, ..found.settings }.quota().is_ok();
            found.lasting_name() == Some(&rule)
                && has_quota
                && canonical(&rule, found, &actor).is_ok_and(|canonical| canonical == actor)
        };
        let is_in_force =
            policy.is_some_and(|policy| RuleName::Name(&rule).find(policy).is_ok_and(|(found, _)| suits(found)));
        let ends_ns = limit.expires.map(|expires| expires.since(now));
        Self { credits: limit.credits, ends_ns, is_orphan: !is_in_force, rule, actor }
    }
}

/// A page of limits, in no particular order. Even an empty page need not be the last one.
#[derive(Debug, Clone, Default)]
pub struct LimitsPage {
    /// The limits of the page.
    pub limits: Vec<ListedLimit>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl Limiter {
    /// Gives one actor of the rule with this label `credits` in place of the rule's, for a time or until the limit is
    /// removed. The actor's usage carries over. The limit is in force from the next batch on.
    ///
    /// # Errors
    /// See [`AdminError`]. After an error nothing has changed, except that the limit may be stored if the store failed.
    pub async fn set_limit(
        &self,
        rule: &str,
        actor: &str,
        credits: u64,
        lasts: Option<Duration>,
        scope: &Scope,
    ) -> Result<(), AdminError> {
        let policy = self.policy().ok_or(Refusal::NoRules)?;
        RuleName::Name(rule).check(Some(&policy), Some(actor), scope)?;
        let (found, _) = RuleName::Name(rule).find(&policy)?;
        let actor = possible(rule, found, actor, &policy)?;
        let rule = lasting_name(rule, found)?.to_owned();
        let settings = Settings { credit_limit: credits, ..found.settings };
        if let Some(error) = settings.quota().err().and_then(|errors| errors.into_iter().next()) {
            return Err(AdminError::Credits(error));
        }
        if lasts.is_some_and(|lasts| !(1..=MAX_LASTS_SECONDS).contains(&lasts.as_secs())) {
            return Err(AdminError::Lasts);
        }
        let limits = &self.limits;
        let _alone = limits.known.lock().await;
        let now = self.now();
        let value = ActorLimit { credits, expires: lasts.map(|lasts| now.plus(lasts.as_secs() * NANOS_PER_SECOND)) };
        let is_known = limits.memory.find(&rule, &actor, now).is_some();
        if !is_known && !limits.has_room(&actor, &value, &self.store, now).await {
            return Err(AdminError::Full { len: limits.memory.len(), used: limits.memory.weight(), max: limits.max });
        }
        let change = ExceptionChange { owner: rule, actor, value: Some(value) };
        limits.change(change, &self.store, now).await?;
        Ok(())
    }

    /// Returns the actor's limit, if it has one of its own.
    ///
    /// # Errors
    /// There is no such rule, and no limit of a former one, or it is out of scope.
    pub fn limit_of(&self, rule: &str, actor: &str, scope: &Scope) -> Result<Option<ListedLimit>, AdminError> {
        let (rule, actor) = match self.owner(rule, actor, scope) {
            // Limits belong to labels, so a rule without one has none.
            Err(AdminError::Unlabeled(_)) => return Ok(None),
            owner => owner?,
        };
        let now = self.now();
        let limit = self.limits.memory.find(&rule, &actor, now);
        Ok(limit.map(|limit| ListedLimit::new(rule, actor, limit, self.policy().as_deref(), now)))
    }

    /// Removes the actor's limit. Returns whether it had one.
    ///
    /// # Errors
    /// Same as [`Limiter::limit_of`], the rule has no label, or the store fails. The limit may be removed anyway.
    pub async fn remove_limit(&self, rule: &str, actor: &str, scope: &Scope) -> Result<bool, AdminError> {
        let (rule, actor) = self.owner(rule, actor, scope)?;
        let limits = &self.limits;
        let _alone = limits.known.lock().await;
        let now = self.now();
        let is_known = limits.memory.find(&rule, &actor, now).is_some();
        let change = ExceptionChange { owner: rule, actor, value: None };
        let changed = limits.change(change, &self.store, now).await?;
        Ok(was_there(changed, is_known))
    }

    /// Returns a page of at most `count` limits, including orphans.
    ///
    /// # Errors
    /// The cursor is invalid, no rule and no limit has the label, or the label is out of scope.
    pub fn limits(
        &self,
        of: ExceptionFilter<'_>,
        cursor: Option<&str>,
        count: usize,
        scope: &Scope,
    ) -> Result<LimitsPage, AdminError> {
        let cursor = cursor.map(|cursor| Cursor::parse(cursor).ok_or(AdminError::Cursor)).transpose()?;
        let policy = self.policy();
        if let Some(rule) = of.owner {
            RuleName::Name(rule).check(policy.as_deref(), of.actor, scope)?;
        }
        if let (Some(rule), Some(policy)) = (of.owner, &policy)
            && !self.limits.memory.has_owner(rule)
        {
            RuleName::Name(rule).find(policy)?;
        }
        let now = self.now();
        let is_in_scope = filter_by(scope, policy.as_deref());
        let (found, next) = self.limits.memory.page(of, is_in_scope, cursor.as_ref(), count, now);
        let listed = found.into_iter().filter_map(|ExceptionChange { owner, actor, value }| {
            Some(ListedLimit::new(owner, actor, value?, policy.as_deref(), now))
        });
        Ok(LimitsPage { limits: listed.collect(), next: next.map(|next| next.to_string()) })
    }

    /// Returns the number of limits whose rule is gone or has no counter.
    pub fn orphaned_limits(&self) -> usize {
        let policy = self.policy();
        let known: HashSet<_> = policy.iter().flat_map(|policy| policy.labels_that_count()).collect();
        self.limits.memory.count(|label| !known.contains(label))
    }

    pub(in crate::limiter) fn limits_metrics(&self) -> Vec<Metric> {
        let (len, orphaned) = (self.limits.memory.len() as u64, self.orphaned_limits() as u64);
        let mut metrics = vec![
            Metric::gauge(
                "divvy_actor_limits",
                "Actors with a limit of their own. Long names count as several toward --max-actor-limits.",
                len,
            ),
            Metric::gauge("divvy_actor_limits_orphaned", "Limits of actors whose rule is gone.", orphaned),
        ];
        if self.store.is_shared() {
            let age_ns = self.limits.age_ns(self.now());
            metrics.extend([
                Metric::counter(
                    "divvy_actor_limits_failures_total",
                    "How often the limits of actors could not be read from Redis.",
                    self.limits.failures.load(Relaxed),
                ),
                Metric::fraction(
                    "divvy_actor_limits_age_seconds",
                    "Seconds since the limits of actors were last read from Redis, or since the start.",
                    age_ns as f64 / NANOS_PER_SECOND as f64,
                ),
            ]);
        }
        metrics
    }

    /// Returns the label and the actor under which the actor's limit is stored. Limits can be removed even if their
    /// rule is gone.
    fn owner(&self, rule: &str, actor: &str, scope: &Scope) -> Result<(String, String), AdminError> {
        let (memory, policy) = (&self.limits.memory, self.policy());
        RuleName::Name(rule).check(policy.as_deref(), Some(actor), scope)?;
        if memory.find(rule, actor, self.now()).is_some() {
            return Ok((rule.to_owned(), actor.to_owned()));
        }
        let policy = policy.ok_or(Refusal::NoRules)?;
        let found = RuleName::Name(rule).find(&policy);
        match found.and_then(|(found, _)| Ok((found, lasting_name(rule, found)?))) {
            Ok((found, label)) => Ok((label.to_owned(), spelled(label, found, actor, &policy)?)),
            Err(_) if memory.has_owner(rule) => Ok((rule.to_owned(), actor.to_owned())),
            Err(error) => Err(error),
        }
    }
}

/// Returns whether there was an exception before a change. `is_known` says whether there was one in memory.
pub(super) fn was_there(changed: Changed, is_known: bool) -> bool {
    match changed {
        Changed::Replaced | Changed::Kept => true,
        Changed::Added => false,
        Changed::Made => is_known,
    }
}

/// Returns a filter by a scope for limits of actors, by the label and the actor of each.
pub(super) fn filter_by(scope: &Scope, policy: Option<&Policy>) -> impl Fn(&str, &str) -> bool {
    let rules = policy.map_or(&[][..], |policy| policy.rules.rules());
    let in_scope = labels(rules).zip(rules).filter(|(_, rule)| scope.covers(Some(rule), None, None));
    let own: HashMap<_, _> =
        in_scope.filter_map(|(label, rule)| Some((label?.to_owned(), scope.own_actor(rule)?))).collect();
    move |label, actor| own.get(label).is_some_and(|own| own == actor) || scope.covers(None, Some(label), None)
}

/// Returns the actor in the form that hits give it, for a limit of the rule with this label.
pub(super) fn canonical(label: &str, rule: &Rule, actor: &str) -> Result<String, AdminError> {
    if actor.len() > MAX_ACTOR { Err(AdminError::LongActor) } else { canonical_actor(label, rule, actor) }
}

/// Returns the actor in the form that checks give it, to find an exception of the rule with this label.
pub(super) fn spelled(label: &str, rule: &Rule, actor: &str, policy: &Policy) -> Result<String, AdminError> {
    let actor = canonical(label, rule, actor)?;
    ActorFields::of(rule).respell(&actor, |field, value| {
        let spelled = policy.rules.spellings().of(field).and_then(|spelling| spelling.read(value).ok());
        Ok(spelled.map_or(value.to_owned(), Cow::into_owned))
    })
}

/// Returns the actor in the form that hits give it, for an exception of the rule with this name. Values that checks normalize
/// are in their spelling. An exception of an actor that no hit has would never apply.
///
/// # Errors
/// Same as [`canonical_actor`], or no hit has this actor.
pub(super) fn possible(name: &str, rule: &Rule, actor: &str, policy: &Policy) -> Result<String, AdminError> {
    if let [field] = rule.actor_fields.as_slice()
        && let Some(value) = actor.strip_prefix(field.as_str()).and_then(|rest| rest.strip_prefix('='))
    {
        let (rule, field, actor) = (name.to_owned(), field.clone(), shown(value));
        return Err(AdminError::ImpossibleActor(ImpossibleActor::NamesField { rule, field, actor }));
    }
    let actor = canonical(name, rule, actor)?;
    // A rule without a bucket has no exceptions, and was not found.
    let compared =
        RuleName::Name(name).index(policy).ok().and_then(|index| policy.rules.normalized().rules().get(index));
    let compared = compared.unwrap_or(rule);
    ActorFields::of(rule).respell(&actor, |field, value| {
        let spelled = possible_value(compared, field, value, policy.rules.spellings());
        spelled.map_err(AdminError::ImpossibleActor)
    })
}

/// Returns a value of an actor's field in the spelling of checks. `rule` has its patterns in this spelling, too.
///
/// # Errors
/// No hit of the rule has the value.
fn possible_value(rule: &Rule, field: &str, value: &str, spellings: &Spellings) -> Result<String, ImpossibleActor> {
    let rule_name = || rule.lasting_name().unwrap_or_default().to_owned();
    let other = |value: &str, condition: String| ImpossibleActor::OtherValue {
        rule: rule_name(),
        field: field.to_owned(),
        condition,
        value: shown(value),
    };
    let conditions = || rule.conditions().filter(|condition| condition.field == field);
    let has_prefix = rule.actor_prefix.as_ref().is_some_and(|prefix| prefix.field == field);
    if value.contains('/')
        && let Ok(network) | Err(NetworkError::HostBits { masked: network }) = Network::parse(value)
    {
        if !has_prefix && field != MASKED_ADDRESS {
            return Err(ImpossibleActor::Network { rule: rule_name(), field: field.to_owned(), network });
        }
        return match conditions().find(|condition| !condition.may_be_met_in(network)) {
            Some(condition) => Err(other(value, condition.to_string())),
            None => Ok(value.to_owned()),
        };
    }
    // The actor of a request without the field is empty.
    if value.is_empty() && rule.pattern(field).is_none() {
        return Ok(String::new());
    }
    let spelled = spellings.of(field).map_or(Ok(Cow::Borrowed(value)), |spelling| spelling.read(value));
    let value = spelled.map_err(|Misspelling { what, fix }| ImpossibleActor::NoCheck {
        field: field.to_owned(),
        value: shown(value),
        what,
        fix,
    })?;
    let mut patterns = rule.patterns(field).peekable();
    if let Some(pattern) = patterns.peek().map(ToString::to_string)
        && !patterns.any(|pattern| pattern.matches(&value))
    {
        return Err(other(&value, pattern));
    }
    match conditions().find(|condition| !condition.is_met_by(value.as_bytes())) {
        Some(condition) => Err(other(&value, condition.to_string())),
        None => Ok(value.into_owned()),
    }
}

/// Returns the start of a text, for an error.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Envoy's descriptor for the network of a client's address: its values are networks.
const MASKED_ADDRESS: &str = "masked_remote_address";

/// Returns the actor in the form that hits give it, for the rule with this name.
///
/// # Errors
/// The rule has no actors, or the actor has other fields or is a network of another length.
pub(super) fn canonical_actor(name: &str, rule: &Rule, actor: &str) -> Result<String, AdminError> {
    match rule.actor_fields.as_slice() {
        [] if actor.is_empty() => Ok(String::new()),
        [] => Err(AdminError::NoActors { rule: name.to_owned() }),
        fields => ActorFields::of(rule).canonical(actor).ok_or_else(|| match &rule.actor_prefix {
            Some(prefix) if fields.len() == 1 => {
                AdminError::OtherNetwork { rule: name.to_owned(), prefix: prefix.clone() }
            }
            _ => AdminError::OtherActor { rule: name.to_owned(), fields: fields.to_vec() },
        }),
    }
}

#[cfg(test)]
mod tests;
