//! Mistakes in the order of rules: a rule that an earlier stop rule masks can never answer, and a limit that a client
//! evades by sending an additional field, which an earlier rule matches.
//!
//! A rule masks another if it matches every operation that the other matches. Containment of their patterns decides
//! this exactly. Rules that mask another rule only in combination are not found.

use super::{MatchPolicy, Pattern, Quota, Rule, RuleSet, Scratch};

/// An unreachable rule, and the rule that masks it, by their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskedRule {
    /// The rule that never answers.
    pub rule: usize,
    /// The first earlier stop rule that masks it.
    pub by: usize,
}

/// Finds every rule that an earlier stop rule masks, in order, each with the first rule that masks it.
///
/// Matches the most general operation of each rule against the compiled rules, so that the time does not grow with the
/// square of their number.
pub fn find_masked_rules(rules: &RuleSet) -> Vec<MaskedRule> {
    let mut scratch = Scratch::default();
    let masked = rules.rules().iter().enumerate().filter_map(|(index, rule)| {
        let mut containing = rules.matches_all_of(rule, &mut scratch).take_while(|(by, _)| *by < index);
        let (by, _) = containing.find(|(_, by)| by.match_policy == MatchPolicy::Stop)?;
        Some(MaskedRule { rule: index, by })
    });
    masked.collect()
}

/// A limit that some requests evade, and the earlier rule that answers them, by their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bypass {
    /// The limit on a certain value.
    pub limit: usize,
    /// The earlier rule, which accepts any values.
    pub by: usize,
}

/// Finds rules whose values are all `*`, and that answer requests of a later limit on a certain value. Returns the first
/// such limit for each of them, in order of the limits.
///
/// For example, `[api-key=*]` answers a request for `[path=/login ip=*]` if the client sends any `api-key`. A rule all
/// of whose keys the limit also has is not reported here, because it makes the limit unreachable.
pub fn find_bypasses(rules: &[Rule]) -> Vec<Bypass> {
    let mut open: Vec<usize> = Vec::new();
    let mut found = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        if is_limit_on_a_value(rule) {
            open.retain(|by| {
                let is_bypassed = rules.get(*by).is_some_and(|by| asks_for_more(by, rule));
                if is_bypassed {
                    found.push(Bypass { limit: index, by: *by });
                }
                !is_bypassed
            });
        }
        if is_satisfied_by_any_values(rule) && rule.match_policy == MatchPolicy::Stop && rule.quota != Quota::Never {
            open.push(index);
        }
    }
    found
}

fn is_limit_on_a_value(rule: &Rule) -> bool {
    let is_literal = |(_, pattern): &(String, Pattern)| matches!(pattern, Pattern::Literal(_));
    !matches!(rule.quota, Quota::Always { .. }) && rule.operation.iter().any(is_literal)
}

fn is_satisfied_by_any_values(rule: &Rule) -> bool {
    // A client cannot choose its networks.
    !rule.is_default()
        && rule.conditions().next().is_none()
        && rule.operation.iter().all(|(_, pattern)| *pattern == Pattern::Any)
}

/// Returns whether `by` requires a key that `rule` does not.
fn asks_for_more(by: &Rule, rule: &Rule) -> bool {
    by.operation.iter().any(|(key, _)| rule.pattern(key).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{canary, rule, rules_strategy};
    use proptest::prelude::*;

    fn masked(rules: Vec<Rule>) -> Vec<(usize, usize)> {
        let rules = RuleSet::new(rules).unwrap();
        find_masked_rules(&rules).into_iter().map(|masked| (masked.rule, masked.by)).collect()
    }

    #[test]
    fn general_rule_after_a_special_one_is_reachable() {
        assert_eq!(masked(vec![rule("path=/resource/*/first"), rule("path=/resource/*"), rule("")]), []);
    }

    #[test]
    fn special_rule_after_a_general_one_is_masked() {
        assert_eq!(masked(vec![rule("path=/resource/*"), rule("path=/resource/*/first"), rule("")]), [(1, 0)]);
    }

    #[test]
    fn rule_with_more_keys_is_more_special() {
        assert_eq!(masked(vec![rule("a=1"), rule("a=1 b=*"), rule("b=*"), rule("")]), [(1, 0)]);
        assert_eq!(masked(vec![rule("a=*"), rule("b=1"), rule("b=1 a=2")]), [(2, 0)]);
    }

    #[test]
    fn canary_masks_nothing_and_can_be_masked() {
        assert_eq!(masked(vec![canary("a=1"), rule("a=1"), canary("a=1"), rule("")]), [(2, 1)]);
    }

    /// Compares pair by pair, by definition.
    fn by_definition(rules: &[Rule]) -> Vec<(usize, usize)> {
        let contains = |general: &Rule, special: &Rule| {
            let asks_more =
                |(key, asked): &(String, _)| special.pattern(key).is_some_and(|p| Pattern::contains(asked, p));
            general.operation.iter().all(asks_more) && general.conditions_contain(special)
        };
        let first_mask = |(index, special): (usize, &Rule)| {
            let earlier = &rules[..index];
            let by = earlier.iter().position(|r| r.match_policy == MatchPolicy::Stop && contains(r, special))?;
            Some((index, by))
        };
        rules.iter().enumerate().filter_map(first_mask).collect()
    }

    proptest! {
        #[test]
        fn masking_follows_the_definition(rules in rules_strategy(100)) {
            prop_assert_eq!(masked(rules.clone()), by_definition(&rules));
        }
    }

    /// Returns a stop rule that allows everything.
    fn grant(header: &str) -> Rule {
        Rule { quota: Quota::Always { credit: 1 }, ..rule(header) }
    }

    fn bypasses(rules: Vec<Rule>) -> Vec<(usize, usize)> {
        find_bypasses(&rules).into_iter().map(|bypass| (bypass.limit, bypass.by)).collect()
    }

    #[test]
    fn any_key_before_a_limit_on_a_value_bypasses_it() {
        assert_eq!(bypasses(vec![grant("key=*"), rule("path=/login ip=*"), rule("path=/a"), rule("")]), [(1, 0)]);
        assert_eq!(bypasses(vec![grant("path=* key=*"), grant("user=*"), rule("path=/login")]), [(2, 0), (2, 1)]);
    }

    #[test]
    fn other_rules_bypass_nothing() {
        for rules in [
            // The order is right.
            vec![rule("path=/login ip=*"), grant("key=*"), rule("")],
            // The earlier rule denies everything.
            vec![rule("key=*"), rule("path=/login ip=*")],
            // Matching continues after the earlier rule.
            vec![canary("key=*"), rule("path=/login ip=*")],
            // The later rule is unreachable.
            vec![grant("ip=*"), rule("path=/login ip=*")],
            // The earlier rule requires a certain value.
            vec![grant("plan=pro key=*"), rule("path=/login ip=*")],
            // The later rule limits nothing, or has no certain value.
            vec![grant("key=*"), grant("path=/status")],
            vec![grant("key=*"), rule("ip=*")],
        ] {
            assert_eq!(bypasses(rules.clone()), [], "{rules:?}");
        }
    }
}
