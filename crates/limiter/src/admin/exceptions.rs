//! Exceptions for single actors: operators and their programs set, show and remove limits, blocks and allows.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::yield_now;

pub use super::listing::{BlockChanges, ExceptionFilter, ExceptionsPage, ListedException};
use super::{RuleName, lasting_name, possible};
use crate::Limiter;
pub use crate::refusal::MAX_LASTS_SECONDS;
use crate::refusal::{AdminError, MAX_ACTOR, MAX_FIELD, MAX_FIELDS, MAX_PROGRAM, MAX_REASON, Refusal, shown};
use crate::register::memory::weight;
use crate::register::owner::{ALL_RULES, Class, ExceptionOwner, OwnerName, place_of};
pub use crate::store::ExceptionKind;
use crate::store::{Changed, Effect, Exception, ExceptionChange, Replaces, Setter};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::network::resembles;
use divvy_core::rules::{Network, NetworkError, Rule, Scope, Settings, Spelling};

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
    /// The exception.
    pub of: ExceptionTarget<'a>,
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
        self.make_one(ExceptionEdit { of, terms: Some(terms) }, terms.program, scope).await.map(drop)
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
        Ok(found.and_then(|found| self.listed(&owner, actor, &found, self.active_rules().as_deref())))
    }

    /// Removes the actor's exception. Returns whether there was one. A program removes only what it has set.
    ///
    /// # Errors
    /// Same as [`Limiter::exception_of`], the rule has no label, it belongs to another owner, or the store fails. It may be
    /// removed anyway.
    pub async fn remove_exception(
        &self,
        of: ExceptionTarget<'_>,
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<bool, AdminError> {
        self.make_one(ExceptionEdit { of, terms: None }, program, scope).await
    }

    /// Makes many changes of an operator or of this program, which are stored together in parts. Those that find no room, or an
    /// exception of another owner, are left out.
    ///
    /// # Errors
    /// An edit is not valid: its index is returned, and nothing has changed. Or the store fails, and some edits may be made.
    pub async fn edit_exceptions(
        &self,
        edits: &[ExceptionEdit<'_>],
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<EditCounts, (Option<usize>, AdminError)> {
        let mut checked = Vec::with_capacity(edits.len());
        for (index, edit) in edits.iter().enumerate() {
            match self.edit(*edit, program, scope) {
                Ok(change) => checked.push(change),
                // A program goes on after its rules have changed.
                Err(AdminError::NoHit { .. } | AdminError::NoCheck { .. }) if edit.terms.is_none() => {}
                Err(error) => return Err((Some(index), error)),
            }
        }
        let mut counts = EditCounts::default();
        // Removed exceptions make room for the others.
        let (removed, set): (Vec<_>, Vec<_>) = checked.into_iter().partition(|(change, _)| change.value.is_none());
        for (is_new, changes) in [(false, removed), (true, set)] {
            for together in changes.chunks(EDITED_AT_ONCE) {
                for outcome in self.make(together.to_vec(), program).await.map_err(|error| (None, error))? {
                    match outcome {
                        Ok(_) if is_new => counts.set += 1,
                        Ok(was_there) => counts.removed += u64::from(was_there),
                        Err(AdminError::OtherOwner) => counts.kept += 1,
                        Err(AdminError::Full { .. } | AdminError::ManyFields) => counts.full += 1,
                        Err(error) => return Err((None, error)),
                    }
                }
                yield_now().await;
            }
        }
        Ok(counts)
    }

    /// Checks an edit. Returns the change of the exception where it is stored, and how long it lasts from then on.
    fn edit(
        &self,
        ExceptionEdit { of, terms }: ExceptionEdit<'_>,
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<(ExceptionChange, Option<Duration>), AdminError> {
        let (owner, actor) = match terms {
            Some(terms) => self.new_place(of, terms.credits, scope)?,
            None => self.place(of, scope)?,
        };
        if program.is_some_and(|program| !is_owner(program)) {
            return Err(AdminError::BadOwner);
        }
        let value = terms.map(|terms| terms.exception(of.kind)).transpose()?;
        Ok((ExceptionChange { owner, actor, value }, terms.and_then(|terms| terms.lasts)))
    }

    /// Makes one change. Returns whether there was an exception before.
    async fn make_one(
        &self,
        edit: ExceptionEdit<'_>,
        program: Option<&str>,
        scope: &Scope,
    ) -> Result<bool, AdminError> {
        let change = self.edit(edit, program, scope)?;
        self.make(vec![change], program).await?.pop().unwrap_or(Ok(false))
    }

    /// Makes these changes together. Returns for each whether there was an exception before.
    ///
    /// # Errors
    /// The store's. The list has the errors of single changes that were not made.
    async fn make(
        &self,
        wanted: Vec<(ExceptionChange, Option<Duration>)>,
        program: Option<&str>,
    ) -> Result<Vec<Result<bool, AdminError>>, AdminError> {
        let register = &self.exceptions;
        let _alone = register.known.lock().await;
        let now = self.now();
        let (mut fields, mut added) = (register.fields(), 0);
        let (mut outcomes, mut changes) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
        for (mut change, lasts) in wanted {
            let known = register.memory.find_remembered(&change.owner, &change.actor, now);
            if let Some(value) = &mut change.value {
                // It lasts from now on, not from when it began to wait for other changes.
                value.ends = lasts.map(|lasts| now.plus(lasts.as_secs().saturating_mul(NANOS_PER_SECOND)));
                let before = known.as_ref().map_or(0, |known| weight(&change.actor, known));
                let more = weight(&change.actor, value).saturating_sub(before);
                let needed = if more == 0 { 0 } else { added + more };
                if let Err(error) = self.check_room(&change.owner, needed, &mut fields, now).await {
                    outcomes.push(Err(error));
                    continue;
                }
                added += more;
            }
            outcomes.push(Ok(known.is_some()));
            changes.push(change);
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
                return Err(AdminError::ManyFields);
            }
            fields.insert(field.to_owned());
        }
        if weight == 0 || register.has_room(class, weight, &self.store, now).await {
            return Ok(());
        }
        let (len, room) = (register.memory.len(class), register.memory.room(class));
        Err(AdminError::Full { class, len, used: room.used(), max: room.max })
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
        let active = self.active_rules().ok_or(Refusal::NoRules)?;
        RuleName::Name(of.rule).check(Some(&active), Some(of.actor), scope)?;
        let (found, _) = RuleName::Name(of.rule).find(&active)?;
        let label = lasting_name(of.rule, found)?;
        let actor = possible(of.rule, found, of.actor, &active)?;
        if let Some(credits) = credits.filter(|_| of.kind == ExceptionKind::Limit)
            && let Some(error) = own_settings(found, credits).quota().err().and_then(|errors| errors.into_iter().next())
        {
            return Err(AdminError::Credits(error));
        }
        Ok((owner_of(of.kind, label), actor))
    }

    /// Returns the owner and the actor under which an exception is stored. It can be removed even if its rule is gone.
    fn place(&self, of: ExceptionTarget<'_>, scope: &Scope) -> Result<(String, String), AdminError> {
        let (owner, actor) = if of.is_for_all_rules() {
            everywhere(of, scope)?
        } else {
            RuleName::Name(of.rule).check(self.active_rules().as_deref(), Some(of.actor), scope)?;
            (owner_of(of.kind, of.rule), of.actor.to_owned())
        };
        let memory = &self.exceptions.memory;
        if memory.find(&owner, &actor, self.now()).is_some() {
            return Ok((owner, actor));
        }
        match self.new_place(of, None, scope) {
            Err(AdminError::NoSuchName(_) | AdminError::Uncounted(_)) if memory.has_owner(&owner) => Ok((owner, actor)),
            place => place,
        }
    }

    /// Returns the actor of an entry for all rules, with its value in the spelling of checks.
    ///
    /// # Errors
    /// No request has it.
    fn possible_everywhere<'a>(&self, actor: &'a str) -> Result<Cow<'a, str>, AdminError> {
        let Some((field, value)) = actor.split_once('=') else { return Ok(actor.into()) };
        if value.contains('*') {
            return Err(AdminError::Pattern);
        }
        let is_network = !matches!(Network::parse(value), Err(NetworkError::NoAddress));
        let spelling = self.active_rules().and_then(|active| active.rules.spellings().of(field));
        match spelling {
            None | Some(Spelling::Address | Spelling::Host) if is_network => Ok(actor.into()),
            // It would never match.
            None | Some(Spelling::Address) if resembles(value) => Err(bad_network(value, NetworkError::NoAddress)),
            None => Ok(actor.into()),
            Some(spelling) => match spelling.read(value) {
                Ok(value) => Ok(format!("{field}={value}").into()),
                Err(misspelling) => Err(AdminError::no_check(field, value, misspelling)),
            },
        }
    }
}

impl ExceptionTerms<'_> {
    /// Returns a new exception of this kind, without its end.
    ///
    /// # Errors
    /// A term is missing or is not valid.
    fn exception(&self, kind: ExceptionKind) -> Result<Exception, AdminError> {
        if self.lasts.is_some_and(|lasts| !(1..=MAX_LASTS_SECONDS).contains(&lasts.as_secs())) {
            return Err(AdminError::Lasts);
        }
        if kind == ExceptionKind::Limit {
            return Ok(Exception::limit(self.credits.ok_or(AdminError::NoCredits)?, None));
        }
        let is_bad = |reason: &str| reason.len() > MAX_REASON || reason.chars().any(char::is_control);
        if self.reason.is_some_and(is_bad) {
            return Err(AdminError::BadReason);
        }
        let reason = self.reason.filter(|reason| !reason.is_empty()).map(Into::into);
        let setter = self.program.map_or(Setter::Operator, |program| Setter::Program(program.into()));
        Ok(Exception { effect: Effect::Override { reason, setter }, ends: None })
    }
}

/// Returns whether a program can have this name as the owner of blocks.
pub fn is_owner(name: &str) -> bool {
    (1..=MAX_PROGRAM).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the rule's settings with an actor's own credits.
pub(super) fn own_settings(rule: &Rule, credits: u64) -> Settings {
    Settings { credit_limit: credits, ..rule.settings }
}

/// Returns the owner of a rule's exceptions, or the beginning of the owners of those for all rules.
pub(super) fn owner_of(kind: ExceptionKind, rule: &str) -> String {
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
    let (field, value) = actor.split_once('=').ok_or(AdminError::NoField)?;
    if field.is_empty() || field.len() > MAX_FIELD || field.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(AdminError::NoField);
    }
    if value.len() > MAX_ACTOR {
        return Err(AdminError::LongActor);
    }
    let (owner, value) = place_of(kind, field, value).map_err(|error| bad_network(value, error))?;
    Ok((owner.to_string(), value))
}

fn bad_network(value: &str, error: NetworkError) -> AdminError {
    AdminError::BadNetwork { value: shown(value), error }
}

#[cfg(test)]
mod tests;
