//! `divvy completions`: prints a script that lets a shell complete divvy's subcommands, flags and their values.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell that the script is for
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for `cli`.
pub fn run(args: CompletionsArgs, mut cli: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "divvy", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
