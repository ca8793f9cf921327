//! Parses the command line, runs one subcommand, and turns its error into an exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    divvy::cli::Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
