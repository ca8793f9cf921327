//! The rules in force: explained for an operation, and listed.

use crate::Limiter;
use crate::policy::Policy;
use crate::refusal::Refusal;
use divvy_core::rules::explain::{ExplainedCheck, ExplainedRule, Explanation, explain};
use divvy_core::rules::{Operation, Rule, Scope};
use divvy_telemetry::metrics::RuleCount;

impl Limiter {
    /// Explains how the rules in force answer the operation. Leaves out rules that do not match and are out of scope.
    ///
    /// # Errors
    /// When there are no rules, and when one that matches is out of scope.
    pub fn explain(&self, operation: &Operation, scope: &Scope) -> Result<Explanation, Refusal> {
        let (policy, now) = (self.policy().ok_or(Refusal::NoRules)?, self.now());
        let plan_scope = scope.resolve(&policy.rules);
        let is_in_scope = |rules: &[ExplainedRule], operation: &Operation| {
            let is_covered = |index| plan_scope.as_ref().is_none_or(|scope| scope.covers(index, operation));
            rules.iter().enumerate().all(|(index, rule)| !rule.finding.is_match() || is_covered(index))
        };
        let mut explanation = explain(policy.rules(), operation, |index, operation| {
            let everywhere = self.exceptions.everywhere().and_then(|everywhere| everywhere.find_entry(operation, now));
            policy.exceptions_of(index, operation, everywhere.as_ref(), now)
        });
        if !is_in_scope(&explanation.rules, operation) {
            return Err(Refusal::OutOfScope);
        }
        let of_check = |check: &ExplainedCheck| check.operation.iter().map(|(key, value)| (&**key, &**value)).collect();
        explanation.check.take_if(|check| !is_in_scope(&check.rules, &of_check(check)));
        let check = explanation.check.as_mut().map(|check| &mut check.rules);
        for explained in [&mut explanation.rules].into_iter().chain(check) {
            let mut rules = policy.rules().rules().iter();
            explained.retain(|_| rules.next().is_some_and(|rule| scope.covers(Some(rule), None, None)));
        }
        Ok(explanation)
    }
}

/// Returns the hits of the rule with this index, since the server started. `None` if only one of its actors is in scope.
pub fn hits_of(policy: &Policy, index: usize, rule: &Rule, scope: &Scope) -> Option<RuleCount> {
    scope.own_actor(rule).is_none().then(|| policy.named_count(index))
}

/// Returns the rules in scope with their indexes, in order.
pub fn listed<'a>(policy: &'a Policy, scope: &Scope) -> impl Iterator<Item = (usize, &'a Rule)> {
    policy.rules().rules().iter().enumerate().filter(move |(_, rule)| scope.covers(Some(rule), None, None))
}
