//! `divvy restore`: creates a data directory from a backup, without a running server.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;

use super::terminal::Progress;
use divvy_core::clock::Clock;
use divvy_core::units::Approximate;
use divvy_limiter::store;

#[derive(clap::Args)]
pub struct RestoreArgs {
    /// Directory that `divvy backup` made, or the name of a backup in --backup-dir. It is not changed
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// Directory of the server's backups
    #[arg(long, env = "DIVVY_BACKUP_DIR", value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// Data directory to create. It must be new or empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Prints the number of restored counters, including expired ones.
///
/// # Errors
/// There is no such backup, or it cannot be restored.
pub fn run(args: RestoreArgs) -> anyhow::Result<ExitCode> {
    let backup = find(&args.backup, args.backup_dir.as_deref())?;
    let progress = Progress::show({
        let (whole, data_dir) = (size(&backup), args.data_dir.clone());
        move || describe(size(&data_dir), whole)
    });
    let counters = store::restore(&backup, &args.data_dir, Clock::system())?;
    drop(progress);
    writeln!(io::stdout(), "{} is restored: {counters} counters, all of them read", args.data_dir.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory of a backup: the path itself, or a name in the directory of backups.
fn find(backup: &Path, backup_dir: Option<&Path>) -> anyhow::Result<PathBuf> {
    let is_name = backup.components().count() == 1 && backup.is_relative();
    match backup_dir {
        _ if backup.is_dir() => Ok(backup.to_owned()),
        Some(dir) if dir.join(backup).is_dir() => Ok(dir.join(backup)),
        Some(dir) if is_name => bail!("there is no backup {} in {}", backup.display(), dir.display()),
        None if is_name => bail!(
            "there is no directory {}: write the path that `divvy backup` printed, or name the server's --backup-dir",
            backup.display()
        ),
        _ => bail!("there is no directory {}: write the path that `divvy backup` printed", backup.display()),
    }
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
        assert_eq!(describe(0, 2_048), "0 B of 2 KiB copied");
        assert_eq!(describe(1_536, 2_048), "1.5 KiB of 2 KiB copied");
        assert_eq!(describe(3_000, 2_048), "2 KiB copied, reading every counter");
    }

    #[test]
    fn backup_is_found_by_its_path_or_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let monday = dir.path().join("monday");
        fs::create_dir(&monday).unwrap();
        assert_eq!(find(&monday, None).unwrap(), monday);
        assert_eq!(find(Path::new("monday"), Some(dir.path())).unwrap(), monday);
        for (name, backup_dir, expected) in [
            ("tuesday", Some(dir.path()), "there is no backup tuesday in"),
            ("monday", None, "name the server's --backup-dir"),
            ("/nowhere/monday", None, "write the path that `divvy backup` printed"),
        ] {
            let error = find(Path::new(name), backup_dir).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
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
