//! The access file of a running server: loads it, and logs mistakes.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::rules::Reason;
use super::watch::{self, Watch};
use crate::access::{self, Authority, Problem, Report, User, Users};
use crate::audit::{Action, AuditLog, Change, State};
use crate::cli::public_file;
use crate::metrics::Metrics;

/// Maximum number of mistakes, and of warnings, that are logged at a load.
const MAX_LOGGED_PROBLEMS: usize = 100;

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
        let loaded = read(path, file.password.as_ref());
        log_problems(&loaded);
        let users = loaded.ok()?.users;
        public_file::log(path);
        file.in_force.clone_from(&users);
        Some((file, users))
    }

    /// Loads the file if it has changed.
    pub fn reload_if_changed(&mut self, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        let password = self.password.as_ref();
        if let Some(loaded) = self.watch.read_if_changed(|path| read(path, password))
            && self.watch.record_read(unread(&loaded))
        {
            self.take(loaded, authority, audit, metrics, Reason::Changed);
        }
    }

    /// Loads the file even if it has not changed, once it is not being written.
    pub fn reload(&mut self, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        let password = self.password.as_ref();
        match self.watch.read_at_rest(|path| read(path, password), watch::pause) {
            Some(loaded) => {
                self.watch.record_read(unread(&loaded));
                self.take(loaded, authority, audit, metrics, Reason::Asked);
            }
            None => {
                self.has_failed = true;
                metrics.access.access_reloads_failed.inc();
                let file = self.watch.path().display();
                tracing::error!("{file}: not loaded, because it is being written; the previous users stay in force");
            }
        }
    }

    /// Puts the result of a load in force, or logs why it failed.
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
        match self.prepare(loaded) {
            Ok((users, in_force)) => {
                // A user may lose rights, so this does not wait for the audit log, even if it is required.
                let pending = audit.begin_at_once(reason.caller(), change);
                let count = in_force.len();
                let previous = mem::replace(&mut self.in_force, in_force);
                authority.replace(users);
                let names = changed(&previous, &self.in_force);
                pending.complete(Some(before), Some(State::users(count).with_changed(names.into_iter())));
                public_file::log(self.watch.path());
                tracing::info!(users = count, "{file}: reloaded; the new users are in force");
            }
            // The mistakes in the file are logged already.
            Err(error) => {
                audit.pend(reason.caller(), change).refuse(error);
                self.has_failed = true;
                metrics.access.access_reloads_failed.inc();
                tracing::error!("{file}: not loaded; the previous users stay in force");
            }
        }
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

/// Reads the file. `password` is the user of `--requirepass`.
fn read(path: &Path, password: Option<&User>) -> Result<access::AccessFile, Report> {
    access::load(path, password.and_then(|user| user.digests.first()))
}

/// Returns why a file of users or keys could not be read, if it could not.
pub fn unread<T>(loaded: &Result<T, Report>) -> Option<String> {
    let report = loaded.as_ref().err().filter(|report| report.is_unread)?;
    Some(report.errors.iter().map(ToString::to_string).collect())
}

/// Returns the names of users that are only in one of the files, or different, in order.
fn changed<'a>(before: &'a [User], after: &'a [User]) -> BTreeSet<&'a str> {
    let by_name = |users: &'a [User]| users.iter().map(|user| (&*user.name, user)).collect::<HashMap<_, _>>();
    let (before, after) = (by_name(before), by_name(after));
    let names = before.keys().chain(after.keys()).copied();
    names.filter(|name| before.get(name) != after.get(name)).collect()
}

/// Logs the first errors and warnings, each on its own line, as `divvy access check` prints them.
fn log_problems(loaded: &Result<access::AccessFile, Report>) {
    let (errors, warnings) = match loaded {
        Ok(loaded) => (&[][..], &loaded.warnings),
        Err(report) => (&report.errors[..], &report.warnings),
    };
    log_first(errors, |problem| tracing::error!("{problem}"));
    log_first(warnings, |problem| tracing::warn!("{problem}"));
}

/// Logs the first problems with `log`, and the number of the others.
pub fn log_first(problems: &[Problem], log: impl Fn(&dyn Display)) {
    problems.iter().take(MAX_LOGGED_PROBLEMS).for_each(|problem| log(problem));
    if let Some((problem, more)) =
        problems.get(MAX_LOGGED_PROBLEMS..).and_then(|rest| Some((rest.first()?, rest.len())))
    {
        log(&format_args!("{}: and {more} more like these; `divvy access check` shows all", problem.file));
    }
}

#[cfg(test)]
mod tests;
