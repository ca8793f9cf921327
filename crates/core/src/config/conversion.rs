//! Converts the limits of other programs to rules: YAML of envoyproxy/ratelimit, limitador and Kuadrant. Lists everything that no
//! rule can express.

use std::path::Path;

use super::document::read_text;
use super::labels::Labels;
use super::ratelimit::model::Domains;
use super::yaml::{Content, Node};
use super::{Problem, Problems, Report, kuadrant, limitador, ratelimit};
use crate::rules::{Quota, Rule, Settings};

/// The result of converting files.
#[derive(Debug)]
pub struct Import {
    /// In order of precedence. The last one is the default rule.
    pub rules: Vec<Rule>,
    /// Behavior of the other program that the rules do not have, by file and line.
    pub left_out: Vec<Problem>,
    /// Warnings, which do not affect the result.
    pub warnings: Vec<Problem>,
}

/// Returns whether `path` has a YAML extension.
pub fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Reads files, each with documents of any kind. A domain of ratelimit is in one document.
///
/// # Errors
/// A file cannot be read, has no limits, or repeats the domain of another file.
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

/// Reads the text of a file.
///
/// # Errors
/// The text has no limits.
pub fn import_text(text: &str, file_name: &str) -> Result<Import, Report> {
    let mut importer = Importer::default();
    importer.add(Some(text), file_name, Problems::new(file_name));
    importer.finish()
}

#[derive(Default)]
pub(super) struct Importer {
    /// The rules of limitador and Kuadrant, which must all allow a request.
    stacked: limitador::Stack,
    /// The rules of ratelimit. The first that matches answers.
    rules: Vec<Rule>,
    report: Report,
    labels: Labels,
    domains: Domains,
    has_unusable_file: bool,
}

impl Importer {
    /// Adds the rules of a file. `text` is `None` if the file could not be read, which `problems` then contains.
    pub fn add(&mut self, text: Option<&str>, file_name: &str, mut problems: Problems) {
        if text.and_then(|text| self.read(text, file_name, &mut problems)).is_none() {
            self.has_unusable_file = true;
        }
        self.report.append(problems.into());
    }

    fn read(&mut self, text: &str, file_name: &str, problems: &mut Problems) -> Option<()> {
        let mut limits = Vec::new();
        let mut others = |document: &Node<'_>, problems: &mut Problems| {
            let found = read_limits(document, problems);
            let is_known = found.is_some();
            limits.extend(found.unwrap_or_default());
            is_known
        };
        let domains = ratelimit::reader::read(text, problems, &mut others)?;
        for limit in &limits {
            self.stacked.add(limit, file_name, &mut self.labels, problems);
        }
        let mut rules = Vec::new();
        for domain in domains {
            let domain = self.domains.add(domain, problems)?;
            rules.extend(ratelimit::rules(domain, file_name, &mut self.labels, problems)?);
        }
        self.rules.extend(rules);
        Some(())
    }

    pub fn finish(self) -> Result<Import, Report> {
        if self.has_unusable_file {
            return Err(self.report);
        }
        // The other programs, too, allow requests without a limit. The comment states the differences that apply to all rules.
        let settings = Settings::unlimited();
        let default = Rule::new(Vec::new(), settings, settings.quota().unwrap_or(Quota::Never), 1);
        let mut rules = self.stacked.rules;
        let differences = [(!rules.is_empty(), limitador::DIFFERENCE), (!self.rules.is_empty(), ratelimit::DIFFERENCE)];
        let comments: Vec<_> = differences.into_iter().filter_map(|(has, comment)| has.then_some(comment)).collect();
        rules.extend(self.rules);
        rules.push(Rule { comment: Some(comments.join(" ")).filter(|comment| !comment.is_empty()), ..default });
        Ok(Import { rules, left_out: self.report.errors, warnings: self.report.warnings })
    }
}

/// Reads the limits of a document of limitador or Kuadrant; `None` if it is of another kind.
fn read_limits(document: &Node<'_>, problems: &mut Problems) -> Option<Vec<limitador::Limit>> {
    if let Content::Sequence(_) = document.content() {
        return Some(limitador::read(Some(document), problems));
    }
    let text = |key| document.get(key).and_then(Node::scalar).map(|scalar| &*scalar.text);
    match (text("apiVersion").unwrap_or_default(), text("kind")?) {
        ("limitador.kuadrant.io/v1alpha1", "Limitador") => {
            let limits = document.get("spec").and_then(|spec| spec.get("limits"));
            Some(limitador::read(limits, problems))
        }
        ("kuadrant.io/v1", "RateLimitPolicy") => Some(kuadrant::read(document, "limit", problems)),
        ("kuadrant.io/v1alpha1", "TokenRateLimitPolicy") => Some(kuadrant::read(document, "tokenlimit", problems)),
        (version, kind @ ("RateLimitPolicy" | "TokenRateLimitPolicy" | "Limitador")) => {
            let fix = "only kuadrant.io/v1 and v1alpha1, and limitador.kuadrant.io/v1alpha1 can be converted";
            problems.error(document.line, format!("this {kind} of {version:?} is left out"), fix);
            Some(Vec::new())
        }
        _ => None,
    }
}
