//! The `divvy` binary: parse the command line, run one subcommand, turn its error into an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use divvy::cli::Cli;

// RocksDB's, too: the crate's feature `override` puts it in the place of C's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // A standard error that is gone changes nothing about the exit code.
            let _ = writeln!(io::stderr(), "divvy: {error:#}");
            ExitCode::FAILURE
        }
    }
}
