//! The penalties of a policy's rules, ready to use.

use std::sync::Arc;

use crate::register::owner::ExceptionOwner;
use crate::store::ExceptionKind;
use crate::store::key::{Prefix, Space};
use divvy_core::algorithm::{Limit, SlidingLog};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::{Penalty, Quota, Rule};

/// The key of both pairs that name a counter of denials. No operation has the same key twice.
const DENIALS: &str = "denials";

/// The penalty of a rule.
#[derive(Debug)]
pub struct RulePenalty {
    pub terms: Penalty,
    /// The label of the rule.
    pub label: String,
    /// The owner of the blocks.
    pub owner: String,
    /// The limit that is used up by as many denials as lead to a block.
    pub limit: Limit,
    /// The prefix of the counters of denials. The actor follows.
    pub counters: Prefix,
}

impl RulePenalty {
    /// Returns the penalty of the rule with this label, if it has one.
    fn new(rule: &Rule, label: &str) -> Option<Self> {
        let terms = rule.penalty.filter(|_| matches!(rule.quota, Quota::Limited(_)))?;
        let window_ns = terms.window_seconds().saturating_mul(NANOS_PER_SECOND);
        let limit = Limit::SlidingLog(SlidingLog::new(terms.after, window_ns).ok()?);
        let counters = Prefix::new(Space::Rule, [(DENIALS, "of"), (DENIALS, label)], &limit);
        let owner = ExceptionOwner::of_rule(ExceptionKind::Block, label).to_string();
        Some(Self { terms, label: label.to_owned(), owner, limit, counters })
    }
}

/// The penalties of a policy's rules, in their order. Empty if no rule has one.
#[derive(Debug, Default)]
pub struct Penalties(Vec<Option<Arc<RulePenalty>>>);

impl Penalties {
    /// Creates the penalties of these rules, whose labels are given in the same order.
    pub fn new<'a>(rules: &'a [Rule], labels: impl Iterator<Item = Option<&'a str>>) -> Self {
        let of_rule = |(rule, label): (&Rule, Option<&str>)| RulePenalty::new(rule, label?).map(Arc::new);
        let of_rules: Vec<_> = rules.iter().zip(labels).map(of_rule).collect();
        Self(if of_rules.iter().any(Option::is_some) { of_rules } else { Vec::new() })
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the penalty of the rule with this index, if it has one.
    pub fn get(&self, rule: usize) -> Option<&Arc<RulePenalty>> {
        self.0.get(rule)?.as_ref()
    }
}
