//! The access file of a running server: loads it, and logs mistakes.

use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::watch::Watch;
use crate::access::{self, Authority, Report, User, Users};
use crate::metrics::Metrics;

/// An access file, and the authority that its users belong to.
#[derive(Debug)]
pub struct WatchedAccess {
    pub file: AccessFile,
    pub authority: Arc<Authority>,
}

/// The access file, and the result of the last load.
#[derive(Debug)]
pub struct AccessFile {
    watch: Watch,
    /// The user of `--requirepass`, which is not in the file.
    password: Option<User>,
    /// The users in force, without that one.
    in_force: Vec<User>,
    /// Whether the last load failed.
    has_failed: bool,
}

impl AccessFile {
    /// Loads the file at `path`. `None` if it has mistakes, which are logged.
    pub fn load(path: &Path, password: Option<User>) -> Option<(Self, Vec<User>)> {
        // Watched before it is read, so that a write during the read is seen as a change.
        let mut file = Self { watch: Watch::new(path), password, in_force: Vec::new(), has_failed: false };
        let loaded = file.read();
        log_problems(&loaded);
        let users = loaded.ok()?.users;
        file.in_force.clone_from(&users);
        Some((file, users))
    }

    fn read(&self) -> Result<access::AccessFile, Report> {
        access::load(self.watch.path(), self.password.is_some())
    }

    /// Loads the file if it has changed.
    pub fn reload_if_changed(&mut self, authority: &Authority, metrics: &Metrics) {
        if !self.watch.has_changed() {
            return;
        }
        let loaded = self.read();
        // Otherwise the file was written while it was read. Later checks will notice when that is over.
        if self.watch.is_at_rest() {
            self.take(loaded, authority, metrics, false);
        }
    }

    /// Loads the file even if it has not changed.
    pub fn reload(&mut self, authority: &Authority, metrics: &Metrics) {
        self.watch.note();
        let loaded = self.read();
        self.take(loaded, authority, metrics, true);
    }

    /// Puts the result of a load in force, or logs why it failed.
    fn take(
        &mut self,
        loaded: Result<access::AccessFile, Report>,
        authority: &Authority,
        metrics: &Metrics,
        is_asked: bool,
    ) {
        let was_bad = mem::replace(&mut self.has_failed, loaded.is_err());
        let file = self.watch.path().display().to_string();
        if loaded.as_ref().is_ok_and(|loaded| loaded.users == self.in_force) {
            if was_bad || is_asked {
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        log_problems(&loaded);
        let prepared = loaded.ok().map(|loaded| {
            let all = loaded.users.iter().chain(&self.password).cloned();
            Users::new(all).map(|users| (users, loaded.users))
        });
        match prepared {
            Some(Ok((users, in_force))) => {
                let count = in_force.len();
                self.in_force = in_force;
                authority.replace(users);
                tracing::info!(users = count, "{file}: reloaded; the new users are in force");
            }
            failed => {
                metrics.access.access_reloads_failed.inc();
                let reason = failed.and_then(Result::err);
                tracing::error!(reason, "{file}: not loaded; the previous users stay in force");
            }
        }
    }
}

/// Logs each error and warning on its own line, as `divvy access check` prints them.
fn log_problems(loaded: &Result<access::AccessFile, Report>) {
    let (errors, warnings) = match loaded {
        Ok(loaded) => (&[][..], &loaded.warnings),
        Err(report) => (&report.errors[..], &report.warnings),
    };
    for problem in errors {
        tracing::error!("{problem}");
    }
    for problem in warnings {
        tracing::warn!("{problem}");
    }
}
