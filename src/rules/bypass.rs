//! Bypasses: limits that a client can evade by sending an additional field, which an earlier rule matches.

use super::{MatchPolicy, Pattern, Quota, Rule};

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
    use crate::rules::testing::{canary, rule};

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
