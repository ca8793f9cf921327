//! Loads a rules file for a subcommand, and prints its problems on standard error.

use std::io::{self, Write};
use std::path::Path;

use super::text::printable;
use divvy_core::config::{self, Loaded, Problem, Report, Serving};
use divvy_core::rules::RuleSet;

/// Checks that only some rules files need.
#[derive(Debug, Clone, Default)]
pub struct ExtraChecks {
    /// Report what does not work on this server.
    pub serving: Serving,
    /// Report where Button's Divvy 1.7.1 reads the file differently.
    pub buttons_divvy: bool,
}

/// Loads the rules of the file at `path`; `None` if it has errors. Prints its errors and warnings.
///
/// # Errors
/// Standard error cannot be written.
pub fn load(path: &Path) -> io::Result<Option<RuleSet>> {
    load_with(path, ExtraChecks::default())
}

/// Loads the rules as [`load`] does, with more checks.
///
/// # Errors
/// See [`load`].
pub fn load_with(path: &Path, checks: ExtraChecks) -> io::Result<Option<RuleSet>> {
    let loaded = printed(config::load_for(path, &checks.serving))?;
    if let Some(loaded) = loaded.as_ref().filter(|_| checks.buttons_divvy) {
        print(&loaded.differences, "warning")?;
    }
    Ok(loaded.map(|loaded| loaded.rules))
}

fn printed(loaded: Result<Loaded, Report>) -> io::Result<Option<Loaded>> {
    match loaded {
        Ok(loaded) => {
            print(&loaded.warnings, "warning")?;
            Ok(Some(loaded))
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
