//! Exceptions for single actors: operators and their programs set, show, remove and list limits, blocks and allows. A server
//! also follows the changes of the exceptions in its store.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub use super::error::MAX_LASTS_SECONDS;
use super::error::{AdminError, BadBlock, ImpossibleActor, MAX_ACTOR, MAX_FIELD, MAX_FIELDS, MAX_REASON};
use super::names::{RuleName, SHOWN, canonical, lasting_name, possible, spelled};
use crate::Limiter;
use crate::policy::{Policy, labels};
use crate::refusal::Refusal;
use crate::register::owner::{ALL_RULES, Class, ExceptionOwner, OwnerName, place_of};
use crate::register::table::{Cursor, Listed};
pub use crate::store::ExceptionKind;
use crate::store::{Changed, Effect, Exception, ExceptionChange};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::network::{is_range, resembles};
use divvy_core::rules::{Misspelling, Network, NetworkError, Rule, Scope, Settings, Spelling};
use divvy_telemetry::metrics::Metric;

/// The exception that a request is about.
#[derive(Debug, Clone, Copy)]
pub struct ExceptionTarget<'a> {
    /// A limit, a block or an allow.
    pub kind: ExceptionKind,
    /// The rule's label, or [`ALL_RULES`] for a block or an allow.
    pub rule: &'a str,
    /// The actor: `field=value` or `field=network` for all rules.
    pub actor: &'a str,
}

impl<'a> ExceptionTarget<'a> {
    /// Returns the target of an actor's own limit.
    pub fn limit(rule: &'a str, actor: &'a str) -> Self {
        Self { kind: ExceptionKind::Limit, rule, actor }
    }

    fn is_for_all_rules(self) -> bool {
        self.rule == ALL_RULES && self.kind != ExceptionKind::Limit
    }
}

/// The terms of a new exception.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExceptionTerms<'a> {
    /// Credits in place of the rule's, for a limit. 0 denies every hit. A block or an allow has none.
    pub credits: Option<u64>,
    /// The reason of a block or an allow. A limit has none.
    pub reason: Option<&'a str>,
    /// The time until it ends. `None` if it lasts until it is removed.
    pub lasts: Option<Duration>,
}

/// A filter for exceptions of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExceptionFilter<'a> {
    /// The rule's label, or [`ALL_RULES`]; `None` for the exceptions of all owners.
    pub owner: Option<&'a str>,
    /// The actor; `None` for the exceptions of all actors.
    pub actor: Option<&'a str>,
}

/// An exception for a single actor, under the rules in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedException {
    /// The rule's label, or [`ALL_RULES`].
    pub rule: String,
    /// The actor, in the form that hits give it; `field=value` or `field=network` for all rules.
    pub actor: String,
    /// Credits in place of the rule's, of a limit. 0 denies every hit.
    pub credits: Option<u64>,
    /// The reason of a block or an allow.
    pub reason: Option<String>,
    /// Nanoseconds until it ends. `None` if it lasts until it is removed.
    pub ends_ns: Option<u64>,
    /// Whether it is not in force: no rule with a counter has its label, or the rule cannot have this limit or this actor.
    pub is_orphan: bool,
}

/// A page of exceptions, in no particular order. Even an empty page need not be the last one.
#[derive(Debug, Clone, Default)]
pub struct ExceptionsPage {
    /// The exceptions of the page.
    pub exceptions: Vec<ListedException>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl Limiter {
    /// Gives one actor a limit in place of its rule's, or blocks or allows it, for a time or until that is removed. The usage of
    /// an actor with a limit carries over. The exception is in force from the next batch on.
    ///
    /// # Errors
    /// See [`AdminError`]. After an error nothing has changed, except that it may be stored if the store failed.
    pub async fn set_exception(
        &self,
        of: ExceptionTarget<'_>,
        terms: ExceptionTerms<'_>,
        scope: &Scope,
    ) -> Result<(), AdminError> {
        let (owner, actor) = self.new_place(of, terms.credits, scope)?;
        let effect = terms.effect(of.kind)?;
        let (register, class) = (&self.exceptions, Class::from(of.kind));
        let _alone = register.known.lock().await;
        let now = self.now();
        if let Some(OwnerName::Field(field, _)) = ExceptionOwner::parse(&owner).map(|owner| owner.of) {
            let known = register.fields();
            if known.len() >= MAX_FIELDS && !known.contains(field) {
                return Err(AdminError::BadBlock(BadBlock::ManyFields));
            }
        }
        let ends = terms.lasts.map(|lasts| now.plus(lasts.as_secs() * NANOS_PER_SECOND));
        let value = Exception { effect, ends };
        let is_known = register.memory.find_remembered(&owner, &actor, now).is_some();
        if !is_known && !register.has_room(class, &actor, &value, &self.store, now).await {
            let (len, used) = (register.memory.len(class), register.memory.weight(class));
            let max = register.bounds.of(class).max;
            return Err(AdminError::Full { class, len, used, max });
        }
        register.change(ExceptionChange { owner, actor, value: Some(value) }, &self.store, now).await?;
        Ok(())
    }

    /// Returns the actor's exception, if it has one.
    ///
    /// # Errors
    /// There is no such rule, and no exception of a former one, or it is out of scope.
    pub fn exception_of(&self, of: ExceptionTarget<'_>, scope: &Scope) -> Result<Option<ListedException>, AdminError> {
        let (owner, actor) = match self.place(of, scope) {
            // Exceptions belong to labels, so a rule without one has none.
            Err(AdminError::Unlabeled(_)) => return Ok(None),
            place => place?,
        };
        let found = self.exceptions.memory.find(&owner, &actor, self.now());
        Ok(found.and_then(|found| self.listed(&owner, actor, &found, self.policy().as_deref())))
    }

    /// Removes the actor's exception. Returns whether there was one.
    ///
    /// # Errors
    /// Same as [`Limiter::exception_of`], the rule has no label, or the store fails. It may be removed anyway.
    pub async fn remove_exception(&self, of: ExceptionTarget<'_>, scope: &Scope) -> Result<bool, AdminError> {
        let (owner, actor) = self.place(of, scope)?;
        let register = &self.exceptions;
        let _alone = register.known.lock().await;
        let now = self.now();
        let is_known = register.memory.find_remembered(&owner, &actor, now).is_some();
        let changed = register.change(ExceptionChange { owner, actor, value: None }, &self.store, now).await?;
        Ok(match changed {
            Changed::Replaced | Changed::Kept => true,
            Changed::Added => false,
            Changed::Made => is_known,
        })
    }

    /// Returns a page of at most `count` exceptions of one kind, including orphans: those of all rules, or of one, or those
    /// for all rules.
    ///
    /// # Errors
    /// The cursor is invalid, no rule and no exception has the label, or it is out of scope.
    pub fn exceptions(
        &self,
        kind: ExceptionKind,
        of: ExceptionFilter<'_>,
        cursor: Option<&str>,
        count: usize,
        scope: &Scope,
    ) -> Result<ExceptionsPage, AdminError> {
        let cursor = cursor.map(|cursor| Cursor::parse(cursor).ok_or(AdminError::Cursor)).transpose()?;
        let (policy, memory) = (self.policy(), &self.exceptions.memory);
        let covers_all_rules = scope.covers_everything();
        let owner = of.owner.map_or_else(|| format!("{kind}:"), |rule| owner_of(kind, rule));
        let owners = match of.owner {
            Some(ALL_RULES) if kind != ExceptionKind::Limit => {
                if !covers_all_rules {
                    return Err(Refusal::OutOfScope.into());
                }
                Listed::Beginning(&owner)
            }
            Some(rule) => {
                RuleName::Name(rule).check(policy.as_deref(), of.actor, scope)?;
                if let Some(policy) = policy.as_deref().filter(|_| !memory.has_owner(&owner)) {
                    RuleName::Name(rule).find(policy)?;
                }
                Listed::Owner(&owner)
            }
            None => Listed::Beginning(&owner),
        };
        let is_in_scope = filter_by(scope, policy.as_deref());
        let is_meant = |owner: &str, actor: &str| match ExceptionOwner::parse(owner) {
            Some(ExceptionOwner { of: OwnerName::Rule(label), .. }) => {
                of.actor.is_none_or(|wanted| wanted == actor) && is_in_scope(label, actor)
            }
            Some(owner @ ExceptionOwner { of: OwnerName::Field(field, _), .. }) => {
                let is_actor = |wanted: &str| {
                    let (named, value) = wanted.split_once('=').unwrap_or_default();
                    named == field && owner.shown(actor).as_deref() == Some(value)
                };
                covers_all_rules && of.actor.is_none_or(is_actor)
            }
            None => false,
        };
        let (found, next) = memory.page(owners, is_meant, cursor.as_ref(), count, self.now());
        let listed = found.into_iter().filter_map(|ExceptionChange { owner, actor, value }| {
            self.listed(&owner, actor, &value?, policy.as_deref())
        });
        Ok(ExceptionsPage { exceptions: listed.collect(), next: next.map(|next| next.to_string()) })
    }

    fn listed(
        &self,
        owner: &str,
        actor: String,
        found: &Exception,
        policy: Option<&Policy>,
    ) -> Option<ListedException> {
        let owner = ExceptionOwner::parse(owner)?;
        let shown = owner.shown(&actor)?.into_owned();
        let credits = found.credits();
        let (rule, actor, is_orphan) = match owner.of {
            OwnerName::Field(field, _) => (ALL_RULES.to_owned(), format!("{field}={shown}"), false),
            OwnerName::Rule(label) => {
                let suits = |rule: &Rule| {
                    rule.lasting_name() == Some(label)
                        && credits.is_none_or(|credits| own_settings(rule, credits).quota().is_ok())
                        && canonical(label, rule, &actor).is_ok_and(|canonical| canonical == actor)
                };
                let is_in_force =
                    policy.is_some_and(|policy| RuleName::Name(label).find(policy).is_ok_and(|(rule, _)| suits(rule)));
                (label.to_owned(), actor, !is_in_force)
            }
        };
        let reason = found.reason().map(|reason| reason.to_string());
        let ends_ns = found.ends.map(|ends| ends.since(self.now()));
        Some(ListedException { rule, actor, credits, reason, ends_ns, is_orphan })
    }

    /// Returns the owner and the actor of a new exception, which a request could have. A limit has these credits.
    fn new_place(
        &self,
        of: ExceptionTarget<'_>,
        credits: Option<u64>,
        scope: &Scope,
    ) -> Result<(String, String), AdminError> {
        if of.is_for_all_rules() {
            everywhere(of, scope)?;
            let actor = self.possible_everywhere(of.actor)?;
            return everywhere(ExceptionTarget { actor: &actor, ..of }, scope);
        }
        let policy = self.policy().ok_or(Refusal::NoRules)?;
        RuleName::Name(of.rule).check(Some(&policy), Some(of.actor), scope)?;
        let (found, _) = RuleName::Name(of.rule).find(&policy)?;
        let label = lasting_name(of.rule, found)?;
        let actor = possible(of.rule, found, of.actor, &policy)?;
        if let Some(credits) = credits.filter(|_| of.kind == ExceptionKind::Limit)
            && let Some(error) = own_settings(found, credits).quota().err().and_then(|errors| errors.into_iter().next())
        {
            return Err(AdminError::Credits(error));
        }
        Ok((owner_of(of.kind, label), actor))
    }

    /// Returns the owner and the actor under which an exception is stored. It can be removed even if its rule is gone.
    fn place(&self, of: ExceptionTarget<'_>, scope: &Scope) -> Result<(String, String), AdminError> {
        let ExceptionTarget { kind, rule, actor } = of;
        let memory = &self.exceptions.memory;
        if of.is_for_all_rules() {
            let (owner, stored) = everywhere(of, scope)?;
            return match self.possible_everywhere(actor) {
                Ok(actor) if memory.find(&owner, &stored, self.now()).is_none() => {
                    everywhere(ExceptionTarget { actor: &actor, ..of }, scope)
                }
                _ => Ok((owner, stored)),
            };
        }
        let policy = self.policy();
        RuleName::Name(rule).check(policy.as_deref(), Some(actor), scope)?;
        let owner = owner_of(kind, rule);
        if memory.find(&owner, actor, self.now()).is_some() {
            return Ok((owner, actor.to_owned()));
        }
        let policy = policy.ok_or(Refusal::NoRules)?;
        let found = RuleName::Name(rule).find(&policy);
        match found.and_then(|(found, _)| Ok((found, lasting_name(rule, found)?))) {
            Ok((found, label)) => Ok((owner_of(kind, label), spelled(label, found, actor, &policy)?)),
            Err(_) if memory.has_owner(&owner) => Ok((owner, actor.to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Returns the actor of an entry for all rules, with its value in the spelling of checks.
    ///
    /// # Errors
    /// No request has it.
    fn possible_everywhere<'a>(&self, actor: &'a str) -> Result<Cow<'a, str>, AdminError> {
        let Some((field, value)) = actor.split_once('=') else { return Ok(actor.into()) };
        if value.contains('*') {
            return Err(AdminError::BadBlock(BadBlock::Pattern));
        }
        let is_network = !matches!(Network::parse(value), Err(NetworkError::NoAddress));
        let spelling = self.policy().and_then(|policy| policy.rules.spellings().of(field));
        match spelling {
            None | Some(Spelling::Address | Spelling::Host) if is_network => Ok(actor.into()),
            // It would never match.
            None | Some(Spelling::Address) if resembles(value) || is_range(value) => {
                Err(bad_network(value, NetworkError::NoAddress))
            }
            None => Ok(actor.into()),
            Some(spelling) => match spelling.read(value) {
                Ok(value) => Ok(format!("{field}={value}").into()),
                Err(Misspelling { what, fix }) => {
                    let (field, value) = (field.to_owned(), value.chars().take(SHOWN).collect());
                    Err(AdminError::ImpossibleActor(ImpossibleActor::NoCheck { field, value, what, fix }))
                }
            },
        }
    }

    /// Returns the number of exceptions of a kind whose rule is gone or has no counter.
    pub fn orphaned_exceptions(&self, kind: ExceptionKind) -> usize {
        let policy = self.policy();
        let known: HashSet<_> = policy.iter().flat_map(|policy| policy.labels_that_count()).collect();
        self.exceptions.memory.count(|owner| match ExceptionOwner::parse(owner) {
            Some(ExceptionOwner { kind: of_kind, of: OwnerName::Rule(label) }) => {
                of_kind == kind && !known.contains(label)
            }
            _ => false,
        })
    }

    pub(crate) fn exception_metrics(&self) -> Vec<Metric> {
        let register = &self.exceptions;
        let [limits, blocks, allows] = ExceptionKind::ALL.map(|kind| {
            let is_of_kind = |owner: &str| ExceptionKind::split_owner(owner).is_some_and(|(of, _)| of == kind);
            (register.memory.count(is_of_kind) as u64, self.orphaned_exceptions(kind) as u64)
        });
        let mut metrics = vec![
            Metric::gauge(
                "divvy_actor_limits",
                "Actors with a limit of their own. Long names count as several toward --max-actor-limits.",
                limits.0,
            ),
            Metric::gauge("divvy_actor_limits_orphaned", "Limits of actors whose rule is gone.", limits.1),
            Metric::gauge(
                "divvy_blocks",
                "Blocks of actors. Long ones count as several toward --max-blocks.",
                blocks.0,
            ),
            Metric::gauge(
                "divvy_allows",
                "Allows of actors. Long ones count as several toward --max-blocks.",
                allows.0,
            ),
            Metric::gauge(
                "divvy_blocks_orphaned",
                "Blocks and allows of actors whose rule is gone.",
                blocks.1 + allows.1,
            ),
        ];
        if self.store.is_shared() {
            metrics.extend([
                Metric::counter(
                    "divvy_exceptions_failures_total",
                    "How often the limits, blocks and allows of actors could not be read from Redis.",
                    register.failures.load(Relaxed),
                ),
                Metric::fraction(
                    "divvy_exceptions_age_seconds",
                    "Seconds since the limits, blocks and allows of actors were last read from Redis, or since the start.",
                    register.age_ns(self.now()) as f64 / NANOS_PER_SECOND as f64,
                ),
            ]);
        }
        metrics
    }
}

impl ExceptionTerms<'_> {
    /// Returns the effect of a new exception of this kind.
    ///
    /// # Errors
    /// A term is missing or is not valid.
    fn effect(&self, kind: ExceptionKind) -> Result<Effect, AdminError> {
        let has_bad_length = self.lasts.is_some_and(|lasts| !(1..=MAX_LASTS_SECONDS).contains(&lasts.as_secs()));
        if kind == ExceptionKind::Limit {
            let credits = self.credits.ok_or(AdminError::NoCredits)?;
            return if has_bad_length { Err(AdminError::Lasts) } else { Ok(Effect::Limit { credits }) };
        }
        let is_bad = |reason: &str| reason.len() > MAX_REASON || reason.chars().any(char::is_control);
        if self.reason.is_some_and(is_bad) {
            return Err(AdminError::BadBlock(BadBlock::Reason));
        }
        if has_bad_length {
            return Err(AdminError::BadBlock(BadBlock::Lasts));
        }
        let reason = self.reason.filter(|reason| !reason.is_empty()).map(Into::into);
        Ok(Effect::Override { reason, repetition: None })
    }
}

/// Returns the rule's settings with an actor's own credits.
fn own_settings(rule: &Rule, credits: u64) -> Settings {
    Settings { credit_limit: credits, ..rule.settings }
}

/// Returns a filter by a scope for exceptions of rules, by the label and the actor of each.
fn filter_by(scope: &Scope, policy: Option<&Policy>) -> impl Fn(&str, &str) -> bool {
    let rules = policy.map_or(&[][..], |policy| policy.rules.rules());
    let in_scope = labels(rules).zip(rules).filter(|(_, rule)| scope.covers(Some(rule), None, None));
    let own: HashMap<_, _> =
        in_scope.filter_map(|(label, rule)| Some((label?.to_owned(), scope.own_actor(rule)?))).collect();
    move |label, actor| own.get(label).is_some_and(|own| own == actor) || scope.covers(None, Some(label), None)
}

/// Returns the owner of a rule's exceptions, or the beginning of the owners of those for all rules.
fn owner_of(kind: ExceptionKind, rule: &str) -> String {
    ExceptionOwner::of_rule(kind, rule).to_string()
}

/// Returns the owner and the actor under which an entry for all rules is stored.
///
/// # Errors
/// The actor is not `field=value`, or the user may not use all rules.
fn everywhere(
    ExceptionTarget { kind, actor, .. }: ExceptionTarget<'_>,
    scope: &Scope,
) -> Result<(String, String), AdminError> {
    if !scope.covers_everything() {
        return Err(Refusal::OutOfScope.into());
    }
    let (field, value) = actor.split_once('=').ok_or(AdminError::BadBlock(BadBlock::NoField))?;
    if field.is_empty() || field.len() > MAX_FIELD || field.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(AdminError::BadBlock(BadBlock::Field));
    }
    if value.len() > MAX_ACTOR {
        return Err(AdminError::LongActor);
    }
    let (owner, value) = place_of(kind, field, value).map_err(|error| bad_network(value, error))?;
    Ok((owner.to_string(), value))
}

fn bad_network(value: &str, error: NetworkError) -> AdminError {
    let value = value.chars().take(SHOWN).collect();
    AdminError::BadBlock(BadBlock::Network { value, error })
}

#[cfg(test)]
mod tests;
