//! Why an operation is answered as it is: each rule in order, whether it matches, and if not, why. Counts nothing.

use std::fmt;

use serde::Serialize;

use super::{MatchPolicy, Operation, Rule, RuleSet};

/// What every rule made of an operation, up to the one that answers. Displays as one line a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub rules: Vec<Explained>,
}

/// What one rule made of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The rule's operation, as its header in a rules file.
    pub rule: String,
    /// Where the rule begins in its file, from 1.
    pub line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(flatten)]
    pub finding: Finding,
}

/// Whether a rule matches, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// It matches and answers.
    Answers,
    /// It matches and takes credit, and matching goes on.
    Canary,
    /// The operation has no such key.
    KeyMissing { key: String },
    /// The value is not what the rule asks.
    ValueDiffers { key: String, pattern: String, value: String },
}

/// Explains what `rules` make of `operation`.
pub fn explain(rules: &RuleSet, operation: &Operation) -> Explanation {
    let mut explanation = Explanation { rules: Vec::new() };
    for rule in rules.rules() {
        let finding = find(rule, operation);
        let answers = finding == Finding::Answers;
        let explained = Explained { rule: rule.to_string(), line: rule.line, label: rule.label.clone(), finding };
        explanation.rules.push(explained);
        if answers {
            break;
        }
    }
    explanation
}

fn find(rule: &Rule, operation: &Operation) -> Finding {
    for (key, pattern) in &rule.operation {
        match operation.get(key) {
            None => return Finding::KeyMissing { key: key.clone() },
            Some(value) if !pattern.matches(value) => {
                return Finding::ValueDiffers {
                    key: key.clone(),
                    pattern: pattern.to_string(),
                    value: value.to_owned(),
                };
            }
            Some(_) => {}
        }
    }
    match rule.match_policy {
        MatchPolicy::Stop => Finding::Answers,
        MatchPolicy::Canary => Finding::Canary,
    }
}

impl Explanation {
    /// The rule that answers; `None` when no rule does.
    pub fn answer(&self) -> Option<&Explained> {
        self.rules.last().filter(|explained| explained.finding == Finding::Answers)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for explained in &self.rules {
            writeln!(f, "{explained}")?;
        }
        match self.answer() {
            Some(_) => Ok(()),
            None => writeln!(f, "no rule answers"),
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: [{}]", self.line, self.rule)?;
        if let Some(label) = &self.label {
            write!(f, " ({label})")?;
        }
        write!(f, ": {}", self.finding)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answers => write!(f, "matches and answers"),
            Self::Canary => write!(f, "matches as a canary: takes credit, and the next rules are tried"),
            Self::KeyMissing { key } => write!(f, "does not match: the key {key:?} is missing"),
            Self::ValueDiffers { key, pattern, value } => {
                write!(f, "does not match: {key:?} is {value:?}, and must be {pattern:?}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{canary, operation, rule};

    fn rules() -> RuleSet {
        let labelled = Rule { label: Some("by-ip".into()), ..rule("method=GET ip=*") };
        RuleSet::new(vec![labelled, rule("path=/a/*"), canary("method=GET"), rule(""), rule("path=/z")]).unwrap()
    }

    #[test]
    fn every_rule_up_to_the_answer_says_why() {
        let explanation = explain(&rules(), &operation("method=GET path=/b"));
        assert_eq!(
            explanation.to_string(),
            "line 1: [method=GET ip=*] (by-ip): does not match: the key \"ip\" is missing\n\
             line 1: [path=/a/*]: does not match: \"path\" is \"/b\", and must be \"/a/*\"\n\
             line 1: [method=GET]: matches as a canary: takes credit, and the next rules are tried\n\
             line 1: [default]: matches and answers\n"
        );
        assert_eq!(explanation.answer().unwrap().rule, "default");
    }

    #[test]
    fn it_serializes_flat() {
        let explanation = explain(&RuleSet::new(vec![rule("path=/a")]).unwrap(), &operation("path=/b"));
        assert_eq!(
            serde_json::to_value(&explanation).unwrap(),
            serde_json::json!({ "rules": [
                { "rule": "path=/a", "line": 1, "finding": "value-differs", "key": "path", "pattern": "/a", "value": "/b" }
            ] })
        );
        assert_eq!(explanation.answer(), None);
        assert!(explanation.to_string().ends_with("no rule answers\n"));
    }
}
