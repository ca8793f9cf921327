//! `divvy test`: runs the test cases of a rules file through the code that serves requests, at simulated times.

mod cases;
mod simulation;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use self::cases::{Case, Expectation, Step};
use self::simulation::{Answer, Simulation};
use super::check::{load_rules, print_problems};
use super::terminal::{count_of, printable};
use divvy_core::config::Serving;
use divvy_core::json::{Object, WholeNumber};
use divvy_core::rules::RuleSet;
use divvy_core::units::Time;
use divvy_limiter::{ActiveRules, CounterNames};
use divvy_telemetry::metrics::Metrics;

/// Exit code if a file cannot be used.
const UNUSABLE: u8 = 2;
/// Extension of the file with test cases, in place of the rules file's.
const EXTENSION: &str = "test.json";
/// Message if the rules of a case cannot be used for the next one, which no case causes.
const IN_USE: &str = "the compiled rules are still in use";

/// Run the test cases of a rules file, at simulated times.
///
/// Sends their requests through the code that serves requests, and compares the answers. The cases are in a file next to the
/// rules: rules.test.json for rules.ini. No server is needed, and no counter on disk is touched. The exit code is 0 if all cases pass, 1 if one fails, and 2 if a file cannot be used.
#[derive(clap::Args)]
pub struct TestArgs {
    /// Rules file (.ini or .json)
    config: PathBuf,
    /// File with the test cases [default: the rules file's name, with .test.json in place of its extension]
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Print a JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// Returns the path of the cases for the rules file at `rules`.
pub fn cases_path(rules: &Path) -> PathBuf {
    rules.with_extension(EXTENSION)
}

/// Runs the subcommand.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(args: TestArgs) -> anyhow::Result<ExitCode> {
    let Some(rules) = load_rules(&args.config, &Serving::default(), false)? else {
        return Ok(ExitCode::from(UNUSABLE));
    };
    let path = args.cases.unwrap_or_else(|| cases_path(&args.config));
    let cases = match cases::read(&path) {
        Ok(file) => file.cases,
        Err(problems) => {
            print_problems(&problems, "error")?;
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().context("cannot start")?;
    let metrics = Metrics::new();
    let policy = ActiveRules::new(rules, &metrics, CounterNames::Usual);
    let (results, policy) = runtime.block_on(run_cases(&cases, policy, &metrics))?;
    let report = Report { rules: &args.config, cases: &path, results: &results, rule_set: policy.rules() };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut out, &report.to_json())?;
        writeln!(out)?;
    } else {
        write!(out, "{}", printable(&report.to_string()))?;
    }
    out.flush()?;
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs each case on its own empty store. Passes the compiled rules from one case to the next, and returns them, too.
async fn run_cases<'a>(
    cases: &'a [Object<Case>],
    mut policy: ActiveRules,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Vec<CaseResult<'a>>, ActiveRules)> {
    let mut results = Vec::new();
    for Object(case) in cases {
        let mut simulation = Simulation::new(policy, metrics, case.start());
        results.push((case, run_case(case, &mut simulation).await?));
        policy = simulation.into_policy().context(IN_USE)?;
    }
    Ok((results, policy))
}

/// Runs a case, and returns its failures.
async fn run_case<'a>(case: &'a Case, simulation: &mut Simulation<'a>) -> anyhow::Result<Vec<Failure<'a>>> {
    let policy = simulation.limiter.active_rules().context(IN_USE)?;
    let (mut failures, mut at) = (Vec::new(), Time(Duration::ZERO));
    for (number, Object(step)) in (1..).zip(&case.steps) {
        at = step.at.unwrap_or(at);
        let answer = simulation.run(step, at).await;
        let expect = step.expect.as_ref().map(|Object(expect)| expect);
        let differences = compare(expect.unwrap_or(&Expectation::default()), &answer, policy.rules());
        if !differences.is_empty() {
            let rule = answer.ok().and_then(|answer| answer.rule);
            failures.push(Failure { number, at, step, differences, rule });
        }
    }
    Ok(failures)
}

/// A step whose answer differs from the expected one.
#[derive(Debug)]
struct Failure<'a> {
    /// The step's number in its case, from 1.
    number: usize,
    at: Time,
    step: &'a Step,
    /// The differences, at least one.
    differences: Vec<Difference>,
    /// The index of the rule that answered; `None` after an error.
    rule: Option<usize>,
}

/// A case that was run, and its failures.
type CaseResult<'a> = (&'a Case, Vec<Failure<'a>>);

/// The report on a test run. Displays the differences and a summary.
#[derive(Debug)]
struct Report<'a> {
    rules: &'a Path,
    cases: &'a Path,
    results: &'a [CaseResult<'a>],
    rule_set: &'a RuleSet,
}

impl Report<'_> {
    /// Returns the number of cases that failed.
    fn failed(&self) -> usize {
        self.results.iter().filter(|(_, failures)| !failures.is_empty()).count()
    }

    fn to_json(&self) -> Value {
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
            "at": failure.at.0.as_secs_f64(),
            "request": failure.step.to_string(),
            "differences": failure.differences,
            "rule": rule.map(|(index, rule)| rule.name(index).into_owned()),
            "line": rule.map(|(_, rule)| rule.line),
        })
    }

    fn write_failure(&self, f: &mut fmt::Formatter<'_>, case: &Case, failure: &Failure<'_>) -> fmt::Result {
        let Failure { number, at, step, differences, rule } = failure;
        writeln!(f, "FAILED: {}, step {number} at {at}: {step}", case.name)?;
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
struct Difference {
    field: &'static str,
    expected: Value,
    got: Value,
}

/// Returns the differences in the fields that `expect` states. An unexpected error is a difference, too.
fn compare(expect: &Expectation, answer: &Result<Answer, String>, rules: &RuleSet) -> Vec<Difference> {
    let is_error_expected = match (&expect.error, answer) {
        (Some(part), Err(error)) => error.contains(part),
        (part, answer) => part.is_none() && answer.is_ok(),
    };
    let mut differences = Vec::new();
    if !is_error_expected {
        let (expected, got) = (expect.error.as_deref().into(), answer.as_ref().err().map(String::as_str).into());
        differences.push(Difference { field: "error", expected, got });
    }
    let Ok(answer) = answer else { return differences };
    let name = |index: usize| rules.rules().get(index).map(|rule| rule.name(index).into_owned());
    // A rule with a label may also be expected as the default one.
    let rule = expect.rule.as_ref().map(|rule| rules.find_by_name(rule).and_then(name).unwrap_or_else(|| rule.clone()));
    for (field, expected, got) in [
        ("allowed", Value::from(expect.allowed), Value::from(answer.allowed)),
        ("remaining", expect.remaining.map(|WholeNumber(number)| number).into(), answer.remaining.into()),
        ("balance", expect.balance.into(), answer.balance.into()),
        ("reset", expect.reset.map(Time::whole_seconds).into(), answer.reset.into()),
        ("rule", rule.into(), answer.rule.and_then(name).into()),
    ] {
        if !expected.is_null() && expected != got {
            differences.push(Difference { field, expected, got });
        }
    }
    differences
}
