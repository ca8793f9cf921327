//! `divvy explain`: shows which rules match an operation, and why. Takes no credit.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::pairs::Pair;
use super::resp::{ServerArgs, parts, text};
use super::rules_file;
use super::text::printable;
use divvy_core::config::Serving;
use divvy_core::rules::{Operation, explain};
use divvy_server::http::CheckOperation;

/// Maximum time for the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Show which rules match an operation, which one answers, and why each earlier one does not match.
///
/// This asks a running server, which also knows blocks, allows and limits of single actors. --file reads a file instead.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  divvy explain path=/login ip=203.0.113.7\n  \
                        divvy explain --file rules.ini path=/login ip=203.0.113.7")]
pub struct ExplainArgs {
    /// Rules file to read, instead of asking a server (.ini or .json)
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The operation: each argument is one pair, split at its first `=`
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair)]
    operation: Vec<Pair>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Parses a pair.
fn parse_pair(text: &str) -> Result<Pair, String> {
    text.parse().map_err(|error: String| match text.ends_with(".ini") || text.ends_with(".json") {
        true => format!("it is not a pair; to read a rules file in place of asking a server, write --file {text}"),
        false => error,
    })
}

/// Runs the subcommand.
///
/// # Errors
/// There is no answer, it is an error, or standard output cannot be written.
pub fn run(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let explanation = match &args.file {
        None => ask(&args)?,
        Some(file) => {
            let mut operation = Operation::new();
            for (field, value) in args.operation.iter().map(Pair::as_strs) {
                ensure!(operation.set(field, value), "the field '{field}' is given twice");
            }
            let serving = Serving { spellings: CheckOperation::default().spellings(), ..Serving::default() };
            let Some(rules) = rules_file::load_for(file, &serving, false)? else { return Ok(ExitCode::FAILURE) };
            explain::explain(&rules, &operation, |_, _| explain::ActorExceptions::default()).to_string()
        }
    };
    let mut out = io::stdout().lock();
    write!(out, "{}", printable(&explanation))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the server's lines, one for each rule.
fn ask(args: &ExplainArgs) -> anyhow::Result<String> {
    let request = std::iter::once("DIVVY.EXPLAIN".to_owned()).chain(args.operation.iter().map(Pair::to_string));
    let reply = args.server.connect(PATIENCE)?.ask(&request.collect::<Vec<_>>())?;
    let line = |frame| text(frame).map(|line| line + "\n");
    let lines: Option<String> = parts(&reply).and_then(|lines| lines.iter().map(line).collect());
    lines.context("the server's answer is not an explanation")
}
