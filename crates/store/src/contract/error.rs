//! The reasons why a store could not answer or make a backup, and the log of outages.

use std::path::PathBuf;
use std::sync::Arc;

use divvy_telemetry::logging::Escaped;

/// Returns the error for a cursor that this store never issued.
pub fn invalid_cursor(cursor: &str) -> StoreError {
    StoreError::InvalidCursor(cursor.chars().take(40).collect())
}

/// The reason why a store could not answer. It is cheap to clone, because one failed commit fails many asks.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store could not carry out the work, for this reason.
    #[error("{0}")]
    Failed(Arc<str>),
    /// The store cannot be reached, or refuses all clients.
    #[error("{0}")]
    Unreachable(Arc<str>),
    /// The store is too busy to do the work in time. As far as is known, it works.
    #[error("{0}")]
    Overloaded(Arc<str>),
    /// A mistake by the client: the store never issued a cursor that begins like this.
    #[error("{0:?} is not a cursor of this store, or the store has changed since; begin from the start")]
    InvalidCursor(String),
    /// A mistake by the client: stores of this kind do not support the request. Nothing was done.
    #[error("{0}")]
    Impossible(&'static str),
}

impl StoreError {
    /// Returns a failure with this reason.
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self::Failed(reason.into())
    }
}

/// Maximum length of a backup's name (bytes).
pub const MAX_BACKUP_NAME: usize = 100;

/// The reason why there is no backup. No partial backup is left.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// No directory for backups is configured.
    #[error("backups are disabled: start the server with --backup-dir DIR")]
    SwitchedOff,
    /// This store is not on the server's disk.
    #[error("the {0} store keeps nothing on this server's disk: divvy has nothing to back up")]
    NothingOfOurs(&'static str),
    /// The name is empty, too long, or points outside the directory.
    #[error(
        "a backup needs a name of letters, digits, '-', '_' and '.', at most {MAX_BACKUP_NAME}, without '.' or '-' at its start"
    )]
    BadName,
    /// The target is not empty.
    #[error("a backup with this name already exists and is not empty; choose another name or remove it")]
    Exists,
    /// Backups are made one at a time.
    #[error("another backup is in progress; wait until it finishes")]
    Busy,
    /// Writing failed. The partial backup is removed.
    #[error("cannot write the backup {0}: {1}; the partial backup was removed")]
    Failed(PathBuf, String),
    /// The work was aborted for this reason.
    #[error("the backup was aborted: {0}")]
    Broken(String),
}

impl BackupError {
    /// Returns whether the client caused the error, rather than the store or its disk.
    pub fn is_the_client_s(&self) -> bool {
        !matches!(self, Self::Failed(..) | Self::Broken(_))
    }
}

/// An operation that is retried, and may fail for a while.
#[derive(Debug)]
pub struct Outage {
    what: &'static str,
    effect: &'static str,
    /// Whether the last attempt failed.
    pub lasts: bool,
}

impl Outage {
    /// Creates the log. `what` names the operation, and `effect` describes divvy's behavior during an outage.
    pub fn of(what: &'static str, effect: &'static str) -> Self {
        Self { what, effect, lasts: false }
    }

    /// Records the result of an attempt. Logs it if an outage begins or ends.
    pub fn note(&mut self, result: &Result<(), StoreError>) {
        match result {
            Err(error) if !self.lasts => {
                // The error may quote the other side.
                let error = error.to_string();
                tracing::error!(error = %Escaped::error(&error), "failing: {}; {}", self.what, self.effect);
            }
            Ok(()) if self.lasts => tracing::info!("working again: {}", self.what),
            _ => {}
        }
        self.lasts = result.is_err();
    }
}
