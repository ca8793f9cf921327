//! Problems in an access file or a key file, reported so that the operator can fix them: the line, the problem, and the fix.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// One error or warning. Displays as `file:line: what is wrong; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file, as given by the operator.
    pub file: Arc<str>,
    /// The line number, from 1. `None` for the file as a whole.
    pub line: Option<usize>,
    /// Description of the problem, without a final period. It contains no hash and no password.
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
        write!(f, " {}; {}", self.what, self.fix)
    }
}

/// The problems of an access file, or a key file, by line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Problems that make the file unusable.
    pub errors: Vec<Problem>,
    /// Problems that do not.
    pub warnings: Vec<Problem>,
    /// Whether the file could not be read, so that another try may succeed.
    pub is_unread: bool,
}

impl Report {
    /// Returns a report of a file that cannot be read.
    pub fn unreadable(file: &str, reason: impl fmt::Display) -> Self {
        let what = format!("cannot read the file: {reason}");
        let error =
            Problem { file: file.into(), line: None, what, fix: "name a text file that divvy may read".to_owned() };
        Self { errors: vec![error], warnings: Vec::new(), is_unread: true }
    }
}

/// Collects the problems of one file.
#[derive(Debug)]
pub(super) struct Problems {
    file: Arc<str>,
    report: Report,
    lines_with_errors: HashSet<usize>,
}

impl Problems {
    pub fn new(file: &str) -> Self {
        let report = Report { errors: Vec::new(), warnings: Vec::new(), is_unread: false };
        Self { file: file.into(), report, lines_with_errors: HashSet::new() }
    }

    pub fn error(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(line, what.into(), fix.into());
        self.report.errors.push(problem);
        self.lines_with_errors.insert(line);
    }

    /// Returns whether the line has an error.
    pub fn has_error(&self, line: usize) -> bool {
        self.lines_with_errors.contains(&line)
    }

    /// Adds an error of the file as a whole.
    pub fn file_error(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        let problem = Problem { line: None, ..self.problem(0, what.into(), fix.into()) };
        self.report.errors.push(problem);
    }

    pub fn warning(&mut self, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(line, what.into(), fix.into());
        self.report.warnings.push(problem);
    }

    fn problem(&self, line: usize, what: String, fix: String) -> Problem {
        Problem { file: Arc::clone(&self.file), line: Some(line), what, fix }
    }

    /// Returns the problems, each kind by line.
    pub fn into_report(mut self) -> Report {
        self.report.errors.sort_by_key(|problem| problem.line);
        self.report.warnings.sort_by_key(|problem| problem.line);
        self.report
    }
}
