//! `divvy restore`: creates a data directory from a backup, without a running server.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use divvy_core::clock::Clock;
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
    let counters = store::restore(&backup, &args.data_dir, Clock::system())?;
    writeln!(io::stdout(), "{} is restored: {counters} counters, all of them read", args.data_dir.display())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory of a backup: the path itself, or a name in the directory of backups.
fn find(backup: &Path, backup_dir: Option<&Path>) -> anyhow::Result<PathBuf> {
    let places = [Some(backup.to_owned()), backup_dir.map(|dir| dir.join(backup))];
    places.into_iter().flatten().find(|place| place.is_dir()).with_context(|| {
        let backup = backup.display();
        format!(
            "there is no backup {backup}: write the path that `divvy backup` printed, or name the server's --backup-dir"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_is_found_by_its_path_or_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let monday = dir.path().join("monday");
        std::fs::create_dir(&monday).unwrap();
        assert_eq!(find(&monday, None).unwrap(), monday);
        assert_eq!(find(Path::new("monday"), Some(dir.path())).unwrap(), monday);
        for (name, backup_dir) in [("tuesday", Some(dir.path())), ("monday", None), ("/nowhere/monday", None)] {
            let error = find(Path::new(name), backup_dir).unwrap_err().to_string();
            assert!(error.starts_with(&format!("there is no backup {name}: ")), "{error}");
        }
    }
}
