//! The data directory: whose it is, and in what format, told before RocksDB touches anything in it.
//!
//! A file of our own names the format, so that a directory that is not ours, of another format or without its database
//! is refused as it was found. Nothing here opens the database.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::database::OpenError;
use crate::store::key::FORMAT_VERSION;

/// Holds the format's number in digits.
pub const FORMAT_FILE: &str = "DIVVY-FORMAT";
/// Says that the directory is a backup: it is served by nobody, so that it stays as it was made.
pub const BACKUP_FILE: &str = "DIVVY-BACKUP";
/// Names the database's present files: RocksDB's own entry point.
const CURRENT: &str = "CURRENT";

/// Written to try the disk, and removed at once.
const PROBE_FILE: &str = "DIVVY-PROBE";
/// As much as RocksDB writes when it opens, and some more: a disk with less room would fail at once again.
const PROBE_BYTES: usize = 1 << 20;

/// Locked by whoever has the database open: RocksDB's.
const LOCK_FILE: &str = "LOCK";

/// What a directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A database of ours in this format.
    Database,
    /// Nothing yet: a database may be made here.
    Nothing,
}

/// Makes the directory if there is none, and claims it if it is empty.
///
/// # Errors
/// When the directory is somebody else's, in another format, damaged, or cannot be used.
pub fn claim(path: &Path) -> Result<Found, OpenError> {
    let unusable = |e: io::Error| OpenError::Unusable { path: path.into(), reason: e.to_string() };
    fs::create_dir_all(path).map_err(unusable)?;
    if path.join(BACKUP_FILE).exists() {
        return Err(OpenError::IsBackup(path.into()));
    }
    match fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(format) if format.trim() == FORMAT_VERSION.to_string() => {}
        // A power cut came before the file had reached the disk: nothing was acknowledged by then.
        Ok(format) if is_blank(&format) && !holds_more_than_format(path).map_err(unusable)? => {
            fs::remove_file(path.join(FORMAT_FILE)).map_err(unusable)?;
            write_format(path).map_err(unusable)?;
        }
        Ok(format) => return Err(OpenError::UnknownFormat { path: path.into(), found: format.trim().into() }),
        Err(error) if error.kind() == ErrorKind::NotFound && is_empty(path).map_err(unusable)? => {
            write_format(path).map_err(unusable)?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(OpenError::NotOurs(path.into())),
        Err(error) => return Err(unusable(error)),
    }
    if path.join(CURRENT).exists() {
        return Ok(Found::Database);
    }
    // RocksDB would make a new database here, and delete what is left of the old one at the next start.
    if holds_data(path).map_err(unusable)? {
        return Err(OpenError::Damaged { path: path.into(), reason: format!("the file {CURRENT} is missing") });
    }
    Ok(Found::Nothing)
}

/// Whether another process has the database open. To ask this leaves no trace, as a vain attempt to open it would.
pub fn is_in_use(path: &Path) -> bool {
    let Ok(file) = File::open(path.join(LOCK_FILE)) else { return false };
    matches!(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)), Ok(Some(_)))
}

/// Whether there is nothing in the directory.
pub fn is_empty(path: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(path)?.next().is_none())
}

/// What the directory's files take, in bytes.
pub fn size(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for file in path.read_dir()? {
        match file?.metadata() {
            Ok(metadata) => bytes += metadata.len(),
            // RocksDB drops files as it goes.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Tries whether the directory's disk takes writes, by a file of some size that is removed again.
///
/// # Errors
/// The system's, when it does not.
pub fn probe(path: &Path) -> io::Result<()> {
    let probe = path.join(PROBE_FILE);
    let written = File::create(&probe).and_then(|mut file| {
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    written.and(removed)
}

/// Whether nothing was written: what a file holds that was made and never reached the disk is zeros.
fn is_blank(text: &str) -> bool {
    text.chars().all(|char| char == '\0')
}

fn holds_more_than_format(path: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(path)?.count() > 1)
}

fn holds_data(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.path();
        if name.extension().is_some_and(|extension| extension == "sst" || extension == "log") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Writes the file that names the format, for good.
pub fn write_format(path: &Path) -> io::Result<()> {
    write_file(path, FORMAT_FILE, &format!("{FORMAT_VERSION}\n"))
}

/// Writes the file that makes the directory a backup, for good.
pub fn write_backup_mark(path: &Path) -> io::Result<()> {
    write_file(
        path,
        BACKUP_FILE,
        "A backup by `divvy backup`. To use it: divvy restore THIS_DIRECTORY --data-dir DIR\n",
    )
}

fn write_file(path: &Path, name: &str, content: &str) -> io::Result<()> {
    let mut file = File::create_new(path.join(name))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_claimed_once_and_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        assert!(matches!(claim(&path), Ok(Found::Nothing)));
        assert!(matches!(claim(&path), Ok(Found::Nothing)), "ended before the database was made");
        fs::write(path.join(CURRENT), "MANIFEST-000001\n").unwrap();
        assert!(matches!(claim(&path), Ok(Found::Database)));
    }

    #[test]
    fn a_claim_that_a_power_cut_undid_is_made_again() {
        for unfinished in ["", "\0\0"] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(FORMAT_FILE), unfinished).unwrap();
            assert!(matches!(claim(dir.path()), Ok(Found::Nothing)));
            fs::write(dir.path().join(FORMAT_FILE), unfinished).unwrap();
            fs::write(dir.path().join(CURRENT), "MANIFEST-000001\n").unwrap();
            assert!(matches!(claim(dir.path()), Err(OpenError::UnknownFormat { .. })), "it had been finished");
        }
    }

    #[test]
    fn what_is_not_ours_is_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious.txt"), "mine").unwrap();
        assert!(matches!(claim(dir.path()), Err(OpenError::NotOurs(_))));
        fs::write(dir.path().join("LOCK"), "").unwrap();
        assert!(matches!(claim(dir.path()), Err(OpenError::NotOurs(_))));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_backup_is_not_served() {
        let dir = tempfile::tempdir().unwrap();
        claim(dir.path()).unwrap();
        write_backup_mark(dir.path()).unwrap();
        assert!(matches!(claim(dir.path()), Err(OpenError::IsBackup(_))));
    }

    #[test]
    fn another_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FORMAT_FILE), "99\n").unwrap();
        assert!(matches!(claim(dir.path()), Err(OpenError::UnknownFormat { found, .. }) if found == "99"));
    }

    /// RocksDB made a new database in such a directory, and at the second start deleted the old one's files.
    #[test]
    fn a_database_without_its_entry_point_is_damaged_not_new() {
        let dir = tempfile::tempdir().unwrap();
        claim(dir.path()).unwrap();
        fs::write(dir.path().join("000012.sst"), "").unwrap();
        assert!(matches!(claim(dir.path()), Err(OpenError::Damaged { .. })));
    }
}
