//! The status of one actor: its counters under all rules that count by its fields, a page at a time. Asking changes nothing.

use super::counters::MAX_PAGE;
use super::error::AdminError;
use super::names::SHOWN;
use crate::apply::MAX_PART;
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::store::SHOW;
use crate::store::{Batch, Store};
use crate::{Limit, Limiter, Verdict};
use divvy_core::algorithm::Outcome;
use divvy_core::rules::explain::{ActorExceptions, ActorOverride};
use divvy_core::rules::{Operation, Rule, Scope};

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

/// A page of an actor's status, in the order of the rules. It may be empty and not the last one.
#[derive(Debug, Clone, Default)]
pub struct StatusPage {
    /// The rules under which the actor has a counter that is not full, a limit of its own, a block or an allow.
    pub rules: Vec<RuleStatus>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<String>,
}

impl Limiter {
    /// Returns a page of the status of the actor that these fields form, under the rules in scope. The page reads at most
    /// `count` counters.
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
    ) -> Result<StatusPage, AdminError> {
        let policy = self.policy().ok_or(Refusal::NoRules)?;
        let resolved = scope.resolve(&policy.rules);
        let is_in_scope = |index| resolved.as_ref().is_none_or(|scope| scope.covers(index, actor));
        if !policy.rules.rules_by_fields_of(actor).any(|(index, _)| is_in_scope(index)) {
            // Whether a rule out of scope has these fields makes no difference.
            return Err(match scope.covers(None, None, None) {
                true => AdminError::NoRuleCountsBy(shown(actor)),
                false => Refusal::OutOfScope.into(),
            });
        }
        let first = cursor.map_or(Some(0), |cursor| resume(&policy, cursor).filter(|index| is_in_scope(*index)));
        let first = first.ok_or(AdminError::Cursor)?;
        let (now, everywhere) = (self.now(), self.exceptions.everywhere());
        let everywhere = everywhere.and_then(|everywhere| everywhere.find_entry(actor, now));
        let (mut batch, mut asked, mut page) = (Batch::default(), Vec::new(), StatusPage::default());
        batch.begin(now);
        for (index, rule) in
            policy.rules.rules_of_actor(actor).filter(|(index, _)| *index >= first && is_in_scope(*index))
        {
            let Some(bucket) = policy.bucket(index) else { continue };
            if asked.len() >= count.clamp(1, MAX_PAGE) || batch.weight() > MAX_PART {
                page.next = Some(cursor_at(&policy, index));
                break;
            }
            // The usage of an actor that may take nothing is shown, too.
            batch.push_if(SHOW, now, |key| bucket.write_key(actor, now, key).or(Some(bucket.limit_at(now))));
            asked.push((index, rule, policy.exceptions_of(index, actor, everywhere.as_ref(), now)));
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
        for (place, (index, rule, exceptions)) in asked.into_iter().enumerate() {
            let outcome = batch.outcome(place)?;
            let is_shown = outcome.reset_ns > 0 || exceptions.credits.is_some() || exceptions.actor_override.is_some();
            if let Some(entry) = batch.entry(place).filter(|_| is_shown) {
                page.rules.push(RuleStatus::new((index, rule), entry.limit, exceptions, outcome));
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

/// Returns the actor's fields for an error.
fn shown(actor: &Operation) -> String {
    let fields = actor.iter().map(|(field, _)| field).collect::<Vec<_>>().join(" and ");
    fields.chars().take(SHOWN).collect()
}

/// Returns the cursor of a page that begins with this rule.
fn cursor_at(policy: &Policy, index: usize) -> String {
    format!("{index}-{:x}", policy.fingerprint(index))
}

/// Returns the rule that the page begins with, if it is still at its place.
fn resume(policy: &Policy, text: &str) -> Option<usize> {
    let index = text.split_once('-')?.0.parse().ok()?;
    (policy.bucket(index).is_some() && cursor_at(policy, index) == text).then_some(index)
}

#[cfg(test)]
mod tests;
