//! Validates the entries of a file. Builds the tree that ratelimit would walk, and reports everything that no rule can
//! express.
//!
//! [`super::limit`] validates the limits.

use std::collections::HashMap;

use serde_saphyr::Spanned;

use super::document::{Descriptor, Document, OddKeys, Repeated, is_known, is_set, line, text};
use super::entry::{Entry, Labels, ValueCondition};
use crate::config::problem::{Location, Problems};
use crate::rules::operation::DOMAIN;
use crate::rules::{Pattern, header};

/// A domain and its entries, in ratelimit's order of lookup.
#[derive(Debug)]
pub struct Domain {
    pub name: String,
    pub entries: Vec<Entry>,
}

/// Validates a document; `None` if it has no domain that a rule can name.
pub fn domain(document: Document, labels: &mut Labels, problems: &mut Problems) -> Option<Domain> {
    let (name, line) = document.domain.as_ref().map_or(("", 1), |name| (name.value.as_str(), line(name)));
    if name.is_empty() {
        problems.error(
            Location::line(line),
            "`domain` is missing",
            "ratelimit rejects the file, too: add `domain: NAME`",
        );
        return None;
    }
    if name.contains('*') {
        let fix = "in a rule `*` stands for any characters: give the domain another name, here and in Envoy";
        problems.error(Location::line(line), format!("the domain {name:?} has a `*`"), fix);
        return None;
    }
    let root =
        Step { line, key: DOMAIN.to_owned(), condition: ValueCondition::Value(name.to_owned()), name: name.to_owned() };
    let mut validator = EntryValidator { path: vec![root], quotas: document.quotas(), labels, problems };
    validator.report_keys(&document.odd_keys);
    let entries = validator.entries(document.descriptors.unwrap_or_default());
    Some(Domain { name: name.to_owned(), entries })
}

/// An entry on the path to the current one.
pub(super) struct Step {
    pub line: usize,
    pub key: String,
    pub condition: ValueCondition,
    /// Its name in ratelimit, which appears in statistics and identifies the entry.
    pub name: String,
}

pub(super) struct EntryValidator<'a> {
    /// Entries from the domain, which counts as one here, to the current entry.
    pub path: Vec<Step>,
    /// The lines of all limits of the domain with `quota_mode`.
    pub quotas: Vec<usize>,
    pub labels: &'a mut Labels,
    problems: &'a mut Problems,
}

impl EntryValidator<'_> {
    fn entries(&mut self, descriptors: Vec<Spanned<Descriptor>>) -> Vec<Entry> {
        let mut names = HashMap::new();
        let entries = descriptors.into_iter().filter_map(|descriptor| self.entry(descriptor, &mut names));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|entry| entry.condition.rank());
        self.without_hidden(entries)
    }

    fn entry(&mut self, descriptor: Spanned<Descriptor>, names: &mut HashMap<String, usize>) -> Option<Entry> {
        let line = line(&descriptor);
        let descriptor = descriptor.value;
        let step = self.step(line, &descriptor)?;
        if let Some(first) = names.get(&step.name) {
            let what = format!("the entry {:?} is on line {first}, too, and this one is left out", step.name);
            self.error(line, what, "ratelimit rejects the file, too: keep one of them");
            return None;
        }
        names.insert(step.name.clone(), line);
        self.path.push(step);
        let limit = self.limit(&descriptor);
        let nested = self.entries(descriptor.descriptors);
        let Step { key, condition, .. } = self.path.pop()?;
        Some(Entry { line, key, condition, limit, nested })
    }

    /// Returns the entry's condition. `None` if no rule can express it. Its nested entries are then left out, too.
    fn step(&mut self, line: usize, descriptor: &Descriptor) -> Option<Step> {
        let (key, value) = (text(&descriptor.key).unwrap_or_default(), text(&descriptor.value));
        if let Err((what, fix)) = self.check_key(key) {
            self.error(line, format!("{what}: this entry and everything in it is left out"), fix);
            return None;
        }
        let name = value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"));
        let shared = is_set(&descriptor.share_threshold);
        let condition = match value {
            Some(value) if value.contains('*') => ValueCondition::Wildcard { pattern: Pattern::parse(value), shared },
            Some(value) => ValueCondition::Value(value.to_owned()),
            None => ValueCondition::Any,
        };
        if shared && !matches!(condition, ValueCondition::Wildcard { .. }) {
            let fix = "ratelimit rejects the file, too: remove it, or write a value with `*`";
            self.error(line, "`share_threshold` needs a value with `*`", fix);
        }
        Some(Step { line, key: key.to_owned(), condition, name })
    }

    /// Checks that a rule can require this key here. Returns the problem and its fix if it cannot.
    fn check_key(&self, key: &str) -> Result<(), (String, &'static str)> {
        if key.is_empty() {
            return Err(("an entry has no `key`".to_owned(), "ratelimit rejects the file, too: add `key: NAME`"));
        }
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
        let mut kept: Vec<Entry> = Vec::new();
        for entry in entries {
            let hides = |earlier: &&Entry| {
                earlier.key == entry.key && earlier.condition.pattern().contains(&entry.condition.pattern())
            };
            match kept.iter().rev().take_while(|earlier| earlier.condition.rank() > 0).find(hides) {
                None => kept.push(entry),
                Some(earlier) => {
                    let what = format!(
                        "this entry is unreachable: the one on line {} matches all of its values",
                        earlier.line
                    );
                    self.warning(entry.line, what, "remove it, or move it above that one");
                }
            }
        }
        kept
    }

    /// Reports keys that have no meaning where they are, and keys that are repeated.
    pub fn report_keys(&mut self, OddKeys { unknown, repeated }: &OddKeys) {
        for repeated in repeated {
            self.warning(line(&repeated.key), repeated.what(), Repeated::FIX);
        }
        for key in unknown {
            if is_known(&key.value) {
                let what = format!("`{}` has no effect here or in ratelimit", key.value);
                self.warning(line(key), what, "move it to where it belongs, or remove it");
            } else {
                let what = format!("`{}` is an unknown key and is left out", key.value);
                self.error(line(key), what, "remove it; ratelimit rejects the file, too, unless it is a newer version");
            }
        }
    }

    pub fn error(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        let operation = self.operation();
        self.problems.error(Location { line, operation: Some(&operation) }, what, fix);
    }

    pub fn warning(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        let operation = self.operation();
        self.problems.warning(Location { line, operation: Some(&operation) }, what, fix);
    }

    /// Returns the operation of a rule for the current entry.
    fn operation(&self) -> String {
        let pairs: Vec<_> = self.path.iter().map(|step| (step.key.as_str(), step.condition.pattern())).collect();
        header(pairs.iter().map(|(key, pattern)| (*key, pattern.as_str())))
    }
}
