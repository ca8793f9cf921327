//! `divvy explain`: shows which rules an operation meets, and why; counts nothing.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::rules_file;
use crate::rules::{Operation, explain};

/// Show which rules match an operation, which one answers, and why each earlier one does not match.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// The rules file, *.ini or *.json.
    config: PathBuf,
    /// The operation: pairs, each one argument, split at its first `=`.
    #[arg(value_name = "KEY=VALUE")]
    pairs: Vec<String>,
}

/// # Errors
/// A pair has no `=`, or standard output cannot be written to.
pub fn run(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let mut operation = Operation::new();
    for pair in &args.pairs {
        let (key, value) =
            pair.split_once('=').with_context(|| format!("{pair:?} is no pair: write it as key=value"))?;
        operation.set(key, value);
    }
    let Some(rules) = rules_file::load(&args.config)? else { return Ok(ExitCode::FAILURE) };
    let mut out = io::stdout().lock();
    write!(out, "{}", explain::explain(&rules, &operation))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
