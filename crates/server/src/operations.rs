//! What operators ask for, for all fronts. A change is carried out together with its line in the audit log.
//!
//! Run changes in a task of their own, so that a client that leaves ends neither the change nor its line.

pub mod stats;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::net::work::{MAX_AT_ONCE, WorkSlot, WorkSlots};
use divvy_access::audit::{Action, AuditLog, Caller, Change, PendingChange, State, Unavailable};
use divvy_access::{Authority, Category, ClientIdentity, DEFAULT_USER, User};
use divvy_api::{Arguments, Edit, Endpoint, Inspection, Task};
use divvy_core::clock::ceil_seconds;
use divvy_core::rules::{MatchPolicy, Rule, SettingValue};
use divvy_limiter::counters::{CountersOf, DEFAULT_PAGE, RuleName};
use divvy_limiter::exceptions::{
    EditCounts, ExceptionEdit, ExceptionFilter, ExceptionKind, ExceptionTarget, ExceptionTerms, ListedException,
};
use divvy_limiter::inspection::{
    DEFAULT_COUNT, Order, Ranked, RuleRanking, RuleStatus, TopOf, Window, hits_of, listed,
};
use divvy_limiter::{
    ALL_RULES, ActiveRules, AdminError, ErrorClass, Intent, Limiter, LimiterError, PlanBuilder, Refusal, Remedy,
    RuleCount, Scope,
};

/// Carries out operations. Clones share the limiter and the audit log.
#[derive(Clone)]
pub struct Operations {
    limiter: Arc<Limiter>,
    /// The audit log, also for attempts that are refused before they begin.
    pub audit: Arc<AuditLog>,
    /// Bounds the changes at a time. They share no slots with other work, because a change may wait for the audit log.
    pub slots: WorkSlots,
    /// Held from reading what applies to an actor until it is changed, so that the audit log has the state before the change.
    exceptions: Arc<Mutex<()>>,
    pub started: Instant,
}

/// The client who asks for a change.
#[derive(Debug, Clone)]
pub struct Operator {
    /// The client for the audit log.
    pub caller: Caller,
    /// The check that its request passed; `None` if the front is open to all clients.
    pub passed_check: Option<PassedCheck>,
}

/// A check of rights that a request passed.
#[derive(Debug, Clone)]
pub struct PassedCheck {
    /// The authority that knows the rights of all users.
    pub authority: Arc<Authority>,
    /// The identity of the client.
    pub identity: ClientIdentity,
    /// The category of the request.
    pub category: Category,
}

impl PassedCheck {
    /// Brings the rights of the client up to date. A client who has lost the category has no rights anymore.
    pub fn refresh(&mut self) {
        if self.authority.refresh(&mut self.identity) && self.identity.may(self.category).is_err() {
            self.identity.revoke();
        }
    }
}

impl Operator {
    /// Returns the rules and the actor that its user could use when the request passed its check.
    fn scope(&self) -> &Scope {
        static EVERYTHING: Scope = Scope::EVERYTHING;
        self.passed_check.as_ref().map_or(&EVERYTHING, |check| check.identity.scope())
    }

    /// Returns the rules and the actor that its user may use now. The change may have waited for the audit log since its
    /// request was admitted.
    ///
    /// # Errors
    /// The user has lost the right to make the change.
    fn current_scope(&self) -> Result<Scope, Refusal> {
        let Some(mut check) = self.passed_check.clone() else { return Ok(Scope::EVERYTHING) };
        check.refresh();
        check.identity.may(check.category).map_err(|_| Refusal::OutOfScope)?;
        Ok(check.identity.scope().clone())
    }
}

/// Returns the name for the audit log of a client with this identity. `None` if the client has not logged in.
pub fn caller_name(identity: &ClientIdentity) -> Option<Arc<str>> {
    identity.is_admitted().then(|| identity.name().unwrap_or(DEFAULT_USER).into())
}

/// Reason why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OperationError {
    #[error(transparent)]
    Refused(#[from] AdminError),
    /// An entry of a list in the request is refused.
    #[error("{list}/{index}: {error}")]
    RefusedEntry { list: &'static str, index: usize, error: AdminError },
    /// The audit log cannot be written.
    #[error(transparent)]
    Unrecorded(#[from] Unavailable),
    #[error("{1}")]
    Failed(ErrorClass, String),
}

impl LimiterError for OperationError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Refused(error) | Self::RefusedEntry { error, .. } => error.class(),
            // For a client, the audit log is one of the server's stores: the change may succeed later.
            Self::Unrecorded(_) => ErrorClass::StoreFailure,
            Self::Failed(class, _) => *class,
        }
    }

    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::Refused(error) | Self::RefusedEntry { error, .. } => error.remedy(),
            Self::Unrecorded(_) | Self::Failed(..) => None,
        }
    }
}

/// A change that was made: its reply, and the state before and after, for the audit log.
struct Done {
    reply: Value,
    before: Option<State>,
    after: Option<State>,
}

impl Operations {
    /// Creates the operations on this limiter. Changes are recorded in `audit`.
    #[expect(clippy::disallowed_methods, reason = "the uptime")]
    pub fn new(limiter: Arc<Limiter>, audit: Arc<AuditLog>) -> Self {
        let (slots, started) = (WorkSlots::new(MAX_AT_ONCE), Instant::now());
        Self { limiter, audit, slots, exceptions: Arc::default(), started }
    }

    /// Waits for a slot for the operation: one of `others`, unless it is a change.
    pub async fn take_slot(&self, endpoint: &Endpoint, others: &WorkSlots) -> WorkSlot {
        match endpoint.task {
            // A backup takes long, no other work should wait for it, and the store refuses a second one at the same time.
            Task::Change(Edit::BackUp, _) => WorkSlot::unbounded(),
            Task::Change(..) => self.slots.take().await,
            Task::Read(_) => others.take().await,
        }
    }

    /// Carries the operation out, and returns its reply; null if there is nothing to show. `policy` has the rules for it, or `None`
    /// for those in force.
    ///
    /// # Errors
    /// The limiter's, or the audit log cannot be written.
    pub async fn run(
        &self,
        operator: &Operator,
        endpoint: &Endpoint,
        arguments: &Arguments,
        policy: Option<Arc<ActiveRules>>,
    ) -> Result<Value, OperationError> {
        let request = Request { limiter: &self.limiter, arguments };
        let (edit, action) = match endpoint.task {
            Task::Read(inspection) => return request.read(inspection, operator, self.started).await,
            Task::Change(edit, action) => (edit, action),
        };
        let pending = self.audit.begin(operator.caller.clone(), change_of(action, arguments)).await?;
        let _alone = match edit {
            Edit::SetException(_) | Edit::RemoveException(_) | Edit::EditBlocks => Some(self.exceptions.lock().await),
            _ => None,
        };
        let scope = match operator.current_scope() {
            Ok(scope) => scope,
            Err(refusal) => return Err(failed(pending, None, AdminError::from(refusal).into())),
        };
        let before = request.state_before(edit);
        match request.change(edit, &scope, policy, before.clone()).await {
            Ok(Done { reply, before, after }) => {
                pending.complete(before, after);
                Ok(reply)
            }
            Err(error) => Err(failed(pending, before, error)),
        }
    }
}

/// An operation with its arguments.
#[derive(Clone, Copy)]
struct Request<'a> {
    limiter: &'a Arc<Limiter>,
    arguments: &'a Arguments,
}

impl<'a> Request<'a> {
    fn text(self, name: &str) -> &'a str {
        self.arguments.text(name).unwrap_or_default()
    }

    fn of(self, kind: ExceptionKind) -> ExceptionTarget<'a> {
        ExceptionTarget { kind, rule: self.text("rule"), actor: self.text("actor") }
    }

    fn rule(self) -> RuleName<'a> {
        match self.arguments.pairs() {
            Some(pairs) => RuleName::Operation(pairs),
            None => RuleName::Name(self.text("rule")),
        }
    }

    fn lasts(self) -> Option<Duration> {
        self.arguments.number("expiresIn").map(Duration::from_secs)
    }

    /// Returns the wanted number of entries, or the default.
    fn count(self, default: usize) -> usize {
        self.arguments.number("count").map_or(default, |count| usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Returns the cursor; `None` for the start.
    fn cursor(self) -> Option<&'a str> {
        self.arguments.text("cursor").filter(|cursor| *cursor != START)
    }

    fn filter(self) -> ExceptionFilter<'a> {
        let text = |name| self.arguments.text(name);
        ExceptionFilter { rule: text("rule"), actor: text("actor"), program: text("owner"), field: text("field") }
    }

    fn counters(self) -> CountersOf<'a> {
        let (actor, cursor) = (self.arguments.text("actor"), self.cursor());
        CountersOf { rule: self.rule(), actor, cursor, count: self.count(DEFAULT_PAGE) }
    }

    /// Carries out an operation that changes nothing.
    async fn read(
        self,
        inspection: Inspection,
        operator: &Operator,
        started: Instant,
    ) -> Result<Value, OperationError> {
        let (scope, text) = (operator.scope(), |name| self.arguments.text(name));
        // These are about a list.
        let is_listing = ["field", "since", "cursor"].into_iter().any(|name| text(name).is_some());
        let is_of_one = text("rule").is_some() && text("actor").is_some() && !is_listing;
        match inspection {
            Inspection::Exceptions(kind) if is_of_one => {
                let found = self.limiter.exception_of(self.of(kind), scope)?;
                let is_of_owner =
                    |found: &ListedException| text("owner").is_none_or(|owner| found.program.as_deref() == Some(owner));
                let found = found.filter(is_of_owner);
                Ok(found.map_or(Value::Null, |found| exception_value(kind, found)))
            }
            // A cursor continues a listing.
            Inspection::Exceptions(_) if text("since").is_some() && self.cursor().is_none() => {
                let (since, count) = (self.text("since"), self.count(DEFAULT_PAGE));
                let found = self.limiter.block_changes(self.filter(), since, count, scope)?;
                let set: Vec<_> = found.set.into_iter().map(|set| exception_value(ExceptionKind::Block, set)).collect();
                let removed: Vec<_> =
                    found.removed.into_iter().map(|(rule, actor)| json!({ "rule": rule, "actor": actor })).collect();
                let (sequence, reset) = (found.sequence, found.is_reset);
                Ok(json!({ "blocks": set, "removed": removed, "sequence": sequence, "reset": reset, "next": null }))
            }
            Inspection::Exceptions(kind) => {
                let (cursor, count) = (self.cursor(), self.count(DEFAULT_PAGE));
                let page = self.limiter.exceptions(kind, self.filter(), cursor, count, scope).await?;
                let found: Vec<_> = page.exceptions.into_iter().map(|found| exception_value(kind, found)).collect();
                let (next, sequence) = (page.next, page.sequence);
                Ok(match kind {
                    ExceptionKind::Limit => json!({ "limits": found, "next": next }),
                    ExceptionKind::Allow => json!({ "allows": found, "next": next }),
                    ExceptionKind::Block => {
                        json!({ "blocks": found, "removed": [], "sequence": sequence, "reset": false, "next": next })
                    }
                })
            }
            Inspection::Counters => {
                let page = self.limiter.counters(self.counters(), scope).await?;
                let counters = page.content.into_iter().map(|counter| {
                    json!({
                        "actor": counter.actor,
                        "remaining": counter.credit,
                        "balance": counter.balance,
                        "reset": ceil_seconds(counter.reset_ns),
                    })
                });
                Ok(json!({ "counters": counters.collect::<Vec<_>>(), "next": page.next }))
            }
            Inspection::Status => {
                let (actor, count) = (self.arguments.pairs().cloned().unwrap_or_default(), self.count(DEFAULT_PAGE));
                let page = self.limiter.status(&actor, self.cursor(), count, scope).await?;
                let rules: Vec<_> = page.content.into_iter().map(status_value).collect();
                Ok(json!({ "rules": rules, "next": page.next }))
            }
            Inspection::Ranking => {
                let order = Order::ALL.into_iter().find(|order| text("order") == Some(order.name()));
                let window =
                    Window::ALL.into_iter().find(|window| text("last") == Some(&*window.seconds().to_string()));
                let (order, window) = (order.unwrap_or(Order::Denied), window.unwrap_or(Window::Minute));
                let count = self.count(DEFAULT_COUNT);
                if text("rule") == Some(ALL_RULES) {
                    return self.rank_all(order, window, count, scope);
                }
                let of = TopOf { rule: self.rule(), order, window, count };
                let ranked = self.limiter.top(of, scope)?;
                Ok(rankings_value(&ranked.rule, order, window, std::slice::from_ref(&ranked), count))
            }
            Inspection::Rules => {
                let policy = self.limiter.active_rules().ok_or(AdminError::from(Refusal::NoRules))?;
                let describe = |(index, rule)| rule_value(index, rule, hits_of(&policy, index, rule, scope));
                Ok(json!({ "rules": listed(&policy, scope).map(describe).collect::<Vec<_>>() }))
            }
            Inspection::Explanation => {
                let operation = self.arguments.pairs().cloned().unwrap_or_default();
                Ok(serde_json::to_value(self.limiter.explain(&operation, scope).map_err(AdminError::from)?)
                    .unwrap_or_default())
            }
            Inspection::Statistics => Ok(stats::show(self.limiter, started, text("section")).await),
            Inspection::Users => Ok(users_value(operator)),
        }
    }

    /// Ranks the actors of all rules but canaries, which deny nothing.
    fn rank_all(self, order: Order, window: Window, count: usize, scope: &Scope) -> Result<Value, OperationError> {
        let policy = self.limiter.active_rules().ok_or(AdminError::from(Refusal::NoRules))?;
        let mut rankings = Vec::new();
        for (index, rule) in listed(&policy, scope).filter(|(_, rule)| rule.match_policy != MatchPolicy::Canary) {
            let name = rule.name(index);
            let of = TopOf { rule: RuleName::Name(&name), order, window, count };
            rankings.push(self.limiter.top(of, scope)?);
        }
        Ok(if rankings.is_empty() { Value::Null } else { rankings_value(ALL_RULES, order, window, &rankings, count) })
    }

    /// Returns what applies to the actor before a change, as far as this server knows.
    fn state_before(self, edit: Edit) -> Option<State> {
        match edit {
            Edit::SetException(kind) | Edit::RemoveException(kind) => {
                let found = self.limiter.exception_of(self.of(kind), &Scope::EVERYTHING).ok()??;
                let expires_in = found.ends_ns.map(ceil_seconds);
                let (reason, owner) = (found.reason.as_deref(), found.program.as_deref());
                Some(State::exception(found.credits, expires_in, reason, owner))
            }
            _ => None,
        }
    }

    /// Makes a change. `before` is the state that this server knows.
    async fn change(
        self,
        edit: Edit,
        scope: &Scope,
        policy: Option<Arc<ActiveRules>>,
        before: Option<State>,
    ) -> Result<Done, OperationError> {
        let (limiter, seconds) = (self.limiter, self.arguments.number("expiresIn"));
        let forgotten = |count: u64, reply| Done {
            reply,
            before: Some(State::of("counters", count)),
            after: Some(State::of("counters", 0)),
        };
        match edit {
            Edit::SetException(kind) => {
                let (credits, reason) = (self.arguments.number("credits"), self.arguments.text("reason"));
                let owner = self.arguments.text("owner");
                let terms = ExceptionTerms { credits, reason, program: owner, lasts: self.lasts() };
                limiter.set_exception(self.of(kind), terms, scope).await?;
                // Another client may have removed it since.
                let found = limiter.exception_of(self.of(kind), scope)?;
                let reply = found.map_or(Value::Null, |found| exception_value(kind, found));
                Ok(Done { reply, before, after: Some(State::exception(credits, seconds, reason, owner)) })
            }
            Edit::RemoveException(kind) => {
                let owner = self.arguments.text("owner");
                let was_there = limiter.remove_exception(self.of(kind), owner, scope).await?;
                // Another server that shares the store may have set it a moment ago.
                let before = before.or_else(|| was_there.then(State::default));
                Ok(Done { reply: json!({ "removed": was_there }), before, after: None })
            }
            Edit::EditBlocks => {
                let program = self.arguments.text("owner");
                let (removed, set) = (self.arguments.list("remove"), self.arguments.list("set"));
                // Removed blocks make room.
                let edits = removed.iter().map(|entry| (entry, false)).chain(set.iter().map(|entry| (entry, true)));
                let edits = edits.map(|(entry, is_new)| {
                    let entry = Request { limiter, arguments: entry };
                    let reason = entry.arguments.text("reason");
                    let terms = ExceptionTerms { credits: None, reason, program, lasts: entry.lasts() };
                    ExceptionEdit { of: entry.of(ExceptionKind::Block), terms: is_new.then_some(terms) }
                });
                let edits: Vec<_> = edits.collect();
                let made = limiter.edit_exceptions(&edits, program, scope).await;
                let counts = made.map_err(|(index, error)| match index {
                    Some(index) if error.class() != ErrorClass::Forbidden => {
                        let (list, index) =
                            index.checked_sub(removed.len()).map_or(("remove", index), |index| ("set", index));
                        OperationError::RefusedEntry { list, index, error }
                    }
                    _ => error.into(),
                })?;
                let EditCounts { set, removed, kept, full } = counts;
                let reply = json!({ "set": set, "removed": removed, "kept": kept, "full": full });
                Ok(Done { reply, before: None, after: Some(State::of("set", set).with("removed", removed)) })
            }
            Edit::ForgetCounters => {
                let page = limiter.forget_counters(self.counters(), scope).await?;
                Ok(forgotten(page.content, json!({ "forgotten": page.content, "next": page.next })))
            }
            Edit::ResetCounters => {
                let mut builder = PlanBuilder::default();
                match policy {
                    Some(policy) => limiter.begin_under(&mut builder, Some(policy), scope),
                    None => limiter.begin(&mut builder, scope),
                }
                builder.add(&self.arguments.pairs().cloned().unwrap_or_default(), Intent::Forget, None);
                let mut plan = builder.build();
                limiter.apply(&mut plan).await;
                let count = plan.report().forgotten(0).map_err(AdminError::from)? as u64;
                Ok(forgotten(count, json!({ "forgotten": count })))
            }
            Edit::BackUp => match limiter.store().backup(self.text("name")).await {
                Ok(path) => {
                    let path = path.to_string_lossy();
                    Ok(Done { reply: json!({ "path": path }), before: None, after: Some(State::of("path", path)) })
                }
                Err(error) => {
                    let is_mistake = error.is_the_client_s();
                    let class = if is_mistake { ErrorClass::BadRequest } else { ErrorClass::StoreFailure };
                    Err(OperationError::Failed(class, error.to_string()))
                }
            },
            // The signal reaches each part that has files. No part sees it twice if there are two at once.
            Edit::Reload => match kill_process(getpid(), Signal::HUP) {
                Ok(()) => Ok(Done { reply: json!({ "reloading": true }), before: None, after: None }),
                Err(error) => {
                    Err(OperationError::Failed(ErrorClass::StoreFailure, format!("cannot send SIGHUP: {error}")))
                }
            },
        }
    }
}

/// The cursor of the start over RESP.
const START: &str = "0";

fn exception_value(kind: ExceptionKind, found: ListedException) -> Value {
    let ListedException { rule, actor, credits, reason, program, ends_ns, is_orphan } = found;
    let expires_in = ends_ns.map(ceil_seconds);
    match kind {
        ExceptionKind::Limit => {
            json!({ "rule": rule, "actor": actor, "credits": credits, "expiresIn": expires_in, "orphan": is_orphan })
        }
        ExceptionKind::Block | ExceptionKind::Allow => json!({
            "rule": rule,
            "actor": actor,
            "reason": reason,
            "expiresIn": expires_in,
            "orphan": is_orphan,
            "owner": program,
        }),
    }
}

fn status_value(status: RuleStatus) -> Value {
    let RuleStatus { rule, limit, used, reserved, in_flight, verdict, own_limit, actor_override } = status;
    json!({
        "rule": rule,
        "limit": limit,
        "used": used,
        "reserved": reserved,
        "inFlight": in_flight,
        "remaining": verdict.credit,
        "balance": verdict.balance(),
        "reset": ceil_seconds(verdict.reset_ns),
        "ownLimit": own_limit,
        "override": actor_override,
    })
}

/// Joins the rankings of one or several rules into one of the first `count` actors. The total is known if each is, and there is room
/// if each rule has some.
fn rankings_value(rule: &str, order: Order, window: Window, rankings: &[RuleRanking], count: usize) -> Value {
    let total_of = |ranked: &RuleRanking| (!ranked.is_of_one_actor).then_some(ranked.ranking.total);
    let actors =
        rankings.iter().flat_map(|ranked| ranked.ranking.actors.iter().map(move |actor| (&*ranked.rule, actor)));
    let mut top: Vec<_> = actors.collect();
    top.sort_by_key(|(_, actor)| Reverse(actor.count));
    let top = top.into_iter().take(count).map(|(rule, Ranked { actor, is_cut, count, error }): (&str, _)| {
        // An actor consists of text.
        json!({ "actor": String::from_utf8_lossy(actor), "cut": is_cut, "count": count, "error": error, "rule": rule })
    });
    json!({
        "rule": rule,
        "order": order.name(),
        "last": window.seconds(),
        "canary": rankings.iter().any(|ranked| ranked.is_canary),
        "sampled": rankings.iter().any(|ranked| ranked.ranking.is_sampled),
        "hasRoom": rankings.iter().all(|ranked| ranked.ranking.has_room),
        "total": rankings.iter().map(total_of).sum::<Option<u64>>(),
        "top": top.collect::<Vec<_>>(),
    })
}

/// Returns a rule: its name, its operation, its hits, and its settings under their names in a rules file, without settings that
/// were not given.
fn rule_value(index: usize, rule: &Rule, hits: Option<RuleCount>) -> Value {
    let operation: Map<_, _> = rule.pairs().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let mut object =
        Map::from_iter([("name".to_owned(), json!(rule.name(index))), ("operation".to_owned(), operation.into())]);
    if let Some(RuleCount { allowed, denied }) = hits {
        object.extend([("allowed".to_owned(), json!(allowed)), ("denied".to_owned(), json!(denied))]);
    }
    object.extend(rule.named_settings().map(|setting| {
        let value = match &setting.value {
            SettingValue::Text(text) => json!(text),
            // Rounds the fraction of a time that has nine decimals and is years long.
            SettingValue::Number(digits) => serde_json::from_str(digits).unwrap_or_default(),
            SettingValue::OfField(field, text) => json!({ field.to_string(): text }),
            // One field, or several. Each combination of their values has its own counter.
            SettingValue::Fields(fields) => match fields.as_slice() {
                [field] => json!(field),
                fields => json!(fields),
            },
        };
        (setting.name.to_owned(), value)
    }));
    object.extend(rule.descriptor.iter().map(|of_rule| ("descriptor".to_owned(), json!(of_rule.full_key))));
    object.into()
}

/// Returns the lines of the users that the operator's login knows; without logins, the line of the user who may do everything.
fn users_value(operator: &Operator) -> Value {
    let users: Vec<_> = match &operator.passed_check {
        Some(check) => check.authority.users().sorted().iter().map(|user| user.to_string()).collect(),
        None => vec![User::unrestricted().to_string()],
    };
    json!({ "users": users })
}

/// Returns the change that these arguments ask for.
pub fn change_of(action: Action, arguments: &Arguments) -> Change {
    let (text, number) = (|name| arguments.text(name), |name| arguments.number(name));
    let mut change = Change::new(action).with("rule", text("rule"));
    if let Some(pairs) = arguments.pairs() {
        change = change.with_operation(pairs.iter().map(|(key, value)| format!("{key}={value}")));
    }
    change = change.with("actor", text("actor")).with("owner", text("owner"));
    if action == Action::BlocksEdit {
        change = change.with("set", arguments.list("set").len()).with("remove", arguments.list("remove").len());
    }
    change = change.with("name", text("name")).with("credits", number("credits"));
    change.with("expiresIn", number("expiresIn")).with("reason", text("reason"))
}

/// Records why a change was not made.
fn failed(pending: PendingChange, before: Option<State>, error: OperationError) -> OperationError {
    match error.class() {
        ErrorClass::StoreFailure => pending.fail(before, &error),
        _ => pending.refuse(&error),
    }
    error
}

#[cfg(test)]
mod tests;
