//! Reads the configuration of envoyproxy/ratelimit. Converts its YAML into rules that limit the same descriptors, and lists
//! everything that no rule can express.
//!
//! | module | contains |
//! |---|---|
//! | `reader` | a file's domains as they are written: [`raw`] |
//! | [`model`] | domains that ratelimit accepts, for servers and for the conversion |
//! | [`files`] | the files of a server's domains |
//! | [`options`] | what ratelimit takes from its environment |
//! | [`compile`] | the rules that serve the domains |
//! | `entries` | the entries of a domain that rules can express |
//!
//! An Envoy descriptor is one operation in divvy: its entries as pairs, and the request's domain as `domain`.
//! [`super::write()`] writes the rules; nothing here counts or serves.
//!
//! The format is defined in the README and in `src/config/config_impl.go` of <https://github.com/envoyproxy/ratelimit>.
//! Ratelimit compares keys and values as one text, `key_value`, so its entry `a_b` also matches the value `b` of the
//! key `a`. The conversion ignores this, because no configuration relies on it.
//!
//! The limits of a domain are ordered so that the first rule that matches is the one that ratelimit finds.
//!
//! Ratelimit walks down its tree. It takes the most specific entry at each level, never turns back, and applies a limit
//! only to descriptors that end at its entry. A rule, in contrast, matches wherever its keys are. Therefore the rules
//! form one complete list per sequence of keys, longest sequence first. Each list has the sequence's limits in
//! ratelimit's order, with guards between and after them, which allow requests that ratelimit does not limit. Guards
//! without an effect are left out.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use indexmap::map::Entry::{Occupied, Vacant};

use super::Problems;
use super::labels::Labels;
use crate::rules::operation::DOMAIN;
use crate::rules::{MatchPolicy, Overrun, Pattern, Quota, Rule, Settings};
use entries::{Entry, Limit, ValueCondition};

pub mod compile;
mod entries;
pub mod files;
pub mod model;
pub mod options;
pub mod raw;
pub(super) mod reader;

const GUARD: &str = "no limit here, regardless of the rules below";

/// The comment of converted files.
pub(super) const DIFFERENCE: &str = "Converted from envoyproxy/ratelimit's YAML. A rule also limits descriptors that have further \
                          entries, or the same entries in another order. docs/migrating.md lists all differences.";

/// Returns the rules of a domain that was read from `file`; `None` if no rule can name it.
pub(super) fn rules(
    domain: &model::Domain,
    file: &str,
    labels: &mut Labels,
    problems: &mut Problems,
) -> Option<Vec<Rule>> {
    let entries = entries::entries(domain, labels, problems)?;
    Some(rules_of_domain(&domain.name, &entries, file, problems))
}

fn rules_of_domain(domain: &str, entries: &[Entry], file: &str, problems: &mut Problems) -> Vec<Rule> {
    let path = vec![(DOMAIN, ValueCondition::new(Some(domain), false))];
    let mut list = RuleList { file, path, rules: Vec::new() };
    for keys in find_sequences(entries, problems) {
        list.add(entries, &keys);
    }
    list.without_idle_guards()
}

/// Returns the sequences of keys in the configuration, longest first. Of sequences with the same keys only one is
/// returned, because a rule does not see their order. A limit lost in this way is reported.
fn find_sequences<'a>(entries: &'a [Entry], problems: &mut Problems) -> Vec<Vec<&'a str>> {
    let mut sequences = IndexMap::new();
    collect_sequences(entries, &mut Vec::new(), &mut sequences);
    // If the same keys appear in several orders, the first order with a limit wins.
    sequences.sort_by_key(|_, limits| limits.is_empty());
    let mut by_keys: IndexMap<BTreeSet<&str>, Vec<&str>> = IndexMap::new();
    for (keys, limits) in sequences {
        match by_keys.entry(keys.iter().copied().collect()) {
            Occupied(other) => {
                let other = other.get();
                for line in limits {
                    let what = format!(
                        "the keys {keys:?} also come in the order {other:?}, and rules ignore the order: the limit is left out"
                    );
                    problems.error(line, what, "send them in one order only");
                }
            }
            Vacant(new) => _ = new.insert(keys),
        }
    }
    let mut sequences: Vec<_> = by_keys.into_values().collect();
    sequences.sort_by_key(|keys| std::cmp::Reverse(keys.len()));
    sequences
}

/// Collects the sequences of keys on the paths to entries, with the lines of the entries on each path that have a limit.
fn collect_sequences<'a>(
    entries: &'a [Entry],
    path: &mut Vec<&'a str>,
    found: &mut IndexMap<Vec<&'a str>, Vec<usize>>,
) {
    for entry in entries {
        path.push(&entry.key);
        found.entry(path.clone()).or_default().extend(entry.limit.as_ref().map(|_| entry.line));
        collect_sequences(&entry.nested, path, found);
        path.pop();
    }
}

/// The rules so far, and the path from the domain to the current entry.
struct RuleList<'a> {
    file: &'a str,
    path: Vec<(&'a str, ValueCondition)>,
    /// The rules, and whether the only purpose of each is to keep requests from the rules below.
    rules: Vec<(Rule, bool)>,
}

impl<'a> RuleList<'a> {
    /// Adds rules for all descriptors whose next keys are `keys`.
    fn add(&mut self, entries: &'a [Entry], keys: &[&'a str]) {
        let Some((key, rest)) = keys.split_first() else { return };
        let mut all_taken = false;
        for entry in entries.iter().filter(|entry| entry.key == *key) {
            self.path.push((key, entry.condition.clone()));
            match &entry.limit {
                _ if !rest.is_empty() => self.add(&entry.nested, rest),
                Some(limit) => self.add_limit(limit, entry.line),
                None => self.add_guard(entry.line),
            }
            self.path.pop();
            all_taken |= entry.condition.pattern == Pattern::Any;
        }
        if !all_taken {
            let depth = self.path.len();
            self.path.extend(keys.iter().map(|key| (*key, ValueCondition::new(None, false))));
            self.add_guard(1);
            self.path.truncate(depth);
        }
    }

    fn add_limit(&mut self, limit: &Limit, line: usize) {
        let trial = limit.trial && limit.settings != Settings::unlimited();
        let actors =
            self.path.iter().filter(|(_, condition)| !condition.is_shared).map(|(key, _)| (*key).to_owned()).collect();
        let rule = self.rule(limit.settings, line);
        // Ratelimit counts what it denies.
        let is_counted = matches!(rule.quota, Quota::Limited(_));
        let (actor_fields, overrun) = if is_counted { (actors, Overrun::Count) } else { (Vec::new(), Overrun::Refuse) };
        let rule = Rule {
            actor_fields,
            overrun,
            match_policy: if trial { MatchPolicy::Canary } else { MatchPolicy::Stop },
            label: Some(limit.label.clone()),
            comment: Some(format!("{}:{line}", self.file)),
            ..rule
        };
        self.rules.push((rule, false));
        if trial {
            self.add_guard(line);
        }
    }

    fn add_guard(&mut self, line: usize) {
        let rule = Rule { comment: Some(GUARD.to_owned()), ..self.rule(Settings::unlimited(), line) };
        self.rules.push((rule, true));
    }

    fn rule(&self, settings: Settings, line: usize) -> Rule {
        let pair = |(key, condition): &(&str, ValueCondition)| ((*key).to_owned(), condition.pattern.clone());
        rule(self.path.iter().map(pair).collect(), settings, line)
    }

    /// Removes guards without an effect, from the bottom up, so that each guard is compared with the rules that remain
    /// below it.
    fn without_idle_guards(self) -> Vec<Rule> {
        let mut kept: Vec<Rule> = Vec::new();
        for (rule, is_guard) in self.rules.into_iter().rev() {
            if !is_guard || is_limited(&rule, kept.iter().rev()) {
                kept.push(rule);
            }
        }
        kept.reverse();
        kept
    }
}

fn rule(operation: Vec<(String, Pattern)>, settings: Settings, line: usize) -> Rule {
    // A number of 32 bits and a ratelimit unit are valid in every setting.
    Rule::new(operation, settings, settings.quota().unwrap_or(Quota::Never), line)
}

/// Returns whether any rule below would limit a request that matches `guard` and has no other keys.
fn is_limited<'a>(guard: &Rule, mut below: impl Iterator<Item = &'a Rule>) -> bool {
    let decides = |rule: &Rule| match rule.quota {
        Quota::Always { .. } => every_pattern(rule, guard, Pattern::contains).then_some(false),
        _ => every_pattern(rule, guard, Pattern::overlaps).then_some(true),
    };
    below.find_map(decides).unwrap_or(false)
}

/// Returns whether `guard` has every key of `rule`, with patterns that are `related`.
fn every_pattern(rule: &Rule, guard: &Rule, related: impl Fn(&Pattern, &Pattern) -> bool) -> bool {
    rule.operation.iter().all(|(key, pattern)| guard.pattern(key).is_some_and(|guarded| related(pattern, guarded)))
}

#[cfg(test)]
mod tests;
