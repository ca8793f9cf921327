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
    pub users: Option<WatchedFile<FileUsers>>,
    pub token_keys: Option<WatchedFile<TokenKeys>>,
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

/// The content of a file that says who a client is.
pub trait Credentials: PartialEq + Sized {
    /// The change of a reload in the audit log.
    const ACTION: Action;
    /// The content in the log.
    const WHAT: &'static str;

    /// Reads the file at `path` as this one was read. Returns its content and its warnings.
    fn read(&self, path: &Path) -> Result<(Self, Vec<Problem>), Report>;

    /// Makes the authority use this content.
    ///
    /// # Errors
    /// The system provides no random bytes.
    fn put_in_force(&self, authority: &Authority) -> Result<(), String>;

    /// Returns the state for the audit log, and the number of users or keys.
    fn state(&self) -> (State, usize);

    /// Returns the names that are only in one of both, or different, in order.
    fn changed<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str>;
}

/// The users of an access file.
#[derive(Debug)]
pub struct FileUsers {
    /// The user of `--requirepass`, which is not in the file.
    pub password: Option<User>,
    pub users: Vec<User>,
}

impl PartialEq for FileUsers {
    fn eq(&self, other: &Self) -> bool {
        self.users == other.users
    }
}

impl Credentials for FileUsers {
    const ACTION: Action = Action::AccessReload;
    const WHAT: &'static str = "users";

    fn read(&self, path: &Path) -> Result<(Self, Vec<Problem>), Report> {
        let loaded = access::load(path, self.password.as_ref().and_then(|user| user.digests.first()))?;
        Ok((Self { password: self.password.clone(), users: loaded.users }, loaded.warnings))
    }

    fn put_in_force(&self, authority: &Authority) -> Result<(), String> {
        authority.replace(Users::new(self.users.iter().chain(&self.password).cloned())?);
        Ok(())
    }

    fn state(&self) -> (State, usize) {
        (State::of("users", self.users.len()), self.users.len())
    }

    fn changed<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        let by_name = |users: &'a [User]| users.iter().map(|user| (&*user.name, user)).collect::<HashMap<_, _>>();
        let (own, others) = (by_name(&self.users), by_name(&other.users));
        let names = own.keys().chain(others.keys()).copied();
        names.filter(|name| own.get(name) != others.get(name)).collect()
    }
}

impl Credentials for TokenKeys {
    const ACTION: Action = Action::TokensReload;
    const WHAT: &'static str = "keys";

    fn read(&self, path: &Path) -> Result<(Self, Vec<Problem>), Report> {
        Ok((Self::load(path)?, Vec::new()))
    }

    fn put_in_force(&self, authority: &Authority) -> Result<(), String> {
        authority.replace_token_keys(self.clone());
        Ok(())
    }

    fn state(&self) -> (State, usize) {
        let count = self.ids().count();
        (State::of("keys", count), count)
    }

    fn changed<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        let (own, others): (BTreeSet<_>, BTreeSet<_>) = (self.ids().collect(), other.ids().collect());
        own.symmetric_difference(&others).copied().collect()
    }
}

/// A file, its content in force, and the result of the last load.
#[derive(Debug)]
pub struct WatchedFile<T> {
    watch: Watch,
    has_failed: bool,
    pub in_force: T,
}

impl<T: Credentials> WatchedFile<T> {
    /// Loads the file at `path` as `read` does. `None` if it has mistakes, which are logged.
    pub fn load(path: &Path, read: impl FnOnce(&Path) -> Result<(T, Vec<Problem>), Report>) -> Option<Self> {
        // Begins before the file is read, so that a write during the read is seen as a change.
        let watch = Watch::new(path);
        let loaded = read(path);
        log_problems(&loaded);
        let (in_force, _) = loaded.ok()?;
        public_file::log(path);
        Some(Self { watch, has_failed: false, in_force })
    }

    fn reload(&mut self, reason: Reason, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        if let Some(loaded) = self.read(reason, metrics) {
            self.take(loaded, reason, authority, audit, metrics);
        }
    }

    /// Reads the file if it has changed, or if an operator asks for it. Returns `None` if it is being written, or if the log
    /// has the reason already why it cannot be read.
    fn read(&mut self, reason: Reason, metrics: &Metrics) -> Option<Result<(T, Vec<Problem>), Report>> {
        let read = |path: &Path| self.in_force.read(path);
        if reason == Reason::Changed {
            return self.watch.read_if_changed(read).filter(|loaded| self.watch.record_read(unread(loaded)));
        }
        let loaded = self.watch.read_at_rest(read, watch::pause);
        match &loaded {
            Some(loaded) => {
                self.watch.record_read(unread(loaded));
            }
            None => self.refuse(Some("it is being written"), metrics),
        }
        loaded
    }

    /// Records that the previous content stays in force. `reason` is `None` if the log has it already.
    fn refuse(&mut self, reason: Option<&str>, metrics: &Metrics) {
        self.has_failed = true;
        metrics.access.access_reloads_failed.inc();
        let (file, what) = (self.watch.path().display(), T::WHAT);
        tracing::error!(reason, "{file}: not loaded; the previous {what} stay in force");
    }

    /// Puts the result of a load in force, or logs why it failed.
    fn take(
        &mut self,
        loaded: Result<(T, Vec<Problem>), Report>,
        reason: Reason,
        authority: &Authority,
        audit: &Arc<AuditLog>,
        metrics: &Metrics,
    ) {
        let was_bad = mem::replace(&mut self.has_failed, loaded.is_err());
        let change = Change::new(T::ACTION).with("file", self.watch.path().to_string_lossy());
        let file = self.watch.path().display().to_string();
        let (before, _) = self.in_force.state();
        if loaded.as_ref().is_ok_and(|(new, _)| *new == self.in_force) {
            if was_bad || reason == Reason::Asked {
                audit.pend(reason.caller(), change).complete(Some(before.clone()), Some(before));
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        log_problems(&loaded);
        let (new, pending) = match loaded {
            // A client may lose a right, so this does not wait for the audit log, even if it is required.
            Ok((new, _)) => (new, audit.begin_at_once(reason.caller(), change)),
            Err(report) => {
                let error = report.errors.first().map(ToString::to_string).unwrap_or_default();
                audit.pend(reason.caller(), change).refuse(&error);
                return self.refuse(None, metrics);
            }
        };
        if let Err(error) = new.put_in_force(authority) {
            pending.refuse(&error);
            return self.refuse(Some(&error), metrics);
        }
        let (after, count) = new.state();
        pending.complete(Some(before), Some(after.with_changed(self.in_force.changed(&new).into_iter())));
        self.in_force = new;
        public_file::log(self.watch.path());
        tracing::info!(count, "{file}: reloaded; the new {} are in force", T::WHAT);
    }
}

/// Returns why a file could not be read, if it could not.
fn unread<T>(loaded: &Result<T, Report>) -> Option<String> {
    let report = loaded.as_ref().err().filter(|report| report.is_unread)?;
    Some(report.errors.iter().map(ToString::to_string).collect())
}

/// Logs the first errors and warnings, each on its own line, as `divvy access check` prints them.
fn log_problems<T>(loaded: &Result<(T, Vec<Problem>), Report>) {
    let (errors, warnings) = match loaded {
        Ok((_, warnings)) => (&[][..], warnings),
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

    fn load_users(path: &Path) -> WatchedFile<FileUsers> {
        let none = FileUsers { password: None, users: Vec::new() };
        WatchedFile::load(path, |path| none.read(path)).unwrap()
    }

    #[tokio::test]
    async fn users_lose_their_rights_even_if_the_required_audit_log_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.acl");
        fs::write(&path, line("ann") + &line("bob")).unwrap();
        let mut file = load_users(&path);
        let metrics = Metrics::new();
        let authority =
            Authority::new(Users::new(file.in_force.users.clone()).unwrap(), metrics.access.password_hashes.clone());
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
        let mut file = WatchedFile::load(&path, |path| Ok((TokenKeys::load(path)?, Vec::new()))).unwrap();
        let (metrics, clock) = (Metrics::new(), Clock::system());
        let authority = Authority::new(Users::new([]).unwrap(), metrics.access.password_hashes.clone());
        let authority = authority.with_token_keys(Some(file.in_force.clone()));
        let lines = dir.path().join("audit.log");
        let audit = AuditLog::in_file(lines.clone(), true, clock, Arc::clone(&metrics)).unwrap();
        let actor = [("user".to_owned(), "ann".to_owned())].into();
        let grant = TokenGrant::new(actor, Vec::new(), clock.now(), Duration::from_hours(1)).unwrap();
        let token = file.in_force.seal(&grant).unwrap();
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
