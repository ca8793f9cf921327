//! `divvy man`: prints the manual page, generated from the text of `--help`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Write a page for divvy and one for each subcommand into this directory, which must exist, instead of printing
    /// divvy's page
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the page of `cli`, or writes all pages.
pub fn run(args: ManArgs, cli: Command) -> anyhow::Result<ExitCode> {
    // `divvy help` needs no page of its own.
    let cli = cli.disable_help_subcommand(true);
    match args.dir {
        None => {
            let mut page = Vec::new();
            Man::new(cli).render(&mut page)?;
            io::stdout().write_all(&page)?;
        }
        Some(dir) => {
            let failed = || format!("cannot write the manual pages into {}", dir.display());
            clap_mangen::generate_to(cli, &dir).with_context(failed)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
