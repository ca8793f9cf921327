//! Problems in a file with test cases. They have the form of problems in a rules file.

use crate::config::Problem;

/// Returns a problem with a whole file, or with one of its lines.
pub fn problem(file: &str, line: Option<usize>, what: String, fix: &str) -> Problem {
    Problem { file: file.into(), line, operation: None, what, fix: fix.to_owned() }
}
