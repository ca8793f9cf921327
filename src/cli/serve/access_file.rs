//! The access file of a running server: loads it, and logs mistakes.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::rules::Reason;
use super::watch::Watch;
use crate::access::{self, Authority, Report, User, Users};
use crate::audit::{Action, AuditLog, Change, State};
use crate::cli::public_file;
use crate::metrics::Metrics;

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
        public_file::log(path);
        file.in_force.clone_from(&users);
        Some((file, users))
    }

    fn read(&self) -> Result<access::AccessFile, Report> {
        access::load(self.watch.path(), self.password.as_ref().and_then(|user| user.digests.first()))
    }

    /// Loads the file if it has changed.
    pub fn reload_if_changed(&mut self, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if !self.watch.has_changed() {
            return;
        }
        let loaded = self.read();
        // Otherwise the file was written while it was read. Later checks will notice when that is over.
        if self.watch.is_at_rest() {
            self.take(loaded, authority, audit, metrics, Reason::Changed);
        }
    }

    /// Loads the file even if it has not changed.
    pub fn reload(&mut self, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        self.watch.note();
        let loaded = self.read();
        self.take(loaded, authority, audit, metrics, Reason::Asked);
    }

    /// Puts the result of a load in force, or logs why it failed. A load that the audit log refuses is not tried again
    /// until the file changes, or an operator asks for it.
    fn take(
        &mut self,
        loaded: Result<access::AccessFile, Report>,
        authority: &Authority,
        audit: &Arc<AuditLog>,
        metrics: &Metrics,
        reason: Reason,
    ) {
        let was_bad = mem::replace(&mut self.has_failed, loaded.is_err());
        let change = Change::new(Action::AccessReload).with_file(self.watch.path());
        let file = self.watch.path().display().to_string();
        let before = State::users(self.in_force.len());
        if loaded.as_ref().is_ok_and(|loaded| loaded.users == self.in_force) {
            if was_bad || reason == Reason::Asked {
                audit.pend(reason.caller(), change).complete(Some(before.clone()), Some(before));
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        log_problems(&loaded);
        let refused = match self.prepare(loaded) {
            // The mistakes in the file are logged already.
            Err(error) => {
                audit.pend(reason.caller(), change).refuse(error);
                None
            }
            Ok((users, in_force)) => match audit.begin_blocking(reason.caller(), change) {
                Err(error) => Some(error.to_string()),
                Ok(pending) => {
                    public_file::log(self.watch.path());
                    let count = in_force.len();
                    let previous = mem::replace(&mut self.in_force, in_force);
                    authority.replace(users);
                    let names = changed(&previous, &self.in_force);
                    pending.complete(Some(before), Some(State::users(count).with_changed(names.into_iter())));
                    return tracing::info!(users = count, "{file}: reloaded; the new users are in force");
                }
            },
        };
        self.has_failed = true;
        metrics.access.access_reloads_failed.inc();
        tracing::error!(reason = refused, "{file}: not loaded; the previous users stay in force");
    }

    /// Prepares the users of a load.
    ///
    /// # Errors
    /// The first mistake in the file, or the system provides no random bytes.
    fn prepare(&self, loaded: Result<access::AccessFile, Report>) -> Result<(Users, Vec<User>), String> {
        let loaded = loaded.map_err(|report| report.errors.first().map(ToString::to_string).unwrap_or_default())?;
        let all = loaded.users.iter().chain(&self.password).cloned();
        let users = Users::new(all).inspect_err(|error| tracing::error!("{error}"))?;
        Ok((users, loaded.users))
    }
}

/// Returns the names of users that are only in one of the files, or different, in order.
fn changed<'a>(before: &'a [User], after: &'a [User]) -> BTreeSet<&'a str> {
    let by_name = |users: &'a [User]| users.iter().map(|user| (&*user.name, user)).collect::<HashMap<_, _>>();
    let (before, after) = (by_name(before), by_name(after));
    let names = before.keys().chain(after.keys()).copied();
    names.filter(|name| before.get(name) != after.get(name)).collect()
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
