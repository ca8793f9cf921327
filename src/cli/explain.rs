//! `divvy explain`: shows which rules match an operation, and why. Takes no credit.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::pairs::Pair;
use super::printable::printable;
use super::rules_file;
use crate::rules::{Operation, explain};

/// Show which rules match an operation, which one answers, and why each earlier one does not match.
///
/// This reads the file alone. A server also knows blocks, allows and limits of single actors: `DIVVY.EXPLAIN` and /v1/explain
/// show those, too.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Rules file (.ini or .json)
    config: PathBuf,
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE")]
    operation: Vec<Pair>,
}

/// Runs the subcommand.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let operation: Operation = args.operation.iter().map(Pair::as_strs).collect();
    let Some(rules) = rules_file::load(&args.config)? else { return Ok(ExitCode::FAILURE) };
    let mut out = io::stdout().lock();
    write!(
        out,
        "{}",
        printable(&explain::explain(&rules, &operation, |_| explain::ActorExceptions::default()).to_string())
    )?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
