//! Flags for authentication.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tokio::net::TcpListener;

use super::access_files::{Credentials, FileUsers, WatchedAccess, WatchedFile};
use super::tls::TlsArgs;
use crate::cli::secret::Secret;
use divvy_access::{Authority, TokenKeys, User, Users, check_password};
use divvy_core::files;
use divvy_server::auth::{Access, Guard};
use divvy_server::sessions::Sessions;
use divvy_server::tls::Tls;
use divvy_server::{Fronts, Secured};
use divvy_telemetry::metrics::Metrics;

/// Maximum size of the password file in bytes, far more than a password needs.
const MAX_PASSWORD_FILE: u64 = 64 << 10;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS and access")]
pub struct AccessArgs {
    /// Password that every client must give. Others can read it on a command line: prefer the variable or
    /// --requirepass-file
    #[arg(long, value_name = "PASSWORD", hide_env_values = true)]
    requirepass: Option<Secret>,
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
    open: Vec<Open>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Open {
    /// The line protocol: clients of Button's Divvy cannot give a password
    Line,
    /// gRPC: Envoy's Rate Limit Service
    Grpc,
    /// Hits over HTTP: POST /v1/hit and /v1/hits
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
    /// Returns whether there may be users besides `default`.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

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
            self.open.len() == 1 || !self.open.contains(&Open::None),
            "--open none opens nothing: remove `none`, or the other values"
        );
        let password = match (&self.requirepass, &self.requirepass_file) {
            (Some(secret), _) => Some(user(secret.reveal()).context("--requirepass is not a valid password")?),
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
        Ok(Some(users))
    }

    /// Warns of users who can never log in, because the server asks no client for a certificate.
    pub fn warn_of_unused_certificates(&self, users: &AccessUsers, tls: &TlsArgs) {
        let mut users = users.file.iter().flat_map(|file| &file.in_force.users);
        if let (Some(path), Some(user)) = (&self.access_file, users.find(|user| is_certified(user)))
            && !tls.asks_for_certificates()
        {
            let (file, user) = (path.display(), &*user.name);
            tracing::warn!(
                user,
                "{file}: users with a cert: word cannot log in with their certificate; set --tls-client-ca"
            );
        }
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
    ) -> anyhow::Result<(Access, Option<WatchedAccess>)> {
        if !users.are_required() {
            return Ok((Access::default(), None));
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
        let access = Access {
            line: unless(Open::Line, "line"),
            resp: guard("resp"),
            grpc: unless(Open::Grpc, "grpc"),
            http: Some(Arc::new(new_guard("http").with_sessions(sessions))),
            hit: unless(Open::Hit, "http"),
            check: unless(Open::Check, "http"),
            metrics: unless(Open::Metrics, "http"),
        };
        let is_watched = file.is_some() || token_keys.is_some();
        Ok((access, is_watched.then_some(WatchedAccess { users: file, token_keys, authority })))
    }
}

/// Loads a file if one is given. `None` if it has mistakes.
pub fn load_given<T>(path: Option<&Path>, load: impl FnOnce(&Path) -> Option<T>) -> Option<Option<T>> {
    path.map_or(Some(None), |path| load(path).map(Some))
}

fn is_certified(user: &User) -> bool {
    user.is_on && !user.certificates.is_empty()
}

fn user(password: &str) -> anyhow::Result<User> {
    check_password(password)?;
    Ok(User::with_password(password))
}

fn password_in(path: &Path) -> anyhow::Result<User> {
    let bytes = files::read(path, MAX_PASSWORD_FILE).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?;
    // Editors end the last line with a line feed.
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    user(line).with_context(|| format!("{} does not contain a valid password", path.display()))
}

/// Warns about listeners that are reachable from the network without authentication.
pub fn warn_of_open_fronts(fronts: &Fronts, access: &Access, tls: &Secured) {
    let reached = |listener: &Option<TcpListener>, has_password: bool, tls: &Option<Arc<Tls>>| {
        let is_open = !has_password && !tls.as_ref().is_some_and(|tls| tls.requires_certificates());
        let address = listener.as_ref().filter(|_| is_open)?.local_addr().ok()?;
        (!is_loopback(address.ip())).then_some(address)
    };
    for (front, address) in [
        ("RESP", reached(&fronts.resp, access.resp.is_some(), &tls.resp)),
        ("HTTP", reached(&fronts.http, access.http.is_some(), &tls.http)),
        ("gRPC", reached(&fronts.grpc, access.grpc.is_some(), &tls.grpc)),
    ] {
        if let Some(address) = address {
            tracing::warn!(front, %address, "no authentication: any client that reaches this address can spend credits and read counters; set --requirepass or --access-file");
        }
    }
    if let Some(address) = reached(&fronts.line, access.line.is_some(), &tls.line) {
        // Only a notice, because Button's Divvy has no passwords.
        tracing::info!(%address, "no authentication: any client that reaches the line protocol's address can send hits");
    }
}

/// Returns whether only this machine can reach the address.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
