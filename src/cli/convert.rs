//! `divvy convert`: writes the rules of an INI file as JSON or vice versa, or converts the configuration of
//! envoyproxy/ratelimit.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::output_file;
use super::rules_file;
use divvy_core::config::{self, Format, Serving};
use divvy_core::rules::Rule;

/// Convert a rules file between INI and JSON, or envoyproxy/ratelimit's YAML to either.
///
/// Between INI and JSON, only the comments in the file are lost. Warnings say where Button's Divvy 1.7.1 reads the
/// input differently. Parts of ratelimit's YAML that divvy's rules cannot express are listed on standard error with
/// their lines. The rules are written anyway, and the exit code is 1.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    /// File to read: rules (.ini or .json), or ratelimit's configuration (.yaml), one file per domain
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Rules file to write (.ini or .json)
    output: PathBuf,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    /// Write nothing if any part of ratelimit's YAML cannot be converted
    #[arg(long)]
    strict: bool,
}

/// Rules to write, and whether they express the whole input.
struct Conversion {
    rules: Vec<Rule>,
    is_complete: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// The output's extension is unknown, its format cannot express the rules, or the file cannot be written.
pub fn run(args: ConvertArgs) -> anyhow::Result<ExitCode> {
    let format = Format::of(&args.output)
        .with_context(|| format!("{}: unknown file extension; name it *.ini or *.json", args.output.display()))?;
    let Some(converted) = read(&args.inputs)? else { return Ok(ExitCode::FAILURE) };
    if args.strict && !converted.is_complete {
        anyhow::bail!("{} is not written: with --strict, everything must be converted", args.output.display());
    }
    let text = config::write(&converted.rules, format).with_context(|| names(&args.inputs))?;
    // Lists are found from the directory of the output.
    config::parse_as(&text, format, &args.output).context("these rules cannot be served")?;
    output_file::write(&args.output, &text, args.force)?;
    Ok(if converted.is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the inputs. Returns `None` if they cannot be used, after printing their problems.
fn read(inputs: &[PathBuf]) -> anyhow::Result<Option<Conversion>> {
    if inputs.iter().all(|input| config::is_yaml(input)) {
        return import(inputs);
    }
    let [input] = inputs else {
        anyhow::bail!("only ratelimit's YAML can be converted from several files; give one *.ini or *.json");
    };
    let rules = rules_file::load_for(input, &Serving::default(), true)?;
    Ok(rules.map(|rules| Conversion { rules: rules.rules().to_vec(), is_complete: true }))
}

fn import(inputs: &[PathBuf]) -> anyhow::Result<Option<Conversion>> {
    let (import, errors, warnings) = match config::import(inputs) {
        Ok(import) => (Some(import.rules), import.left_out, import.warnings),
        Err(report) => (None, report.errors, report.warnings),
    };
    let is_complete = errors.is_empty();
    rules_file::print(&errors, if import.is_some() { "not converted" } else { "error" })?;
    rules_file::print(&warnings, "warning")?;
    Ok(import.map(|rules| Conversion { rules, is_complete }))
}

fn names(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}
