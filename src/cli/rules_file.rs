//! Loads a rules file for a subcommand, and prints its problems on standard error.

use std::io::{self, Write};
use std::path::Path;

use super::text::printable;
use divvy_core::config::{self, Problem, Serving};
use divvy_core::rules::RuleSet;

/// Loads the rules of the file at `path`; `None` if it has errors. Prints its errors and warnings.
///
/// # Errors
/// Standard error cannot be written.
pub fn load(path: &Path) -> io::Result<Option<RuleSet>> {
    load_for(path, &Serving::default(), false)
}

/// Loads the rules as [`load`] does, for a server like `serving`. With `compares`, also prints where Button's Divvy 1.7.1 reads the
/// file differently.
///
/// # Errors
/// See [`load`].
pub fn load_for(path: &Path, serving: &Serving, compares: bool) -> io::Result<Option<RuleSet>> {
    match config::load_for(path, serving) {
        Ok(loaded) => {
            print(&loaded.warnings, "warning")?;
            if compares {
                print(&loaded.differences, "warning")?;
            }
            Ok(Some(loaded.rules))
        }
        Err(report) => {
            print(&report.errors, "error")?;
            print(&report.warnings, "warning")?;
            Ok(None)
        }
    }
}

/// Prints a line for each of `problems` on standard error.
///
/// # Errors
/// Standard error cannot be written.
pub fn print(problems: &[Problem], severity: &str) -> io::Result<()> {
    let mut err = io::BufWriter::new(io::stderr().lock());
    for problem in problems {
        writeln!(err, "{severity}: {}", printable(&problem.to_string()))?;
    }
    err.flush()
}
