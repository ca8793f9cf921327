//! Exceptions for single actors: operators and their programs set, show, remove and list limits, blocks and allows. A server
//! also follows the changes of the exceptions in its store.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::yield_now;

use super::address_blocks::AddressBlocks;
use super::{RuleName, SHOWN, canonical, lasting_name, possible, spelled};
use crate::Limiter;
use crate::policy::{Policy, labels};
pub use crate::refusal::MAX_LASTS_SECONDS;
use crate::refusal::Refusal;
use crate::refusal::{
    AdminError, BadBlock, ImpossibleActor, MAX_ACTOR, MAX_FIELD, MAX_FIELDS, MAX_PROGRAM, MAX_REASON,
};
use crate::register::overrides::{ALL_RULES, Class, ExceptionOwner, OwnerName, place_of};
use crate::register::table::Cursor;
use crate::register::table::{Listed, weight};
pub use crate::store::ExceptionKind;
use crate::store::{Changed, Effect, Exception, ExceptionChange, Replaces, Setter};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::network::{is_range, resembles};
use divvy_core::rules::{Misspelling, Network, NetworkError, Rule, Scope, Settings, Spelling};
use divvy_telemetry::metrics::Metric;

/// Maximum number of changes that are stored together. Other changes wait for them.
const EDITED_AT_ONCE: usize = 1_000;

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
    /// The name of the program that sets a block or an allow; `None` for an operator.
    pub program: Option<&'a str>,
    /// The time until it ends. `None` if it lasts until it is removed.
    pub lasts: Option<Duration>,
}

/// A change to an actor's exception.
#[derive(Debug, Clone, Copy)]
pub struct ExceptionEdit<'a> {
    /// The rule's label, or [`ALL_RULES`] for a block or an allow.
    pub rule: &'a str,
    /// The actor: `field=value` or `field=network` for all rules.
    pub actor: &'a str,
    /// The terms of the new exception; `None` to remove it.
    pub terms: Option<ExceptionTerms<'a>>,
}

/// Numbers of edits by their outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EditCounts {
    /// Exceptions that were set.
    pub set: u64,
    /// Exceptions that were removed.
    pub removed: u64,
    /// Exceptions of other owners that were kept.
    pub kept: u64,
    /// Exceptions that found no room.
    pub full: u64,
}

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

/// A change to an exception of this owner and actor: the effect of a new one, and the time until it ends.
struct Edit {
    owner: String,
    actor: String,
    new: Option<(Effect, Option<Duration>)>,
}

impl Limiter {
    /// Gives one actor a limit in place of its rule's, or blocks or allows it, for a time or until that is removed. The usage of
    /// an actor with a limit carries over. The exception is in force from the next batch on. One that a program sets replaces none
    /// of another program or an operator.
    ///
    /// # Errors
    /// See [`AdminError`]. After an error nothing has changed, except that it may be stored if the store failed.
    pub async fn set_exception(
        &self,
        of: ExceptionTarget<'_>,
        terms: ExceptionTerms<'_>,
        scope: &Scope,
    ) -> Result<(), AdminError> {
        let edit = ExceptionEdit { rule: of.rule, actor: of.actor, terms: Some(terms) };
        self.make_one(of.kind, edit, terms.program, scope).await.map(drop)
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
        self.remove_exception_for(of, None, scope).await
    }

    /// Does the same for a program, which removes only what it has set.
    ///
    /// # Errors
    /// Same as [`Limiter::remove_exception`], or it belongs to another owner.
    pub async fn remove_exception_for(
        &self,
        of: ExceptionTarget<'_>,
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<bool, AdminError> {
        let edit = ExceptionEdit { rule: of.rule, actor: of.actor, terms: None };
        self.make_one(of.kind, edit, program, scope).await
    }

    /// Makes many changes of an operator or of this program, which are stored together in parts. Those that find no room, or an
    /// exception of another owner, are left out.
    ///
    /// # Errors
    /// An edit is not valid: its index is returned, and nothing has changed. Or the store fails, and some edits may be made.
    pub async fn edit_exceptions(
        &self,
        kind: ExceptionKind,
        edits: &[ExceptionEdit<'_>],
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<EditCounts, (Option<usize>, AdminError)> {
        let checked = edits
            .iter()
            .enumerate()
            .map(|(index, edit)| self.edit(kind, *edit, program, scope).map_err(|error| (Some(index), error)));
        let checked: Vec<_> = checked.collect::<Result<_, _>>()?;
        let mut counts = EditCounts::default();
        let mut checked = checked.into_iter();
        loop {
            let together: Vec<_> = checked.by_ref().take(EDITED_AT_ONCE).collect();
            if together.is_empty() {
                return Ok(counts);
            }
            let are_new: Vec<_> = together.iter().map(|edit| edit.new.is_some()).collect();
            let outcomes = self.make(together, program).await.map_err(|error| (None, error))?;
            for (is_new, outcome) in are_new.into_iter().zip(outcomes) {
                match outcome {
                    Ok(_) if is_new => counts.set += 1,
                    Ok(was_there) => counts.removed += u64::from(was_there),
                    Err(AdminError::OtherOwner) => counts.kept += 1,
                    Err(AdminError::Full { .. }) => counts.full += 1,
                    Err(error) => return Err((None, error)),
                }
            }
            yield_now().await;
        }
    }

    /// Checks a change, and finds where the exception is stored.
    fn edit(
        &self,
        kind: ExceptionKind,
        edit: ExceptionEdit<'_>,
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<Edit, AdminError> {
        let of = ExceptionTarget { kind, rule: edit.rule, actor: edit.actor };
        let credits = edit.terms.and_then(|terms| terms.credits);
        let (owner, actor) = match edit.terms {
            Some(_) => self.new_place(of, credits, scope)?,
            None => self.place(of, scope)?,
        };
        if program.is_some_and(|program| !is_owner(program)) {
            return Err(AdminError::BadBlock(BadBlock::Owner));
        }
        let new = edit.terms.map(|terms| Ok::<_, AdminError>((terms.effect(kind)?, terms.lasts))).transpose()?;
        Ok(Edit { owner, actor, new })
    }

    /// Makes one change. Returns whether there was an exception before.
    async fn make_one(
        &self,
        kind: ExceptionKind,
        edit: ExceptionEdit<'_>,
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<bool, AdminError> {
        let edit = self.edit(kind, edit, program, scope)?;
        self.make(vec![edit], program).await?.pop().unwrap_or(Ok(false))
    }

    /// Makes these changes together. Returns for each whether there was an exception before.
    ///
    /// # Errors
    /// The store's. The list has the errors of single changes that were not made.
    async fn make(&self, edits: Vec<Edit>, program: Option<&str>) -> Result<Vec<Result<bool, AdminError>>, AdminError> {
        let register = &self.exceptions;
        let _alone = register.known.lock().await;
        let now = self.now();
        let (mut fields, mut added) = (register.fields(), 0);
        let (mut outcomes, mut changes) = (Vec::with_capacity(edits.len()), Vec::with_capacity(edits.len()));
        for Edit { owner, actor, new } in edits {
            let value = new.map(|(effect, lasts)| Exception {
                effect,
                ends: lasts.map(|lasts| now.plus(lasts.as_secs() * NANOS_PER_SECOND)),
            });
            let is_known = register.memory.find_remembered(&owner, &actor, now).is_some();
            if let Some(value) = &value {
                let weight = if is_known { 0 } else { weight(&actor, value) };
                if let Err(error) = self.check_room(&owner, added + weight, &mut fields, now).await {
                    outcomes.push(Err(error));
                    continue;
                }
                added += weight;
            }
            outcomes.push(Ok(is_known));
            changes.push(ExceptionChange { owner, actor, value });
        }
        let replaces = program.map_or(Replaces::All, |program| Replaces::OfProgram(program.into()));
        let mut changed = register.change(changes, &replaces, &self.store, now).await?.into_iter();
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_ok()) {
            match changed.next() {
                Some(Changed::Replaced) => *outcome = Ok(true),
                Some(Changed::Added) => *outcome = Ok(false),
                Some(Changed::Made) | None => {}
                Some(Changed::Kept) => *outcome = Err(AdminError::OtherOwner),
            }
        }
        Ok(outcomes)
    }

    /// Checks that there is room for this much, and for the owner's field among those of all rules.
    async fn check_room(
        &self,
        owner: &str,
        weight: usize,
        fields: &mut BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), AdminError> {
        let (register, class) = (&self.exceptions, Class::of(owner));
        if let Some(OwnerName::Field(field, _)) = ExceptionOwner::parse(owner).map(|owner| owner.of)
            && !fields.contains(field)
        {
            if fields.len() >= MAX_FIELDS {
                return Err(AdminError::BadBlock(BadBlock::ManyFields));
            }
            fields.insert(field.to_owned());
        }
        if weight == 0 || register.has_room(class, weight, &self.store, now).await {
            return Ok(());
        }
        let (len, used, max) =
            (register.memory.len(class), register.memory.weight(class), register.bounds.of(class).max);
        Err(AdminError::Full { class, len, used, max })
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
        // Read first, so that a client that follows the changes after it misses none.
        let (sequence, now) = (memory.journal.sequence(), self.now());
        let (owner, is_one) = self.check_filter(kind, of, policy.as_deref(), scope)?;
        let owners = if is_one { Listed::Owner(&owner) } else { Listed::Beginning(&owner) };
        let is_named = self.is_named(of, policy.as_deref(), scope);
        let suits = self.suits(of, policy.as_deref(), now);
        let is_meant =
            |owner: &str, actor: &str, value: &Exception| is_named(owner, actor) && suits(owner, actor, value);
        let (found, next) = memory.page(owners, is_meant, cursor.as_ref(), count, now);
        let listed = found.into_iter().filter_map(|ExceptionChange { owner, actor, value }| {
            self.listed(&owner, actor, &value?, policy.as_deref())
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
        let (policy, memory, now) = (self.policy(), &self.exceptions.memory, self.now());
        let (owner, is_one) = self.check_filter(ExceptionKind::Block, of, policy.as_deref(), scope)?;
        let Some((changes, sequence)) = memory.journal.after(since, count) else {
            return Ok(BlockChanges { sequence: memory.journal.sequence(), is_reset: true, ..BlockChanges::default() });
        };
        let is_named = self.is_named(of, policy.as_deref(), scope);
        let suits = self.suits(of, policy.as_deref(), now);
        let owners = if is_one { Listed::Owner(&owner) } else { Listed::Beginning(&owner) };
        let mut found = BlockChanges { sequence, ..BlockChanges::default() };
        for change in changes {
            let (owner, actor) = (&*change.owner, &*change.actor);
            if !owners.has(owner) || !is_named(owner, actor) {
                continue;
            }
            let block = memory.find(owner, actor, now);
            let is_there = block.as_ref().is_some_and(|block| suits(owner, actor, block));
            let Some(listed) = self.listed(
                owner,
                actor.to_owned(),
                &block.unwrap_or(Exception::by_hand(None, None)),
                policy.as_deref(),
            ) else {
                continue;
            };
            if is_there {
                found.set.push(listed);
            } else {
                found.removed.push((listed.rule, listed.actor));
            }
        }
        Ok(found)
    }

    /// Returns the owner whose exceptions the filter accepts, and true; or the beginning of such owners, and false.
    ///
    /// # Errors
    /// No rule and no exception has the label, or it is out of scope.
    fn check_filter(
        &self,
        kind: ExceptionKind,
        of: ExceptionFilter<'_>,
        policy: Option<&Policy>,
        scope: &Scope,
    ) -> Result<(String, bool), AdminError> {
        let is_of_all_rules = of.rule == Some(ALL_RULES) && kind != ExceptionKind::Limit;
        if (is_of_all_rules || of.field.is_some()) && !scope.covers_everything() {
            return Err(Refusal::OutOfScope.into());
        }
        let owner = of.rule.map_or_else(|| format!("{kind}:"), |rule| owner_of(kind, rule));
        let Some(rule) = of.rule.filter(|_| !is_of_all_rules) else { return Ok((owner, false)) };
        RuleName::Name(rule).check(policy, of.actor, scope)?;
        if let Some(policy) = policy.filter(|_| !self.exceptions.memory.has_owner(&owner)) {
            RuleName::Name(rule).find(policy)?;
        }
        Ok((owner, true))
    }

    /// Returns whether the filter and the scope cover exceptions of an owner and an actor.
    fn is_named<'a>(
        &self,
        of: ExceptionFilter<'a>,
        policy: Option<&Policy>,
        scope: &'a Scope,
    ) -> impl Fn(&str, &str) -> bool + use<'a> {
        let covers_all_rules = scope.covers_everything();
        let is_in_scope = filter_by(scope, policy);
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
        policy: Option<&'a Policy>,
        now: Timestamp,
    ) -> impl Fn(&str, &str, &Exception) -> bool + use<'a> {
        let addresses = of.field.map(|field| AddressBlocks::new(field, &self.exceptions, policy));
        move |owner, actor, value| {
            of.program.is_none_or(|program| value.program().is_some_and(|name| **name == *program))
                && addresses.as_ref().is_none_or(|blocks| blocks.contains(owner, actor, now))
        }
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
        let program = found.program().map(|program| program.to_string());
        let ends_ns = found.ends.map(|ends| ends.since(self.now()));
        Some(ListedException { rule, actor, credits, reason, program, ends_ns, is_orphan })
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
        let setter = self.program.map_or(Setter::Operator, |program| Setter::Program(program.into()));
        Ok(Effect::Override { reason, setter })
    }
}

/// Returns whether a program can have this name as the owner of blocks.
pub fn is_owner(name: &str) -> bool {
    (1..=MAX_PROGRAM).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the rule's settings with an actor's own credits.
fn own_settings(rule: &Rule, credits: u64) -> Settings {
    Settings { credit_limit: credits, ..rule.settings }
}

/// Returns a filter by a scope for exceptions of rules, by the label and the actor of each.
fn filter_by<'a>(scope: &'a Scope, policy: Option<&Policy>) -> impl Fn(&str, &str) -> bool + use<'a> {
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
