//! Why a backup was not taken.

use std::path::PathBuf;

/// The longest name of a backup, in bytes.
pub const MAX_NAME: usize = 100;

/// Why there is no backup. Nothing half is left behind.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("backups are switched off: start the server with --backup-dir DIR, below which it may write them")]
    SwitchedOff,
    #[error("the {0} store keeps nothing on this server's disk: there is nothing that divvy could back up")]
    NothingOfOurs(&'static str),
    #[error(
        "a backup needs a name of letters, digits, '-', '_' and '.', up to {MAX_NAME} of them and no '.' or '-' at its \
         start; or the path of a directory with such a name directly in the server's --backup-dir"
    )]
    BadName,
    #[error("a backup of this name is there already and not empty; choose another name, or remove it")]
    Exists,
    #[error("another backup is being taken; wait until it is done")]
    Busy,
    #[error("cannot write the backup {path}: {reason}; nothing is left of it")]
    Failed { path: PathBuf, reason: String },
    #[error("the backup was broken off: {0}")]
    Broken(String),
}

impl BackupError {
    /// Whether the request was at fault, and not the store or its disk.
    pub fn is_the_client_s(&self) -> bool {
        !matches!(self, Self::Failed { .. } | Self::Broken(_))
    }
}
