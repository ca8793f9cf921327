//! Domains as ratelimit serves them: validated, in the order of their files, with every setting. A configuration that
//! ratelimit refuses is an error.
//!
//! Files enter through [`load`] or [`Domains::add_text`], other sources through [`Domains::add`]. The converter uses a domain
//! even if it has errors: entries and limits with errors that leave no meaning are missing in it.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use indexmap::map::Entry::{Occupied, Vacant};
use serde_json::{Map, Value};

use super::raw::{At, Finding, RawDomain, RawEntry, RawLimit, Requests};
use super::reader;
use crate::config::document::read_text;
use crate::config::{Problem, Problems, Report};
use crate::rules::header;
use crate::rules::operation::DOMAIN;

/// All domains of a server.
#[derive(Debug, Default)]
pub struct Domains {
    /// Whether descriptors of a domain may be in several documents.
    merges: bool,
    domains: IndexMap<String, Domain>,
}

/// A domain, and its entries.
#[derive(Debug)]
pub struct Domain {
    /// The name, which is not empty.
    pub name: String,
    /// The place of the name.
    pub place: Place,
    /// The entries, in the order of the sources. Names differ.
    pub entries: Vec<Entry>,
}

/// An entry, which ratelimit calls a descriptor.
#[derive(Debug)]
pub struct Entry {
    /// The place where the entry begins.
    pub place: Place,
    /// The key, which is not empty.
    pub key: String,
    /// The value, or a pattern with `*`. `None` for any value.
    pub value: Option<String>,
    /// The limit of requests that end at this entry.
    pub limit: Option<Limit>,
    /// Nested entries, in the order of the source. Names differ.
    pub entries: Vec<Entry>,
    /// Whether statistics have all values of a request that ends at this entry.
    pub detailed_metric: At<bool>,
    /// Whether statistics have the request's value of this key.
    pub value_to_metric: At<bool>,
    /// Whether all values that match share one counter.
    pub share_threshold: bool,
}

/// A limit, or the absence of one that is written down.
#[derive(Debug)]
pub struct Limit {
    /// The line where the limit begins.
    pub line: usize,
    /// The number of requests.
    pub rate: Rate,
    /// The name, or an empty text.
    pub name: At<String>,
    /// The names of the limits that this one replaces.
    pub replaces: Vec<At<String>>,
    /// Whether the limit never denies.
    pub shadow_mode: bool,
    /// Whether the limit denies only together with all other quotas of a request.
    pub quota_mode: At<bool>,
    /// Data that answers repeat.
    pub metadata: Option<At<Map<String, Value>>>,
}

/// The requests that a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Any number.
    Unlimited,
    /// A number in each window of a unit of time.
    PerUnit {
        /// The number.
        requests: u32,
        /// The unit.
        unit: Unit,
    },
}

named_values! {
    /// A unit of time, whose windows begin with 1970.
    Unit {
        /// One second.
        Second = "second",
        /// 60 seconds.
        Minute = "minute",
        /// 60 minutes.
        Hour = "hour",
        /// 24 hours.
        Day = "day",
        /// 7 days.
        Week = "week",
        /// 30 days.
        Month = "month",
        /// 365 days.
        Year = "year",
    }
}

/// A line of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the file or resource.
    pub file: Arc<str>,
    /// The line, from 1. 0 if the source has no lines.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl Unit {
    /// Returns the unit with this name, whose case does not matter.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

impl Entry {
    /// Returns the text that identifies the entry among those at its level. Requests are compared with it.
    pub fn name(&self) -> String {
        name(&self.key, self.value.as_deref().unwrap_or_default())
    }
}

fn name(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

/// Reads ratelimit's files for a server. With `merges`, descriptors of a domain may be in several documents. Returns the
/// domains, and warnings about the files.
///
/// # Errors
/// A file cannot be read, or ratelimit refuses it.
pub fn load<P: AsRef<Path>>(paths: &[P], merges: bool) -> Result<(Domains, Vec<Problem>), Report> {
    let (mut domains, mut report) = (Domains::new(merges), Report::default());
    for path in paths.iter().map(AsRef::as_ref) {
        let mut problems = Problems::new(&path.display().to_string());
        if let Some(text) = read_text(path, &mut problems) {
            domains.add_text(&text, &mut problems);
        }
        report.append(problems.into());
    }
    if report.errors.is_empty() { Ok((domains, report.warnings)) } else { Err(report) }
}

impl Domains {
    /// Creates an empty list. With `merges`, descriptors of a domain may be in several documents.
    pub fn new(merges: bool) -> Self {
        Self { merges, domains: IndexMap::new() }
    }

    /// Returns the domain with this name.
    pub fn get(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// Returns all domains, in the order of the sources.
    pub fn iter(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values()
    }

    /// Adds the domains of a file.
    pub fn add_text(&mut self, text: &str, problems: &mut Problems) {
        for domain in reader::read(text, problems, &mut |_, _| false).unwrap_or_default() {
            self.add(domain, problems);
        }
    }

    /// Validates a domain, and adds it. Returns it, or `None` if it has no name or may not be added.
    pub fn add(&mut self, given: RawDomain, problems: &mut Problems) -> Option<&Domain> {
        let RawDomain { line, domain: At { line: line_of_name, value: name }, descriptors, findings } = given;
        let place = Place { file: problems.file(), line: line_of_name };
        if name.is_empty() {
            problems.error(line, "`domain` is missing", "ratelimit rejects the file, too: add `domain: NAME`");
            return None;
        }
        let mut validator = Validator { path: vec![(DOMAIN.to_owned(), name.clone())], problems };
        validator.report(findings);
        match self.domains.entry(name) {
            Vacant(new) => {
                let mut entries = Vec::new();
                validator.entries(descriptors, &mut entries);
                let name = new.key().clone();
                Some(new.insert(Domain { name, place, entries }))
            }
            Occupied(known) if self.merges => {
                let known = known.into_mut();
                validator.entries(descriptors, &mut known.entries);
                Some(known)
            }
            Occupied(known) => {
                let what = format!("the domain {:?} is in {}, too", known.key(), known.get().place);
                problems.error(line_of_name, what, "put all descriptors of a domain in one document");
                None
            }
        }
    }
}

struct Validator<'a> {
    /// The keys and values from the domain, which counts as one here, to the current entry.
    path: Vec<(String, String)>,
    problems: &'a mut Problems,
}

impl Validator<'_> {
    /// Validates entries, and adds them to the `entries` that are known at their level.
    fn entries(&mut self, given: Vec<RawEntry>, entries: &mut Vec<Entry>) {
        let mut names: HashMap<_, _> = entries.iter().map(|entry| (entry.name(), entry.place.clone())).collect();
        for given in given {
            let (line, name) = (given.line, name(&given.key.value, &given.value.value));
            if given.key.value.is_empty() {
                self.refused(line, "an entry has no `key`", "add `key: NAME`");
                self.report(given.findings);
            } else if let Some(first) = names.get(&name) {
                let file = self.problems.file();
                let is_here = first.line > 0 && first.file == file;
                let place = if is_here { format!("on line {}", first.line) } else { format!("in {first}") };
                self.refused(line, format!("the entry {name:?} is {place}, too"), "keep one of them");
            } else {
                let entry = self.entry(given);
                names.insert(name, entry.place.clone());
                entries.push(entry);
            }
        }
    }

    fn entry(&mut self, given: RawEntry) -> Entry {
        let RawEntry { line, key, value, rate_limit, descriptors, shadow_mode, quota_mode, metadata, findings, .. } =
            given;
        let RawEntry { detailed_metric, value_to_metric, share_threshold: At { value: share_threshold, .. }, .. } =
            given;
        let (key, value) = (key.value, Some(value.value).filter(|value| !value.is_empty()));
        if share_threshold && !(key.contains('*') || value.as_ref().is_some_and(|value| value.contains('*'))) {
            let fix = "remove it, or write a value with `*`";
            self.refused(line, "`share_threshold` needs a value with `*`", fix);
        }
        self.path.push((key.clone(), value.as_deref().unwrap_or("*").to_owned()));
        self.report(findings);
        let limit = match rate_limit {
            Some(given) => {
                if given.unlimited.value {
                    self.report_idle_modes([shadow_mode, quota_mode], "an unlimited entry");
                }
                let rate = self.rate(&given);
                let RawLimit { line, name, replaces, .. } = *given;
                let replaces = self.replaces(&name.value, replaces);
                let shadow_mode = shadow_mode.value;
                rate.map(|rate| Limit { line, rate, name, replaces, shadow_mode, quota_mode, metadata })
            }
            None => {
                if let Some(metadata) = metadata {
                    let what = "`metadata` has no effect on an entry without `rate_limit`";
                    self.warning(metadata.line, what, "move it to the entry that has the limit");
                }
                self.report_idle_modes([shadow_mode, quota_mode], "an entry without `rate_limit`");
                None
            }
        };
        let mut entries = Vec::new();
        self.entries(descriptors, &mut entries);
        self.path.pop();
        let place = Place { file: self.problems.file(), line };
        Entry { place, key, value, limit, entries, detailed_metric, value_to_metric, share_threshold }
    }

    /// Returns the requests that a limit allows; `None` if ratelimit refuses it.
    fn rate(&mut self, limit: &RawLimit) -> Option<Rate> {
        let unit = Unit::parse(&limit.unit.value);
        if limit.unlimited.value {
            if unit.is_some() {
                self.refused(limit.line, "`unit` contradicts `unlimited: true`", "remove one of them");
            }
            return Some(Rate::Unlimited);
        }
        let Some(unit) = unit else {
            let line = if limit.unit.value.is_empty() { limit.line } else { limit.unit.line };
            let what = format!("unknown unit {:?}", limit.unit.value);
            self.refused(line, what, "write second, minute, hour, day, week, month, or year");
            return None;
        };
        let requests = match limit.requests_per_unit.value {
            Requests::Number(requests) => requests,
            Requests::Invalid => return None,
            Requests::Missing => {
                let what = "`requests_per_unit` is missing, which ratelimit reads as 0: deny all";
                self.warning(limit.line, what, "add it");
                0
            }
        };
        Some(Rate::PerUnit { requests, unit })
    }

    /// Returns the names of replaced limits without those that ratelimit refuses.
    fn replaces(&mut self, own_name: &str, mut replaces: Vec<At<String>>) -> Vec<At<String>> {
        replaces.retain(|At { line, value: name }| {
            if name.is_empty() {
                self.refused(*line, "an entry of `replaces` has no `name`", "add `name: NAME`");
            } else if name == own_name {
                self.refused(*line, format!("the limit {name:?} replaces itself"), "name another limit");
            }
            !name.is_empty() && name != own_name
        });
        replaces
    }

    /// Warns about settings that ratelimit also ignores on `place`.
    fn report_idle_modes(&mut self, switches: [At<bool>; 2], place: &str) {
        for (name, switch) in ["shadow_mode", "quota_mode"].into_iter().zip(switches) {
            if switch.value {
                let what = format!("`{name}` has no effect on {place}");
                self.warning(switch.line, what, "move it to the entry that has the limit");
            }
        }
    }

    fn report(&mut self, findings: Vec<Finding>) {
        for Finding { line, is_error, what, fix } in findings {
            let header = self.header();
            let place = (line, header.as_str());
            if is_error { self.problems.error(place, what, fix) } else { self.problems.warning(place, what, fix) }
        }
    }

    fn refused(&mut self, line: usize, what: impl Into<String>, fix: &str) {
        let fix = format!("ratelimit rejects the file, too: {fix}");
        self.problems.error((line, self.header().as_str()), what, fix);
    }

    fn warning(&mut self, line: usize, what: impl Into<String>, fix: &str) {
        self.problems.warning((line, self.header().as_str()), what, fix);
    }

    /// Returns the operation of a rule for the current entry.
    fn header(&self) -> String {
        header(self.path.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}
