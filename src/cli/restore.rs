//! `divvy restore`: creates a data directory from a backup, without a running server.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::progress::Progress;
use super::units::Approximate;
use crate::clock::Clock;
use crate::store;

#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// Directory that `divvy backup` made. It is not changed
    #[arg(value_name = "BACKUP_DIR")]
    backup: PathBuf,
    /// Data directory to create. It must be new or empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Prints the number of restored counters, including expired ones.
pub fn run(args: RestoreArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::show({
        let (whole, data_dir) = (size(&args.backup), args.data_dir.clone());
        move || describe(size(&data_dir), whole)
    });
    let counters = store::restore(&args.backup, &args.data_dir, Clock::system())?;
    drop(progress);
    writeln!(io::stdout(), "{} is restored: {counters} counters, all of them read", args.data_dir.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the progress: the files are copied first, and then every counter is read.
fn describe(copied: u64, whole: u64) -> String {
    if copied < whole {
        format!("{} of {} copied", Approximate(copied), Approximate(whole))
    } else {
        format!("{} copied, reading every counter", Approximate(whole))
    }
}

/// Returns the total size of the files in a directory, as far as it can be read.
fn size(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_copying_before_reading() {
        assert_eq!(describe(0, 2_048), "0 B of 2.0 KiB copied");
        assert_eq!(describe(1_536, 2_048), "1.5 KiB of 2.0 KiB copied");
        assert_eq!(describe(3_000, 2_048), "2.0 KiB copied, reading every counter");
    }

    #[test]
    fn size_of_a_directory_is_that_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), [0; 100]).unwrap();
        fs::write(dir.path().join("b"), [0; 23]).unwrap();
        fs::create_dir(dir.path().join("c")).unwrap();
        assert_eq!(size(dir.path()), 123);
        assert_eq!(size(&dir.path().join("nowhere")), 0);
    }
}
