//! Backups of a store that continues to serve, and restoring: a data directory is created from a backup.
//!
//! A backup is a directory with a copy of the database, the key for ids, the format, and a file that marks it as a
//! backup. It gets its name when it is complete, so a failure or a kill never leaves an incomplete backup under that
//! name. Clients request backups, so the operator chooses the directory, and clients choose only a name.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Disk;
use super::database::{self, Database};
use super::directory::{self, BACKUP_FILE, FORMAT, FORMAT_FILE, LOCK_FILE};
use divvy_core::clock::Clock;
use divvy_store::{BackupError, MAX_BACKUP_NAME, StoreError, key, record_key, value};

/// Suffix of an incomplete backup's name, which also begins with a '.'.
const PARTIAL: &str = ".divvy-partial";
/// Suffix that RocksDB appends to that.
const COPYING: &str = ".tmp";

/// A backup that is about to be made.
pub struct PendingBackup {
    path: PathBuf,
    /// Its path while it is incomplete.
    partial: PathBuf,
    /// The locked directory for backups. Only one backup exists at a time, and no process mistakes it for a leftover.
    _lock: File,
}

/// Begins the backup with this name in the directory for backups.
pub fn begin(dir: Option<&Path>, name: &str) -> Result<PendingBackup, BackupError> {
    let dir = dir.ok_or(BackupError::SwitchedOff)?;
    if !is_name(name) {
        return Err(BackupError::BadName);
    }
    let path = dir.join(name);
    let failed = |error: io::Error| BackupError::Failed(path.clone(), error.to_string());
    let lock = File::open(dir).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(BackupError::Busy),
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    remove_leftovers(dir).map_err(failed)?;
    Ok(PendingBackup { partial: dir.join(format!(".{name}{PARTIAL}")), path, _lock: lock })
}

/// Returns whether a backup may have this name, which stays in the directory for backups.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // A program would take the name "-rf" for an option.
    (1..=MAX_BACKUP_NAME).contains(&name.len()) && !name.starts_with(['.', '-']) && name.chars().all(is_plain)
}

impl PendingBackup {
    /// Makes the backup: `copy` writes the database into a directory.
    pub fn take(self, copy: impl FnOnce(&Path) -> Result<(), StoreError>) -> Result<PathBuf, BackupError> {
        let failed = |reason: String| BackupError::Failed(self.path.clone(), reason);
        if !directory::is_empty(&self.path).map_err(|error| failed(error.to_string()))? {
            return Err(BackupError::Exists);
        }
        let copied = copy(&self.partial).map_err(|error| error.to_string());
        if let Err(reason) = copied.and_then(|()| self.finish().map_err(|error| error.to_string())) {
            // The caller needs the first failure, and not a failure to clean up.
            let _ = fs::remove_dir_all(&self.partial);
            let _ = fs::remove_dir_all(copying(&self.partial));
            return Err(failed(reason));
        }
        tracing::info!(path = %self.path.display(), "took a backup");
        Ok(self.path)
    }

    fn finish(&self) -> io::Result<()> {
        directory::write_format(&self.partial)?;
        let mark = "A backup by `divvy backup`. To use it: divvy restore THIS_DIRECTORY --data-dir DIR\n";
        directory::write_file(&self.partial, BACKUP_FILE, mark)?;
        fs::rename(&self.partial, &self.path)?;
        match self.path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// Returns the directory into which RocksDB copies a database before it renames the directory to `partial`.
fn copying(partial: &Path) -> PathBuf {
    let mut name = partial.as_os_str().to_owned();
    name.push(COPYING);
    name.into()
}

/// Removes incomplete backups of killed processes in `dir`. Their links keep files that the database has long dropped.
fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for path in directory::files_in(dir)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_partial = name.starts_with('.') && name.strip_suffix(COPYING).unwrap_or(name).ends_with(PARTIAL);
        if is_partial && fs::symlink_metadata(&path)?.is_dir() {
            tracing::info!(path = %path.display(), "removing an unfinished backup");
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// The reason why a backup could not be restored. The backup is unchanged, and the data directory is empty.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory has no file that marks a backup.
    #[error("{0} is not a divvy backup: it has no file {BACKUP_FILE}; give a directory that `divvy backup` made")]
    NotABackup(PathBuf),
    /// This version of divvy does not read the backup's format.
    #[error("{0} is a backup in format {1}, and this divvy reads format {FORMAT}; use the divvy that made it")]
    UnknownFormat(PathBuf, String),
    /// The data directory is not empty.
    #[error("{0} already exists and is not empty; stop the server that uses it and move it away")]
    Exists(PathBuf),
    /// A file cannot be copied.
    #[error("cannot copy {0} to {1}: {2}")]
    Copy(PathBuf, PathBuf, io::Error),
    /// The copy cannot be opened and read.
    #[error("the backup {0} is damaged: {1}; use another one")]
    Damaged(PathBuf, String),
}

/// Creates a data directory from a backup, and reads all of it once to check it. Returns the number of counters in it.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(backup: &Path, data_dir: &Path, clock: Clock) -> Result<u64, RestoreError> {
    if !backup.join(BACKUP_FILE).is_file() {
        return Err(RestoreError::NotABackup(backup.into()));
    }
    let format = fs::read_to_string(backup.join(FORMAT_FILE)).unwrap_or_default();
    if !directory::is_known(&format) {
        return Err(RestoreError::UnknownFormat(backup.into(), format.trim().into()));
    }
    let is_free = directory::is_empty(data_dir);
    if !is_free.map_err(|reason| RestoreError::Copy(backup.into(), data_dir.into(), reason))? {
        return Err(RestoreError::Exists(data_dir.into()));
    }
    let restored = copy(backup, data_dir).and_then(|()| {
        let lock = directory::lock(data_dir);
        let opened = lock.and_then(|lock| Ok((lock, Database::open(data_dir, clock, Arc::default())?)));
        let (_lock, database) = opened.map_err(|error| RestoreError::Damaged(backup.into(), error.to_string()))?;
        read_all(&database).map_err(|error| RestoreError::Damaged(backup.into(), error.to_string()))
    });
    if restored.is_err() {
        // As long as a file cannot be removed, the directory can be neither served nor restored into. The caller needs the first
        // failure, and not that one.
        for file in directory::files_in(data_dir).into_iter().flatten() {
            let _ = fs::remove_file(file);
        }
    }
    restored
}

/// Copies the database's files. The file that turns the copy into a data directory comes last.
fn copy(backup: &Path, data_dir: &Path) -> Result<(), RestoreError> {
    let failed = |reason| RestoreError::Copy(backup.into(), data_dir.into(), reason);
    fs::create_dir_all(data_dir).map_err(failed)?;
    for from in directory::files_in(backup).map_err(failed)? {
        let Some(name) = from.file_name() else { continue };
        // RocksDB creates its lock file again.
        if [BACKUP_FILE, FORMAT_FILE, LOCK_FILE].iter().any(|known| name == *known) {
            continue;
        }
        let to = data_dir.join(name);
        let copied = fs::copy(&from, &to).and_then(|_| File::open(&to)?.sync_all());
        copied.map_err(|reason| RestoreError::Copy(from, to, reason))?;
    }
    directory::write_format(data_dir).map_err(failed)
}

/// Reads every counter, which verifies RocksDB's checksums, and ends the work of the database.
fn read_all(database: &Database) -> Result<u64, StoreError> {
    database.settle_journal()?;
    let mut counters = 0u64;
    let read = database.entries(&[], None).try_for_each(|entry| {
        let (key, stored) = entry?;
        if record_key::is_record(&key) {
            let read = value::decode_record(&stored);
            return read.map(drop).map_err(|_| StoreError::new("a reservation or an answer cannot be read"));
        }
        if record_key::is_exception(&key) {
            let read = database::decode_exception(&key, &stored);
            return read.map(drop).ok_or_else(|| StoreError::new("an actor's limit or block cannot be read"));
        }
        counters += 1;
        match (key::decode(&key), value::expiry(&stored)) {
            (Some(_), Ok(_)) => Ok(()),
            _ => Err(StoreError::new("a counter cannot be read")),
        }
    });
    let closed = read.and_then(|()| database.sync());
    database.stop_background_work();
    closed.map(|()| counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_chooses_only_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| begin(Some(dir.path()), name).map(|backup| backup.path);
        for name in ["monday", "2026-11-21", "a.b_c"] {
            assert_eq!(place(name).unwrap(), dir.path().join(name));
        }
        let long = "x".repeat(101);
        let bad = ",.,..,.hidden,-rf,a/b,../a,/etc/cron.d/a,/tmp/a,a b,a\0b,é,./a".split(',');
        for name in bad.chain([&*long, dir.path().join("a").to_str().unwrap()]) {
            assert!(matches!(place(name), Err(BackupError::BadName)), "{name:?}");
        }
        assert!(matches!(begin(None, "a"), Err(BackupError::SwitchedOff)));
    }

    #[test]
    fn only_one_backup_runs_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = begin(Some(dir.path()), "a").unwrap();
        assert!(matches!(begin(Some(dir.path()), "b"), Err(BackupError::Busy)));
        drop(first);
        assert!(begin(Some(dir.path()), "b").is_ok());
    }

    #[test]
    fn failure_leaves_nothing_behind_and_keeps_existing_files() {
        let dir = tempfile::tempdir().unwrap();
        let half = |path: &Path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("000007.sst"), "a file").unwrap();
        };
        let result = begin(Some(dir.path()), "a").unwrap().take(|path| {
            half(path);
            half(&copying(path));
            Err(StoreError::new("no space left"))
        });
        assert!(result.unwrap_err().to_string().contains("no space left"));
        assert!(directory::is_empty(dir.path()).unwrap());

        half(&dir.path().join("kept"));
        let result = begin(Some(dir.path()), "kept").unwrap().take(|_| panic!("nothing is copied"));
        assert!(matches!(result, Err(BackupError::Exists)));
        assert_eq!(fs::read_to_string(dir.path().join("kept/000007.sst")).unwrap(), "a file");
    }

    fn names(dir: &Path) -> Vec<String> {
        let files = directory::files_in(dir).unwrap();
        let mut names: Vec<_> =
            files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_leftovers_of_a_killed_process_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("000007.sst"), "").unwrap();
        };
        let kept = [".mine.partial", "whole", "x.divvy-partial"];
        kept.into_iter().for_each(make);
        [".monday.divvy-partial", ".tuesday.divvy-partial.tmp"].into_iter().for_each(make);
        begin(Some(dir.path()), "wednesday").unwrap();
        assert_eq!(names(dir.path()), kept);
    }
}
