//! Keys that few rules mention. There are too many of them to look up each one for every request.
//!
//! A rule is filed under its rarest key. A request that has this key tries all rare keys of the rule. The rule costs
//! other requests nothing.

use std::collections::{HashMap, HashSet};

use super::key::Key;
use super::rule_bits::SetId;
use super::values::Values;
use super::{Pattern, Rule};

#[derive(Debug, Default)]
pub struct RareKeys {
    filed: HashMap<String, Vec<FiledRule>>,
}

#[derive(Debug)]
struct FiledRule {
    /// The rule's rare keys. A value must match one of the key's patterns.
    patterns: Vec<(Key, Vec<Pattern>)>,
    /// The set that contains only this rule.
    set: SetId,
}

impl RareKeys {
    /// Files the rules under `rarest_first`, the rare keys. `singleton` creates the set of one rule, given its index.
    pub fn new(rules: &[Rule], rarest_first: &[&str], mut singleton: impl FnMut(u32) -> SetId) -> Self {
        let mut filed: HashMap<String, Vec<FiledRule>> = HashMap::new();
        let ranks: HashMap<&str, usize> = rarest_first.iter().copied().zip(0..).collect();
        for (index, rule) in (0..).zip(rules) {
            let rare = rule.operation.iter().filter_map(|pair| Some((*ranks.get(pair.0.as_str())?, pair)));
            let Some((_, (key, _))) = rare.clone().min_by_key(|(rank, _)| *rank) else { continue };
            let key = key.clone();
            let mut patterns: Vec<(Key, Vec<Pattern>)> = Vec::new();
            for (_, (key, pattern)) in rare {
                match patterns.iter_mut().find(|(earlier, _)| earlier.as_str() == key) {
                    Some((_, patterns)) => patterns.push(pattern.clone()),
                    None => patterns.push((Key::new(key), vec![pattern.clone()])),
                }
            }
            filed.entry(key).or_default().push(FiledRule { patterns, set: singleton(index) });
        }
        Self { filed }
    }

    /// Calls `found` with the set of each rule whose rare keys `values` satisfies.
    pub fn for_each_match(&self, values: &impl Values, mut found: impl FnMut(SetId)) {
        for rule in values.keys().filter_map(|key| self.filed.get(key)).flatten() {
            let satisfied = |(key, patterns): &(Key, Vec<Pattern>)| {
                let value = values.value(key);
                value.is_some_and(|value| patterns.iter().any(|pattern| pattern.matches_bytes(value)))
            };
            if rule.patterns.iter().all(satisfied) {
                found(rule.set);
            }
        }
    }
}

/// Returns the indexes of the rules that mention none of `keys`.
pub fn rules_without(keys: &[&str], rules: &[Rule]) -> Vec<u32> {
    let keys: HashSet<&str> = keys.iter().copied().collect();
    let mentions = |rule: &Rule| rule.operation.iter().any(|(key, _)| keys.contains(key.as_str()));
    (0..).zip(rules).filter(|(_, rule)| !mentions(rule)).map(|(index, _)| index).collect()
}
