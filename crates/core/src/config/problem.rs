//! Problems in a rules file, reported so that the operator can fix them: where, what, and how to fix it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// One error or warning. Displays as `file:line: [operation] what is wrong; what to do`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file, as given by the operator.
    pub file: Arc<str>,
    /// The line number, from 1. `None` for the file as a whole.
    pub line: Option<usize>,
    /// The rule, as written in its section header.
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

/// All problems that make a rules file unusable, by line. Displays one line for each problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Never empty.
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

impl From<Problems> for Report {
    fn from(mut problems: Problems) -> Self {
        let lists = problems.take_lists();
        let is_unread = problems.is_unread;
        let (errors, warnings) = problems.into_sorted();
        Self { errors, warnings, lists, is_unread }
    }
}

/// The position of a problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct Location<'a> {
    pub line: usize,
    pub operation: Option<&'a str>,
}

impl Location<'_> {
    pub fn line(line: usize) -> Self {
        Self { line, operation: None }
    }
}

/// Collects the problems of one file.
#[derive(Debug)]
pub(super) struct Problems {
    file: Arc<str>,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    differences: Vec<Problem>,
    lists: Vec<PathBuf>,
    is_unread: bool,
}

impl Problems {
    pub fn new(file: &str) -> Self {
        Self {
            file: file.into(),
            errors: Vec::new(),
            warnings: Vec::new(),
            differences: Vec::new(),
            lists: Vec::new(),
            is_unread: false,
        }
    }

    /// Notes that a file could not be read, besides the error.
    pub fn unread(&mut self) {
        self.is_unread = true;
    }

    /// Reports a problem with the file as a whole.
    pub fn file_error(&mut self, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(None, None, what.into(), fix.into());
        self.errors.push(problem);
    }

    pub fn error(&mut self, place: Location<'_>, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(Some(place.line), place.operation, what.into(), fix.into());
        self.errors.push(problem);
    }

    /// Reports an error on a line of another file than the rules file. Line 0 stands for the file as a whole.
    pub fn error_in(&mut self, file: &str, line: usize, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(Some(line).filter(|line| *line > 0), None, what.into(), fix.into());
        self.errors.push(Problem { file: file.into(), ..problem });
    }

    /// Adds a list file that the rules name.
    pub fn add_list(&mut self, path: PathBuf) {
        self.lists.push(path);
    }

    /// Returns the list files so far.
    pub fn take_lists(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.lists)
    }

    pub fn warning(&mut self, place: Location<'_>, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(Some(place.line), place.operation, what.into(), fix.into());
        self.warnings.push(problem);
    }

    /// Reports that Button's Divvy 1.7.1 reads the file differently.
    pub fn difference(&mut self, place: Location<'_>, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(Some(place.line), place.operation, what.into(), fix.into());
        self.differences.push(problem);
    }

    /// Returns the differences so far, by line.
    pub fn take_differences(&mut self) -> Vec<Problem> {
        self.differences.sort_by_key(|problem| problem.line);
        std::mem::take(&mut self.differences)
    }

    fn problem(&self, line: Option<usize>, operation: Option<&str>, what: String, fix: String) -> Problem {
        Problem { file: self.file.clone(), line, operation: operation.map(str::to_owned), what, fix }
    }

    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Returns the errors and the warnings, each by line. Problems of the whole file come first.
    pub fn into_sorted(mut self) -> (Vec<Problem>, Vec<Problem>) {
        // Problems of other files come last.
        self.errors.sort_by_key(|problem| (problem.file != self.file, problem.line));
        self.warnings.sort_by_key(|problem| problem.line);
        (self.errors, self.warnings)
    }
}
