//! Rules and operations for the tests of this module.

use proptest::prelude::*;

use super::{MatchPolicy, Operation, Pattern, Quota, Rule, Settings, operation_text};

/// Returns a stop rule that always denies. `header` is its operation, empty for the default rule.
pub fn rule(header: &str) -> Rule {
    let pairs = operation_text::pairs(header).map(|pair| pair.unwrap());
    let operation = pairs.map(|(key, value)| (key.to_owned(), Pattern::parse(value))).collect();
    Rule::new(operation, Settings::default(), Quota::Never, 1)
}

pub fn canary(header: &str) -> Rule {
    Rule { match_policy: MatchPolicy::Canary, ..rule(header) }
}

pub fn operation(text: &str) -> Operation {
    operation_text::pairs(text).map(|pair| pair.unwrap()).collect()
}

/// Generates up to `max` rules over few keys and short values, so that they overlap often.
pub fn rules_strategy(max: usize) -> impl Strategy<Value = Vec<Rule>> {
    let pairs = prop::collection::btree_map("[klm]", "[ab*]{0,3}", 0..4);
    let rule = (pairs, prop::bool::weighted(0.7)).prop_map(|(pairs, canary)| Rule {
        operation: pairs.iter().map(|(key, value)| (key.clone(), Pattern::parse(value))).collect(),
        match_policy: if canary { MatchPolicy::Canary } else { MatchPolicy::Stop },
        ..rule("")
    });
    prop::collection::vec(rule, 0..max)
}

/// Generates the pairs of a request that may match rules of [`rules_strategy`].
pub fn values_strategy() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[klmn]", "[abc]{0,4}"), 0..5)
}
