//! Random configurations and descriptors: wherever nothing is reported, the rules apply the same limit that ratelimit's
//! lookup finds, and count in the same counters.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use proptest::prelude::*;

use super::import_texts;
use crate::calendar::{Calendar, Unit};
use crate::config::ratelimit::compile::compile_alone;
use crate::config::ratelimit::model::Domains;
use crate::config::ratelimit::options::Options;
use crate::config::{Format, Problems, parse, write};
use crate::rules::descriptor::DescriptorKind;
use crate::rules::{ActorFields, MatchPolicy, Operation, Quota, RuleSet, Scratch};

const DOMAIN: &str = "shop";

/// An entry of a configuration.
#[derive(Debug, Clone)]
struct Entry {
    key: String,
    /// Empty for any value.
    value: String,
    limit: Option<Limit>,
    nested: Vec<Entry>,
    shadow: bool,
    quota: bool,
    shared: bool,
    /// Set when the entry is written.
    line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Limit {
    Unlimited,
    PerMinute(u64),
}

/// The result of ratelimit's lookup for a descriptor.
#[derive(Debug)]
struct Lookup<'a> {
    /// The entries on the path, until the lookup ended.
    way: Vec<&'a Entry>,
    entry: Option<&'a Entry>,
    /// The counter's name: each key with its value, or with the pattern whose values share a counter.
    counter: Vec<(String, String)>,
}

impl Entry {
    /// The entry's name in ratelimit's map.
    fn name(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }
}

/// Matches like ratelimit's `wildcardMatch`: each `*` of the pattern, which has at least one, stands for any
/// characters.
fn is_wildcard_match(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return false };
    let Some(name) = name.strip_prefix(start) else { return false };
    fn matches_rest(rest: &str, name: &str) -> bool {
        match rest.split_once('*') {
            None => name.ends_with(rest),
            Some((part, rest)) => {
                let mut places = name.match_indices(part);
                places.any(|(at, _)| matches_rest(rest, &name[at + part.len()..]))
            }
        }
    }
    matches_rest(rest, name)
}

/// Looks up a descriptor as ratelimit does: the exact value, else the first pattern, else the entry without a value. It
/// never turns back, and a limit only applies to descriptors that end at its entry.
fn look_up<'a>(mut entries: &'a [Entry], descriptor: &[(String, String)]) -> Lookup<'a> {
    let mut found = Lookup { way: Vec::new(), entry: None, counter: Vec::new() };
    for (index, (key, value)) in descriptor.iter().enumerate() {
        let name = format!("{key}_{value}");
        let exact = entries.iter().find(|entry| entry.name() == name);
        let pattern = || entries.iter().find(|entry| is_wildcard_match(&entry.name(), &name));
        let bare = || entries.iter().find(|entry| entry.name() == *key);
        let Some(entry) = exact.or_else(pattern).or_else(bare) else { break };
        found.way.push(entry);
        let counted = if entry.shared && entry.value.contains('*') { &entry.value } else { value };
        found.counter.push((key.clone(), counted.clone()));
        if index + 1 == descriptor.len() {
            found.entry = Some(entry).filter(|entry| entry.limit.is_some());
        }
        entries = &entry.nested;
    }
    found
}

/// Writes each entry on its own line, and records the line number.
fn to_yaml(entries: &mut [Entry]) -> String {
    fn write_list(entries: &mut [Entry], text: &mut String) {
        for entry in entries {
            entry.line = text.lines().count() + 1;
            let Entry { key, value, shadow, quota, shared, .. } = entry;
            write!(text, "{{key: {key}, value: '{value}', shadow_mode: {shadow}, quota_mode: {quota}").unwrap();
            write!(text, ", share_threshold: {shared}").unwrap();
            match entry.limit {
                None => {}
                Some(Limit::Unlimited) => text.push_str(", rate_limit: {unlimited: true}"),
                Some(Limit::PerMinute(n)) => {
                    write!(text, ", rate_limit: {{unit: minute, requests_per_unit: {n}}}").unwrap();
                }
            }
            text.push_str(", descriptors: [\n");
            write_list(&mut entry.nested, text);
            text.push_str("]},\n");
        }
    }
    let mut text = format!("domain: {DOMAIN}\ndescriptors: [\n");
    write_list(entries, &mut text);
    text + "]\n"
}

fn entries_strategy(depth: u32) -> BoxedStrategy<Vec<Entry>> {
    entries_with_keys(&["a", "b", "c"], depth)
}

fn entries_with_keys(keys: &'static [&'static str], depth: u32) -> BoxedStrategy<Vec<Entry>> {
    let value = prop::sample::select(vec!["", "", "x", "y", "xy", "x*", "xy*", "*", "x*y", "*y", "*x*y*", "y*y"]);
    let limit = prop_oneof![
        2 => Just(None),
        1 => Just(Some(Limit::Unlimited)),
        5 => (0..4_u64).prop_map(|n| Some(Limit::PerMinute(n))),
    ];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.1), prop::bool::weighted(0.3));
    let nested = if depth == 0 { Just(Vec::new()).boxed() } else { entries_with_keys(keys, depth - 1) };
    let entry = (prop::sample::select(keys), value, limit, flags, nested).prop_map(
        |(key, value, limit, (shadow, quota, shared), nested)| Entry {
            key: key.to_owned(),
            value: value.to_owned(),
            limit,
            nested,
            shadow: shadow && limit.is_some(),
            quota: quota && limit.is_some(),
            // A key that looks like a pattern, or like a key and a value, has no obvious pattern of its values.
            shared: shared && value.contains('*') && !key.contains(['*', '_']),
            line: 0,
        },
    );
    let without_twins = |mut entries: Vec<Entry>| {
        let mut names = HashSet::new();
        entries.retain(|entry| names.insert(entry.name()));
        entries
    };
    prop::collection::vec(entry, 0..5).prop_map(without_twins).boxed()
}

/// Generates descriptors without repeated keys, because an operation has each key once, as the README says.
fn descriptor_strategy() -> impl Strategy<Value = Vec<(String, String)>> {
    let keys = Just(["a", "b", "c", "d"]).prop_shuffle();
    let values = prop::collection::vec(
        prop::sample::select(vec!["x", "y", "xy", "xyz", "z", "", "x*", "xy*", "xzy", "yxy", "yy"]),
        1..4,
    );
    (keys, values).prop_map(|(keys, values)| {
        keys.iter().zip(values).map(|(key, value)| ((*key).to_owned(), value.to_owned())).collect()
    })
}

/// Generates descriptors with any keys, some of them several times, in any order.
fn repetitive_descriptor_strategy() -> impl Strategy<Value = Vec<(String, String)>> {
    let key = prop::sample::select(vec!["a", "a", "b", "a_x", "ab", "domain", ""]);
    let value = prop::sample::select(vec!["x", "y", "xy", "xyz", "x_y", "z", "", "x*", "xzy", "yy"]);
    let pair = (key, value).prop_map(|(key, value)| (key.to_owned(), value.to_owned()));
    prop::collection::vec(pair, 0..4)
}

/// Collects the sequences of keys in the configuration, except those of entries on `lines`.
fn sequences(entries: &[Entry], lines: &HashSet<usize>, path: &[String], found: &mut HashSet<Vec<String>>) {
    for entry in entries.iter().filter(|entry| !lines.contains(&entry.line)) {
        let path = [path, std::slice::from_ref(&entry.key)].concat();
        found.insert(path.clone());
        sequences(&entry.nested, lines, &path, found);
    }
}

/// Returns whether the general difference applies to the descriptor, because rules for another sequence of keys may
/// match it. That happens if the descriptor has further keys and the configuration does not contain its exact sequence,
/// or if it has the same keys in another order.
fn has_general_difference(known: &HashSet<Vec<String>>, descriptor: &[(String, String)]) -> bool {
    let keys: Vec<String> = descriptor.iter().map(|(key, _)| key.clone()).collect();
    let set = |keys: &[String]| keys.iter().cloned().collect::<BTreeSet<_>>();
    known.iter().any(|other| {
        *other != keys && (set(other) == set(&keys) || !known.contains(&keys) && set(other).is_subset(&set(&keys)))
    })
}

/// Returns the limit that the rules apply: its number, whether it is a canary, and its counter. Panics if there are
/// several.
fn find_limit(rules: &RuleSet, descriptor: &[(String, String)]) -> Option<(u64, bool, (usize, Vec<String>))> {
    let mut operation: Operation = descriptor.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    operation.set("domain", DOMAIN);
    let mut scratch = Scratch::default();
    let matched: Vec<_> = rules.matches(&operation, &mut scratch).collect();
    assert_eq!(matched.last().unwrap().1.match_policy, MatchPolicy::Stop);
    let mut limits = matched.iter().filter(|(_, rule)| !matches!(rule.quota, Quota::Always { .. }));
    let (index, rule) = limits.next()?;
    assert!(limits.next().is_none(), "one limit at most: {matched:?}");
    assert_eq!(rule.settings.calendar.map(Calendar::unit), Some(Unit::Minute));
    let actors = rule.actor_fields.iter().map(|field| operation.get(field).unwrap().to_owned()).collect();
    Some((rule.settings.credit_limit, rule.match_policy == MatchPolicy::Canary, (*index, actors)))
}

/// Returns the numbers of the lines whose problems contain any of `phrases`.
fn lines_with(report: &str, phrases: &[&str]) -> HashSet<usize> {
    let report = report.lines().filter(|line| phrases.iter().any(|phrase| line.contains(phrase)));
    report.map(|line| line.split(':').nth(2).unwrap().parse().unwrap()).collect()
}

/// A random configuration, and the rules converted from it.
struct ConvertedConfig {
    rules: RuleSet,
    /// Context for failure messages: the configuration, the report on it, and the rules.
    context: String,
    /// Lines of entries that are left out or warned about.
    reported: HashSet<usize>,
    known: HashSet<Vec<String>>,
}

impl ConvertedConfig {
    fn new(entries: &mut [Entry]) -> Result<Self, TestCaseError> {
        let yaml = to_yaml(entries);
        let (rules, report) = import_texts(&[("r.yaml", &yaml)]);
        let ini = write(&rules.unwrap(), Format::Ini).unwrap();
        let context = format!("{yaml}\n{report}\n{ini}");
        let loaded = parse(&ini, Format::Ini, "r.ini");
        let rules = loaded.map_err(|report| TestCaseError::fail(format!("{report}\n{ini}")))?.rules;
        let reported = lines_with(&report, &["left out", "unreachable"]);
        let without_nested = lines_with(&report, &["and everything in it is left out", "unreachable"]);
        let mut known = HashSet::new();
        sequences(entries, &without_nested, &[], &mut known);
        Ok(Self { rules, context, reported, known })
    }

    /// Returns whether the conversion must be exact for this descriptor, because nothing was reported about it.
    fn must_be_exact(&self, found: &Lookup<'_>, descriptor: &[(String, String)]) -> bool {
        let is_reported = found.way.iter().any(|entry| self.reported.contains(&entry.line));
        !is_reported && !has_general_difference(&self.known, descriptor)
    }
}

proptest! {
    #[test]
    fn server_finds_the_limit_and_the_counter_that_ratelimit_finds(
        mut entries in entries_with_keys(&["a", "b", "a_x", "a*", "domain"], 2),
        descriptors in prop::collection::vec(repetitive_descriptor_strategy(), 40),
    ) {
        let yaml = to_yaml(&mut entries);
        let (mut domains, mut problems) = (Domains::new(false), Problems::new("r.yaml"));
        domains.add_text(&yaml, &mut problems);
        prop_assert!(!problems.has_errors(), "{:?}", problems);
        let rules = compile_alone(&domains, &Options::default()).unwrap();
        let (mut by_ratelimit, mut by_divvy) = (HashMap::new(), HashMap::new());
        for descriptor in &descriptors {
            let found = look_up(&entries, descriptor);
            let mut operation = Operation::new();
            operation.push("domain", DOMAIN);
            descriptor.iter().for_each(|(key, value)| operation.push(key, value));
            let mut scratch = Scratch::default();
            let matched: Vec<_> = rules.matches(&operation, &mut scratch).collect();
            let [(_, rule)] = matched[..] else { panic!("one rule: {matched:?}") };
            let limit = rule.descriptor.as_ref().unwrap();
            let found_limit = match limit.kind {
                DescriptorKind::Nothing => None,
                DescriptorKind::Unlimited => Some((Limit::Unlimited, false, false)),
                DescriptorKind::Limit => {
                    Some((Limit::PerMinute(rule.settings.credit_limit), limit.is_shadow, limit.is_quota))
                }
            };
            let expected = found.entry.map(|entry| match entry.limit.unwrap() {
                Limit::Unlimited => (Limit::Unlimited, false, false),
                limit => (limit, entry.shadow, entry.quota),
            });
            prop_assert_eq!(found_limit, expected, "{:?}\n{}", descriptor, yaml);
            if let Quota::Limited(_) = rule.quota {
                let mut counter = Vec::new();
                ActorFields::of(rule).write(&operation, &mut counter);
                let there = by_ratelimit.entry(counter.clone()).or_insert_with(|| found.counter.clone());
                prop_assert_eq!(&*there, &found.counter, "{:?}\n{}", descriptor, yaml);
                let here = by_divvy.entry(found.counter).or_insert_with(|| counter.clone());
                prop_assert_eq!(&*here, &counter, "{:?}\n{}", descriptor, yaml);
            }
        }
    }

    #[test]
    fn rules_apply_the_limit_that_ratelimit_finds(
        mut entries in entries_strategy(2),
        descriptors in prop::collection::vec(descriptor_strategy(), 1..40),
    ) {
        let converted = ConvertedConfig::new(&mut entries)?;
        let (mut by_ratelimit, mut by_divvy) = (HashMap::new(), HashMap::new());
        for descriptor in &descriptors {
            let found = look_up(&entries, descriptor);
            if !converted.must_be_exact(&found, descriptor) {
                continue;
            }
            let context = format!("{descriptor:?}\n{}", converted.context);
            let expected = found.entry.and_then(|entry| match entry.limit? {
                Limit::PerMinute(requests) => Some((requests, entry.shadow)),
                Limit::Unlimited => None,
            });
            let find_limit = find_limit(&converted.rules, descriptor);
            prop_assert_eq!(find_limit.as_ref().map(|(requests, canary, _)| (*requests, *canary)), expected, "{}", context);
            if let Some((1.., _, counter)) = find_limit {
                // One counter in ratelimit must be one counter in divvy.
                let there = by_ratelimit.entry(counter.clone()).or_insert_with(|| found.counter.clone());
                prop_assert_eq!(&*there, &found.counter, "{}", context);
                let here = by_divvy.entry(found.counter).or_insert_with(|| counter.clone());
                prop_assert_eq!(&*here, &counter, "{}", context);
            }
        }
    }

    /// Generates requests: for each descriptor, its pairs and whether its counter is used up.
    #[test]
    fn requests_that_ratelimit_denies_are_denied(
        mut entries in entries_strategy(1),
        requests in prop::collection::vec(prop::collection::vec((descriptor_strategy(), any::<bool>()), 1..5), 1..40),
    ) {
        let converted = ConvertedConfig::new(&mut entries)?;
        for request in &requests {
            let found: Vec<_> = request.iter().map(|(descriptor, _)| look_up(&entries, descriptor)).collect();
            if !found.iter().zip(request).all(|(found, (descriptor, _))| converted.must_be_exact(found, descriptor)) {
                continue;
            }
            let mut used_up = HashMap::new();
            let used_up: Vec<bool> = found.iter().zip(request).map(|(found, (_, used_up_if_first))| {
                *used_up.entry(&found.counter).or_insert(*used_up_if_first)
            }).collect();
            let (mut is_over, mut quotas, mut exceeded) = (false, 0, 0);
            for (found, used_up) in found.iter().zip(&used_up) {
                let limited = |entry: &&Entry| matches!(entry.limit, Some(Limit::PerMinute(_)));
                let Some(entry) = found.entry.filter(limited) else { continue };
                let is_exceeded = *used_up && !entry.shadow;
                is_over |= is_exceeded && !entry.quota;
                quotas += u32::from(entry.quota);
                exceeded += u32::from(entry.quota && is_exceeded);
            }
            let is_denied_there = is_over || quotas > 0 && quotas == exceeded;
            let denies = |(descriptor, _): &(Vec<_>, bool)| {
                find_limit(&converted.rules, descriptor).is_some_and(|(_, is_canary, _)| !is_canary)
            };
            let is_denied_here = request.iter().zip(&used_up).any(|(asked, used_up)| *used_up && denies(asked));
            let context = format!("{request:?}\n{}", converted.context);
            prop_assert!(is_denied_here || !is_denied_there, "{}", context);
            // Only a quota that occurs twice in a request may deny more often.
            prop_assert!(is_denied_here == is_denied_there || quotas > 1, "{}", context);
        }
    }
}
