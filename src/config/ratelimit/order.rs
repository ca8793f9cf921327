//! Orders the limits of a domain so that the first rule that matches is the one that ratelimit finds.
//!
//! Ratelimit walks down its tree: of an entry it takes the most special match, never turns back, and a limit is only for
//! descriptors that end at its entry. A rule matches wherever its keys are. So for each sequence of keys that the
//! configuration knows, the longest first, the rules here are a complete list: its limits in ratelimit's order, and
//! between and after them guards, which allow what ratelimit has no limit for. Guards that guard nothing are left out.

use std::collections::{BTreeSet, HashMap};

use super::entry::{Asks, Entry, Limit, is_counted, unlimited};
use super::judge::Domain;
use crate::config::problem::{Place, Problems};
use crate::rules::operation::DOMAIN;
use crate::rules::{MatchPolicy, Overrun, Pattern, Quota, Rule, Settings};

const GUARD: &str = "no limit here, whatever the rules below say";

const DIFFERENCE: &str = "Converted from envoyproxy/ratelimit's YAML. A rule also limits descriptors that have further \
                          entries, or the same entries in another order. docs/migrating.md lists all differences.";

/// The rules of `domain`, read from `file`.
pub fn rules(domain: &Domain, file: &str, problems: &mut Problems) -> Vec<Rule> {
    let mut list = List { file, path: vec![(DOMAIN, Asks::Value(domain.name.clone()))], rules: Vec::new() };
    for keys in sequences(&domain.entries, problems) {
        list.add(&domain.entries, &keys);
    }
    list.without_idle_guards()
}

/// Allows requests that no rule limits, as ratelimit does. The comment states a difference that applies to all rules.
pub fn default_rule() -> Rule {
    Rule { comment: Some(DIFFERENCE.to_owned()), ..rule(Vec::new(), unlimited(), 1) }
}

/// The sequences of keys that the entries know, those with more keys first, no two of them with the same keys: a rule
/// does not see their order. A limit that this leaves out is reported.
fn sequences<'a>(entries: &'a [Entry], problems: &mut Problems) -> Vec<Vec<&'a str>> {
    let mut found = Found::default();
    found.collect(entries, &mut Vec::new());
    let mut of_keys: HashMap<BTreeSet<&str>, Sequence<'_>> = HashMap::new();
    let mut order = Vec::new();
    // Of several orders of the same keys, the first one with a limit.
    found.sequences.sort_by_key(|sequence| sequence.limits.is_empty());
    for sequence in found.sequences {
        let keys: BTreeSet<_> = sequence.keys.iter().copied().collect();
        match of_keys.get(&keys) {
            Some(other) => sequence.report_reordered(other, problems),
            None => {
                order.push(sequence.keys.clone());
                of_keys.insert(keys, sequence);
            }
        }
    }
    order.sort_by_key(|keys| std::cmp::Reverse(keys.len()));
    order
}

/// The keys from the top to some entries.
#[derive(Debug)]
struct Sequence<'a> {
    keys: Vec<&'a str>,
    /// The lines of entries there that have a limit.
    limits: Vec<usize>,
}

#[derive(Debug, Default)]
struct Found<'a> {
    sequences: Vec<Sequence<'a>>,
    index: HashMap<Vec<&'a str>, usize>,
}

impl<'a> Found<'a> {
    fn collect(&mut self, entries: &'a [Entry], path: &mut Vec<&'a str>) {
        for entry in entries {
            path.push(&entry.key);
            let next = self.sequences.len();
            let index = *self.index.entry(path.clone()).or_insert(next);
            if index == next {
                self.sequences.push(Sequence { keys: path.clone(), limits: Vec::new() });
            }
            if let (Some(_), Some(sequence)) = (&entry.limit, self.sequences.get_mut(index)) {
                sequence.limits.push(entry.line);
            }
            self.collect(&entry.nested, path);
            path.pop();
        }
    }
}

impl Sequence<'_> {
    fn report_reordered(&self, other: &Sequence<'_>, problems: &mut Problems) {
        for line in &self.limits {
            let what = format!(
                "the keys {:?} also come in the order {:?}, and a rule cannot tell the order: the limit is left out",
                self.keys, other.keys
            );
            problems.error(Place::line(*line), what, "send them in one order only");
        }
    }
}

/// The rules so far, and the way from the domain to the present entry.
struct List<'a> {
    file: &'a str,
    path: Vec<(&'a str, Asks)>,
    rules: Vec<Planned>,
}

struct Planned {
    rule: Rule,
    /// Does it only keep requests from the rules below?
    is_guard: bool,
}

impl<'a> List<'a> {
    /// Rules for all descriptors whose next keys are `keys`.
    fn add(&mut self, entries: &'a [Entry], keys: &[&'a str]) {
        let Some((key, rest)) = keys.split_first() else { return };
        let mut all_taken = false;
        for entry in entries.iter().filter(|entry| entry.key == *key) {
            self.path.push((key, entry.asks.clone()));
            match &entry.limit {
                _ if !rest.is_empty() => self.add(&entry.nested, rest),
                Some(limit) => self.limit(limit, entry.line),
                None => self.guard(entry.line),
            }
            self.path.pop();
            all_taken |= entry.asks.pattern() == Pattern::Any;
        }
        if !all_taken {
            let depth = self.path.len();
            self.path.extend(keys.iter().map(|key| (*key, Asks::Any)));
            self.guard(1);
            self.path.truncate(depth);
        }
    }

    fn limit(&mut self, limit: &Limit, line: usize) {
        let trial = limit.trial && limit.settings != unlimited();
        let actors =
            self.path.iter().filter(|(_, asks)| asks.counts_each()).map(|(key, _)| (*key).to_owned()).collect();
        let rule = self.rule(limit.settings, line);
        let rule = Rule {
            actor_fields: if is_counted(&limit.settings) { actors } else { Vec::new() },
            match_policy: if trial { MatchPolicy::Canary } else { MatchPolicy::Stop },
            label: Some(limit.label.clone()),
            comment: Some(format!("{}:{line}", self.file)),
            ..rule
        };
        self.rules.push(Planned { rule, is_guard: false });
        if trial {
            self.guard(line);
        }
    }

    fn guard(&mut self, line: usize) {
        let rule = Rule { comment: Some(GUARD.to_owned()), ..self.rule(unlimited(), line) };
        self.rules.push(Planned { rule, is_guard: true });
    }

    fn rule(&self, settings: Settings, line: usize) -> Rule {
        rule(self.path.iter().map(|(key, asks)| ((*key).to_owned(), asks.pattern())).collect(), settings, line)
    }

    /// From the bottom up, so that each guard is compared with the rules that are really below it.
    fn without_idle_guards(self) -> Vec<Rule> {
        let mut kept: Vec<Rule> = Vec::new();
        for Planned { rule, is_guard } in self.rules.into_iter().rev() {
            if !is_guard || is_limited(&rule, kept.iter().rev()) {
                kept.push(rule);
            }
        }
        kept.reverse();
        kept
    }
}

fn rule(operation: Vec<(String, Pattern)>, settings: Settings, line: usize) -> Rule {
    Rule {
        operation,
        settings,
        // A number of 32 bits and one of ratelimit's units are in every range.
        quota: settings.quota().unwrap_or(Quota::Never),
        actor_fields: Vec::new(),
        cost_field: None,
        hold_field: None,
        overrun: Overrun::Refuse,
        counter: None,
        match_policy: MatchPolicy::Stop,
        label: None,
        comment: None,
        line,
    }
}

/// Would any of the rules below limit a request that has the keys of `guard`, no others, and matches it?
fn is_limited<'a>(guard: &Rule, mut below: impl Iterator<Item = &'a Rule>) -> bool {
    let decides = |rule: &Rule| match rule.quota {
        Quota::Always { .. } => every_pattern(rule, guard, Pattern::contains).then_some(false),
        _ => every_pattern(rule, guard, Pattern::overlaps).then_some(true),
    };
    below.find_map(decides).unwrap_or(false)
}

/// Has `guard` every key of `rule`, and are their patterns `related`?
fn every_pattern(rule: &Rule, guard: &Rule, related: impl Fn(&Pattern, &Pattern) -> bool) -> bool {
    rule.operation.iter().all(|(key, pattern)| guard.pattern(key).is_some_and(|guarded| related(pattern, guarded)))
}
