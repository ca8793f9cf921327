//! Rules files → validated rules, or every problem with its line.
//!
//! INI and JSON are read into one raw document, which is then validated. Rules can be written in both formats. The
//! configuration of envoyproxy/ratelimit can be read into rules, too.
//! [`crate::rules`] defines what a rule means and how rules are matched.

mod document;
mod fingerprint;
mod ini;
mod json;
mod nearest;
mod number;
mod original;
mod problem;
mod ratelimit;
mod ruleset;
mod validate;
mod write;

#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::path::Path;

pub use fingerprint::fingerprint;
pub use problem::{Problem, Report};
pub use ratelimit::{Import, import, import_text, is_yaml};
pub use write::{Unwritable, write};

use crate::files;
use crate::rules::RuleSet;
use problem::{Place, Problems};

/// The largest rules file: enough for several hundred thousand rules, without a risk to memory.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// How a rules file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Ini,
    Json,
}

impl Format {
    /// The format that a file's extension names; `None` when it names none.
    pub fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "ini" => Some(Self::Ini),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Rules that can be served.
#[derive(Debug)]
pub struct Loaded {
    pub rules: RuleSet,
    /// What looks wrong but does no harm, by line.
    pub warnings: Vec<Problem>,
    /// Where Button's Divvy 1.7.1 reads the file differently, by line. It matters if both use the file.
    pub differences: Vec<Problem>,
}

/// As [`load`], for a server whose counters are in a Redis Cluster: rules that it cannot take from together are errors.
///
/// # Errors
/// As [`load`].
pub fn load_for_redis_cluster(path: &Path) -> Result<Loaded, Report> {
    let loaded = load(path)?;
    let mut problems = Problems::new(&path.display().to_string());
    ruleset::check_slots(&loaded.rules, &mut problems);
    if !problems.has_errors() {
        return Ok(loaded);
    }
    Err(Report { warnings: loaded.warnings, ..Report::from(problems) })
}

/// Reads the rules file at `path`; its extension says how it is written.
///
/// # Errors
/// Every problem in it, in one report.
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
        (Some(format), Some(text)) => parse(&text, format, &file_name),
        _ => Err(Report::from(problems)),
    }
}

/// Reads rules from `text`; `file_name` is for the messages.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, format: Format, file_name: &str) -> Result<Loaded, Report> {
    let mut problems = Problems::new(file_name);
    let document = match format {
        Format::Ini => Some(ini::read(text, &mut problems)),
        Format::Json => json::read(text, &mut problems),
    };
    let rules = document.and_then(|document| ruleset::compile(&document, &mut problems));
    match rules {
        Some(rules) if !problems.has_errors() => {
            let differences = problems.take_differences();
            Ok(Loaded { rules, warnings: problems.into_sorted().1, differences })
        }
        _ => Err(Report::from(problems)),
    }
}

fn unknown_format(path: &Path) -> (&'static str, &'static str) {
    if is_yaml(path) {
        let fix = "if it is envoyproxy/ratelimit's configuration, convert it first: divvy convert FILE.yaml rules.ini";
        ("rules are not written in YAML", fix)
    } else {
        ("unknown file extension", "name the file *.ini or *.json")
    }
}

fn read_text(path: &Path, problems: &mut Problems) -> Option<String> {
    let bytes = match files::read(path, MAX_FILE_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let what = format!("the file is larger than {} MiB", MAX_FILE_BYTES >> 20);
            problems.file_error(what, "use fewer rules, with patterns instead of single values");
            return None;
        }
        Err(error) => {
            problems.file_error(format!("cannot read the file: {error}"), "check its path and its permissions");
            return None;
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = memchr::memchr_iter(b'\n', before).count() + 1;
            problems.error(Place::line(line), "the file is not UTF-8", "save it as UTF-8");
            None
        }
    }
}
