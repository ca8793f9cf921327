//! Rights to talk to the server: passwords, the access file, the key file of tokens, and TLS. The files are loaded, kept up to date, and
//! their mistakes are logged.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tokio::net::TcpListener;

use super::watch::{Reason, Watch, log_problems};
use divvy_access::audit::{Action, AuditLog, Change, State};
use divvy_access::{self as access, Authority, TokenKeys, User, Users, check_password};
use divvy_core::config::{Problem, Report};
use divvy_core::regular_file;
use divvy_server::auth::{FrontGuards, Guard};
use divvy_server::sessions::Sessions;
use divvy_server::tls::{Files, Reloader, Tls};
use divvy_server::{Fronts, Secured};
use divvy_telemetry::metrics::Metrics;

/// Maximum size of the password file in bytes, far more than a password needs.
const MAX_PASSWORD_FILE: u64 = 64 << 10;

#[derive(clap::Args)]
#[command(next_help_heading = "TLS and access")]
pub struct AccessArgs {
    /// Server certificate (PEM), followed by its intermediate certificates
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM, not encrypted)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate from one of the authorities in this file (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Listeners that accept only TLS, separated by commas [default: all]
    #[arg(long, value_parser = ["line", "resp", "http", "grpc"], value_delimiter = ',', value_name = "FRONTS",
          requires = "tls_cert")]
    tls_fronts: Vec<String>,
    /// Password that every client must give. Others can read it on a command line: prefer the variable or
    /// --requirepass-file
    #[arg(long, value_name = "PASSWORD", hide_env_values = true)]
    requirepass: Option<String>,
    /// File that contains the password and nothing else
    #[arg(long, value_name = "FILE", conflicts_with = "requirepass")]
    requirepass_file: Option<PathBuf>,
    /// Access file: users, and what each of them may do
    #[arg(long, value_name = "FILE")]
    access_file: Option<PathBuf>,
    /// Accept tokens for one actor that `divvy token` made with a key in this file. Needs a password or an access file
    #[arg(long, value_name = "FILE")]
    token_key_file: Option<PathBuf>,
    /// Parts of the server that need no password, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT", default_value = "metrics")]
    open: Vec<OpenPart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OpenPart {
    /// The line protocol: clients of Button's Divvy cannot give a password
    Line,
    /// gRPC: Envoy's Rate Limit Service
    Grpc,
    /// Hits over HTTP: POST /v1/hit, /v1/hits and /json
    Hit,
    /// Gateway checks over HTTP: /v1/check
    Check,
    /// The metrics: /metrics, or --metrics-path
    Metrics,
    /// Nothing but health checks
    None,
}

/// The users of a server.
#[derive(Debug)]
pub struct AccessUsers {
    /// The user of `--requirepass`.
    password: Option<User>,
    file: Option<WatchedFile<FileUsers>>,
    token_keys: Option<WatchedFile<TokenKeys>>,
}

impl AccessUsers {
    /// Returns whether clients must log in.
    pub fn are_required(&self) -> bool {
        self.password.is_some() || self.file.is_some()
    }
}

impl AccessArgs {
    /// Reads the password, the access file and the token key file. `None` if a file has mistakes, which are logged.
    ///
    /// # Errors
    /// The password cannot be read, or is not valid. `--open` contradicts itself. Or there are keys of tokens, but clients need no credentials.
    pub fn read(&self) -> anyhow::Result<Option<AccessUsers>> {
        ensure!(
            self.open.len() == 1 || !self.open.contains(&OpenPart::None),
            "--open none opens nothing: remove `none`, or the other values"
        );
        let password = match (&self.requirepass, &self.requirepass_file) {
            (Some(secret), _) => Some(user(secret).context("--requirepass is not a valid password")?),
            (None, Some(path)) => Some(password_in(path).context("--requirepass-file")?),
            (None, None) => None,
        };
        let of_password = FileUsers { password: password.clone(), users: Vec::new() };
        let load_users = |path: &Path| WatchedFile::load(path, |path| of_password.read(path));
        let load_keys = |path: &Path| WatchedFile::load(path, |path| Ok((TokenKeys::load(path)?, Vec::new())));
        let Some(file) = load_given(self.access_file.as_deref(), load_users) else { return Ok(None) };
        let Some(token_keys) = load_given(self.token_key_file.as_deref(), load_keys) else { return Ok(None) };
        let users = AccessUsers { password, file, token_keys };
        ensure!(
            users.token_keys.is_none() || users.are_required(),
            "--token-key-file needs --requirepass, --requirepass-file or --access-file: without them, clients need no token"
        );
        let mut certified = users.file.iter().flat_map(|file| &file.in_force.users);
        let certified = certified.find(|user| user.is_on && !user.certificates.is_empty());
        if let (Some(path), Some(user), None) = (&self.access_file, certified, &self.tls_client_ca) {
            let (file, user) = (path.display(), &*user.name);
            tracing::warn!(
                user,
                "{file}: users with a cert: word cannot log in with their certificate; set --tls-client-ca"
            );
        }
        Ok(Some(users))
    }

    /// Returns the guards of the fronts, and the files to watch with the authority that they belong to. The API over HTTP
    /// accepts `sessions`, except for hits and checks.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn guards(
        &self,
        users: AccessUsers,
        sessions: Option<Arc<Sessions>>,
        metrics: &Metrics,
    ) -> anyhow::Result<(FrontGuards, Option<WatchedAccess>)> {
        if !users.are_required() {
            return Ok((FrontGuards::default(), None));
        }
        let AccessUsers { password, file, token_keys } = users;
        let users = file.iter().flat_map(|file| &file.in_force.users).chain(&password).cloned();
        let users = Users::new(users).map_err(anyhow::Error::msg)?;
        let authority = Authority::new(users, metrics.access.password_hashes.clone());
        let authority = Arc::new(authority.with_token_keys(token_keys.as_ref().map(|file| file.in_force.clone())));
        let has_users = file.is_some();
        let new_guard = |front| Guard::new(Arc::clone(&authority), front, has_users, &metrics.access);
        let guard = |front| Some(Arc::new(new_guard(front)));
        let unless = |open, front| if self.open.contains(&open) { None } else { guard(front) };
        let mut http = new_guard("http");
        http.sessions = sessions;
        let guards = FrontGuards {
            line: unless(OpenPart::Line, "line"),
            resp: guard("resp"),
            grpc: unless(OpenPart::Grpc, "grpc"),
            http: Some(Arc::new(http)),
            hit: unless(OpenPart::Hit, "http"),
            check: unless(OpenPart::Check, "http"),
            metrics: unless(OpenPart::Metrics, "http"),
        };
        let is_watched = file.is_some() || token_keys.is_some();
        Ok((guards, is_watched.then_some(WatchedAccess { users: file, token_keys, authority })))
    }

    /// Loads the files; `None` if TLS is not configured.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn load_tls(&self, metrics: &Metrics) -> anyhow::Result<Option<Reloader>> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let client_ca = self.tls_client_ca.clone();
        let files = Files { certificate: certificate.clone(), key: key.clone(), client_ca };
        Ok(Some(Reloader::start(files, metrics.access.tls_handshakes_failed.clone()).context("cannot serve TLS")?))
    }

    /// Returns the TLS settings of each listener.
    pub fn secured(&self, reloader: Option<&Reloader>) -> Secured {
        let tls = reloader.map(Reloader::tls);
        let is_on = |front: &str| self.tls_fronts.is_empty() || self.tls_fronts.iter().any(|on| on == front);
        let on = |front| tls.clone().filter(|_| is_on(front));
        Secured { line: on("line"), resp: on("resp"), http: on("http"), grpc: on("grpc") }
    }
}

/// Loads a file if one is given. `None` if it has mistakes.
pub fn load_given<T>(path: Option<&Path>, load: impl FnOnce(&Path) -> Option<T>) -> Option<Option<T>> {
    path.map_or(Some(None), |path| load(path).map(Some))
}

fn user(password: &str) -> anyhow::Result<User> {
    check_password(password)?;
    Ok(User::with_password(password))
}

fn password_in(path: &Path) -> anyhow::Result<User> {
    let bytes =
        regular_file::read(path, MAX_PASSWORD_FILE).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?;
    // Editors end the last line with a line feed.
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    user(line).with_context(|| format!("{} does not contain a valid password", path.display()))
}

/// Warns about listeners that are reachable from the network without authentication.
pub fn warn_of_open_fronts(fronts: &Fronts, guards: &FrontGuards, tls: &Secured) {
    let reached = |listeners: &[TcpListener], has_password: bool, tls: &Option<Arc<Tls>>| {
        let is_open = !has_password && !tls.as_ref().is_some_and(|tls| tls.requires_certificates);
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
        addresses.filter(|address| is_open && !is_loopback(address.ip())).collect::<Vec<_>>()
    };
    for (front, addresses) in [
        ("RESP", reached(&fronts.resp, guards.resp.is_some(), &tls.resp)),
        ("HTTP", reached(&fronts.http, guards.http.is_some(), &tls.http)),
        ("gRPC", reached(&fronts.grpc, guards.grpc.is_some(), &tls.grpc)),
    ] {
        for address in addresses {
            tracing::warn!(front, %address, "no authentication: any client that reaches this address can spend credits and read counters; set --requirepass or --access-file");
        }
    }
    for address in reached(&fronts.line, guards.line.is_some(), &tls.line) {
        // Only a notice, because Button's Divvy has no passwords.
        tracing::info!(%address, "no authentication: any client that reaches the line protocol's address can send hits");
    }
}

/// Returns whether only this machine can reach the address.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

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
    /// The content in both logs.
    const WHAT: &'static str;

    /// Reads the file at `path` as this one was read. Returns its content and its warnings.
    fn read(&self, path: &Path) -> Result<(Self, Vec<Problem>), Report>;

    /// Makes the authority use this content.
    ///
    /// # Errors
    /// The system provides no random bytes.
    fn put_in_force(&self, authority: &Authority) -> Result<(), String>;

    /// Returns the names of the users or the ids of the keys, in order, with all that a user is.
    fn entries(&self) -> BTreeMap<&str, Option<&User>>;
}

/// The users of an access file.
#[derive(Debug, PartialEq)]
pub struct FileUsers {
    /// The user of `--requirepass`, which is not in the file.
    pub password: Option<User>,
    pub users: Vec<User>,
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

    fn entries(&self) -> BTreeMap<&str, Option<&User>> {
        self.users.iter().map(|user| (&*user.name, Some(user))).collect()
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

    fn entries(&self) -> BTreeMap<&str, Option<&User>> {
        self.ids().map(|id| (id, None)).collect()
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
    pub fn load(path: &Path, read: impl Fn(&Path) -> Result<(T, Vec<Problem>), Report>) -> Option<Self> {
        let mut watch = Watch::new(path);
        let loaded = watch.load(Reason::Asked, read, |_| &[])?;
        log_problems(&loaded, |(_, warnings)| warnings);
        let (in_force, _) = loaded.ok()?;
        log_if_public(path);
        Some(Self { watch, has_failed: false, in_force })
    }

    /// Records that the previous content stays in force. `reason` is `None` if the log has it already.
    fn refuse(&mut self, reason: Option<&str>, metrics: &Metrics) {
        self.has_failed = true;
        metrics.access.access_reloads_failed.inc();
        let (file, what) = (self.watch.path.display(), T::WHAT);
        tracing::error!(reason, "{file}: not loaded; the previous {what} stay in force");
    }

    /// Loads the file if it has changed, or if an operator asks for it. Puts the result in force, or logs why it failed.
    fn reload(&mut self, reason: Reason, authority: &Authority, audit: &Arc<AuditLog>, metrics: &Metrics) {
        let loaded = self.watch.load(reason, |path| self.in_force.read(path), |_| &[]);
        let Some(loaded) = loaded else { return };
        let was_bad = mem::replace(&mut self.has_failed, loaded.is_err());
        let change = Change::new(T::ACTION).with("file", self.watch.path.to_string_lossy());
        let file = self.watch.path.display().to_string();
        let before = State::of(T::WHAT, self.in_force.entries().len());
        if loaded.as_ref().is_ok_and(|(new, _)| *new == self.in_force) {
            if was_bad || reason == Reason::Asked {
                audit.begin_unconditionally(reason.caller(), change).complete(Some(before.clone()), Some(before));
                tracing::info!("{file}: reloaded, unchanged");
            }
            return;
        }
        log_problems(&loaded, |(_, warnings)| warnings);
        let (new, pending) = match loaded {
            // A client may lose a right, so this does not wait for the audit log, even if it is required.
            Ok((new, _)) => (new, audit.begin_at_once(reason.caller(), change)),
            Err(report) => {
                let error = report.errors.first().map(ToString::to_string).unwrap_or_default();
                audit.begin_unconditionally(reason.caller(), change).refuse(&error);
                return self.refuse(None, metrics);
            }
        };
        if let Err(error) = new.put_in_force(authority) {
            pending.refuse(&error);
            return self.refuse(Some(&error), metrics);
        }
        let (old, new_entries) = (self.in_force.entries(), new.entries());
        let count = new_entries.len();
        let names = old.keys().chain(new_entries.keys()).copied().collect::<BTreeSet<_>>();
        let changed = names.into_iter().filter(|name| old.get(name) != new_entries.get(name));
        pending.complete(Some(before), Some(State::of(T::WHAT, count).with_changed(changed)));
        self.in_force = new;
        log_if_public(&self.watch.path);
        tracing::info!(count, "{file}: reloaded; the new {} are in force", T::WHAT);
    }
}

/// Logs a warning if every user of the machine can read the file.
fn log_if_public(path: &Path) {
    if let Some(warning) = regular_file::warn_if_public(path) {
        tracing::warn!("{warning}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use divvy_access::{Digest, Given, TokenGrant, Users};
    use divvy_core::clock::Clock;

    #[test]
    fn loopback_addresses_are_not_reachable_from_the_network() {
        for (address, expected) in [
            ("127.0.0.1", true),
            ("127.8.9.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(address.parse().unwrap()), expected, "{address}");
        }
    }

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
        let audit = AuditLog::new(Some(lines.clone()), true, Clock::system(), Arc::clone(&metrics)).unwrap();
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
        let audit = AuditLog::new(Some(lines.clone()), true, clock, Arc::clone(&metrics)).unwrap();
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
