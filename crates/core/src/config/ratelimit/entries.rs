//! Validates the entries of a file and their limits. Builds the tree that ratelimit would walk, and reports everything that
//! no rule can express.

use std::collections::{HashMap, HashSet};

use jiff::civil::Time;
use serde_saphyr::Spanned;

use super::yaml::{Descriptor, OddKeys, RateLimit, Repeated, Source, is_known, is_set, line, quotas, text};
use crate::calendar::{Calendar, Unit};
use crate::config::Problems;
use crate::config::checker::{MAX_LABEL_LENGTH, to_label};
use crate::rules::operation::DOMAIN;
use crate::rules::{Pattern, Seconds, Settings, header};

/// A domain and its entries, in ratelimit's order of lookup.
#[derive(Debug)]
pub struct Domain {
    pub name: String,
    pub entries: Vec<Entry>,
}

/// Validates a document; `None` if it has no domain that a rule can name.
pub fn domain((document, source): Source, labels: &mut Labels, problems: &mut Problems) -> Option<Domain> {
    let (name, line) = document.domain.as_ref().map_or(("", 1), |name| (name.value.as_str(), line(name)));
    if name.is_empty() {
        problems.error(line, "`domain` is missing", "ratelimit rejects the file, too: add `domain: NAME`");
        return None;
    }
    if name.contains('*') {
        let fix = "in a rule `*` stands for any characters: give the domain another name, here and in Envoy";
        problems.error(line, format!("the domain {name:?} has a `*`"), fix);
        return None;
    }
    let root =
        Step { line, key: DOMAIN.to_owned(), condition: ValueCondition::new(Some(name), false), name: name.to_owned() };
    let mut validator =
        EntryValidator { source: &source, path: vec![root], quotas: quotas(&document.descriptors), labels, problems };
    validator.report_keys(&document.odd_keys);
    let entries = validator.entries(document.descriptors);
    Some(Domain { name: name.to_owned(), entries })
}

/// An entry on the path to the current one.
struct Step {
    line: usize,
    key: String,
    condition: ValueCondition,
    /// Its name in ratelimit, which appears in statistics and identifies the entry.
    name: String,
}

struct EntryValidator<'a> {
    /// The text that the document is in.
    source: &'a str,
    /// Entries from the domain, which counts as one here, to the current entry.
    path: Vec<Step>,
    /// The lines of all limits of the domain with `quota_mode`.
    quotas: Vec<usize>,
    labels: &'a mut Labels,
    problems: &'a mut Problems,
}

impl EntryValidator<'_> {
    fn entries(&mut self, descriptors: Option<Vec<Spanned<Descriptor>>>) -> Vec<Entry> {
        let mut names = HashMap::new();
        let entries = descriptors.into_iter().flatten().filter_map(|descriptor| self.entry(descriptor, &mut names));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_by_key(|entry| entry.condition.rank);
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
        let condition = ValueCondition::new(value, shared);
        if shared && condition.rank != Rank::Wildcard {
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
                earlier.key == entry.key && earlier.condition.pattern.contains(&entry.condition.pattern)
            };
            match kept.iter().rev().take_while(|earlier| earlier.condition.rank > Rank::Exact).find(hides) {
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
    fn report_keys(&mut self, OddKeys { unknown, repeated }: &OddKeys) {
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

    /// Returns the limit of the current entry; `None` if it has none, or one that no rule can express.
    fn limit(&mut self, descriptor: &Descriptor) -> Option<Limit> {
        self.report_keys(&descriptor.odd_keys);
        self.report_metrics(descriptor);
        let Some(given) = &descriptor.rate_limit else {
            if let Some(line) = descriptor.metadata.as_ref().map(line) {
                let what = "`metadata` has no effect on an entry without `rate_limit`";
                self.warning(line, what, "move it to the entry that has the limit");
            }
            self.report_idle_modes(descriptor, "an entry without `rate_limit`");
            return None;
        };
        self.report_keys(&given.value.odd_keys);
        let settings = self.settings(given)?;
        self.report_replaces(&given.value);
        if let Some(line) = descriptor.metadata.as_ref().map(line) {
            let fix = "let the gateway set it by the reply's status, or by the rule's name in `current_limit`";
            self.error(line, "`metadata` is left out: divvy's replies have no metadata", fix);
        }
        if is_set(&given.value.unlimited) {
            self.report_idle_modes(descriptor, "an unlimited entry");
        } else if !self.check_quota_mode(descriptor) {
            return None;
        }
        let trial = is_set(&descriptor.shadow_mode);
        Some(Limit { settings, trial, label: self.label(&given.value) })
    }

    fn settings(&mut self, given: &Spanned<RateLimit>) -> Option<Settings> {
        let RateLimit { unit, requests_per_unit, unlimited: is_unlimited, .. } = &given.value;
        let window = text(unit).and_then(window);
        if is_set(is_unlimited) {
            if window.is_some() {
                let fix = "ratelimit rejects the file, too: remove one of them";
                self.error(line(given), "`unit` contradicts `unlimited: true`, which the rule follows", fix);
            }
            return Some(Settings::unlimited());
        }
        let Some(window) = window else {
            let at = unit.as_ref().map_or_else(|| line(given), line);
            let what = format!("unknown unit {:?}: the limit is left out", text(unit).unwrap_or_default());
            self.error(at, what, "write second, minute, hour, day, week, month, or year");
            return None;
        };
        let Some(requests) = requests_per_unit else {
            let what = "`requests_per_unit` is missing, which ratelimit reads as 0: deny all";
            self.warning(line(given), what, "add it");
            return Some(window);
        };
        let Some(credit_limit) = read_number(&requests.value) else {
            let what = format!("`requests_per_unit` is {:?}: the limit is left out", requests.value);
            self.error(line(requests), what, format!("write a whole number up to {}", u32::MAX));
            return None;
        };
        if self.is_quoted(requests) {
            let what =
                format!("`requests_per_unit` is a text, which ratelimit rejects: the rule takes it as {credit_limit}");
            self.warning(line(requests), what, "write it without quotes");
        } else if credit_limit.to_string() != requests.value {
            let what = format!("`requests_per_unit` is {}, which ratelimit reads as {credit_limit}", requests.value);
            self.warning(line(requests), what, format!("write {credit_limit}"));
        }
        self.report_length(given, &window);
        Some(Settings { credit_limit: credit_limit.into(), ..window })
    }

    /// Returns whether a number is in quotes, which makes it a text.
    fn is_quoted(&self, number: &Spanned<String>) -> bool {
        let offset = number.defined.span().byte_offset().and_then(|offset| usize::try_from(offset).ok());
        matches!(offset.and_then(|offset| self.source.as_bytes().get(offset)), Some(b'"' | b'\''))
    }

    /// Reports a unit whose windows ratelimit counts from 1970, in days of a fixed number.
    fn report_length(&mut self, given: &Spanned<RateLimit>, window: &Settings) {
        let (unit, days) = match window.calendar.map(Calendar::unit) {
            Some(unit @ Unit::Week) => (unit.name(), 7),
            Some(unit @ Unit::Month) => (unit.name(), 30),
            Some(unit @ Unit::Year) => (unit.name(), 365),
            _ => return,
        };
        let what = format!("a {unit} becomes a calendar {unit}; ratelimit uses {days} days, counted from 1970");
        self.warning(line(given), what, format!("for windows of that length, write `per = {days}d` in the rule"));
    }

    fn report_replaces(&mut self, given: &RateLimit) {
        for replaced in given.replaces.iter().flatten() {
            let name = text(&replaced.value.name).unwrap_or_default();
            let what = format!(
                "`replaces` {name:?} is left out: divvy applies each descriptor's limit separately, including that \
                 one's"
            );
            self.error(line(replaced), what, "raise that limit, or send only one of the two descriptors");
            self.report_keys(&replaced.value.odd_keys);
        }
    }

    /// Reports `quota_mode`, and returns whether a rule can still express the limit.
    ///
    /// Ratelimit denies a request if all of its quota descriptors are over their limits. A single quota is therefore an
    /// ordinary limit. Any two limits of a domain can occur in one request, regardless of their keys.
    fn check_quota_mode(&mut self, descriptor: &Descriptor) -> bool {
        let Some(quota_mode) = descriptor.quota_mode.as_ref().filter(|set| set.value) else { return true };
        // Shadow mode takes precedence: ratelimit never treats such a quota as exceeded, and a canary never denies.
        if is_set(&descriptor.shadow_mode) {
            return true;
        }
        let line = line(quota_mode);
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

    fn report_metrics(&mut self, descriptor: &Descriptor) {
        for (name, switch) in
            [("detailed_metric", &descriptor.detailed_metric), ("value_to_metric", &descriptor.value_to_metric)]
        {
            if let Some(switch) = switch.as_ref().filter(|switch| switch.value) {
                let what = format!("`{name}` is left out: divvy's metrics are by rule, not by value");
                self.error(line(switch), what, "give each value that you want to see its own entry");
            }
        }
    }

    /// Warns about settings that ratelimit also ignores on `place`.
    fn report_idle_modes(&mut self, descriptor: &Descriptor, place: &str) {
        for (name, switch) in [("shadow_mode", &descriptor.shadow_mode), ("quota_mode", &descriptor.quota_mode)] {
            if let Some(switch) = switch.as_ref().filter(|switch| switch.value) {
                let what = format!("`{name}` has no effect on {place}");
                self.warning(line(switch), what, "move it to the entry that has the limit");
            }
        }
    }

    /// Returns the limit's name, or else its name in ratelimit's statistics.
    fn label(&mut self, given: &RateLimit) -> String {
        let Some(name) = given.name.as_ref().filter(|name| !name.value.is_empty()) else {
            let names: Vec<_> = self.path.iter().map(|step| step.name.as_str()).collect();
            return self.labels.make(&names.join("."));
        };
        let label = self.labels.make(&name.value);
        if label != name.value {
            let what = format!("the name {:?} becomes the label {label:?}", name.value);
            self.warning(line(name), what, "a label is unique, and has letters, digits, `-` and `_`");
        }
        label
    }
}

/// Reads a whole number up to [`u32::MAX`]: `100`, `+100`, `1_000`, `1e3`, `0x64`, `0b101`, `0o10`, and `010`, which is
/// 8.
pub fn read_number(text: &str) -> Option<u32> {
    // A number begins with a digit, a sign or a point. Underscores may come after it.
    let text = if text.starts_with('_') { String::new() } else { text.replace('_', "") };
    let digits = text.strip_prefix('+').unwrap_or(&text);
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let radix = |prefixes: [&str; 2], radix| {
        let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix))?;
        digits
            .starts_with(|first: char| first.is_ascii_alphanumeric())
            .then(|| u32::from_str_radix(digits, radix).ok())?
    };
    if !is_number {
        return None;
    }
    radix(["0x", "0X"], 16)
        .or_else(|| radix(["0b", "0B"], 2))
        .or_else(|| radix(["0o", "0O"], 8))
        .or_else(|| radix(["0", "0"], 8))
        .or_else(|| whole_number(digits))
}

/// Reads a decimal number, with or without an exponent.
fn whole_number(digits: &str) -> Option<u32> {
    let number = digits.parse::<f64>().ok().filter(|number| number.fract() == 0.0)?;
    (0.0..=f64::from(u32::MAX)).contains(&number).then_some(number as u32)
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

/// Returns the settings for the window of a ratelimit unit, whose case does not matter. In ratelimit, windows begin and
/// end by the clock, in UTC.
pub fn window(unit: &str) -> Option<Settings> {
    let name = unit.to_ascii_lowercase();
    if name == "second" {
        return Some(Settings { reset_seconds: Seconds::whole(1), ..Settings::default() });
    }
    let unit = Unit::ALL.into_iter().find(|unit| unit.name() == name)?;
    Some(Settings { calendar: Calendar::new(unit, "UTC", Time::midnight()), ..Settings::default() })
}

#[derive(Debug, Default)]
pub struct Labels(HashSet<String>);

impl Labels {
    /// Turns `name` into a label: invalid characters become `-`, and a label that is in use gets a number.
    pub fn make(&mut self, name: &str) -> String {
        let base = to_label(name);
        let numbered = (2..).map(|number: u64| shortened(&base, &format!("-{number}")));
        let mut candidates = std::iter::once(shortened(&base, "")).chain(numbered);
        let unused = candidates.find(|label| !self.0.contains(label)).unwrap_or_default();
        self.0.insert(unused.clone());
        unused
    }
}

/// Joins `base` and `suffix`. Cuts `base` if the result would be too long.
fn shortened(base: &str, suffix: &str) -> String {
    let room = MAX_LABEL_LENGTH.saturating_sub(suffix.len());
    base.chars().take(room).chain(suffix.chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_ratelimit() {
        for (text, expected) in [
            ("0", 0),
            ("100", 100),
            ("+5", 5),
            ("1_000", 1_000),
            ("0x64", 100),
            ("0X64", 100),
            ("0b101", 5),
            ("0o10", 8),
            ("010", 8),
            ("08", 8),
            ("1e3", 1_000),
            ("1.5e1", 15),
            ("100.0", 100),
            ("4294967295", u32::MAX),
        ] {
            assert_eq!(read_number(text), Some(expected), "{text}");
        }
        for text in "|-1|1.5|4294967296|0x100000000|many|0x|0x+5|1 000|_1|_|inf|nan|++5".split('|') {
            assert_eq!(read_number(text), None, "{text}");
        }
    }

    #[test]
    fn labels_are_valid_and_unique() {
        let mut labels = Labels::default();
        assert_eq!(labels.make("per_ip-1"), "per_ip-1");
        assert_eq!(labels.make("edge.path_/a*é"), "edge-path_-a--");
        assert_eq!(labels.make("edge.path_/b"), "edge-path_-b");
        assert_eq!(labels.make("edge.path.-b"), "edge-path--b");
        assert_eq!(labels.make("edge.path_.b"), "edge-path_-b-2");
        assert_eq!(labels.make("edge-path_-b"), "edge-path_-b-3");
    }

    #[test]
    fn long_names_are_cut_and_stay_unique() {
        let mut labels = Labels::default();
        let (one, other) = (labels.make(&"x".repeat(300)), labels.make(&"x".repeat(301)));
        assert_eq!((one.len(), other.len()), (MAX_LABEL_LENGTH, MAX_LABEL_LENGTH));
        assert!(one != other && other.ends_with("x-2"), "{other}");
    }
}
