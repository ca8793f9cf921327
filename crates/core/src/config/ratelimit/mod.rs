//! Converts envoyproxy/ratelimit's YAML into rules that limit the same descriptors, and lists everything that no rule
//! can express.
//!
//! An Envoy descriptor is one operation in divvy: its entries as pairs, and the request's domain as `domain`.
//! [`super::write()`] writes the rules; nothing here counts or serves.
//!
//! The format is defined in the README and in `src/config/config_impl.go` of <https://github.com/envoyproxy/ratelimit>.
//! Ratelimit compares keys and values as one text, `key_value`, so its entry `a_b` also matches the value `b` of the
//! key `a`. The conversion ignores this, because no configuration relies on it.

mod document;
mod entry;
mod order;
mod stream;

#[cfg(test)]
mod tests;
mod validate;

use std::collections::HashMap;
use std::path::Path;

use entry::Labels;

use super::document::read_text;

use super::problem::{Problem, Problems, Report};
use crate::rules::Rule;

/// The result of converting ratelimit's files.
#[derive(Debug)]
pub struct Import {
    /// In order of precedence. The last one is the default rule.
    pub rules: Vec<Rule>,
    /// Behavior of ratelimit that the rules do not have, by file and line.
    pub left_out: Vec<Problem>,
    /// Warnings, which do not affect the result.
    pub warnings: Vec<Problem>,
}

/// Returns whether `path` has a YAML extension.
pub fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Reads ratelimit's configuration files, as ratelimit reads a directory. A domain is in one document.
///
/// # Errors
/// A file cannot be read, is not a ratelimit configuration, or repeats the domain of another file.
pub fn import<P: AsRef<Path>>(paths: &[P]) -> Result<Import, Report> {
    let mut importer = Importer::default();
    for path in paths {
        let file_name = path.as_ref().display().to_string();
        let mut problems = Problems::new(&file_name);
        let text = read_text(path.as_ref(), &mut problems);
        importer.add(text.as_deref(), &file_name, problems);
    }
    importer.finish()
}

/// Reads the text of a ratelimit configuration file.
///
/// # Errors
/// The text is not a ratelimit configuration.
pub fn import_text(text: &str, file_name: &str) -> Result<Import, Report> {
    let mut importer = Importer::default();
    importer.add(Some(text), file_name, Problems::new(file_name));
    importer.finish()
}

#[derive(Default)]
struct Importer {
    rules: Vec<Rule>,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
    labels: Labels,
    /// The place of each domain.
    domains: HashMap<String, String>,
    has_unusable_file: bool,
}

impl Importer {
    /// Adds the rules of a file. `text` is `None` if the file could not be read, which `problems` then contains.
    fn add(&mut self, text: Option<&str>, file_name: &str, mut problems: Problems) {
        match text.and_then(|text| self.rules_of(text, file_name, &mut problems)) {
            Some(rules) => self.rules.extend(rules),
            None => self.has_unusable_file = true,
        }
        let Report { errors, warnings, .. } = problems.into();
        self.errors.extend(errors);
        self.warnings.extend(warnings);
    }

    fn rules_of(&mut self, text: &str, file_name: &str, problems: &mut Problems) -> Option<Vec<Rule>> {
        let mut rules = Vec::new();
        for document in stream::read(text, problems)? {
            let line = document.domain.as_ref().map_or(1, document::line);
            let domain = validate::domain(document, &mut self.labels, problems)?;
            if let Some(other) = self.domains.insert(domain.name.clone(), format!("{file_name}:{line}")) {
                let what = format!("the domain {:?} is in {other}, too", domain.name);
                problems.error(line, what, "put all descriptors of a domain in one document");
                return None;
            }
            rules.extend(order::rules(&domain, file_name, problems));
        }
        Some(rules)
    }

    fn finish(mut self) -> Result<Import, Report> {
        if self.has_unusable_file {
            return Err(Report { errors: self.errors, warnings: self.warnings, lists: Vec::new(), is_unread: false });
        }
        self.rules.push(order::default_rule());
        Ok(Import { rules: self.rules, left_out: self.errors, warnings: self.warnings })
    }
}
