//! Parses the command line, runs one subcommand and turns its error into an exit code.

use std::process::ExitCode;

use clap::Parser;

mod cli;

/// Quotas and rate limits as a service
#[derive(Debug, Parser)]
#[command(name = "divvy", version)]
enum Command {
    Bench(cli::bench::BenchArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Bench(args) => cli::bench::run(args),
    }
}
