//! `divvy convert`: writes the rules of an INI file as JSON, or the other way round.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use super::rules_file;
use crate::config::{self, Format};

/// Convert a rules file between INI and JSON. Nothing is lost but the comments in the file.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    /// The rules file to read, *.ini or *.json.
    input: PathBuf,
    /// The rules file to write, *.ini or *.json.
    output: PathBuf,
    /// Overwrite the output file if there is one.
    #[arg(long)]
    force: bool,
}

/// # Errors
/// The output's extension is unknown, the rules cannot be written in its format, or the file cannot be written.
pub fn run(args: ConvertArgs) -> anyhow::Result<ExitCode> {
    let format = Format::of(&args.output)
        .with_context(|| format!("{}: unknown file extension; name it *.ini or *.json", args.output.display()))?;
    let Some(rules) = rules_file::load(&args.input)? else { return Ok(ExitCode::FAILURE) };
    let text = config::write(rules.rules(), format).with_context(|| args.input.display().to_string())?;
    write_file(&args.output, &text, args.force)?;
    Ok(ExitCode::SUCCESS)
}

fn write_file(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let written = if force {
        fs::write(path, text)
    } else {
        File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()))
    };
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow::anyhow!("{} is already there; add --force to overwrite it", path.display()),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    })
}
