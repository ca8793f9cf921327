//! envoyproxy/ratelimit's YAML → rules that limit the same descriptors, and a list of what no rule can express.
//!
//! An Envoy descriptor is one operation in divvy: its entries as pairs, and the request's domain as `domain`.
//! [`super::write()`] writes the rules; nothing here counts or serves.
//!
//! What the YAML means is in the README and in `src/config/config_impl.go` of <https://github.com/envoyproxy/ratelimit>. It
//! compares keys and values as one text, `key_value`, so that there an entry `a_b` also takes `b` under the key `a`. That
//! is not carried over: no configuration relies on it.

mod document;
mod entry;
mod judge;
mod labels;
mod limit;
mod order;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use document::Document;
use labels::Labels;

use super::problem::{Place, Problem, Problems, Report};
use super::text::read_text;
use crate::rules::Rule;

/// The result of converting ratelimit's files.
#[derive(Debug)]
pub struct Import {
    /// In their order of precedence; the last one is the default rule.
    pub rules: Vec<Rule>,
    /// What ratelimit does and the rules cannot do, by file and line.
    pub left_out: Vec<Problem>,
    /// Warnings, which do not affect the result.
    pub warnings: Vec<Problem>,
}

/// Does the extension of `path` say YAML?
pub fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Reads ratelimit's configuration files, one domain each, as ratelimit itself reads a directory.
///
/// # Errors
/// A file cannot be read, is not ratelimit's, or has the domain of another one.
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

/// Reads the text of one of ratelimit's configuration files.
///
/// # Errors
/// It is not ratelimit's.
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
    /// The file of each domain.
    domains: HashMap<String, String>,
    has_unusable_file: bool,
}

impl Importer {
    /// Adds the rules of a file. Its text is missing when it could not be read; `problems` has that already.
    fn add(&mut self, text: Option<&str>, file_name: &str, mut problems: Problems) {
        match text.and_then(|text| self.rules_of(text, file_name, &mut problems)) {
            Some(rules) => self.rules.extend(rules),
            None => self.has_unusable_file = true,
        }
        let (errors, warnings) = problems.into_sorted();
        self.errors.extend(errors);
        self.warnings.extend(warnings);
    }

    fn rules_of(&mut self, text: &str, file_name: &str, problems: &mut Problems) -> Option<Vec<Rule>> {
        let document = read(text, problems)?;
        let domain = judge::domain(document, &mut self.labels, problems)?;
        if let Some(other) = self.domains.insert(domain.name.clone(), file_name.to_owned()) {
            let what = format!("the domain {:?} is in {other}, too", domain.name);
            problems.file_error(what, "put all descriptors of a domain in one file");
            return None;
        }
        Some(order::rules(&domain, file_name, problems))
    }

    fn finish(mut self) -> Result<Import, Report> {
        if self.has_unusable_file {
            return Err(Report { errors: self.errors, warnings: self.warnings });
        }
        self.rules.push(order::default_rule());
        Ok(Import { rules: self.rules, left_out: self.errors, warnings: self.warnings })
    }
}

fn read(text: &str, problems: &mut Problems) -> Option<Document> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(document) => Some(document),
        Err(error) => {
            let line = error.location().and_then(|location| usize::try_from(location.line()).ok()).unwrap_or(1);
            problems.error(
                Place::line(line),
                format!("cannot be read as ratelimit's YAML: {error}"),
                "correct it there",
            );
            None
        }
    }
}
