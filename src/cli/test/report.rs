//! The result of a test run, for people and for programs: the answers that differ from the expected ones.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::case::{Answer, Case, Expectation, Step};
use crate::cli::terminal::count_of;
use divvy_core::rules::RuleSet;

/// A step whose answer differs from the expected one.
#[derive(Debug)]
pub struct Failure<'a> {
    /// The step's number in its case, from 1.
    pub number: usize,
    pub step: &'a Step,
    /// The differences, at least one.
    pub differences: Vec<Difference>,
    /// The index of the rule that answered; `None` after an error.
    pub rule: Option<usize>,
}

/// A case that was run, and its failures.
pub type CaseResult<'a> = (&'a Case, Vec<Failure<'a>>);

/// The report on a test run. Displays the differences and a summary.
#[derive(Debug)]
pub struct Report<'a> {
    pub rules: &'a Path,
    pub cases: &'a Path,
    pub results: &'a [CaseResult<'a>],
    pub rule_set: &'a RuleSet,
}

impl Report<'_> {
    /// Returns the number of cases that failed.
    pub fn failed(&self) -> usize {
        self.results.iter().filter(|(_, failures)| !failures.is_empty()).count()
    }

    pub fn to_json(&self) -> Value {
        let cases = self.results.iter().map(|(case, failures)| {
            let failures: Vec<_> = failures.iter().map(|failure| self.failure_to_json(failure)).collect();
            json!({
                "name": case.name,
                "passed": failures.is_empty(),
                "steps": case.steps.len(),
                "failures": failures,
            })
        });
        json!({
            "rules": self.rules.display().to_string(),
            "cases": self.cases.display().to_string(),
            "passed": self.results.len() - self.failed(),
            "failed": self.failed(),
            "results": cases.collect::<Vec<_>>(),
        })
    }

    fn failure_to_json(&self, failure: &Failure<'_>) -> Value {
        let rule = failure.rule.and_then(|index| Some((index, self.rule_set.rules().get(index)?)));
        json!({
            "step": failure.number,
            "at": failure.step.at.seconds(),
            "request": failure.step.to_string(),
            "differences": failure.differences,
            "rule": rule.map(|(index, rule)| rule.name(index).into_owned()),
            "line": rule.map(|(_, rule)| rule.line),
        })
    }

    fn write_failure(&self, f: &mut fmt::Formatter<'_>, case: &Case, failure: &Failure<'_>) -> fmt::Result {
        let Failure { number, step, differences, rule } = failure;
        writeln!(f, "FAILED: {}, step {number} at {}: {step}", case.name, step.at)?;
        for Difference { field, expected, got } in differences {
            writeln!(f, "  {field}: expected {}, got {}", shown(expected), shown(got))?;
        }
        match rule.and_then(|index| Some((index, self.rule_set.rules().get(index)?))) {
            Some((index, rule)) => writeln!(f, "  answered by {} (line {}: [{rule}])", rule.name(index), rule.line),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, failures) in self.results {
            for failure in failures {
                self.write_failure(f, case, failure)?;
            }
        }
        let (failed, steps) = (self.failed(), self.results.iter().map(|(case, _)| case.steps.len()).sum::<usize>());
        let (cases, steps) = (count_of(self.results.len(), "case", "cases"), count_of(steps, "step", "steps"));
        write!(f, "{}: {cases}, {steps}: ", self.cases.display())?;
        match failed {
            0 => writeln!(f, "all passed"),
            _ => writeln!(f, "{} failed", count_of(failed, "case", "cases")),
        }
    }
}

/// Formats a value for people.
fn shown(value: &Value) -> String {
    if value.is_null() { "none".to_owned() } else { value.to_string() }
}

/// A field whose value differs from the expected one. `null` stands for a missing field.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub field: &'static str,
    pub expected: Value,
    pub got: Value,
}

/// Returns the differences in the fields that `expect` states. An unexpected error is a difference, too.
pub fn compare(expect: &Expectation, answer: &Result<Answer, String>, rules: &RuleSet) -> Vec<Difference> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if expect.error.as_ref().is_some_and(|part| error.contains(part)) => return Vec::new(),
        Err(error) => {
            let expected = expect.error.clone().map_or(Value::Null, Value::from);
            return vec![Difference { field: "error", expected, got: Value::from(error.as_str()) }];
        }
    };
    let mut differences = Vec::new();
    if let Some(error) = &expect.error {
        differences.push(Difference { field: "error", expected: Value::from(error.as_str()), got: Value::Null });
    }
    for ((field, expected), (_, got)) in fields(&expect.answer, rules).into_iter().zip(fields(answer, rules)) {
        if !expected.is_null() && expected != got {
            differences.push(Difference { field, expected, got });
        }
    }
    differences
}

fn fields(answer: &Answer, rules: &RuleSet) -> [(&'static str, Value); 5] {
    let Answer { allowed, remaining, balance, reset, rule } = *answer;
    let rule = rule.and_then(|index| rules.rules().get(index).map(|rule| rule.name(index).into_owned()));
    [
        ("allowed", allowed.into()),
        ("remaining", remaining.into()),
        ("balance", balance.into()),
        ("reset", reset.into()),
        ("rule", rule.into()),
    ]
}
