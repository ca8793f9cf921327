//! The data directory: whose it is, and in what format, told before RocksDB touches anything in it.
//!
//! A file of our own names the format, so that a directory that is not ours, of another format or without its database
//! is refused as it was found. Nothing here opens the database.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::format::{FORMAT, is_readable};
use super::open_error::OpenError;

/// Holds the format's number in digits.
pub const FORMAT_FILE: &str = "DIVVY-FORMAT";
/// Ends the name of a file that is about to replace the one without it.
const NEW: &str = ".new";
/// Says that the directory is a backup: no server opens it, so that it stays as it was made.
pub const BACKUP_FILE: &str = "DIVVY-BACKUP";
/// Names the database's present files: RocksDB's own entry point.
const CURRENT: &str = "CURRENT";

/// Written to try the disk, and removed at once.
const PROBE_FILE: &str = "DIVVY-PROBE";
/// As much as RocksDB writes when it opens, and some more: a disk with less room would fail at once again.
const PROBE_BYTES: usize = 1 << 20;

/// Locked by the process that has the database open: RocksDB's. Such a lock is gone once the process closes any
/// descriptor of the file, so a process that has the database open must never open this file.
const LOCK_FILE: &str = "LOCK";
/// Locked by the divvy that has the database open, with a lock that lives as long as its one descriptor. The file stays.
const OWN_LOCK_FILE: &str = "DIVVY-LOCK";
/// A look at the lock takes it for a moment: so often, and so long apart, is tried to lock it.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Counters that are being written back, until RocksDB has taken the file over.
pub const WRITE_BACK_FILE: &str = "DIVVY-WRITE-BACK";
/// What RocksDB's files end in while it writes them.
const TEMPORARY: &str = ".dbtmp";

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
/// When the directory is not divvy's, in another format, damaged, or cannot be used.
pub fn claim(path: &Path) -> Result<Found, OpenError> {
    let unusable = |error: io::Error| OpenError::unusable(path, &error);
    fs::create_dir_all(path).map_err(unusable)?;
    if path.join(BACKUP_FILE).exists() {
        return Err(OpenError::IsBackup(path.into()));
    }
    match fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(format) if is_readable(&format) => {}
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
        return Err(OpenError::damaged(path, &format_args!("the file {CURRENT} is missing")));
    }
    Ok(Found::Nothing)
}

/// Notes that what is in the directory has this divvy's format from now on. An earlier divvy refuses it then.
///
/// # Errors
/// The system's.
pub fn upgrade(path: &Path) -> io::Result<()> {
    let format = path.join(FORMAT_FILE);
    if fs::read_to_string(&format)?.trim() == FORMAT.to_string() {
        return Ok(());
    }
    replace_file(path, FORMAT_FILE, &format!("{FORMAT}\n"))?;
    tracing::info!(path = %path.display(), format = FORMAT, "upgraded the data directory: earlier divvys cannot open it");
    Ok(())
}

/// A directory that no other divvy may open, as long as this lives.
#[derive(Debug)]
pub struct Lock {
    /// `None` on a file system without such locks: RocksDB's own has to do.
    _file: Option<File>,
}

/// Locks a directory, before it is claimed and for as long as it is used.
///
/// # Errors
/// When another divvy has locked it, or this process has.
pub fn lock(path: &Path) -> Result<Lock, OpenError> {
    let unusable = |error: io::Error| OpenError::unusable(path, &error);
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path.join(OWN_LOCK_FILE)).map_err(unusable)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { _file: Some(file) }),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Lock { _file: None });
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
    }
    Err(OpenError::InUse(path.into()))
}

/// Whether a process, this one or another, has the database open. To ask this leaves no trace, as a vain attempt to open
/// it would.
pub fn is_in_use(path: &Path) -> bool {
    let own = File::open(path.join(OWN_LOCK_FILE));
    if own.as_ref().is_ok_and(|file| file.try_lock_shared().is_err()) {
        return true;
    }
    // An older divvy holds RocksDB's lock only. This process does not have the database open, nor will it while `own` is
    // held: so it may close a descriptor of that file.
    let Ok(file) = File::open(path.join(LOCK_FILE)) else { return false };
    matches!(fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)), Ok(Some(_)))
}

/// Removes what RocksDB had not finished to write when a process was killed. The database must be open, by this process:
/// then nothing else writes such files.
pub fn remove_unfinished(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_unfinished) {
            tracing::info!(file = %entry.path().display(), "removing an unfinished file that a killed process left");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// `OPTIONS-000007.dbtmp`, `000007.dbtmp`, or a write-back.
fn is_unfinished(name: &str) -> bool {
    let number = name.strip_suffix(TEMPORARY).map(|name| name.strip_prefix("OPTIONS-").unwrap_or(name));
    let is_rocksdbs =
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    is_rocksdbs || name == WRITE_BACK_FILE
}

/// Whether there is nothing in the directory.
pub fn is_empty(path: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(path)?.next().is_none())
}

/// What those of the directory's files take that are meant, in bytes.
///
/// # Errors
/// When the directory cannot be read.
pub fn size(path: &Path, is_meant: impl Fn(&Path) -> bool) -> io::Result<u64> {
    let mut bytes = 0;
    for file in path.read_dir()? {
        let file = file?;
        if !is_meant(&file.path()) {
            continue;
        }
        match file.metadata() {
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
    write_file(path, FORMAT_FILE, &format!("{FORMAT}\n"))
}

/// Writes the file that makes the directory a backup, for good.
pub fn write_backup_mark(path: &Path) -> io::Result<()> {
    write_file(
        path,
        BACKUP_FILE,
        "A backup by `divvy backup`. To use it: divvy restore THIS_DIRECTORY --data-dir DIR\n",
    )
}

/// Puts a file in the directory, on stable storage. A crash leaves the file that was there before, or the new one.
///
/// # Errors
/// The system's.
pub fn replace_file(path: &Path, name: &str, content: &str) -> io::Result<()> {
    let new = format!("{name}{NEW}");
    remove_file(&path.join(&new))?;
    write_file(path, &new, content)?;
    fs::rename(path.join(&new), path.join(name))?;
    File::open(path)?.sync_all()
}

/// Removes a file, if it exists.
///
/// # Errors
/// Fails if it cannot be removed.
pub fn remove_file(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
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
    fn a_directory_is_locked_once_and_a_look_at_it_does_not_unlock_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_in_use(dir.path()));
        let held = lock(dir.path()).unwrap();
        assert!(is_in_use(dir.path()) && is_in_use(dir.path()));
        assert!(matches!(lock(dir.path()), Err(OpenError::InUse(_))));
        drop(held);
        assert!(!is_in_use(dir.path()));
        assert!(lock(dir.path()).is_ok());
    }

    #[test]
    fn only_files_that_rocksdb_had_not_finished_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = ["OPTIONS-000007", "000012.sst", "mine.dbtmp", "OPTIONS-.dbtmp", "CURRENT"];
        for name in kept.iter().chain(&["OPTIONS-000009.dbtmp", "000011.dbtmp", WRITE_BACK_FILE]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_unfinished(dir.path()).unwrap();
        assert!(kept.iter().all(|name| dir.path().join(name).exists()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), kept.len());
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
    fn a_directory_of_an_earlier_format_is_upgraded_once() {
        let dir = tempfile::tempdir().unwrap();
        let format = || fs::read_to_string(dir.path().join(FORMAT_FILE)).unwrap();
        fs::write(dir.path().join(FORMAT_FILE), "1\n").unwrap();
        // An upgrade that was interrupted leaves this.
        fs::write(dir.path().join("DIVVY-FORMAT.new"), "").unwrap();
        assert!(matches!(claim(dir.path()), Ok(Found::Nothing)));
        assert_eq!(format(), "1\n", "a claim changes nothing");
        for _ in 0..2 {
            upgrade(dir.path()).unwrap();
            assert_eq!(format(), "2\n");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
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
