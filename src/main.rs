//! The `divvy` binary: parse the command line, run one subcommand, turn its error into an exit code.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use divvy::cli::Cli;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Answers go to standard output, so logs do not.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("divvy: {error:#}");
            ExitCode::FAILURE
        }
    }
}
