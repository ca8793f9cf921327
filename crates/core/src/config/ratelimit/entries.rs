//! Finds the entries of a domain that rules can express, in ratelimit's order of lookup. Reports the others, and every setting that
//! no rule can express.

use std::collections::HashMap;

use super::model;
use super::model::Rate;
use super::raw::At;
use crate::calendar::{Calendar, Unit};
use crate::config::Problems;
use crate::config::labels::Labels;
use crate::rules::operation::DOMAIN;
use crate::rules::{Pattern, Settings, header};

/// Returns the entries of a domain; `None` if no rule can name the domain.
pub fn entries(domain: &model::Domain, labels: &mut Labels, problems: &mut Problems) -> Option<Vec<Entry>> {
    let (name, line) = (&domain.name, domain.place.line);
    if name.contains('*') {
        let fix = "in a rule `*` stands for any characters: give the domain another name, here and in Envoy";
        problems.error(line, format!("the domain {name:?} has a `*`"), fix);
        return None;
    }
    let condition = ValueCondition::new(Some(name), false);
    let root = Step { line, key: DOMAIN.to_owned(), condition, name: name.clone() };
    let mut quotas = Vec::new();
    collect_quotas(&domain.entries, &mut quotas);
    Some(Selector { path: vec![root], quotas, labels, problems }.entries(&domain.entries))
}

/// Collects the lines of all limits with `quota_mode`, in order.
fn collect_quotas(entries: &[model::Entry], lines: &mut Vec<usize>) {
    for entry in entries {
        let limit = entry.limit.as_ref().filter(|limit| limit.rate != Rate::Unlimited && limit.quota_mode.value);
        lines.extend(limit.map(|limit| limit.quota_mode.line));
        collect_quotas(&entry.entries, lines);
    }
}

/// An entry on the path to the current one.
struct Step {
    line: usize,
    key: String,
    condition: ValueCondition,
    /// Its name in ratelimit, which appears in statistics.
    name: String,
}

struct Selector<'a> {
    /// Entries from the domain, which counts as one here, to the current entry.
    path: Vec<Step>,
    /// The lines of all limits of the domain with `quota_mode`.
    quotas: Vec<usize>,
    labels: &'a mut Labels,
    problems: &'a mut Problems,
}

impl Selector<'_> {
    fn entries(&mut self, given: &[model::Entry]) -> Vec<Entry> {
        let mut entries: Vec<_> = given.iter().filter_map(|entry| self.entry(entry)).collect();
        entries.sort_by_key(|entry| entry.condition.rank);
        self.without_hidden(entries)
    }

    /// Returns an entry; `None` if no rule can express it. Its nested entries are then left out, too.
    fn entry(&mut self, given: &model::Entry) -> Option<Entry> {
        let (line, key) = (given.place.line, given.key.clone());
        if let Err((what, fix)) = self.check_key(&key) {
            self.error(line, format!("{what}: this entry and everything in it is left out"), fix);
            return None;
        }
        let condition = ValueCondition::new(given.value.as_deref(), given.share_threshold);
        self.path.push(Step { line, key, condition, name: given.name() });
        self.report_metrics(given);
        let limit = given.limit.as_ref().and_then(|limit| self.limit(limit));
        let nested = self.entries(&given.entries);
        let Step { key, condition, .. } = self.path.pop()?;
        Some(Entry { line, key, condition, limit, nested })
    }

    /// Checks that a rule can require this key here. Returns the problem and its fix if it cannot.
    fn check_key(&self, key: &str) -> Result<(), (String, &'static str)> {
        if key == DOMAIN {
            let what = format!("the key is {DOMAIN:?}, which in a rule is the domain of the request");
            return Err((what, "send the entry under another key"));
        }
        if let Some(above) = self.path.iter().find(|step| step.key == key) {
            let what =
                format!("the entry on line {} has the key {key:?}, too, and a rule names a key only once", above.line);
            return Err((what, "send the entry under another key"));
        }
        if key.contains('*') {
            let what = format!("the key {key:?} contains `*`, which in ratelimit matches other keys, too");
            return Err((what, "write an entry for each key"));
        }
        Ok(())
    }

    /// Leaves out entries that an earlier entry makes unreachable, because their rules would be unreachable, too.
    fn without_hidden(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut patterns: HashMap<String, Vec<(Pattern, usize)>> = HashMap::new();
        let mut is_reached = |entry: &Entry| {
            let earlier = patterns.entry(entry.key.clone()).or_default();
            let pattern = &entry.condition.pattern;
            if let Some((_, line)) = earlier.iter().rev().find(|(earlier, _)| earlier.contains(pattern)) {
                let what = format!("this entry is unreachable: the one on line {line} matches all of its values");
                self.warning(entry.line, what, "remove it, or move it above that one");
                return false;
            }
            if entry.condition.rank > Rank::Exact {
                earlier.push((pattern.clone(), entry.line));
            }
            true
        };
        entries.into_iter().filter(|entry| is_reached(entry)).collect()
    }

    fn error(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.error((line, self.operation().as_str()), what, fix);
    }

    fn warning(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.warning((line, self.operation().as_str()), what, fix);
    }

    /// Returns the operation of a rule for the current entry.
    fn operation(&self) -> String {
        header(self.path.iter().map(|step| (step.key.as_str(), step.condition.pattern.as_str())))
    }

    /// Returns the limit of the current entry; `None` if no rule can express it.
    fn limit(&mut self, given: &model::Limit) -> Option<Limit> {
        let settings = settings(given);
        for At { line, value: name } in &given.replaces {
            let what = format!(
                "`replaces` {name:?} is left out: divvy applies each descriptor's limit separately, including that \
                 one's"
            );
            self.error(*line, what, "raise that limit, or send only one of the two descriptors");
        }
        if let Some(metadata) = &given.metadata {
            let fix = "let the gateway set it by the reply's status, or by the rule's name in `current_limit`";
            self.error(metadata.line, "`metadata` is left out: divvy's replies have no metadata", fix);
        }
        if given.rate != Rate::Unlimited && !self.check_quota_mode(given) {
            return None;
        }
        Some(Limit { settings, trial: given.shadow_mode, label: self.label(&given.name) })
    }

    /// Reports `quota_mode`, and returns whether a rule can still express the limit.
    ///
    /// Ratelimit denies a request if all of its quota descriptors are over their limits. A single quota is therefore an
    /// ordinary limit. Any two limits of a domain can occur in one request, regardless of their keys.
    fn check_quota_mode(&mut self, limit: &model::Limit) -> bool {
        // Shadow mode takes precedence: ratelimit never treats such a quota as exceeded, and a canary never denies.
        let At { line, value: is_quota } = limit.quota_mode;
        if !is_quota || limit.shadow_mode {
            return true;
        }
        if self.quotas.len() > 1 {
            let other = self.quotas.iter().find(|other| **other != line).unwrap_or(&line);
            let what = format!(
                "`quota_mode` is also set on line {other}: ratelimit denies a request only when all of its quotas are \
                 exceeded, and no rule can express that: the limit is left out"
            );
            let fix = "if no request has two of these descriptors, remove `quota_mode` from all: one quota alone is an \
                       ordinary limit";
            self.error(line, what, fix);
            return false;
        }
        if self.path.iter().any(|step| step.condition.rank != Rank::Exact) {
            let what = "`quota_mode` becomes an ordinary limit: if a request sends this entry with two values, divvy denies it \
                        when one is over the limit, ratelimit only when both are";
            self.warning(line, what, "check that each request sends this entry once, and remove `quota_mode`");
        }
        true
    }

    fn report_metrics(&mut self, entry: &model::Entry) {
        for (name, switch) in [("detailed_metric", entry.detailed_metric), ("value_to_metric", entry.value_to_metric)] {
            if switch.value {
                let what = format!("`{name}` is left out: divvy's metrics are by rule, not by value");
                self.error(switch.line, what, "give each value that you want to see its own entry");
            }
        }
    }

    /// Returns the limit's name, or else its name in ratelimit's statistics.
    fn label(&mut self, name: &At<String>) -> String {
        if name.value.is_empty() {
            let names: Vec<_> = self.path.iter().map(|step| step.name.as_str()).collect();
            return self.labels.make(&names.join("."));
        }
        let label = self.labels.make(&name.value);
        if label != name.value {
            let what = format!("the name {:?} becomes the label {label:?}", name.value);
            self.warning(name.line, what, "a label is unique, and has letters, digits, `-` and `_`");
        }
        label
    }
}

/// Returns the settings of a limit. Windows begin and end by the clock, in UTC, as in ratelimit.
pub fn settings(given: &model::Limit) -> Settings {
    let Rate::PerUnit { requests, unit } = given.rate else { return Settings::unlimited() };
    let unit = match unit {
        model::Unit::Second => Unit::Second,
        model::Unit::Minute => Unit::Minute,
        model::Unit::Hour => Unit::Hour,
        model::Unit::Day => Unit::Day,
        model::Unit::Week => Unit::SevenDays,
        model::Unit::Month => Unit::ThirtyDays,
        model::Unit::Year => Unit::YearOfDays,
    };
    let calendar = Calendar::in_utc(unit);
    Settings { credit_limit: requests.into(), calendar, ..Settings::default() }
}

/// An entry and its nested entries.
#[derive(Debug)]
pub struct Entry {
    /// Line of the file where the entry begins, from 1.
    pub line: usize,
    pub key: String,
    pub condition: ValueCondition,
    /// The limit for descriptors that end at this entry.
    pub limit: Option<Limit>,
    /// Nested entries, in ratelimit's order of lookup.
    pub nested: Vec<Entry>,
}

/// An entry's condition on the value of its key.
#[derive(Debug, Clone)]
pub struct ValueCondition {
    pub pattern: Pattern,
    /// Ratelimit tries entries with lower ranks first, and entries of the same rank in the order of the file.
    pub rank: Rank,
    /// Whether all values share one counter, instead of having one each.
    pub is_shared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// `value: foo`.
    Exact,
    /// `value: foo*bar`: each `*` stands for any characters. With `share_threshold`, all values share one counter.
    Wildcard,
    /// No `value`: any value.
    Any,
}

impl ValueCondition {
    /// Returns the condition of an entry with this `value`.
    pub fn new(value: Option<&str>, is_shared: bool) -> Self {
        let (rank, pattern) = match value {
            Some(value) if value.contains('*') => (Rank::Wildcard, Pattern::parse(value)),
            Some(value) => (Rank::Exact, Pattern::Literal(value.to_owned())),
            None => (Rank::Any, Pattern::Any),
        };
        Self { pattern, rank, is_shared: rank == Rank::Exact || (rank == Rank::Wildcard && is_shared) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub settings: Settings,
    /// Whether the limit only counts hits, and never denies.
    pub trial: bool,
    pub label: String,
}
