//! The files of a running server that say who a client is: the access file and the key file of tokens. Loads them, keeps
//! them up to date, and logs mistakes.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::rules::Reason;
use super::watch::{self, Watch};
use crate::cli::public_file;
use divvy_access::audit::{Action, AuditLog, Change, State};
use divvy_access::{self as access, Authority, TokenKeys, User, Users};
use divvy_core::config::{Problem, Report};
use divvy_telemetry::metrics::Metrics;

/// Maximum number of mistakes, and of warnings, that are logged at a load.
const MAX_LOGGED_PROBLEMS: usize = 100;

/// The files that define users and tokens, and the authority that they belong to.
#[derive(Debug)]
pub struct WatchedAccess {
    pub users: Option<AccessFile>,
    pub token_keys: Option<TokenKeyFile>,
    pub authority: Arc<Authority>,
}

impl WatchedAccess {
    /// Loads the files that have changed, or both of them if an operator asks for it.
    pub fn reload(&mut self, reason: Reason, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if let Some(users) = &mut self.users {
            users.reload(reason, &self.authority, audit, metrics);
        }
        if let Some(token_keys) = &mut self.token_keys {
            token_keys.reload(reason, &self.authority, audit, metrics);
        }
    }
}

/// A file, and the result of the last load.
#[derive(Debug)]
struct LoadedFile {
    watch: Watch,
    has_failed: bool,
}

impl LoadedFile {
    /// Returns the file at `path`. Call this before reading it, so that a write during the read is seen as a change.
    fn new(path: &Path) -> Self {
        Self { watch: Watch::new(path), has_failed: false }
    }

    /// Reads the file if it has changed, or if an operator asks for it. Returns `None` if it is being written, or if the log
    /// has the reason already why it cannot be read. `what` names its content in the log.
    fn read<T>(
        &mut self,
        reason: Reason,
        read: impl Fn(&Path) -> Result<T, Report>,
        what: &str,
        metrics: &Metrics,
    ) -> Option<Result<T, Report>> {
        if reason == Reason::Changed {
            return self.watch.read_if_changed(read).filter(|loaded| self.watch.record_read(unread(loaded)));
        }
        let loaded = self.watch.read_at_rest(read, watch::pause);
        match &loaded {
            Some(loaded) => {
                self.watch.record_read(unread(loaded));
            }
            None => {
                self.has_failed = true;
                metrics.access.access_reloads_failed.inc();
                let file = self.watch.path().display();
                tracing::error!("{file}: not loaded, because it is being written; the previous {what} stay in force");
            }
        }
        loaded
    }
}

/// The access file.
#[derive(Debug)]
pub struct AccessFile {
    file: LoadedFile,
    /// The user of `--requirepass`, which is not in the file.
    password: Option<User>,
    /// The users in force, without that one.
    in_force: Vec<User>,
}

impl AccessFile {
    /// Loads the file at `path`. `None` if it has mistakes, which are logged.
    pub fn load(path: &Path, password: Option<User>) -> Option<(Self, Vec<User>)> {
        let mut file = Self { file: LoadedFile::new(path), password, in_force: Vec::new() };
        let loaded = read(path, file.password.as_ref());
        log_problems(&loaded);
        let users = loaded.ok()?.users;
        public_file::log(path);
        file.in_force.clone_from(&users);
        Some((file, users))
    }

    fn reload(&mut self, reason: Reason, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        let password = self.password.as_ref();
        if let Some(loaded) = self.file.read(reason, |path| read(path, password), "users", metrics) {
            self.take(loaded, authority, audit, metrics, reason);
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
        let was_bad = mem::replace(&mut self.file.has_failed, loaded.is_err());
        let change = Change::new(Action::AccessReload).with_file(self.file.watch.path());
        let file = self.file.watch.path().display().to_string();
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
                let names = changed_users(&previous, &self.in_force);
                pending.complete(Some(before), Some(State::users(count).with_changed(names.into_iter())));
                public_file::log(self.file.watch.path());
                tracing::info!(users = count, "{file}: reloaded; the new users are in force");
            }
            // The mistakes in the file are logged already.
            Err(error) => {
                audit.pend(reason.caller(), change).refuse(error);
                self.file.has_failed = true;
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
fn unread<T>(loaded: &Result<T, Report>) -> Option<String> {
    let report = loaded.as_ref().err().filter(|report| report.is_unread)?;
    Some(report.errors.iter().map(ToString::to_string).collect())
}

/// Returns the names of users that are only in one of the files, or different, in order.
fn changed_users<'a>(before: &'a [User], after: &'a [User]) -> BTreeSet<&'a str> {
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
fn log_first(problems: &[Problem], log: impl Fn(&dyn Display)) {
    problems.iter().take(MAX_LOGGED_PROBLEMS).for_each(|problem| log(problem));
    if let Some((problem, more)) =
        problems.get(MAX_LOGGED_PROBLEMS..).and_then(|rest| Some((rest.first()?, rest.len())))
    {
        log(&format_args!("{}: and {more} more like these; `divvy access check` shows all", problem.file));
    }
}

/// The key file of tokens.
#[derive(Debug)]
pub struct TokenKeyFile {
    file: LoadedFile,
    in_force: TokenKeys,
}

impl TokenKeyFile {
    /// Loads the file at `path`. `None` if it has mistakes, which are logged.
    pub fn load(path: &Path) -> Option<Self> {
        let file = LoadedFile::new(path);
        match TokenKeys::load(path) {
            Ok(in_force) => {
                public_file::log(path);
                Some(Self { file, in_force })
            }
            Err(report) => {
                log(&report);
                None
            }
        }
    }

    /// Returns the keys of the last load that succeeded.
    pub fn keys(&self) -> &TokenKeys {
        &self.in_force
    }

    fn reload(&mut self, reason: Reason, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if let Some(loaded) = self.file.read(reason, TokenKeys::load, "keys", metrics) {
            self.take(loaded, authority, audit, metrics, reason);
        }
    }

    /// Puts the result of a load in force, or logs why it failed.
    fn take(
        &mut self,
        loaded: Result<TokenKeys, Report>,
        authority: &Authority,
        audit: &Arc<AuditLog>,
        metrics: &Metrics,
        reason: Reason,
    ) {
        let was_bad = mem::replace(&mut self.file.has_failed, loaded.is_err());
        let change = Change::new(Action::TokensReload).with_file(self.file.watch.path());
        let file = self.file.watch.path().display().to_string();
        let before = State::keys(self.in_force.ids().count());
        if loaded.as_ref().is_ok_and(|keys| *keys == self.in_force) {
            if was_bad || reason == Reason::Asked {
                audit.pend(reason.caller(), change).complete(Some(before.clone()), Some(before));
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        match loaded {
            Ok(keys) => {
                // A customer may lose a right, so this does not wait for the audit log, even if it is required.
                let pending = audit.begin_at_once(reason.caller(), change);
                let count = keys.ids().count();
                let previous = mem::replace(&mut self.in_force, keys.clone());
                authority.replace_token_keys(keys);
                let ids = changed_ids(&previous, &self.in_force);
                pending.complete(Some(before), Some(State::keys(count).with_changed(ids.into_iter())));
                public_file::log(self.file.watch.path());
                tracing::info!(keys = count, "{file}: reloaded; the new keys are in force");
            }
            Err(report) => {
                log(&report);
                let error = report.errors.first().map(ToString::to_string).unwrap_or_default();
                audit.pend(reason.caller(), change).refuse(&error);
                self.file.has_failed = true;
                metrics.access.access_reloads_failed.inc();
                tracing::error!(reason = error, "{file}: not loaded; the previous keys stay in force");
            }
        }
    }
}

/// Returns the ids of keys that are only in one of the files, in order.
fn changed_ids<'a>(before: &'a TokenKeys, after: &'a TokenKeys) -> Vec<&'a str> {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (before.ids().collect(), after.ids().collect());
    before.symmetric_difference(&after).copied().collect()
}

/// Logs the first mistakes, each on its own line.
fn log(report: &Report) {
    log_first(&report.errors, |problem| tracing::error!("{problem}"));
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::time::Duration;

    use super::*;
    use divvy_access::{Digest, Given, TokenGrant, Users};
    use divvy_core::clock::Clock;

    fn line(name: &str) -> String {
        format!("user {name} on {} +@all ~*\n", Digest::of(name.as_bytes()).to_word())
    }

    #[tokio::test]
    async fn users_lose_their_rights_even_if_the_required_audit_log_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.acl");
        fs::write(&path, line("ann") + &line("bob")).unwrap();
        let (mut file, users) = AccessFile::load(&path, None).unwrap();
        let metrics = Metrics::new();
        let authority = Authority::new(Users::new(users).unwrap(), metrics.access.password_hashes.clone());
        let lines = dir.path().join("audit.log");
        let audit = AuditLog::in_file(lines.clone(), true, Clock::system(), Arc::clone(&metrics)).unwrap();
        let given = Given::User { name: b"ann", password: b"ann" };
        let mut ann = authority.log_in(&given, None, || {}, std::future::pending()).await.unwrap();

        let hold = audit.hold_up();
        fs::write(&path, line("bob")).unwrap();
        // A change counts once two checks agree.
        (0..2).for_each(|_| file.reload(Reason::Changed, &authority, &audit, &metrics));
        authority.refresh(&mut ann);
        assert!(!ann.is_admitted());
        drop(hold);
        audit.finish().await;
        let text = fs::read_to_string(&lines).unwrap();
        let statuses: Vec<_> = text.lines().map(|line| line.split('"').nth(9).unwrap_or_default()).collect();
        assert_eq!(statuses, ["attempted", "done"], "{text}");

        // The log cannot be written at all.
        fs::remove_file(&lines).unwrap();
        fs::create_dir(&lines).unwrap();
        fs::write(&path, line("carol")).unwrap();
        (0..2).for_each(|_| file.reload(Reason::Changed, &authority, &audit, &metrics));
        assert_eq!(authority.users().sorted().iter().map(|user| &*user.name).collect::<Vec<_>>(), ["carol"]);
        audit.finish().await;
        assert_eq!(metrics.audit.lines_lost.get(), 2);
    }

    #[test]
    fn log_has_the_first_mistakes_and_the_number_of_the_others() {
        let logged = |count: usize| {
            let text: String = (0..count).map(|_| "user ann\n").collect();
            let report = access::parse(&text, "users.acl", None).unwrap_err();
            let lines = RefCell::new(Vec::new());
            log_first(&report.errors[..count], |line| lines.borrow_mut().push(line.to_string()));
            lines.into_inner()
        };
        assert_eq!(logged(MAX_LOGGED_PROBLEMS).len(), MAX_LOGGED_PROBLEMS);
        let lines = logged(MAX_LOGGED_PROBLEMS + 7);
        assert_eq!(lines.len(), MAX_LOGGED_PROBLEMS + 1);
        assert_eq!(lines.last().unwrap(), "users.acl: and 7 more like these; `divvy access check` shows all");
    }

    #[tokio::test]
    async fn key_that_is_removed_is_invalid_even_if_the_required_audit_log_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs::write(&path, TokenKeys::generate().unwrap()).unwrap();
        let mut file = TokenKeyFile::load(&path).unwrap();
        let (metrics, clock) = (Metrics::new(), Clock::system());
        let authority = Authority::new(Users::new([]).unwrap(), metrics.access.password_hashes.clone());
        let authority = authority.with_token_keys(Some(file.keys().clone()));
        let lines = dir.path().join("audit.log");
        let audit = AuditLog::in_file(lines.clone(), true, clock, Arc::clone(&metrics)).unwrap();
        let actor = [("user".to_owned(), "ann".to_owned())].into();
        let grant = TokenGrant::new(actor, Vec::new(), clock.now(), Duration::from_hours(1)).unwrap();
        let token = file.keys().seal(&grant).unwrap();
        let is_valid = async || authority.verify_actor_token(token.as_bytes(), clock.now(), |_| ()).await.is_some();
        assert!(is_valid().await);

        let hold = audit.hold_up();
        fs::write(&path, format!("# another\n{}", TokenKeys::generate().unwrap())).unwrap();
        // A change counts once two checks agree.
        (0..2).for_each(|_| file.reload(Reason::Changed, &authority, &audit, &metrics));
        assert!(!is_valid().await);
        drop(hold);
        audit.finish().await;
        assert_eq!(fs::read_to_string(&lines).unwrap().matches("\"what\":\"tokens.reload\"").count(), 2);
    }
}
