//! Backups of a store that continues to serve, and restoring: a data directory is created from a backup.
//!
//! A backup is a directory with a copy of the database, the key for ids, the format, and a file that marks it as a
//! backup. It gets its name when it is complete, so a failure or a kill never leaves an incomplete backup under that
//! name. Clients request backups, so the operator chooses the directory, and clients choose only a name.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Disk;
use super::database::{self, Database};
use super::directory::{self, BACKUP_FILE, FORMAT, FORMAT_FILE, LOCK_FILE, OpenError};
use divvy_core::clock::Clock;
use divvy_store::{BackupError, MAX_BACKUP_NAME, StoreError, key, record_key, value};

/// Suffix of an incomplete backup's name, which also begins with a '.'.
const PARTIAL: &str = ".partial";
/// Suffix that RocksDB appends to that.
const COPYING: &str = ".tmp";

/// The directory for backups.
pub struct Backups {
    dir: Option<PathBuf>,
    one_at_a_time: Arc<Mutex<()>>,
}

/// A backup that is about to be made. Only one exists at a time.
pub struct PendingBackup {
    path: PathBuf,
    /// Its path while it is incomplete.
    partial: PathBuf,
    _alone: OwnedMutexGuard<()>,
    /// The locked directory, so that no other process mistakes the incomplete backup for a leftover.
    _lock: File,
}

impl Backups {
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { dir, one_at_a_time: Arc::default() }
    }

    /// Begins the backup with this name, which may be a path to a name in the directory for backups.
    pub fn begin(&self, name: &str) -> Result<PendingBackup, BackupError> {
        let dir = self.dir.as_ref().ok_or(BackupError::SwitchedOff)?;
        let name = name_within(dir, name).ok_or(BackupError::BadName)?;
        let alone = Arc::clone(&self.one_at_a_time).try_lock_owned().map_err(|_| BackupError::Busy)?;
        let (path, partial) = (dir.join(&name), dir.join(format!(".{name}{PARTIAL}")));
        let locked = remove_leftovers(dir).and_then(|lock| lock.lock_shared().map(|()| lock));
        let lock = locked.map_err(|error| BackupError::Failed(path.clone(), error.to_string()))?;
        Ok(PendingBackup { path, partial, _alone: alone, _lock: lock })
    }

    /// Removes incomplete backups of processes that were killed. Their links keep files that the database has long
    /// dropped.
    pub fn tidy(&self) {
        if let Some(Err(error)) = self.dir.as_deref().map(remove_leftovers) {
            tracing::warn!(%error, "cannot check --backup-dir for unfinished backups");
        }
    }
}

/// Returns the name of the backup, if it is directly in `dir`.
fn name_within(dir: &Path, name: &str) -> Option<String> {
    let (parent, name) = name.rsplit_once('/').map_or((None, name), |(parent, name)| (Some(Path::new(parent)), name));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // A program would take the name "-rf" for an option.
    if name.is_empty() || name.len() > MAX_BACKUP_NAME || name.starts_with(['.', '-']) || !name.chars().all(is_plain) {
        return None;
    }
    // Paths are made canonical, so that `..` and links cannot lead elsewhere.
    let is_dir = |parent: &Path| {
        let same = fs::canonicalize(parent).and_then(|parent| Ok(parent == fs::canonicalize(dir)?));
        parent.is_absolute() && same.unwrap_or(false)
    };
    parent.is_none_or(is_dir).then(|| name.to_owned())
}

impl PendingBackup {
    /// Makes the backup: `copy` writes the database into a directory.
    pub fn take(self, copy: impl FnOnce(&Path) -> Result<(), StoreError>) -> Result<PathBuf, BackupError> {
        let failed = |reason: String| BackupError::Failed(self.path.clone(), reason);
        match directory::is_empty(&self.path) {
            Ok(true) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(false) => return Err(BackupError::Exists),
            Err(error) => return Err(failed(error.to_string())),
        }
        // The directory exists only if another process is making a backup with this name.
        if self.partial.exists() {
            return Err(BackupError::Busy);
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
        directory::write_backup_mark(&self.partial)?;
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

/// Removes incomplete backups in `dir`, unless a process may still be writing one. Returns the directory for the caller
/// to lock.
fn remove_leftovers(dir: &Path) -> io::Result<File> {
    let lock = File::open(dir)?;
    if let Err(TryLockError::WouldBlock) = lock.try_lock() {
        return Ok(lock);
    }
    for path in directory::files_in(dir)? {
        let has_name = path.file_name().and_then(OsStr::to_str).is_some_and(is_partial);
        if has_name && fs::symlink_metadata(&path)?.is_dir() && holds_a_copy(&path)? {
            tracing::info!(path = %path.display(), "removing an unfinished backup");
            fs::remove_dir_all(path)?;
        }
    }
    lock.unlock()?;
    Ok(lock)
}

/// Returns whether a name has the form `.NAME.partial` or `.NAME.partial.tmp`.
fn is_partial(name: &str) -> bool {
    let name = name.strip_suffix(COPYING).unwrap_or(name);
    name.strip_suffix(PARTIAL).and_then(|name| name.strip_prefix('.')).is_some_and(|name| !name.is_empty())
}

/// Returns whether the directory contains only files of a database, and so is one of divvy's backups.
fn holds_a_copy(dir: &Path) -> io::Result<bool> {
    const BEGINNINGS: [&str; 6] = ["CURRENT", "MANIFEST-", "OPTIONS-", FORMAT_FILE, BACKUP_FILE, directory::SEAL_FILE];
    let is_known = |file: &PathBuf| {
        let name = file.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let is_numbered = name.split_once('.').is_some_and(|(number, extension)| {
            number.bytes().all(|byte| byte.is_ascii_digit()) && ["sst", "log", "blob", "dbtmp"].contains(&extension)
        });
        is_numbered || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
    };
    Ok(directory::files_in(dir)?.iter().all(is_known))
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
    /// The backup has exceptions of single actors where this version does not look for them.
    #[error(
        "{0} has limits or blocks of actors in a format of builds before the release of 0.2.0; restore it with the build that made \
         it, and delete them there, or use another backup"
    )]
    OutdatedExceptions(PathBuf),
    /// The data directory is not empty.
    #[error(
        "{0} already exists and is not empty; stop the server that uses it and move it away, or choose another --data-dir \
         (nothing was changed)"
    )]
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
    check(backup)?;
    let is_new = match directory::is_empty(data_dir) {
        Ok(true) => false,
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Ok(false) => return Err(RestoreError::Exists(data_dir.into())),
        Err(reason) => return Err(RestoreError::Copy(backup.into(), data_dir.into(), reason)),
    };
    let restored = copy(backup, data_dir).and_then(|()| {
        let lock = directory::lock(data_dir);
        let opened = lock.and_then(|lock| Ok((lock, Database::open(data_dir, clock, Arc::default())?)));
        let (_lock, database) = opened.map_err(|error| match error {
            OpenError::OutdatedExceptions(_) => RestoreError::OutdatedExceptions(backup.into()),
            error => RestoreError::Damaged(backup.into(), error.to_string()),
        })?;
        read_all(&database).map_err(|error| RestoreError::Damaged(backup.into(), error.to_string()))
    });
    if restored.is_err() {
        clear(data_dir, is_new);
    }
    restored
}

/// Checks that this is a backup in the format that is read.
fn check(backup: &Path) -> Result<(), RestoreError> {
    if !backup.join(BACKUP_FILE).is_file() {
        return Err(RestoreError::NotABackup(backup.into()));
    }
    let format = fs::read_to_string(backup.join(FORMAT_FILE)).unwrap_or_default();
    if directory::is_known(&format) {
        return Ok(());
    }
    Err(RestoreError::UnknownFormat(backup.into(), format.trim().into()))
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

/// Empties the data directory again. As long as a file cannot be removed, the directory can be neither served nor
/// restored into. The caller needs the first failure, and not this one.
fn clear(data_dir: &Path, is_new: bool) {
    if is_new {
        let _ = fs::remove_dir_all(data_dir);
        return;
    }
    for file in directory::files_in(data_dir).into_iter().flatten() {
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_chooses_only_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| Backups::new(Some(dir.path().into())).begin(name).map(|backup| backup.path);
        let path = |name: &str| format!("{}/{name}", dir.path().display());
        for name in ["monday", "2026-11-21", "a.b_c"] {
            assert_eq!(place(name).unwrap(), dir.path().join(name));
            assert_eq!(place(&path(name)).unwrap(), dir.path().join(name));
        }
        let long = "x".repeat(101);
        let link = path("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        let bad = ",.,..,.hidden,-rf,a/b,../a,/etc/cron.d/a,/tmp/a,a b,a\0b,é,./a".split(',');
        for name in bad.chain([&*long, &path("../a"), &path("sub/a"), &path(""), &format!("{link}/a")]) {
            assert!(matches!(place(name), Err(BackupError::BadName)), "{name:?}");
        }
        assert!(matches!(Backups::new(None).begin("a"), Err(BackupError::SwitchedOff)));
    }

    #[test]
    fn only_one_backup_runs_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let backups = Backups::new(Some(dir.path().into()));
        let first = backups.begin("a").unwrap();
        assert!(matches!(backups.begin("b"), Err(BackupError::Busy)));
        drop(first);
        assert!(backups.begin("b").is_ok());
    }

    #[test]
    fn failure_leaves_nothing_behind_and_keeps_existing_files() {
        let dir = tempfile::tempdir().unwrap();
        let backups = Backups::new(Some(dir.path().into()));
        let half = |path: &Path| {
            fs::create_dir(path).unwrap();
            fs::write(path.join("000007.sst"), "a file").unwrap();
        };
        let result = backups.begin("a").unwrap().take(|path| {
            half(path);
            half(&copying(path));
            Err(StoreError::new("no space left"))
        });
        assert!(result.unwrap_err().to_string().contains("no space left"));
        assert!(directory::is_empty(dir.path()).unwrap());

        half(&dir.path().join("kept"));
        let result = backups.begin("kept").unwrap().take(|_| panic!("nothing is copied"));
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
        let make = |name: &str, file: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join(file), "").unwrap();
        };
        let kept = [".mine.partial", ".partial", ".x.partial.tmp.d", "whole", "x.partial"];
        make(kept[0], "a-download");
        kept[1..].iter().for_each(|name| make(name, "000007.sst"));
        let leave = || {
            make(".monday.partial", "CURRENT");
            make(".tuesday.partial.tmp", "000007.sst");
        };
        leave();
        let backups = Backups::new(Some(dir.path().into()));
        backups.tidy();
        assert_eq!(names(dir.path()), kept);

        leave();
        let place = backups.begin("wednesday").unwrap();
        assert_eq!(names(dir.path()), kept);
        leave();
        // Another process may be writing these files. In this test, this process is.
        Backups::new(Some(dir.path().into())).tidy();
        assert!(dir.path().join(".monday.partial").exists());
        drop(place);
        backups.tidy();
        assert_eq!(names(dir.path()), kept);
    }
}
