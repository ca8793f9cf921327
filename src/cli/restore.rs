//! `divvy restore`: makes a data directory of a backup, with no server running.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::clock::Clock;
use crate::store;

#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// A directory that `divvy backup` has made; it is left as it is
    #[arg(value_name = "BACKUP_DIR")]
    backup: PathBuf,
    /// The data directory to make, which must be new or empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Prints how many counters there are in it, expired ones included.
pub fn run(args: RestoreArgs) -> anyhow::Result<ExitCode> {
    let counters = store::restore(&args.backup, &args.data_dir, Clock::system())?;
    println!("{} is restored: {counters} counters, all of them read", args.data_dir.display());
    Ok(ExitCode::SUCCESS)
}
