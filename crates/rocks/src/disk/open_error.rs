//! Errors of opening the embedded store.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The format of data directories and backups. Builds before the first release wrote 1, which nothing reads.
pub const FORMAT: u8 = 2;

/// The reason why a data directory could not be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory's lock.
    #[error(
        "{0} is in use by another process; stop that process (only one divvy may serve a data directory), or choose another --data-dir"
    )]
    InUse(PathBuf),
    /// The directory has files, but does not belong to divvy.
    #[error(
        "{0} holds files but no divvy database; choose an empty or new directory with --data-dir (nothing was changed)"
    )]
    NotOurs(PathBuf),
    /// This version of divvy does not read the directory's format.
    #[error(
        "{path} was written in format {found}, and this divvy reads format {FORMAT}; run the divvy that wrote it, or choose another --data-dir (nothing was changed)"
    )]
    UnknownFormat {
        /// The data directory.
        path: PathBuf,
        /// The format in the directory.
        found: String,
    },
    /// The directory has exceptions of single actors where this version does not look for them.
    #[error(
        "{0} has limits or blocks of actors in a format of builds before the release of 0.2.0; delete them with the build that wrote \
         it and set them again with this one (`divvy limit`, `divvy block`, `divvy allow`), or choose another --data-dir \
         (no counter was changed)"
    )]
    OutdatedExceptions(PathBuf),
    /// RocksDB or divvy cannot read the content.
    #[error(
        "the database in {path} is damaged ({reason}); restore it from a backup, or move it away to start with empty counters (nothing was changed)"
    )]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The directory cannot be created, read or written.
    #[error(
        "cannot open the data directory {path}: {reason}; make room there, make it writable for this user, or choose another --data-dir"
    )]
    Unusable {
        /// The data directory.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The directory is a backup, which must be restored first.
    #[error(
        "{0} is a backup; create a data directory from it with `divvy restore {0} --data-dir DIR`, and serve that (nothing was changed)"
    )]
    IsBackup(PathBuf),
    /// The path is a file.
    #[error("the data directory {0} is a file; choose a directory with --data-dir")]
    NotADirectory(PathBuf),
    /// The data directory's parent does not exist.
    #[error(
        "cannot create the data directory {path}, because {parent} does not exist; create that first, or correct --data-dir"
    )]
    NoParent {
        /// The data directory.
        path: PathBuf,
        /// The missing directory.
        parent: PathBuf,
    },
    /// The system does not start another thread.
    #[error("cannot start a thread for the store: {0}; raise the process limit (ulimit -u)")]
    NoThread(std::io::Error),
}

impl OpenError {
    /// Returns the error of a directory that cannot be used for this reason.
    pub fn unusable(path: &Path, reason: &dyn Display) -> Self {
        Self::Unusable { path: path.into(), reason: reason.to_string() }
    }

    /// Returns the error of a directory that could not be created because something was not found.
    pub fn no_parent(path: &Path, reason: &dyn Display) -> Self {
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
                Self::NoParent { path: path.into(), parent: parent.into() }
            }
            _ => Self::unusable(path, reason),
        }
    }

    /// Returns the error of a database that cannot be read for this reason.
    pub fn damaged(path: &Path, reason: &dyn Display) -> Self {
        Self::Damaged { path: path.into(), reason: reason.to_string() }
    }
}
