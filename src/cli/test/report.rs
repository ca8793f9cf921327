//! The result of a test run, for people and for programs: the answers that differ from the expected ones.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::case::{Case, Expectation, Step};
use super::simulation::Answer;
use crate::cli::text::count_of;
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

/// The cases that were run, each with its failures.
#[derive(Debug, Default)]
pub struct CaseResults<'a> {
    cases: Vec<(&'a Case, Vec<Failure<'a>>)>,
}

impl<'a> CaseResults<'a> {
    pub fn add(&mut self, case: &'a Case, failures: Vec<Failure<'a>>) {
        self.cases.push((case, failures));
    }

    /// Returns the number of cases that failed.
    pub fn failed(&self) -> usize {
        self.cases.iter().filter(|(_, failures)| !failures.is_empty()).count()
    }

    fn steps(&self) -> usize {
        self.cases.iter().map(|(case, _)| case.steps.len()).sum()
    }
}

/// The report on a test run. Displays the differences and a summary.
#[derive(Debug)]
pub struct Report<'a> {
    pub rules: &'a Path,
    pub cases: &'a Path,
    pub tally: &'a CaseResults<'a>,
    pub rule_set: &'a RuleSet,
}

impl Report<'_> {
    pub fn to_json(&self) -> Value {
        let cases = self.tally.cases.iter().map(|(case, failures)| {
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
            "passed": self.tally.cases.len() - self.tally.failed(),
            "failed": self.tally.failed(),
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
        for (case, failures) in &self.tally.cases {
            for failure in failures {
                self.write_failure(f, case, failure)?;
            }
        }
        let (cases, failed) = (self.tally.cases.len(), self.tally.failed());
        let (cases, steps) = (count_of(cases, "case", "cases"), count_of(self.tally.steps(), "step", "steps"));
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
    let name = |index: usize| rules.rules().get(index).map(|rule| rule.name(index).into_owned());
    let mut differences = Vec::new();
    let mut add = |field, expected: Option<Value>, got: Option<Value>| {
        if let Some(expected) = expected
            && Some(&expected) != got.as_ref()
        {
            differences.push(Difference { field, expected, got: got.unwrap_or_default() });
        }
    };
    add("error", expect.error.as_deref().map(Value::from), None);
    add("allowed", expect.allowed.map(Value::from), answer.allowed.map(Value::from));
    add("remaining", expect.remaining.map(Value::from), answer.remaining.map(Value::from));
    add("balance", expect.balance.map(Value::from), answer.balance.map(Value::from));
    add("reset", expect.reset.map(Value::from), answer.reset.map(Value::from));
    add("rule", expect.rule.and_then(name).map(Value::from), answer.rule.and_then(name).map(Value::from));
    differences
}
