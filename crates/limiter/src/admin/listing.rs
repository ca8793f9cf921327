//! Listings of exceptions for single actors, and the changes of blocks, for clients that follow them. Programs that enforce blocks
//! elsewhere, such as firewalls, list only those of addresses and networks.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

use super::exceptions::{own_settings, owner_of};
use super::{RuleName, canonical};
use crate::Limiter;
use crate::active_rules::{ActiveRules, labels};
use crate::refusal::{AdminError, Refusal};
use crate::register::Register;
use crate::register::journal::Cursor;
use crate::register::memory::Listed;
use crate::register::owner::{ALL_RULES, ExceptionOwner, OwnerName};
use crate::store::{Exception, ExceptionChange, ExceptionKind};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::{Address, MatchPolicy, Network, Rule, Scope};
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
    pub fn exceptions(
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
        let owners = self.check_filter(kind, of, active.as_deref(), scope)?;
        let is_named = self.is_named(of, active.as_deref(), scope);
        let suits = self.suits(of, active.as_deref(), now);
        let is_meant =
            |owner: &str, actor: &str, value: &Exception| is_named(owner, actor) && suits(owner, actor, value);
        let (found, next) = memory.page(&owners, is_meant, cursor.as_ref(), count, now);
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
        let owners = self.check_filter(ExceptionKind::Block, of, active.as_deref(), scope)?;
        let Some((changes, sequence)) = memory.journal.after(since, count) else {
            return Ok(BlockChanges { sequence: memory.journal.sequence(), is_reset: true, ..BlockChanges::default() });
        };
        let is_named = self.is_named(of, active.as_deref(), scope);
        let suits = self.suits(of, active.as_deref(), now);
        let mut found = BlockChanges { sequence, ..BlockChanges::default() };
        for change in changes {
            let (owner, actor) = (&*change.owner, &*change.actor);
            if !owners.has(owner) || !is_named(owner, actor) {
                continue;
            }
            let block = memory.find(owner, actor, now);
            let is_there = block.as_ref().is_some_and(|block| suits(owner, actor, block));
            let block = block.unwrap_or(Exception::by_hand(None, None));
            match self.listed(owner, actor.to_owned(), &block, active.as_deref()) {
                Some(listed) if is_there => found.set.push(listed),
                Some(listed) => found.removed.push((listed.rule, listed.actor)),
                None => {}
            }
        }
        Ok(found)
    }

    /// Returns the owners whose exceptions the filter accepts.
    ///
    /// # Errors
    /// No rule and no exception has the label, or it is out of scope.
    fn check_filter(
        &self,
        kind: ExceptionKind,
        of: ExceptionFilter<'_>,
        active: Option<&ActiveRules>,
        scope: &Scope,
    ) -> Result<Listed, AdminError> {
        let is_of_all_rules = of.rule == Some(ALL_RULES) && kind != ExceptionKind::Limit;
        if (is_of_all_rules || of.field.is_some()) && !scope.covers_everything() {
            return Err(Refusal::OutOfScope.into());
        }
        let owner = of.rule.map_or_else(|| format!("{kind}:"), |rule| owner_of(kind, rule));
        let Some(rule) = of.rule.filter(|_| !is_of_all_rules) else { return Ok(Listed::Beginning(owner)) };
        RuleName::Name(rule).check(active, of.actor, scope)?;
        if let Some(active) = active.filter(|_| !self.exceptions.memory.has_owner(&owner)) {
            RuleName::Name(rule).find(active)?;
        }
        Ok(Listed::Owner(owner))
    }

    /// Returns whether the filter and the scope cover exceptions of an owner and an actor.
    fn is_named<'a>(
        &self,
        of: ExceptionFilter<'a>,
        active: Option<&ActiveRules>,
        scope: &'a Scope,
    ) -> impl Fn(&str, &str) -> bool + use<'a> {
        let covers_all_rules = scope.covers_everything();
        let is_in_scope = filter_by(scope, active);
        move |owner, actor| match ExceptionOwner::parse(owner) {
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
        }
    }

    /// Returns whether the filter accepts an exception by what it says.
    fn suits<'a>(
        &'a self,
        of: ExceptionFilter<'a>,
        active: Option<&'a ActiveRules>,
        now: Timestamp,
    ) -> impl Fn(&str, &str, &Exception) -> bool + use<'a> {
        let addresses = of.field.map(|field| AddressBlocks::new(field, &self.exceptions, active));
        move |owner, actor, value| {
            of.program.is_none_or(|program| value.program().is_some_and(|name| **name == *program))
                && addresses.as_ref().is_none_or(|blocks| blocks.contains(owner, actor, now))
        }
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

/// Returns a filter by a scope for exceptions of rules, by the label and the actor of each.
fn filter_by<'a>(scope: &'a Scope, active: Option<&ActiveRules>) -> impl Fn(&str, &str) -> bool + use<'a> {
    let rules = active.map_or(&[][..], |active| active.rules.rules());
    let in_scope = labels(rules).zip(rules).filter(|(_, rule)| scope.covers(Some(rule), None, None));
    let own: HashMap<_, _> =
        in_scope.filter_map(|(label, rule)| Some((label?.to_owned(), scope.own_actor(rule)?))).collect();
    move |label, actor| own.get(label).is_some_and(|own| own == actor) || scope.covers(None, Some(label), None)
}

/// The blocks that keep addresses of a field away: those of all rules for this field, and those of rules whose actors are this
/// field alone. Leaves out blocks that an allow covers.
pub(super) struct AddressBlocks<'a> {
    field: &'a str,
    register: &'a Register,
    active: Option<&'a ActiveRules>,
    /// The owners that have such blocks.
    owners: HashSet<String>,
}

impl<'a> AddressBlocks<'a> {
    pub fn new(field: &'a str, register: &'a Register, active: Option<&'a ActiveRules>) -> Self {
        let owners = register.memory.all_owners();
        let owners = owners.iter().map(|of| of.owner()).filter(|owner| has_addresses(owner, field, active));
        let owners = owners.map(str::to_owned).collect();
        Self { field, register, active, owners }
    }

    /// Returns whether the actor's block is one of them.
    pub fn contains(&self, owner: &str, actor: &str, now: Timestamp) -> bool {
        self.owners.contains(owner) && self.denies(owner, actor, now) == Some(true)
    }

    fn denies(&self, owner: &str, actor: &str, now: Timestamp) -> Option<bool> {
        let owner = ExceptionOwner::parse(owner)?;
        let network = match owner.of {
            OwnerName::Field(..) => Network::parse(&owner.shown(actor)?).ok()?,
            OwnerName::Rule(label) => actor_network(RuleName::Name(label).find(self.active?).ok()?.0, actor)?,
        };
        let is_allowed = match owner.of {
            OwnerName::Field(..) => false,
            OwnerName::Rule(label) => {
                let allows = ExceptionOwner::of_rule(ExceptionKind::Allow, label).to_string();
                self.register.memory.find(&allows, actor, now).is_some()
            }
        };
        Some(!is_allowed && !self.register.allows_all_of(self.field, network, now))
    }
}

/// Returns whether the owner has blocks of values of this field.
fn has_addresses(owner: &str, field: &str, active: Option<&ActiveRules>) -> bool {
    let Some(ExceptionOwner { kind: ExceptionKind::Block, of }) = ExceptionOwner::parse(owner) else { return false };
    match of {
        OwnerName::Field(name, prefix) => name == field && prefix.is_some(),
        OwnerName::Rule(label) => active.is_some_and(|active| {
            let rule = RuleName::Name(label).find(active);
            // Blocks by a canary deny no hit, and a bouncer must not, either.
            rule.is_ok_and(|(rule, _)| {
                rule.lasting_name() == Some(label)
                    && rule.actor_fields == [field]
                    && rule.match_policy != MatchPolicy::Canary
            })
        }),
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
