//! Errors of backups.

use std::path::PathBuf;

/// Maximum length of a backup's name (bytes).
pub const MAX_BACKUP_NAME: usize = 100;

/// The reason why there is no backup. No partial backup is left.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("backups are disabled: start the server with --backup-dir DIR")]
    SwitchedOff,
    #[error("the {0} store keeps nothing on this server's disk: divvy has nothing to back up")]
    NothingOfOurs(&'static str),
    #[error(
        "a backup needs a name of letters, digits, '-', '_' and '.', up to {MAX_BACKUP_NAME} of them and no '.' or '-' at its \
         start; or the path of a directory with such a name directly in the server's --backup-dir"
    )]
    BadName,
    #[error("a backup with this name already exists and is not empty; choose another name or remove it")]
    Exists,
    #[error("another backup is in progress; wait until it finishes")]
    Busy,
    #[error("cannot write the backup {path}: {reason}; the partial backup was removed")]
    Failed { path: PathBuf, reason: String },
    #[error("the backup was aborted: {0}")]
    Broken(String),
}

impl BackupError {
    /// Whether the request was at fault, rather than the store or its disk.
    pub fn is_the_client_s(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Broken(_))
    }
}
