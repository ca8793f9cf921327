//! The `divvy` binary: parses the command line, runs one subcommand, and turns its error into an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use divvy::cli::Cli;

// RocksDB uses it, too: the crate's feature `override` replaces C's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::from_command_line().run().unwrap_or_else(|error| {
        // The exit code does not depend on whether standard error still exists.
        let _ = writeln!(io::stderr(), "divvy: {error:#}");
        ExitCode::FAILURE
    })
}
