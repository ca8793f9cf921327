//! Reads rules files: the result is either validated rules or every problem with its line.
//!
//! INI and JSON are read into one raw document, which is then validated. Rules can be written in both formats. The
//! configuration of envoyproxy/ratelimit can be converted to rules. [`crate::rules`] defines what rules mean and how
//! they are matched.

mod conditions;
mod document;
mod ini;
mod json;
mod number;
mod operation_mistakes;
mod original;
mod problem;
mod ratelimit;
mod ruleset;
mod validate;
mod write;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub use document::{Format, MAX_FILE_BYTES};
pub use problem::{Location, Problem, Problems, Report};
pub use ratelimit::{Import, import, import_text, is_yaml};
pub use write::{Unwritable, fingerprint, write};

use crate::rules::{RuleSet, Spellings};
use conditions::Lists;
use document::read_text;

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

/// Reads a rules file as [`load`] does, for a server.
///
/// # Errors
/// See [`load`].
pub fn load_for(path: &Path, serving: &Serving) -> Result<Loaded, Report> {
    let Loaded { rules, warnings, differences, lists } = load(path)?;
    let mut problems = Problems::new(&path.display().to_string());
    if serving.redis_cluster {
        ruleset::check_slots(&rules, &mut problems);
    }
    match ruleset::spell(rules, &serving.spellings, path, &mut problems) {
        Some(rules) if !problems.has_errors() => Ok(Loaded { rules, warnings, differences, lists }),
        _ => Err(Report { warnings, lists, ..Report::from(problems) }),
    }
}

/// Reads the rules file at `path`. Its extension selects the format.
///
/// # Errors
/// Returns a report of every problem in the file.
pub fn load(path: &Path) -> Result<Loaded, Report> {
    let file_name = path.display().to_string();
    let mut problems = Problems::new(&file_name);
    let format = Format::of(path);
    if format.is_none() {
        let (what, fix) = unknown_format(path);
        problems.file_error(what, fix);
    }
    let text = read_text(path, &mut problems);
    match (format, text) {
        (Some(format), Some(text)) => read(&text, format, &file_name, Lists::of(path)),
        _ => Err(Report::from(problems)),
    }
}

/// Reads rules from `text`, which have no lists. Messages contain `file_name`.
///
/// # Errors
/// See [`load`].
pub fn parse(text: &str, format: Format, file_name: &str) -> Result<Loaded, Report> {
    read(text, format, file_name, Lists::none())
}

/// Reads rules from `text` as if it was the file at `path`: list files are found from there.
///
/// # Errors
/// See [`load`].
pub fn parse_as(text: &str, format: Format, path: &Path) -> Result<Loaded, Report> {
    read(text, format, &path.display().to_string(), Lists::of(path))
}

fn read(text: &str, format: Format, file_name: &str, mut lists: Lists) -> Result<Loaded, Report> {
    let mut problems = Problems::new(file_name);
    let document = match format {
        Format::Ini => Some(ini::read(text, &mut problems)),
        Format::Json => json::read(text, &mut problems),
    };
    let rules = document.and_then(|document| ruleset::compile(&document, &mut lists, &mut problems));
    match rules {
        Some(rules) if !problems.has_errors() => {
            let differences = problems.take_differences();
            let Report { warnings, lists, .. } = problems.into();
            Ok(Loaded { rules, warnings, differences, lists })
        }
        _ => Err(Report::from(problems)),
    }
}

fn unknown_format(path: &Path) -> (&'static str, &'static str) {
    if is_yaml(path) {
        let fix = "if it is envoyproxy/ratelimit's configuration, convert it first: divvy convert FILE.yaml rules.ini";
        ("rules are not written in YAML", fix)
    } else if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("acl")) {
        let fix = "for an access file, use `divvy access check FILE` and `divvy serve --access-file FILE`";
        ("rules are in a file *.ini or *.json", fix)
    } else {
        ("unknown file extension", "name the file *.ini or *.json")
    }
}
