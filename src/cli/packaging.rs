//! Files of the packages: `divvy completions` prints a script that lets a shell complete divvy's subcommands, flags and their values.
//! `divvy man` prints the manual page, generated from the text of `--help`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

#[derive(clap::Args)]
pub struct CompletionsArgs {
    /// The shell that the script is for
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script for `cli`.
pub fn print_completions(args: CompletionsArgs, mut cli: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "divvy", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(clap::Args)]
pub struct ManArgs {
    /// Write a page for divvy and one for each subcommand into this directory, which must exist, instead of printing
    /// divvy's page
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the page of `cli`, or writes all pages.
pub fn print_man(args: ManArgs, cli: Command) -> anyhow::Result<ExitCode> {
    // `divvy help` needs no page of its own.
    let cli = cli.disable_help_subcommand(true);
    match args.dir {
        None => Man::new(cli).render(&mut io::stdout().lock())?,
        Some(dir) => {
            let failed = || format!("cannot write the manual pages into {}", dir.display());
            clap_mangen::generate_to(cli, &dir).with_context(failed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
