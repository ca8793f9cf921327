//! The subcommands, one file each.

pub mod check;
pub mod convert;
pub mod explain;
mod rules_file;

use std::process::ExitCode;

/// A rate limiter that never forgets a hit.
#[derive(Debug, clap::Parser)]
#[command(name = "divvy", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    Convert(convert::ConvertArgs),
}

impl Cli {
    /// # Errors
    /// Whatever the subcommand could not do.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Check(args) => check::run(args),
            Command::Explain(args) => explain::run(args),
            Command::Convert(args) => convert::run(args),
        }
    }
}
