//! The inspections of operators: the rules, explained for an operation, and listed; the status of one actor, which is its counters
//! under all rules that count by its fields; and the actors of one rule that take the most, or that it denies the most. Looking
//! changes nothing.

use super::counters::MAX_PAGE;
pub use super::{Page, RuleName};
use crate::active_rules::ActiveRules;
pub use crate::heavy_hitters::{Order, Ranked, Ranking, Window};
use crate::refusal::{AdminError, Refusal, shown};
use crate::store::{Batch, SHOW, Store};
use crate::{Limit, Limiter, MAX_PART, Verdict};
use divvy_core::algorithm::Outcome;
use divvy_core::rules::explain::{ActorExceptions, ActorOverride, ExplainedCheck, ExplainedRule, Explanation, explain};
use divvy_core::rules::{MatchPolicy, Operation, Rule, Scope};
use divvy_telemetry::metrics::{Metric, RuleCount};

impl Limiter {
    /// Explains how the rules in force answer the operation. Leaves out rules that do not match and are out of scope.
    ///
    /// # Errors
    /// When there are no rules, and when one that matches is out of scope.
    pub fn explain(&self, operation: &Operation, scope: &Scope) -> Result<Explanation, Refusal> {
        let (active, now) = (self.active_rules().ok_or(Refusal::NoRules)?, self.now());
        let plan_scope = scope.resolve(&active.rules);
        let is_in_scope = |rules: &[ExplainedRule], operation: &Operation| {
            let is_covered = |index| plan_scope.as_ref().is_none_or(|scope| scope.covers(index, operation));
            rules.iter().enumerate().all(|(index, rule)| !rule.finding.is_match() || is_covered(index))
        };
        let mut explanation = explain(active.rules(), operation, |index, operation| {
            let everywhere = self.exceptions.everywhere().and_then(|everywhere| everywhere.find_entry(operation, now));
            active.exceptions_of(index, operation, everywhere.as_ref(), now)
        });
        if !is_in_scope(&explanation.rules, operation) {
            return Err(Refusal::OutOfScope);
        }
        let of_check = |check: &ExplainedCheck| check.operation.iter().map(|(key, value)| (&**key, &**value)).collect();
        explanation.check.take_if(|check| !is_in_scope(&check.rules, &of_check(check)));
        let check = explanation.check.as_mut().map(|check| &mut check.rules);
        for explained in [&mut explanation.rules].into_iter().chain(check) {
            let mut rules = active.rules().rules().iter();
            explained.retain(|_| rules.next().is_some_and(|rule| scope.covers(Some(rule), None, None)));
        }
        Ok(explanation)
    }
}

/// Returns the hits of the rule with this index, since the server started. `None` if only one of its actors is in scope.
pub fn hits_of(active: &ActiveRules, index: usize, rule: &Rule, scope: &Scope) -> Option<RuleCount> {
    scope.own_actor(rule).is_none().then(|| active.named_count(index))
}

/// Returns the rules in scope with their indexes, in order.
pub fn listed<'a>(active: &'a ActiveRules, scope: &Scope) -> impl Iterator<Item = (usize, &'a Rule)> {
    active.rules().rules().iter().enumerate().filter(move |(_, rule)| scope.covers(Some(rule), None, None))
}

/// The actor's counter under one rule. `limit` is the sum of `used`, `reserved`, `in_flight` and the verdict's balance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStatus {
    /// [`Rule::name`].
    pub rule: String,
    /// The most credits that the actor can have.
    pub limit: u64,
    /// Credits that were used. Reserved ones are not.
    pub used: u64,
    /// Credits of open reservations.
    pub reserved: u64,
    /// Leases of a concurrency rule that are held.
    pub in_flight: u64,
    /// The credits left, and the time until there are more.
    pub verdict: Verdict,
    /// The credits that the actor has in place of the rule's.
    pub own_limit: Option<u64>,
    /// The block or the allow that decides about the actor in place of the counter. The other fields are the counter's.
    pub actor_override: Option<ActorOverride>,
}

impl Limiter {
    /// Returns a page of the status of the actor that these fields form: the rules in scope, in order, under which the actor has a
    /// counter that is not full, a limit of its own, a block or an allow. The page reads at most `count` counters.
    ///
    /// # Errors
    /// The actor is out of scope, no rule counts by these fields, the cursor does not belong to the rules in force, or the
    /// store fails.
    pub async fn status(
        &self,
        actor: &Operation,
        cursor: Option<&str>,
        count: usize,
        scope: &Scope,
    ) -> Result<Page<Vec<RuleStatus>>, AdminError> {
        let active = self.active_rules().ok_or(Refusal::NoRules)?;
        let resolved = scope.resolve(&active.rules);
        let is_in_scope = |index| resolved.as_ref().is_none_or(|scope| scope.covers(index, actor));
        if !active.rules.rules_by_fields_of(actor).any(|(index, _)| is_in_scope(index)) {
            // Whether a rule out of scope has these fields makes no difference.
            return Err(match scope.covers(None, None, None) {
                true => {
                    let fields: Vec<_> = actor.iter().map(|(field, _)| field).collect();
                    AdminError::NoRuleCountsBy(shown(&fields.join(" and ")))
                }
                false => Refusal::OutOfScope.into(),
            });
        }
        let first = cursor.map_or(Some(0), |cursor| resume(&active, cursor).filter(|index| is_in_scope(*index)));
        let first = first.ok_or(AdminError::Cursor)?;
        let (now, everywhere) = (self.now(), self.exceptions.everywhere());
        let everywhere = everywhere.and_then(|everywhere| everywhere.find_entry(actor, now));
        let (mut batch, mut asked, mut page) = (Batch::default(), Vec::new(), Page::<Vec<_>>::default());
        batch.begin(now);
        for (index, rule) in
            active.rules.rules_of_actor(actor).filter(|(index, _)| *index >= first && is_in_scope(*index))
        {
            let Some(counter) = active.counter(index) else { continue };
            if asked.len() >= count.clamp(1, MAX_PAGE) || batch.weight() > MAX_PART {
                page.next = Some(cursor_at(&active, index));
                break;
            }
            batch.push_if(SHOW, now, |key| {
                let start = counter.write_actor(actor, key);
                let own = counter.limit_of(key.get(start..).unwrap_or_default(), now);
                // The usage of an actor that may take nothing is shown, too.
                own.or(Some(counter.limit_at(now)))
            });
            asked.push((index, rule, active.exceptions_of(index, actor, everywhere.as_ref(), now)));
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
        for (place, (index, rule, exceptions)) in asked.into_iter().enumerate() {
            let outcome = batch.outcome(place)?;
            let is_shown = outcome.reset_ns > 0 || exceptions.credits.is_some() || exceptions.actor_override.is_some();
            if let Some(entry) = batch.entry(place).filter(|_| is_shown) {
                page.content.push(RuleStatus::new((index, rule), entry.limit, exceptions, outcome));
            }
        }
        Ok(page)
    }
}

impl RuleStatus {
    /// `read_limit` is the limit of the entry that read the counter.
    fn new((index, rule): (usize, &Rule), read_limit: Limit, exceptions: ActorExceptions, outcome: Outcome) -> Self {
        let ActorExceptions { credits: own_limit, actor_override } = exceptions;
        let taken = read_limit.capacity().saturating_sub(outcome.left).saturating_add(outcome.owed);
        let (used, held) = (taken.saturating_sub(outcome.before), outcome.before);
        let (reserved, in_flight) = if rule.is_concurrency_limit() { (0, held) } else { (held, 0) };
        let (limit, outcome) = match own_limit {
            Some(0) => (0, Outcome { left: 0, owed: taken, ..outcome }),
            _ => (read_limit.capacity(), outcome),
        };
        let (rule, verdict) = (rule.name(index).into(), outcome.into());
        Self { rule, limit, used, reserved, in_flight, verdict, own_limit, actor_override }
    }
}

/// Returns the cursor of a page that begins with this rule.
fn cursor_at(active: &ActiveRules, index: usize) -> String {
    format!("{index}-{:x}", active.fingerprint(index))
}

/// Returns the rule that the page begins with, if it is still at its place.
fn resume(active: &ActiveRules, text: &str) -> Option<usize> {
    let index = text.split_once('-')?.0.parse().ok()?;
    (active.counter(index).is_some() && cursor_at(active, index) == text).then_some(index)
}

/// Number of actors, unless the client asks for another.
pub const DEFAULT_COUNT: usize = 10;
/// Maximum number of actors.
pub const MAX_COUNT: usize = 1_000;

/// A question for the actors of a rule.
#[derive(Debug, Clone, Copy)]
pub struct TopOf<'a> {
    /// The rule.
    pub rule: RuleName<'a>,
    /// The order of the actors.
    pub order: Order,
    /// The time over which they are counted.
    pub window: Window,
    /// Maximum number of actors, at most [`MAX_COUNT`].
    pub count: usize,
}

/// The actors of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRanking {
    /// [`Rule::name`](divvy_core::rules::Rule::name).
    pub rule: String,
    /// Whether the rule is a canary, whose denials deny nothing.
    pub is_canary: bool,
    /// Whether only one actor is in scope. Then the total is its own.
    pub is_of_one_actor: bool,
    /// The actors.
    pub ranking: Ranking,
}

impl Limiter {
    /// Returns whether actors are ranked.
    pub fn ranks_actors(&self) -> bool {
        self.top.is_some()
    }

    /// Ranks the actors of a rule, as this server has counted them.
    ///
    /// # Errors
    /// There is no such rule, it is out of scope, or nothing is counted.
    pub fn top(&self, of: TopOf<'_>, scope: &Scope) -> Result<RuleRanking, AdminError> {
        let active = self.active_rules().ok_or(Refusal::NoRules)?;
        of.rule.check(Some(&active), None, scope)?;
        let index = of.rule.index(&active)?;
        let top = self.top.as_ref().ok_or(AdminError::NoTop)?;
        let found = active.rules.rules().get(index).zip(active.tops.get(index));
        let (rule, of_rule) = found.ok_or(AdminError::NoTop)?;
        let own = scope.own_actor(rule);
        let count = of.count.clamp(1, MAX_COUNT);
        let only = own.as_deref().map(str::as_bytes);
        let ranking = top.rank(&of_rule.top, (of.order, of.window), self.now(), count, only);
        Ok(RuleRanking {
            rule: rule.name(index).into(),
            is_canary: rule.match_policy == MatchPolicy::Canary,
            is_of_one_actor: own.is_some(),
            ranking,
        })
    }

    /// Returns the metrics of the memory for ranking actors.
    pub(crate) fn top_metrics(&self) -> Vec<Metric> {
        let Some(top) = &self.top else { return Vec::new() };
        let without_room = self
            .active_rules()
            .map_or(0, |active| active.tops.iter().filter(|of_rule| of_rule.top.is_without_room()).count());
        vec![
            Metric::gauge("divvy_top_memory_bytes", "Bytes of --top-memory in use.", top.memory() as u64),
            Metric::gauge(
                "divvy_top_rules_without_room",
                "Rules whose actors are not ranked, because --top-memory is spent.",
                without_room as u64,
            ),
        ]
    }
}

#[cfg(test)]
mod tests;
