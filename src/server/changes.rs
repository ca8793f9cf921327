//! The changes that operators make, for all fronts: each is carried out together with its line in the audit log.
//!
//! Run these in a task of their own, so that a client that leaves ends neither the change nor its line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::error_text;
use super::net::work_slots::{MAX_AT_ONCE, WorkSlots};
use crate::access::{Authority, Category, DEFAULT_USER, Identity};
use crate::audit::{Action, AuditLog, Caller, Change, PendingChange, State, Unavailable};
use crate::clock::ceil_seconds;
use crate::limiter::counters::{CountersOf, ForgottenPage, RuleName};
use crate::limiter::exceptions::{ExceptionTarget, ExceptionTerms, ListedException};
use crate::limiter::{
    ErrorClass, Intent, Limiter, LimiterError, OverrideKind, PlanBuilder, Policy, Refusal, Remedy, Scope,
};
use crate::rules::Operation;

/// Carries out changes. Clones share the limiter and the audit log.
#[derive(Clone)]
pub struct Changes {
    limiter: Arc<Limiter>,
    audit: Arc<AuditLog>,
    /// Bounds the changes at a time. They share no slots with other work, because a change may wait for the audit log.
    slots: WorkSlots,
    /// Held from reading an actor's limit until it is changed, so that the audit log has the limit before the change. The same applies to
    /// blocks and allows.
    limits: Arc<Mutex<()>>,
}

/// The client who asks for a change.
#[derive(Debug, Clone)]
pub struct Operator {
    /// The client for the audit log.
    pub caller: Caller,
    /// The rules and the actor that its user may use.
    pub scope: Scope,
    /// The check that its request passed; `None` if the front is open to all clients.
    pub admission: Option<Admission>,
}

/// The block or the allow that a change is about.
#[derive(Debug, Clone, Copy)]
pub struct OverrideTarget<'a> {
    pub kind: OverrideKind,
    pub rule: &'a str,
    pub actor: &'a str,
}

impl<'a> From<OverrideTarget<'a>> for ExceptionTarget<'a> {
    fn from(OverrideTarget { kind, rule, actor }: OverrideTarget<'a>) -> Self {
        Self { kind: kind.into(), rule, actor }
    }
}

/// A check of rights that a request passed.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The authority that knows the rights of all users.
    pub authority: Arc<Authority>,
    /// The identity of the client.
    pub identity: Identity,
    /// The category of the request.
    pub category: Category,
}

impl Operator {
    /// Returns the rules and the actor that its user may use now. The change may have waited for the audit log since its
    /// request was admitted.
    ///
    /// # Errors
    /// The user has lost the right to make the change.
    fn current_scope(&self) -> Result<Scope, Refusal> {
        let Some(Admission { authority, identity, category }) = &self.admission else { return Ok(self.scope.clone()) };
        let mut identity = identity.clone();
        authority.refresh(&mut identity);
        identity.may(*category).map_err(|_| Refusal::OutOfScope)?;
        Ok(identity.scope().clone())
    }
}

/// Returns the name for the audit log of a client with this identity. `None` if the client has not logged in.
pub fn caller_name(identity: &Identity) -> Option<Arc<str>> {
    identity.is_admitted().then(|| identity.name().unwrap_or(DEFAULT_USER).into())
}

/// Reason why a change was not made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct ChangeError {
    class: ErrorClass,
    remedy: Option<Remedy>,
    text: String,
}

impl From<Unavailable> for ChangeError {
    fn from(error: Unavailable) -> Self {
        // For a client, the audit log is one of the server's stores: the change may succeed later.
        Self { class: ErrorClass::StoreFailure, remedy: None, text: error.to_string() }
    }
}

impl LimiterError for ChangeError {
    fn class(&self) -> ErrorClass {
        self.class
    }

    fn remedy(&self) -> Option<Remedy> {
        self.remedy
    }
}

impl Changes {
    /// Creates the changes of this limiter, which are recorded in `audit`.
    pub fn new(limiter: Arc<Limiter>, audit: Arc<AuditLog>) -> Self {
        Self { limiter, audit, slots: WorkSlots::new(MAX_AT_ONCE), limits: Arc::default() }
    }

    /// Returns the slots for changes. Each change runs in one.
    pub fn slots(&self) -> &WorkSlots {
        &self.slots
    }

    /// Returns the audit log, for attempts that are refused before they begin.
    pub fn audit(&self) -> &Arc<AuditLog> {
        &self.audit
    }

    /// Sets the limit of an actor: see [`Limiter::set_exception`].
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn set_limit(
        &self,
        operator: &Operator,
        rule: &str,
        actor: &str,
        credits: u64,
        lasts: Option<Duration>,
    ) -> Result<(), ChangeError> {
        let seconds = lasts.map(|lasts| lasts.as_secs());
        let change = of_limit(Action::LimitSet, rule, actor).with_limit(credits, seconds);
        let pending = self.audit.begin(operator.caller.clone(), change).await?;
        let _alone = self.limits.lock().await;
        let (pending, scope) = check_again(operator, pending)?;
        let before = self.limit(rule, actor);
        let terms = ExceptionTerms { credits: Some(credits), reason: None, lasts };
        match self.limiter.set_exception(ExceptionTarget::limit(rule, actor), terms, &scope).await {
            Ok(()) => pending.complete(before, Some(State::limit(credits, seconds))),
            Err(error) => return Err(failed(pending, before, error)),
        }
        Ok(())
    }

    /// Removes the limit of an actor: see [`Limiter::remove_exception`].
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn remove_limit(&self, operator: &Operator, rule: &str, actor: &str) -> Result<bool, ChangeError> {
        let pending = self.audit.begin(operator.caller.clone(), of_limit(Action::LimitDelete, rule, actor)).await?;
        let _alone = self.limits.lock().await;
        let (pending, scope) = check_again(operator, pending)?;
        let before = self.limit(rule, actor);
        match self.limiter.remove_exception(ExceptionTarget::limit(rule, actor), &scope).await {
            Ok(was_there) => {
                // Another server that shares the store may have set the limit a moment ago.
                pending.complete(before.or_else(|| was_there.then(State::default)), None);
                Ok(was_there)
            }
            Err(error) => Err(failed(pending, before, error)),
        }
    }

    /// Blocks or allows an actor: see [`Limiter::set_exception`].
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn set_override(
        &self,
        operator: &Operator,
        of: OverrideTarget<'_>,
        reason: Option<&str>,
        lasts: Option<Duration>,
    ) -> Result<(), ChangeError> {
        let seconds = lasts.map(|lasts| lasts.as_secs());
        let change = of_limit(override_action(of.kind, false), of.rule, of.actor).with_override(seconds, reason);
        let pending = self.audit.begin(operator.caller.clone(), change).await?;
        let _alone = self.limits.lock().await;
        let (pending, scope) = check_again(operator, pending)?;
        let before = self.overriding(of);
        match self.limiter.set_exception(of.into(), ExceptionTerms { credits: None, reason, lasts }, &scope).await {
            Ok(()) => pending.complete(before, Some(State::overriding(seconds, reason))),
            Err(error) => return Err(failed(pending, before, error)),
        }
        Ok(())
    }

    /// Removes the block or the allow of an actor: see [`Limiter::remove_exception`].
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn remove_override(&self, operator: &Operator, of: OverrideTarget<'_>) -> Result<bool, ChangeError> {
        let change = of_limit(override_action(of.kind, true), of.rule, of.actor);
        let pending = self.audit.begin(operator.caller.clone(), change).await?;
        let _alone = self.limits.lock().await;
        let (pending, scope) = check_again(operator, pending)?;
        let before = self.overriding(of);
        match self.limiter.remove_exception(of.into(), &scope).await {
            Ok(was_there) => {
                // Another server that shares the store may have set it a moment ago.
                pending.complete(before.or_else(|| was_there.then(State::default)), None);
                Ok(was_there)
            }
            Err(error) => Err(failed(pending, before, error)),
        }
    }

    /// Forgets a page of a rule's counters: see [`Limiter::forget_counters`].
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn forget_counters(&self, operator: &Operator, of: CountersOf<'_>) -> Result<ForgottenPage, ChangeError> {
        let change = Change::new(Action::CountersForget);
        let change = match of.rule {
            RuleName::Name(name) => change.with_rule(name),
            RuleName::Operation(operation) => with_operation(change, operation),
        };
        let change = if let Some(actor) = of.actor { change.with_actor(actor) } else { change };
        let pending = self.audit.begin(operator.caller.clone(), change).await?;
        let (pending, scope) = check_again(operator, pending)?;
        match self.limiter.forget_counters(of, &scope).await {
            Ok(page) => {
                pending.complete(Some(State::counters(page.forgotten)), Some(State::counters(0)));
                Ok(page)
            }
            Err(error) => Err(failed(pending, None, error)),
        }
    }

    /// Forgets the counters of an operation under these rules, or under those in force. Returns their number.
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn reset_counters(
        &self,
        operator: &Operator,
        operation: &Operation,
        policy: Option<Arc<Policy>>,
    ) -> Result<u64, ChangeError> {
        let change = with_operation(Change::new(Action::CountersReset), operation);
        let pending = self.audit.begin(operator.caller.clone(), change).await?;
        let (pending, scope) = check_again(operator, pending)?;
        let mut builder = PlanBuilder::default();
        match policy {
            Some(policy) => self.limiter.begin_under(&mut builder, Some(policy), &scope),
            None => self.limiter.begin(&mut builder, &scope),
        }
        builder.add(operation, Intent::Forget, None);
        match self.limiter.apply(builder.build()).await.report().forgotten(0) {
            Ok(forgotten) => {
                let forgotten = forgotten as u64;
                pending.complete(Some(State::counters(forgotten)), Some(State::counters(0)));
                Ok(forgotten)
            }
            Err(error) => Err(failed(pending, None, error)),
        }
    }

    /// Backs up the store under this name. Returns the path of the backup.
    ///
    /// # Errors
    /// Explains to the client why there is no backup.
    pub async fn back_up(&self, operator: &Operator, name: &str) -> Result<PathBuf, ChangeError> {
        let change = Change::new(Action::Backup).with_name(name);
        let pending = self.audit.begin(operator.caller.clone(), change).await?;
        let (pending, _) = check_again(operator, pending)?;
        match self.limiter.store().backup(name).await {
            Ok(path) => {
                pending.complete(None, Some(State::path(&path)));
                Ok(path)
            }
            Err(error) if error.is_the_client_s() => {
                pending.refuse(&error);
                Err(ChangeError { class: ErrorClass::BadRequest, remedy: None, text: error.to_string() })
            }
            Err(error) => {
                pending.fail(None, &error);
                let text = error_text::hide_paths(&error);
                Err(ChangeError { class: ErrorClass::StoreFailure, remedy: None, text })
            }
        }
    }

    /// Returns the limit of the actor, as far as this server knows.
    fn limit(&self, rule: &str, actor: &str) -> Option<State> {
        let found = self.limiter.exception_of(ExceptionTarget::limit(rule, actor), &Scope::EVERYTHING).ok()??;
        Some(State::limit(found.credits?, found.ends_ns.map(ceil_seconds)))
    }

    /// Returns the block or the allow of the actor, as far as this server knows.
    fn overriding(&self, of: OverrideTarget<'_>) -> Option<State> {
        let ListedException { ends_ns, reason, .. } =
            self.limiter.exception_of(of.into(), &Scope::EVERYTHING).ok()??;
        Some(State::overriding(ends_ns.map(ceil_seconds), reason.as_deref()))
    }
}

/// Returns the kind of a change that sets or removes a block or an allow.
pub fn override_action(kind: OverrideKind, removes: bool) -> Action {
    match (kind, removes) {
        (OverrideKind::Block, false) => Action::BlockSet,
        (OverrideKind::Block, true) => Action::BlockDelete,
        (OverrideKind::Allow, false) => Action::AllowSet,
        (OverrideKind::Allow, true) => Action::AllowDelete,
    }
}

/// Returns a change of the limit, the block or the allow of an actor.
pub fn of_limit(action: Action, rule: &str, actor: &str) -> Change {
    Change::new(action).with_rule(rule).with_actor(actor)
}

fn with_operation(change: Change, operation: &Operation) -> Change {
    change.with_operation(operation.iter().map(|(key, value)| format!("{key}={value}")))
}

/// Checks the operator's rights right before the change is carried out. Returns the scope for it.
fn check_again(operator: &Operator, pending: PendingChange) -> Result<(PendingChange, Scope), ChangeError> {
    match operator.current_scope() {
        Ok(scope) => Ok((pending, scope)),
        Err(refusal) => Err(failed(pending, None, refusal)),
    }
}

/// Records why a change was not made.
fn failed(pending: PendingChange, before: Option<State>, error: impl LimiterError) -> ChangeError {
    match error.class() {
        ErrorClass::StoreFailure => pending.fail(before, &error),
        _ => pending.refuse(&error),
    }
    ChangeError { class: error.class(), remedy: error.remedy(), text: error.to_string() }
}

#[cfg(test)]
mod tests;
