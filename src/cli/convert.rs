//! Subcommands that write rules files. `divvy convert` writes the rules of an INI file as JSON or vice versa, or converts the
//! limits of envoyproxy/ratelimit, limitador and Kuadrant. `divvy init` writes a rules file for a common purpose, and its test cases.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};

use super::check::{load_rules, print_problems};
use super::terminal::quote;
use super::test;
use super::values::{Choices, choice};
use divvy_core::config::{self, Format, Serving};
use divvy_core::rules::Rule;

/// Convert a rules file between INI and JSON, or YAML of envoyproxy/ratelimit, limitador or Kuadrant to either.
///
/// Between INI and JSON, only the comments in the file are lost. Warnings say where Button's Divvy 1.7.1 reads the
/// input differently. Parts of the YAML that divvy's rules cannot express are listed on standard error with
/// their lines. The rules are written anyway, and the exit code is 1.
#[derive(clap::Args)]
pub struct ConvertArgs {
    /// File to read: rules (.ini or .json), or limits (.yaml), with each of ratelimit's domains in one file
    #[arg(required = true)]
    inputs: Vec<PathBuf>,
    /// Rules file to write (.ini or .json)
    output: PathBuf,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    /// Write nothing if any part of the YAML cannot be converted
    #[arg(long)]
    strict: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// The output's extension is unknown, its format cannot express the rules, or the file cannot be written.
pub fn convert(args: ConvertArgs) -> anyhow::Result<ExitCode> {
    let format = Format::of(&args.output)
        .with_context(|| format!("{}: unknown file extension; name it *.ini or *.json", args.output.display()))?;
    let Some((rules, is_complete)) = read(&args.inputs)? else { return Ok(ExitCode::FAILURE) };
    if args.strict && !is_complete {
        bail!("{} is not written: with --strict, everything must be converted", args.output.display());
    }
    let text = config::write(&rules, format).with_context(|| {
        let names: Vec<_> = args.inputs.iter().map(|path| path.display().to_string()).collect();
        names.join(", ")
    })?;
    // Lists are found from the directory of the output.
    config::parse(&text, format, &args.output).context("these rules cannot be served")?;
    write_file(&args.output, &text, args.force)?;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads the inputs. Returns the rules, and whether they express all of them. Returns `None` if they cannot be used, after printing their problems.
fn read(inputs: &[PathBuf]) -> anyhow::Result<Option<(Vec<Rule>, bool)>> {
    if inputs.iter().all(|input| config::is_yaml(input)) {
        return import(inputs);
    }
    let [input] = inputs else {
        bail!("only YAML can be converted from several files; give one *.ini or *.json");
    };
    let rules = load_rules(input, &Serving::default(), true)?;
    Ok(rules.map(|rules| (rules.rules().to_vec(), true)))
}

fn import(inputs: &[PathBuf]) -> anyhow::Result<Option<(Vec<Rule>, bool)>> {
    let (import, errors, warnings) = match config::import(inputs) {
        Ok(import) => (Some(import.rules), import.left_out, import.warnings),
        Err(report) => (None, report.errors, report.warnings),
    };
    let is_complete = errors.is_empty();
    print_problems(&errors, if import.is_some() { "not converted" } else { "error" })?;
    print_problems(&warnings, "warning")?;
    Ok(import.map(|rules| (rules, is_complete)))
}

/// Write a rules file for a common purpose, and its test cases
///
/// The test cases are in a file next to the rules: rules.test.json for rules.ini. `divvy test` runs them.
#[derive(clap::Args)]
pub struct InitArgs {
    /// Rules file to write (.ini)
    #[arg(default_value = "rules.ini")]
    file: PathBuf,
    // The name of the value lists the templates in the error of a command line without one.
    /// Purpose of the rules
    #[arg(long, value_name = "api-keys|login|llm|gateway", value_parser = choice(TEMPLATES))]
    template: (&'static str, &'static str),
    /// Overwrite the files if they exist
    #[arg(long)]
    force: bool,
}

/// The rules files for common purposes, and their test cases.
const TEMPLATES: Choices<(&str, &str)> = &[
    (
        "api-keys",
        "Requests of API keys: a burst and a daily quota",
        (include_str!("init/api-keys.ini"), include_str!("init/api-keys.test.json")),
    ),
    (
        "login",
        "Login attempts, by account and by address",
        (include_str!("init/login.ini"), include_str!("init/login.test.json")),
    ),
    (
        "llm",
        "Tokens of a language model, and concurrent answers",
        (include_str!("init/llm.ini"), include_str!("init/llm.test.json")),
    ),
    (
        "gateway",
        "Requests that a gateway asks about: logins, static files, and the rest",
        (include_str!("init/gateway.ini"), include_str!("init/gateway.test.json")),
    ),
];

/// Writes the files, and prints the next steps.
///
/// # Errors
/// A file exists or cannot be written.
pub fn init(args: InitArgs) -> anyhow::Result<ExitCode> {
    let InitArgs { file, template, force } = args;
    if file.extension().is_none_or(|extension| extension != "ini") {
        bail!("{}: rules with comments are written as INI; name the file *.ini", file.display());
    }
    let cases = test::cases_path(&file);
    let (rules_text, cases_text) = template;
    // Neither is written if one of them exists.
    if let Some(path) = [&file, &cases].into_iter().find(|path| !force && path.exists()) {
        return Err(describe(path, ErrorKind::AlreadyExists.into()));
    }
    write_file(&file, rules_text, force)?;
    write_file(&cases, cases_text, force)?;
    let mut out = io::stdout().lock();
    writeln!(out, "wrote {} and {}", file.display(), cases.display())?;
    let file = quote(&file.display().to_string());
    writeln!(out, "test the rules: divvy test {file}")?;
    writeln!(out, "serve them:     divvy serve {file}")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `text` to the file at `path`, which must not exist unless `force`.
///
/// # Errors
/// The file exists, or cannot be written.
fn write_file(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let written = if force {
        fs::write(path, text)
    } else {
        File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()))
    };
    written.map_err(|error| describe(path, error))
}

fn describe(path: &Path, error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::AlreadyExists => {
            anyhow!("{} already exists; add --force to overwrite it", path.display())
        }
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    }
}
