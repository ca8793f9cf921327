//! Blocks and allows of single actors: operators and their programs set, show, remove and list them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::error::{
    AdminError, BadBlock, ImpossibleActor, MAX_ACTOR, MAX_FIELD, MAX_FIELDS, MAX_LASTS_SECONDS, MAX_REASON,
};
use super::limits::{canonical, filter_by, possible, spelled, was_there};
use super::rule_name::{RuleName, SHOWN, lasting_name};
use crate::clock::NANOS_PER_SECOND;
use crate::limiter::Limiter;
use crate::limiter::refusal::Refusal;
use crate::limiter::register::overrides::{ALL_RULES, OverrideOwner, OwnerName, place_of};
use crate::limiter::register::table::{Cursor, ExceptionFilter};
use crate::metrics::Metric;
use crate::rules::network::{is_range, resembles};
use crate::rules::{Misspelling, Network, NetworkError, OverrideKind, Scope, Spelling};
use crate::store::{ExceptionChange, Override};

/// A block or an allow of an actor, under the rules in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedOverride {
    /// The rule's label, or [`ALL_RULES`].
    pub rule: String,
    /// The actor, in the form that hits give it; `field=value` or `field=network` for all rules.
    pub actor: String,
    /// The operator's reason.
    pub reason: Option<String>,
    /// Nanoseconds until it ends. `None` if it lasts until it is removed.
    pub ends_ns: Option<u64>,
    /// Whether it is not in force, because no rule with a counter has its label.
    pub is_orphan: bool,
}

/// A page of blocks or allows, in no particular order. Even an empty page need not be the last one.
#[derive(Debug, Clone, Default)]
pub struct OverridesPage {
    /// The entries of the page.
    pub entries: Vec<ListedOverride>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

/// The block or the allow that a request is about.
#[derive(Debug, Clone, Copy)]
pub struct OverrideTarget<'a> {
    /// A block or an allow.
    pub kind: OverrideKind,
    /// The rule's label, or [`ALL_RULES`].
    pub rule: &'a str,
    /// The actor.
    pub actor: &'a str,
}

impl Limiter {
    /// Blocks or allows an actor, for a time or until that is removed. It is in force from the next batch on.
    ///
    /// # Errors
    /// See [`AdminError`]. After an error nothing has changed, except that it may be stored if the store failed.
    pub async fn set_override(
        &self,
        of: OverrideTarget<'_>,
        reason: Option<&str>,
        lasts: Option<Duration>,
        scope: &Scope,
    ) -> Result<(), AdminError> {
        let (owner, actor) = match of.rule {
            ALL_RULES => {
                everywhere(of, scope)?;
                let actor = self.possible_everywhere(of.actor)?;
                everywhere(OverrideTarget { actor: &actor, ..of }, scope)?
            }
            rule => {
                let policy = self.policy().ok_or(Refusal::NoRules)?;
                RuleName::Name(rule).check(Some(&policy), Some(of.actor), scope)?;
                let (found, _) = RuleName::Name(rule).find(&policy)?;
                let label = lasting_name(rule, found)?;
                (owner_of(of.kind, label), possible(rule, found, of.actor, &policy)?)
            }
        };
        if reason.is_some_and(|reason| reason.len() > MAX_REASON || reason.chars().any(char::is_control)) {
            return Err(AdminError::BadBlock(BadBlock::Reason));
        }
        if lasts.is_some_and(|lasts| !(1..=MAX_LASTS_SECONDS).contains(&lasts.as_secs())) {
            return Err(AdminError::BadBlock(BadBlock::Lasts));
        }
        let registry = &self.overrides.registry;
        let _alone = registry.known.lock().await;
        let now = self.now();
        if let Some(OwnerName::Field(field, _)) = OverrideOwner::parse(&owner).map(|owner| owner.of) {
            let known = self.overrides.fields();
            if known.len() >= MAX_FIELDS && !known.contains(&field) {
                return Err(AdminError::BadBlock(BadBlock::ManyFields));
            }
        }
        let ends = lasts.map(|lasts| now.plus(lasts.as_secs() * NANOS_PER_SECOND));
        let reason = reason.filter(|reason| !reason.is_empty()).map(Into::into);
        let value = Override { reason, ends, repetition: None };
        let is_known = registry.memory.find_remembered(&owner, &actor, now).is_some();
        if !is_known && !registry.has_room(&actor, &value, &self.store, now).await {
            return Err(AdminError::FullOfBlocks {
                len: registry.memory.len(),
                used: registry.memory.weight(),
                max: registry.max,
            });
        }
        registry.change(ExceptionChange { owner, actor, value: Some(value) }, &self.store, now).await?;
        Ok(())
    }

    /// Returns the actor's block or allow, if there is one.
    ///
    /// # Errors
    /// There is no such rule, and no entry of a former one, or it is out of scope.
    pub fn override_of(&self, of: OverrideTarget<'_>, scope: &Scope) -> Result<Option<ListedOverride>, AdminError> {
        let (owner, actor) = match self.place(of, scope) {
            // Blocks belong to labels, so a rule without one has none.
            Err(AdminError::Unlabeled(_)) => return Ok(None),
            place => place?,
        };
        let found = self.overrides.registry.memory.find(&owner, &actor, self.now());
        Ok(found.and_then(|found| self.listed(&owner, actor, found)))
    }

    /// Removes the actor's block or allow. Returns whether there was one.
    ///
    /// # Errors
    /// Same as [`Limiter::override_of`], the rule has no label, or the store fails. It may be removed anyway.
    pub async fn remove_override(&self, of: OverrideTarget<'_>, scope: &Scope) -> Result<bool, AdminError> {
        let (owner, actor) = self.place(of, scope)?;
        let registry = &self.overrides.registry;
        let _alone = registry.known.lock().await;
        let now = self.now();
        let is_known = registry.memory.find_remembered(&owner, &actor, now).is_some();
        let changed = registry.change(ExceptionChange { owner, actor, value: None }, &self.store, now).await?;
        Ok(was_there(changed, is_known))
    }

    /// Returns a page of at most `count` blocks or allows, including orphans: those of all rules, or of one, or those for
    /// all rules.
    ///
    /// # Errors
    /// The cursor is invalid, no rule and no entry has the label, or it is out of scope.
    pub fn overrides(
        &self,
        kind: OverrideKind,
        of: ExceptionFilter<'_>,
        cursor: Option<&str>,
        count: usize,
        scope: &Scope,
    ) -> Result<OverridesPage, AdminError> {
        let cursor = cursor.map(|cursor| Cursor::parse(cursor).ok_or(AdminError::Cursor)).transpose()?;
        let (policy, memory) = (self.policy(), &self.overrides.registry.memory);
        let covers_all_rules = scope.covers_everything();
        match of.owner {
            Some(ALL_RULES) if covers_all_rules => {}
            Some(ALL_RULES) => return Err(Refusal::OutOfScope.into()),
            Some(rule) => {
                RuleName::Name(rule).check(policy.as_deref(), of.actor, scope)?;
                if let Some(policy) = policy.as_deref().filter(|_| !memory.has_owner(&owner_of(kind, rule))) {
                    RuleName::Name(rule).find(policy)?;
                }
            }
            None => {}
        }
        let is_in_scope = filter_by(scope, policy.as_deref());
        let is_meant = |owner: &str, actor: &str| match OverrideOwner::parse(owner) {
            Some(owner) if owner.kind == kind => match owner.of {
                OwnerName::Rule(label) => {
                    of.owner.is_none_or(|rule| rule == label)
                        && of.actor.is_none_or(|wanted| wanted == actor)
                        && is_in_scope(&label, actor)
                }
                OwnerName::Field(ref field, _) => {
                    let is_actor = |wanted: &str| {
                        let (named, value) = wanted.split_once('=').unwrap_or_default();
                        named == field && owner.shown(actor).as_deref() == Some(value)
                    };
                    covers_all_rules && of.owner.is_none_or(|rule| rule == ALL_RULES) && of.actor.is_none_or(is_actor)
                }
            },
            _ => false,
        };
        let now = self.now();
        let (found, next) = memory.page(ExceptionFilter::default(), is_meant, cursor.as_ref(), count, now);
        let entries = found.into_iter();
        let entries = entries.filter_map(|ExceptionChange { owner, actor, value }| self.listed(&owner, actor, value?));
        Ok(OverridesPage { entries: entries.collect(), next: next.map(|next| next.to_string()) })
    }

    fn listed(&self, owner: &str, actor: String, found: Override) -> Option<ListedOverride> {
        let owner = OverrideOwner::parse(owner)?;
        let shown = owner.shown(&actor)?.into_owned();
        let (rule, actor, is_orphan) = match owner.of {
            OwnerName::Field(field, _) => (ALL_RULES.to_owned(), format!("{field}={shown}"), false),
            OwnerName::Rule(label) => {
                let policy = self.policy();
                let is_in_force = policy.is_some_and(|policy| {
                    RuleName::Name(&label).find(&policy).is_ok_and(|(found, _)| {
                        found.lasting_name() == Some(&label)
                            && canonical(&label, found, &actor).is_ok_and(|canonical| canonical == actor)
                    })
                });
                (label, actor, !is_in_force)
            }
        };
        let reason = found.reason.map(|reason| reason.to_string());
        let ends_ns = found.ends.map(|ends| ends.since(self.now()));
        Some(ListedOverride { rule, actor, reason, ends_ns, is_orphan })
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

    /// Returns the owner and the actor under which an entry is stored. Entries can be removed even if their rule is gone.
    fn place(&self, of: OverrideTarget<'_>, scope: &Scope) -> Result<(String, String), AdminError> {
        let OverrideTarget { kind, rule, actor } = of;
        if rule == ALL_RULES {
            let (owner, stored) = everywhere(of, scope)?;
            return match self.possible_everywhere(actor) {
                Ok(actor) if self.overrides.registry.memory.find(&owner, &stored, self.now()).is_none() => {
                    everywhere(OverrideTarget { actor: &actor, ..of }, scope)
                }
                _ => Ok((owner, stored)),
            };
        }
        let (memory, policy) = (&self.overrides.registry.memory, self.policy());
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

    /// Returns the number of blocks or allows whose rule is gone or has no counter.
    fn orphaned_overrides(&self, kind: OverrideKind) -> usize {
        let policy = self.policy();
        let known: HashSet<_> = policy.iter().flat_map(|policy| policy.labels_that_count()).collect();
        self.overrides.registry.memory.count(|owner| match OverrideOwner::parse(owner) {
            Some(OverrideOwner { kind: of_kind, of: OwnerName::Rule(label) }) => {
                of_kind == kind && !known.contains(label.as_str())
            }
            _ => false,
        })
    }

    pub(in crate::limiter) fn overrides_metrics(&self) -> Vec<Metric> {
        let registry = &self.overrides.registry;
        let of_kind = |kind: OverrideKind| {
            let is_meant = |owner: &str| OverrideOwner::parse(owner).is_some_and(|owner| owner.kind == kind);
            registry.memory.count(is_meant) as u64
        };
        let (blocks, allows) = (of_kind(OverrideKind::Block), of_kind(OverrideKind::Allow));
        let orphaned = OverrideKind::ALL.map(|kind| self.orphaned_overrides(kind) as u64).iter().sum();
        let mut metrics = vec![
            Metric::gauge("divvy_blocks", "Blocks of actors. Long ones count as several toward --max-blocks.", blocks),
            Metric::gauge("divvy_allows", "Allows of actors. Long ones count as several toward --max-blocks.", allows),
            Metric::gauge("divvy_blocks_orphaned", "Blocks and allows of actors whose rule is gone.", orphaned),
        ];
        if self.store.is_shared() {
            metrics.extend([
                Metric::counter(
                    "divvy_blocks_failures_total",
                    "How often the blocks and allows of actors could not be read from Redis.",
                    registry.failures.load(Relaxed),
                ),
                Metric::fraction(
                    "divvy_blocks_age_seconds",
                    "Seconds since the blocks and allows of actors were last read from Redis, or since the start.",
                    registry.age_ns(self.now()) as f64 / NANOS_PER_SECOND as f64,
                ),
            ]);
        }
        metrics
    }
}

pub(super) fn owner_of(kind: OverrideKind, label: &str) -> String {
    OverrideOwner { kind, of: OwnerName::Rule(label.to_owned()) }.to_text()
}

/// Returns the owner and the actor under which an entry for all rules is stored.
///
/// # Errors
/// The actor is not `field=value`, or the user may not use all rules.
fn everywhere(
    OverrideTarget { kind, actor, .. }: OverrideTarget<'_>,
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
    Ok((owner.to_text(), value))
}

fn bad_network(value: &str, error: NetworkError) -> AdminError {
    let value = value.chars().take(SHOWN).collect();
    AdminError::BadBlock(BadBlock::Network { value, error })
}
