//! Loads a rules file for a subcommand and tells the operator what is wrong with it, on standard error.

use std::io::{self, Write};
use std::path::Path;

use crate::config::{self, Problem};
use crate::rules::RuleSet;

/// The rules of the file at `path`; `None` when it has errors, which are printed by then, as are its warnings.
///
/// # Errors
/// Standard error cannot be written to.
pub fn load(path: &Path) -> io::Result<Option<RuleSet>> {
    let (rules, errors, warnings) = match config::load(path) {
        Ok(loaded) => (Some(loaded.rules), Vec::new(), loaded.warnings),
        Err(report) => (None, report.errors, report.warnings),
    };
    print(&errors, "error")?;
    print(&warnings, "warning")?;
    Ok(rules)
}

/// Prints a line for each of `problems` on standard error.
///
/// # Errors
/// Standard error cannot be written to.
pub fn print(problems: &[Problem], severity: &str) -> io::Result<()> {
    let mut err = io::BufWriter::new(io::stderr().lock());
    for problem in problems {
        writeln!(err, "{severity}: {problem}")?;
    }
    err.flush()
}
