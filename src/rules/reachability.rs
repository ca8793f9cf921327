//! Reachability: a rule that an earlier stop rule masks can never answer.
//!
//! A rule masks another if it matches every operation that the other matches. Containment of their patterns decides
//! this exactly. Rules that mask another rule only in combination are not found.

use super::{MatchPolicy, RuleSet, Scratch};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{canary, rule, rules_strategy};
    use crate::rules::{Pattern, Rule};
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
}
