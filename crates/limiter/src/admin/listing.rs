//! Listings of exceptions for single actors, and the changes of blocks, for clients that follow them. Programs that enforce blocks
//! elsewhere, such as firewalls, list only those of addresses and networks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::exceptions::{own_settings, owner_of};
use super::{RuleName, canonical};
use crate::Limiter;
use crate::active_rules::{ActiveRules, labels};
use crate::refusal::{AdminError, Refusal};
use crate::register::Register;
use crate::register::memory::Cursor;
use crate::register::overrides::Everywhere;
use crate::register::owner::{ALL_RULES, ExceptionOwner, OwnerName, place_of};
use crate::store::{Exception, ExceptionChange, ExceptionKind};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::{Address, Key, MatchPolicy, Network, Quota, Rule, Scope};
use divvy_telemetry::metrics::Metric;

/// A filter for exceptions of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExceptionFilter<'a> {
    /// The rule's label, or [`ALL_RULES`]; `None` for the exceptions of all rules.
    pub rule: Option<&'a str>,
    /// The actor; `None` for the exceptions of all actors.
    pub actor: Option<&'a str>,
    /// The program that set them; `None` for all exceptions.
    pub program: Option<&'a str>,
    /// The field whose addresses they keep away; `None` for all exceptions.
    pub field: Option<&'a str>,
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
    /// The program that set a block or an allow; `None` for an operator or a rule.
    pub program: Option<String>,
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
    /// The sequence number before the page was read.
    pub sequence: String,
}

/// The changes of blocks after a sequence number.
#[derive(Debug, Clone, Default)]
pub struct BlockChanges {
    /// The blocks that were set or changed, as they are now.
    pub set: Vec<ListedException>,
    /// The rules and actors without a block now.
    pub removed: Vec<(String, String)>,
    /// The sequence number of the last change.
    pub sequence: String,
    /// Whether the changes after the sequence number are not known.
    pub is_reset: bool,
}

impl Limiter {
    /// Returns a page of at most `count` exceptions of one kind, including orphans: those of all rules, or of one, or those
    /// for all rules.
    ///
    /// # Errors
    /// The cursor is invalid, no rule and no exception has the label, or it is out of scope.
    pub async fn exceptions(
        &self,
        kind: ExceptionKind,
        of: ExceptionFilter<'_>,
        cursor: Option<&str>,
        count: usize,
        scope: &Scope,
    ) -> Result<ExceptionsPage, AdminError> {
        let cursor = cursor.map(|cursor| Cursor::parse(cursor).ok_or(AdminError::Cursor)).transpose()?;
        let (active, memory) = (self.active_rules(), &self.exceptions.memory);
        // Read first, so that a client that follows the changes after it misses none.
        let (sequence, now) = (memory.journal.sequence(), self.now());
        let filter = self.filter(kind, of, active.as_deref(), scope)?;
        let owners = memory.owners_in_use();
        let accepted = owners.iter().filter_map(|owner| Some((&**owner, filter.accepted(owner)?)));
        let suits = |accepted: &Accepted<'_>, actor: &str, value: &Exception| filter.suits(accepted, actor, value, now);
        let (found, next) = memory.page(accepted, suits, cursor.as_ref(), count, now).await;
        let listed = found.into_iter().filter_map(|ExceptionChange { owner, actor, value }| {
            self.listed(&owner, actor, &value?, active.as_deref())
        });
        Ok(ExceptionsPage { exceptions: listed.collect(), next: next.map(|next| next.to_string()), sequence })
    }

    /// Returns at most `count` changes of blocks after a sequence number. Blocks that end at their time are no changes.
    ///
    /// # Errors
    /// No rule and no block has the label, or it is out of scope.
    pub fn block_changes(
        &self,
        of: ExceptionFilter<'_>,
        since: &str,
        count: usize,
        scope: &Scope,
    ) -> Result<BlockChanges, AdminError> {
        let (active, memory, now) = (self.active_rules(), &self.exceptions.memory, self.now());
        let filter = self.filter(ExceptionKind::Block, of, active.as_deref(), scope)?;
        let Some((changes, sequence)) = memory.journal.after(since, count) else {
            return Ok(BlockChanges { sequence: memory.journal.sequence(), is_reset: true, ..BlockChanges::default() });
        };
        let mut found = BlockChanges { sequence, ..BlockChanges::default() };
        for Cursor { owner, actor } in changes {
            let Some(accepted) = filter.accepted(&owner).filter(|accepted| accepted.has(&actor)) else { continue };
            let block = memory.find(&owner, &actor, now);
            let is_there = block.as_ref().is_some_and(|block| filter.suits(&accepted, &actor, block, now));
            let block = block.unwrap_or(Exception::by_hand(None, None));
            match self.listed(&owner, actor.to_string(), &block, active.as_deref()) {
                Some(listed) if is_there => found.set.push(listed),
                Some(listed) => found.removed.push((listed.rule, listed.actor)),
                None => {}
            }
        }
        Ok(found)
    }

    /// Returns the filter for exceptions of a kind.
    ///
    /// # Errors
    /// No rule and no exception has the label, or it is out of scope.
    fn filter<'a>(
        &'a self,
        kind: ExceptionKind,
        of: ExceptionFilter<'a>,
        active: Option<&'a ActiveRules>,
        scope: &'a Scope,
    ) -> Result<Filter<'a>, AdminError> {
        let is_of_all_rules = of.rule == Some(ALL_RULES) && kind != ExceptionKind::Limit;
        if (is_of_all_rules || of.field.is_some()) && !scope.covers_everything() {
            return Err(Refusal::OutOfScope.into());
        }
        if let Some(rule) = of.rule.filter(|_| !is_of_all_rules) {
            RuleName::Name(rule).check(active, of.actor, scope)?;
            if let Some(active) = active.filter(|_| !self.exceptions.memory.has_owner(&owner_of(kind, rule))) {
                RuleName::Name(rule).find(active)?;
            }
        }
        let rules = active.map_or(&[][..], |active| active.rules.rules());
        let rules = labels(rules).zip(rules).filter_map(|(label, rule)| Some((label?, rule))).collect();
        Ok(Filter { kind, of, scope, register: &self.exceptions, rules })
    }

    pub(super) fn listed(
        &self,
        owner: &str,
        actor: String,
        found: &Exception,
        active: Option<&ActiveRules>,
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
                    active.is_some_and(|active| RuleName::Name(label).find(active).is_ok_and(|(rule, _)| suits(rule)));
                (label.to_owned(), actor, !is_in_force)
            }
        };
        let reason = found.reason().map(|reason| reason.to_string());
        let program = found.program().map(|program| program.to_string());
        let ends_ns = found.ends.map(|ends| ends.since(self.now()));
        Some(ListedException { rule, actor, credits, reason, program, ends_ns, is_orphan })
    }

    /// Returns the number of exceptions of a kind whose rule is gone or has no counter.
    pub fn orphaned_exceptions(&self, kind: ExceptionKind) -> usize {
        let active = self.active_rules();
        let known: HashSet<_> = active.iter().flat_map(|active| active.labels_that_count()).collect();
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
        let gauges = [
            (
                "divvy_actor_limits",
                "Actors with a limit of their own. Long names count as several toward --max-actor-limits.",
                limits.0,
            ),
            ("divvy_actor_limits_orphaned", "Limits of actors whose rule is gone.", limits.1),
            ("divvy_blocks", "Blocks of actors. Long ones count as several toward --max-blocks.", blocks.0),
            ("divvy_allows", "Allows of actors. Long ones count as several toward --max-blocks.", allows.0),
            ("divvy_blocks_orphaned", "Blocks and allows of actors whose rule is gone.", blocks.1 + allows.1),
        ];
        let mut metrics = gauges.map(|(name, help, value)| Metric::gauge(name, help, value)).to_vec();
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

/// The exceptions that a request is about, and that its user may see.
struct Filter<'a> {
    kind: ExceptionKind,
    of: ExceptionFilter<'a>,
    scope: &'a Scope,
    register: &'a Register,
    /// The rules in force, by label.
    rules: HashMap<&'a str, &'a Rule>,
}

/// An owner some of whose exceptions a filter accepts.
struct Accepted<'a> {
    owner: ExceptionOwner<'a>,
    /// The rule in force that it names.
    rule: Option<&'a Rule>,
    /// The only actor that the filter accepts; `None` if it accepts all of them.
    actor: Option<String>,
}

impl Accepted<'_> {
    fn has(&self, actor: &str) -> bool {
        self.actor.as_deref().is_none_or(|only| only == actor)
    }
}

impl<'a> Filter<'a> {
    /// Returns the owner, unless the filter accepts none of its exceptions.
    fn accepted<'b>(&self, owner: &'b str) -> Option<Accepted<'b>>
    where
        'a: 'b,
    {
        let owner = ExceptionOwner::parse(owner).filter(|owner| owner.kind == self.kind)?;
        let asked = self.of.actor;
        let (name, rule, actor) = match owner.of {
            OwnerName::Rule(label) => {
                let rule = self.rules.get(label).copied();
                let own = rule.filter(|rule| self.scope.covers(Some(rule), None, None));
                let own = own.and_then(|rule| self.scope.own_actor(rule));
                let is_in_scope = own.is_some() || self.scope.covers(None, Some(label), None);
                let agree = own.as_deref().zip(asked).is_none_or(|(own, asked)| own == asked);
                (label, rule, Some(own.or(asked.map(str::to_owned))).filter(|_| is_in_scope && agree)?)
            }
            OwnerName::Field(field, _) => {
                let value = match asked {
                    Some(asked) => Some(asked.strip_prefix(field)?.strip_prefix('=')?),
                    None => None,
                };
                let place = value.map(|value| place_of(self.kind, field, value)).transpose().ok()?;
                let is_asked = place.as_ref().is_none_or(|(of, _)| *of == owner);
                let actor = place.map(|(_, actor)| actor);
                (ALL_RULES, None, Some(actor).filter(|_| is_asked && self.scope.covers_everything())?)
            }
        };
        self.of.rule.is_none_or(|rule| rule == name).then_some(Accepted { owner, rule, actor })
    }

    /// Returns whether the filter accepts an exception of the owner.
    fn suits(&self, of: &Accepted<'_>, actor: &str, value: &Exception, now: Timestamp) -> bool {
        let is_by = |program: &str| value.program().is_some_and(|name| **name == *program);
        of.has(actor)
            && self.of.program.is_none_or(is_by)
            && self.of.field.is_none_or(|field| self.keeps_away(field, of, actor, now) == Some(true))
    }

    /// Returns whether it is a block that keeps addresses in this field away: of all rules, or of a rule whose actors are this field
    /// alone. A block by a canary denies no hit, and one that an allow covers does not, either.
    fn keeps_away(&self, field: &str, of: &Accepted<'_>, actor: &str, now: Timestamp) -> Option<bool> {
        let (network, is_allowed) = match (self.kind, of.owner.of) {
            (ExceptionKind::Block, OwnerName::Field(name, Some(_))) if name == field => {
                (Network::parse(&of.owner.shown(actor)?).ok()?, false)
            }
            (ExceptionKind::Block, OwnerName::Rule(label)) => {
                let counts = |rule: &&Rule| matches!(rule.quota, Quota::Limited(_));
                let rule = of.rule.filter(counts).filter(|rule| rule.match_policy != MatchPolicy::Canary)?;
                let network = actor_network(rule, actor).filter(|_| rule.actor_fields == [field])?;
                let allows = owner_of(ExceptionKind::Allow, label);
                (network, self.register.memory.find(&allows, actor, now).is_some())
            }
            _ => return None,
        };
        let allows = |everywhere: Arc<Everywhere>| everywhere.allows_all_of(&Key::new(field), network, now);
        Some(!is_allowed && !self.register.everywhere().is_some_and(allows))
    }
}

/// Returns the network that an actor of the rule is: an address in any notation, or a network of the lengths in the rule's
/// `actorPrefix`. Another text is no network, even if it is written like one, because a client may have chosen it.
fn actor_network(rule: &Rule, actor: &str) -> Option<Network> {
    if let Some(address) = Address::parse(actor) {
        return Some(Network::of(address, address.length()));
    }
    let lengths = rule.actor_prefix.as_ref()?.lengths;
    Network::parse(actor).ok().filter(|network| lengths.canonical(actor).as_deref() == Some(&*network.to_string()))
}

#[cfg(test)]
mod tests;
