//! `divvy test`: runs the test cases of a rules file through the code that serves requests, at simulated times.

mod case;
mod check;
mod file;
mod report;
mod simulation;
mod times;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use self::report::{CaseResult, Failure, Report};
use self::simulation::Simulation;
use super::check::{load_rules, print_problems};
use super::terminal::printable;
use divvy_core::config::Serving;
use divvy_limiter::{CounterNames, Policy};
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
    let cases = match file::read(&path).map_err(|problem| vec![problem]).and_then(|file| {
        let name = path.display().to_string();
        check::check(&file, &rules, &name)
    }) {
        Ok(cases) => cases,
        Err(problems) => {
            print_problems(&problems, "error")?;
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().context("cannot start")?;
    let metrics = Metrics::new();
    let policy = Policy::new(rules, &metrics, CounterNames::Usual);
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
    cases: &'a [case::Case],
    mut policy: Policy,
    metrics: &Arc<Metrics>,
) -> anyhow::Result<(Vec<CaseResult<'a>>, Policy)> {
    let mut results = Vec::new();
    for case in cases {
        let mut simulation = Simulation::new(policy, metrics, case.start);
        results.push((case, run_case(case, &mut simulation).await?));
        policy = simulation.into_policy().context(IN_USE)?;
    }
    Ok((results, policy))
}

/// Runs a case, and returns its failures.
async fn run_case<'a>(case: &'a case::Case, simulation: &mut Simulation<'a>) -> anyhow::Result<Vec<Failure<'a>>> {
    let policy = simulation.policy().context(IN_USE)?;
    let mut failures = Vec::new();
    for (index, step) in case.steps.iter().enumerate() {
        let answer = simulation.run(step).await;
        let differences = report::compare(&step.expect, &answer, policy.rules());
        if !differences.is_empty() {
            let rule = answer.ok().and_then(|answer| answer.rule);
            failures.push(Failure { number: index + 1, step, differences, rule });
        }
    }
    Ok(failures)
}
