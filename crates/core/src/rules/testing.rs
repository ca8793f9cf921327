//! Rules and operations for the tests of this module.

use std::sync::Arc;

use proptest::prelude::*;

use super::{
    Condition, List, ListEntry, MatchPolicy, NOT, Network, Operation, Pattern, Quota, Rule, Settings, operation,
};

/// Returns a stop rule that always denies. `header` is its operation, empty for the default rule.
pub fn rule(header: &str) -> Rule {
    let pairs = operation::pairs(header).map(|pair| pair.unwrap());
    let operation = pairs.map(|(key, value)| (key.to_owned(), Pattern::parse(value))).collect();
    Rule::new(operation, Settings::default(), Quota::Never, 1)
}

pub fn canary(header: &str) -> Rule {
    Rule { match_policy: MatchPolicy::Canary, ..rule(header) }
}

/// Returns the condition that `networks` has with this value.
pub fn networks(text: &str) -> Condition {
    let (field, entries) = text.split_once(": ").unwrap();
    let (is_inverted, entries) = entries.strip_prefix(NOT).map_or((false, entries), |entries| (true, entries));
    let networks = entries.split(", ").map(|entry| Network::parse(entry).unwrap()).collect();
    Condition { field: field.to_owned(), is_inverted, members: List::of_networks(networks) }
}

pub fn operation(text: &str) -> Operation {
    operation::pairs(text).map(|pair| pair.unwrap()).collect()
}

/// Generates up to `max` rules over few keys and short values, so that they overlap often.
pub fn rules_strategy(max: usize) -> impl Strategy<Value = Vec<Rule>> {
    let pairs = prop::collection::btree_map("[klm]", "[ab*]{0,3}", 0..4);
    let rule = (pairs, prop::bool::weighted(0.7), conditions()).prop_map(|(pairs, canary, [networks, list])| Rule {
        operation: pairs.iter().map(|(key, value)| (key.clone(), Pattern::parse(value))).collect(),
        networks: networks.filter(|condition| pairs.contains_key(&condition.field)),
        list: list.filter(|condition| pairs.contains_key(&condition.field)),
        match_policy: if canary { MatchPolicy::Canary } else { MatchPolicy::Stop },
        ..rule("")
    });
    prop::collection::vec(rule, 0..max)
}

/// Generates conditions on the keys of [`rules_strategy`].
fn conditions() -> impl Strategy<Value = [Option<Condition>; 2]> {
    const NETWORKS: &[&str] = &["10.0.0.0/8", "10.0.0.0/15", "10.0.0.0/16", "10.1.0.0/16", "10.0.0.1", "::/0"];
    let networks = prop::sample::subsequence(NETWORKS, 1..4).prop_map(|texts| {
        let networks = texts.iter().map(|text| Network::parse(text).unwrap()).collect();
        List::of_networks(networks)
    });
    let patterns = ["a", "b*", "*c", "abc", "", "10.0.0.0"].map(|text| ListEntry::Pattern(Pattern::parse(text)));
    let lists: Vec<_> = (0..patterns.len() as u32)
        .map(|first| {
            let network = ListEntry::Network(Network::parse(NETWORKS[first as usize]).unwrap());
            let others = patterns.iter().skip(first as usize).cloned();
            List::new(&format!("list-{first}"), (1..).zip(others.chain([network])).collect())
        })
        .collect();
    let list = prop::sample::select(lists);
    let condition = |members: BoxedStrategy<Arc<List>>| {
        let condition = ("[klm]", prop::bool::ANY, members).prop_map(|(field, is_inverted, members)| Condition {
            field,
            is_inverted,
            members,
        });
        prop::option::weighted(0.3, condition)
    };
    (condition(networks.boxed()), condition(list.boxed())).prop_map(|(networks, list)| [networks, list])
}

/// Generates the pairs of a request that may match rules of [`rules_strategy`].
pub fn values_strategy() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[klmn]", "[abc]{0,4}|10\\.[01]\\.0\\.[01]"), 0..5)
}

/// Returns the cases of a table: `text => expected`, separated by `|`.
pub fn cases(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.split('|').map(|case| case.split_once(" => ").unwrap())
}
