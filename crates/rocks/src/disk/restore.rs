//! Restoring: creates a data directory from a backup.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Disk;
use super::database::Database;
use super::directory::{self, BACKUP_FILE, FORMAT_FILE, LOCK_FILE};
use super::exceptions;
use super::open_error::{FORMAT, OpenError};
use divvy_core::clock::Clock;
use divvy_store::contract::StoreError;
use divvy_store::{key, record_key, value};

/// The reason why a backup could not be restored. The backup is unchanged, and the data directory is empty.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory has no file that marks a backup.
    #[error("{0} is not a divvy backup: it has no file {BACKUP_FILE}; give a directory that `divvy backup` made")]
    NotABackup(PathBuf),
    /// This version of divvy does not read the backup's format.
    #[error("{path} is a backup in format {found}, and this divvy reads format {FORMAT}; use the divvy that made it")]
    UnknownFormat {
        /// The backup.
        path: PathBuf,
        /// The format of the backup.
        found: String,
    },
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
    #[error("cannot copy {from} to {to}: {reason}")]
    Copy {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The copy cannot be opened and read.
    #[error("the backup {path} is damaged: {reason}; use another one")]
    Damaged {
        /// The backup.
        path: PathBuf,
        /// The error of the copy.
        reason: String,
    },
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
        Err(reason) => return Err(RestoreError::Copy { from: backup.into(), to: data_dir.into(), reason }),
    };
    let restored = copy(backup, data_dir).and_then(|()| {
        let lock = directory::lock(data_dir);
        let opened = lock.and_then(|lock| Ok((lock, Database::open(data_dir, clock, Arc::default())?)));
        let (_lock, database) = opened.map_err(|error| match error {
            OpenError::OutdatedExceptions(_) => RestoreError::OutdatedExceptions(backup.into()),
            error => RestoreError::Damaged { path: backup.into(), reason: error.to_string() },
        })?;
        let read = read_all(&database);
        read.map_err(|error| RestoreError::Damaged { path: backup.into(), reason: error.to_string() })
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
    Err(RestoreError::UnknownFormat { path: backup.into(), found: format.trim().into() })
}

/// Copies the database's files. The file that turns the copy into a data directory comes last.
fn copy(backup: &Path, data_dir: &Path) -> Result<(), RestoreError> {
    let failed = |reason| RestoreError::Copy { from: backup.into(), to: data_dir.into(), reason };
    fs::create_dir_all(data_dir).map_err(failed)?;
    for file in fs::read_dir(backup).map_err(failed)? {
        let from = file.map_err(failed)?.path();
        let Some(name) = from.file_name() else { continue };
        // RocksDB creates its lock file again.
        if [BACKUP_FILE, FORMAT_FILE, LOCK_FILE].iter().any(|known| name == *known) {
            continue;
        }
        let to = data_dir.join(name);
        let copied = fs::copy(&from, &to).and_then(|_| File::open(&to)?.sync_all());
        copied.map_err(|reason| RestoreError::Copy { from, to, reason })?;
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
            let is_readable = exceptions::is_readable(&key, &stored);
            return if is_readable { Ok(()) } else { Err(StoreError::new("an actor's limit or block cannot be read")) };
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
    for file in fs::read_dir(data_dir).into_iter().flatten().flatten() {
        let _ = fs::remove_file(file.path());
    }
}
