//! Reads rules files: the result is either validated rules or every problem with its line.
//!
//! INI and JSON are read into one raw document, which is then validated. Rules can be written in both formats. The
//! limits of envoyproxy/ratelimit, limitador and Kuadrant can be converted to rules. [`crate::rules`] defines what rules mean and how
//! they are matched.
//!
//! A [`Problem`] in a file of the operator's is reported so that it can be fixed: where, what, and how. Rules files, access files
//! and key files have the same form of problems.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use conditions::Lists;
use document::read_text;

use crate::rules::{Rule, RuleSet, Spellings};
use crate::units::shorten;

mod checker;
mod conditions;
mod consistency;
mod conversion;
mod document;
mod ini;
mod json;
mod kuadrant;
mod labels;
mod limitador;
pub mod ratelimit;
mod validate;
mod write;
mod yaml;

pub use conversion::{Import, import, import_text, is_yaml};
pub use document::{Format, MAX_FILE_BYTES};
pub use write::{Unwritable, fingerprint, write};

/// Rules that are ready to be served.
#[derive(Debug)]
pub struct Loaded {
    /// The rules, compiled for matching.
    pub rules: RuleSet,
    /// Harmless settings that look like mistakes, by line.
    pub warnings: Vec<Problem>,
    /// Differences in how Button's Divvy 1.7.1 reads the file, by line. They matter if both programs use the file.
    pub differences: Vec<Problem>,
    /// The list files that the rules name.
    pub lists: Vec<PathBuf>,
}

/// The server that rules are for.
#[derive(Debug, Clone, Default)]
pub struct Serving {
    /// Whether the counters are in a Redis Cluster. Rules of a stack whose counters would be in different slots are errors.
    pub redis_cluster: bool,
    /// The keys that checks normalize. Patterns that no check matches are errors.
    pub spellings: Spellings,
}

/// Reads the rules file at `path` for a server. Its extension selects the format.
///
/// # Errors
/// Returns a report of every problem in the file.
pub fn load_for(path: &Path, serving: &Serving) -> Result<Loaded, Report> {
    let file_name = path.display().to_string();
    let mut problems = Problems::new(&file_name);
    let format = Format::of(path);
    if format.is_none() {
        let fix = "name a rules file *.ini or *.json; ratelimit's YAML belongs to --ratelimit-config, YAML of ratelimit, limitador or \
                   Kuadrant becomes one by `divvy convert FILE.yaml rules.ini`, and access files belong to `divvy access check` and --access-file";
        problems.file_error("unknown file extension", fix);
    }
    let text = read_text(path, &mut problems);
    let (Some(format), Some(text)) = (format, text) else { return Err(problems.into()) };
    let Loaded { rules, warnings, differences, lists } = parse(&text, format, path)?;
    if serving.redis_cluster {
        consistency::check_slots(&rules, &mut problems);
    }
    match consistency::spell(rules, &serving.spellings, path, &mut problems) {
        Some(rules) if !problems.has_errors() => Ok(Loaded { rules, warnings, differences, lists }),
        _ => Err(Report { warnings, lists, ..Report::from(problems) }),
    }
}

/// Reads rules from `text` as if it was the file at `path`: list files are found from there.
///
/// # Errors
/// See [`load_for`].
pub fn parse(text: &str, format: Format, path: impl AsRef<Path>) -> Result<Loaded, Report> {
    let path = path.as_ref();
    let (mut lists, mut problems) = (Lists::of(path), Problems::new(&path.display().to_string()));
    let rules = match format {
        Format::Ini => Some(ini::read(text, &mut problems)),
        Format::Json => json::read(text, &mut problems),
    };
    let rules = rules.and_then(|rules| consistency::compile(&rules, &mut lists, &mut problems));
    match rules {
        Some(rules) if !problems.has_errors() => {
            let mut differences = std::mem::take(&mut problems.differences);
            differences.sort_by_key(|problem| problem.line);
            let Report { warnings, lists, .. } = problems.into();
            Ok(Loaded { rules, warnings, differences, lists })
        }
        _ => Err(Report::from(problems)),
    }
}

/// One error or warning. Displays as `file:line: [operation] what is wrong; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file, as given by the operator.
    pub file: Arc<str>,
    /// The line number, from 1. `None` for the file as a whole.
    pub line: Option<usize>,
    /// The rule, as written in its section header, if the problem is in one.
    pub operation: Option<String>,
    /// Description of the problem, without a final period.
    pub what: String,
    /// Advice for correcting it.
    pub fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if let Some(operation) = &self.operation {
            write!(f, " [{operation}]")?;
        }
        write!(f, " {}; {}", self.what, self.fix)
    }
}

/// The problems of a file, by line. Displays one line for each error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Problems that make the file unusable.
    pub errors: Vec<Problem>,
    /// Warnings, which do not make the file unusable.
    pub warnings: Vec<Problem>,
    /// The list files that the rules name, even if they cannot be read.
    pub lists: Vec<PathBuf>,
    /// Whether the file or a list could not be read, so that another try may succeed.
    pub is_unread: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.errors.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for Report {}

impl Report {
    /// Creates the report of one error about a whole source.
    pub fn of(source: &dyn fmt::Display, error: &dyn fmt::Display) -> Self {
        let mut problems = Problems::new(&source.to_string());
        problems.file_error(error.to_string(), "correct that, and load it again");
        problems.into()
    }

    /// Adds the problems of another file.
    fn append(&mut self, other: Self) {
        self.errors.extend(other.errors);
        self.warnings.extend(other.warnings);
        self.lists.extend(other.lists);
        self.is_unread |= other.is_unread;
    }
}

impl From<Problems> for Report {
    /// Sorts the problems. The problems of the whole file come first.
    fn from(Problems { file, mut report, .. }: Problems) -> Self {
        // Problems of other files come last.
        report.errors.sort_by(|one, next| {
            (one.file != file, &one.file, one.line).cmp(&(next.file != file, &next.file, next.line))
        });
        report.warnings.sort_by_key(|problem| problem.line);
        report
    }
}

/// Maximum length of a rule in a problem (bytes). A file may have as many problems as lines.
const MAX_SHOWN: usize = 256;

/// The position of a problem: a line, and the rule there, if it is in one. Line 0 stands for the file as a whole.
#[derive(Debug, Clone)]
pub struct Location {
    line: usize,
    operation: Option<String>,
}

impl From<usize> for Location {
    fn from(line: usize) -> Self {
        Self { line, operation: None }
    }
}

/// A line, and the header of the rule there.
impl<'a, H: Into<Option<&'a str>>> From<(usize, H)> for Location {
    fn from((line, header): (usize, H)) -> Self {
        Self { line, operation: header.into().map(str::to_owned) }
    }
}

impl From<&Rule> for Location {
    fn from(rule: &Rule) -> Self {
        Self { line: rule.line, operation: Some(rule.to_string()) }
    }
}

/// Collects the problems of one file.
#[derive(Debug)]
pub struct Problems {
    file: Arc<str>,
    report: Report,
    /// Differences in how Button's Divvy 1.7.1 reads the file.
    differences: Vec<Problem>,
}

impl Problems {
    /// Creates an empty list for the file with this name.
    pub fn new(file: &str) -> Self {
        Self { file: file.into(), report: Report::default(), differences: Vec::new() }
    }

    /// Returns the name of the file.
    pub fn file(&self) -> Arc<str> {
        self.file.clone()
    }

    /// Notes that a file could not be read, besides the error.
    pub fn unread(&mut self) {
        self.report.is_unread = true;
    }

    /// Reports a problem with the file as a whole.
    pub fn file_error(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        self.error(0_usize, what, fix);
    }

    /// Reports an error.
    pub fn error(&mut self, place: impl Into<Location>, what: impl Into<String>, fix: impl Into<String>) {
        self.report.errors.push(self.problem(place, what, fix));
    }

    /// Reports an error on a line of another file than the rules file.
    fn error_in(&mut self, file: &str, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        self.report.errors.push(Problem { file: file.into(), ..self.problem(line, what, fix) });
    }

    /// Reports something that is valid, but perhaps not intended.
    pub fn warning(&mut self, place: impl Into<Location>, what: impl Into<String>, fix: impl Into<String>) {
        self.report.warnings.push(self.problem(place, what, fix));
    }

    /// Reports that Button's Divvy 1.7.1 reads the file differently.
    fn difference(&mut self, place: impl Into<Location>, what: impl Into<String>, fix: impl Into<String>) {
        self.differences.push(self.problem(place, what, fix));
    }

    fn problem(&self, place: impl Into<Location>, what: impl Into<String>, fix: impl Into<String>) -> Problem {
        let (file, Location { line, operation }) = (self.file.clone(), place.into());
        let operation = operation.map(|operation| shorten(operation, MAX_SHOWN));
        Problem { file, line: Some(line).filter(|line| *line > 0), operation, what: what.into(), fix: fix.into() }
    }

    /// Returns whether the file is unusable.
    pub fn has_errors(&self) -> bool {
        !self.report.errors.is_empty()
    }

    /// Returns the lines with errors.
    pub fn lines_with_errors(&self) -> HashSet<usize> {
        self.report.errors.iter().filter_map(|problem| problem.line).collect()
    }
}

#[cfg(test)]
mod tests;
