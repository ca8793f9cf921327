//! The state of a connection's client, and the commands about the connection; and all clients of the front, for `CLIENT LIST`.
#![expect(clippy::disallowed_methods, reason = "how old a connection is, and how long it has been idle")]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::errors;
use crate::net::auth::Gate;
use crate::net::connection::{NextStep, Output};
use crate::net::protocol::Protocol;
use crate::operations::{Operator, PassedCheck, caller_name};
use crate::protocol::command::command_rows::CommandRow;
use crate::protocol::command::{Command, CommandError, Credentials, Hello, LibraryInfo, ReplyMode};
use crate::protocol::resp::{ReplyWriter, Version};
use divvy_access::audit::Caller;
use divvy_access::{Category, DEFAULT_USER, Given, LoginError};
use divvy_limiter::{Limiter, Scope};
use divvy_telemetry::metrics::ErrorKind;

/// The version of Redis whose protocol and error texts this front follows. Both `HELLO` and `INFO` return it, because clients
/// choose their features by either. divvy's version is another field.
pub const REDIS_VERSION: &str = "7.2.0";

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_WITHOUT_PASSWORD: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                                      HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                                      and select the RESP protocol version at the same time";
const TOO_MANY_LOGINS: &str = "ERR too many logins are being verified: try again";
const CLIENT_LEFT: &str = "ERR the connection was closed before the login was verified";
/// Stands in `CLIENT LIST` for the user of a client that has not logged in. No user has such a name.
const NO_USER: &str = "(none)";

/// A client of a connection.
#[derive(Debug)]
pub struct Client {
    pub registration: Registration,
    /// The gate, closed until the client has logged in.
    pub gate: Gate,
    pub version: Version,
    replies: ReplyMode,
}

impl Client {
    pub fn new(registration: Registration, gate: Gate) -> Self {
        let client = Self { registration, gate, version: Version::default(), replies: ReplyMode::On };
        client.record_user();
        client
    }

    /// Counts an error of this client, and notes it as the last one of its kind.
    pub fn count_error(&self, limiter: &Limiter, kind: ErrorKind, reason: impl Display) {
        errors::count(limiter.metrics(), Protocol::Resp, kind, || self.gate.error_client(), reason);
    }

    /// Records the client's user for `CLIENT LIST`.
    fn record_user(&self) {
        let user = match self.gate.identity().name() {
            // A new profile has no user, either.
            None if self.gate.is_open() => return,
            None => NO_USER,
            Some(name) => name,
        };
        self.registration.profile().user = Some(user.into());
    }

    /// Returns the client as the operator of a change of this category.
    pub fn operator(&self, category: Category) -> Operator {
        let passed_check = self.gate.guard().map(|guard| PassedCheck {
            authority: Arc::clone(&guard.authority),
            identity: self.gate.identity().clone(),
            category,
        });
        Operator { caller: self.caller(), passed_check }
    }

    /// Returns the client as the caller of a change.
    pub fn caller(&self) -> Caller {
        Caller::client(Protocol::Resp.name(), Some(self.gate.peer), caller_name(self.gate.identity()))
    }

    /// Begins a request. Returns whether the client does not want its reply.
    pub fn begin_request(&mut self) -> bool {
        match self.replies {
            ReplyMode::On => false,
            ReplyMode::Off => true,
            ReplyMode::Skip => {
                self.replies = ReplyMode::On;
                true
            }
        }
    }

    /// Returns whether the client wants no replies until it turns them on again.
    pub fn is_silent(&self) -> bool {
        self.replies == ReplyMode::Off
    }

    /// Answers a command about the connection.
    pub async fn answer(&mut self, command: Command<'_>, output: &mut Output<'_>) -> NextStep {
        let mut reply = ReplyWriter::new(output.bytes, self.version);
        match command {
            Command::Ping(None) => reply.simple("PONG"),
            Command::Ping(Some(message)) | Command::Echo(message) => reply.bulk(message),
            Command::Hello(hello) => return self.hello(hello, output).await,
            Command::Auth(credentials) => {
                let (login, next) = self.log_in(credentials, output).await;
                let mut reply = ReplyWriter::new(output.bytes, self.version);
                match login {
                    Ok(()) => reply.simple("OK"),
                    Err(error) => reply.error(error),
                }
                return next;
            }
            Command::Okay => reply.simple("OK"),
            Command::ClientReply(mode) => self.set_replies(mode, &mut reply),
            Command::Quit => {
                reply.simple("OK");
                return NextStep::Close;
            }
            Command::ResetConnection => {
                reply.simple("RESET");
                self.gate.reset();
                self.version = Version::default();
                self.replies = ReplyMode::On;
                *self.registration.profile() = Profile::default();
                self.record_user();
            }
            Command::ClientId => reply.integer(self.id()),
            Command::ClientInfo => reply.bulk(self.registration.line().as_bytes()),
            Command::ClientGetName => match self.registration.profile().name.as_slice() {
                [] => reply.null(),
                name => reply.bulk(name),
            },
            Command::ClientSetName(name) => {
                self.registration.profile().name = name.to_vec();
                reply.simple("OK");
            }
            Command::ClientSetInfo(LibraryInfo::Name(name)) => {
                self.registration.profile().library = name.to_vec();
                reply.simple("OK");
            }
            Command::ClientSetInfo(LibraryInfo::Version(version)) => {
                self.registration.profile().library_version = version.to_vec();
                reply.simple("OK");
            }
            _ => reply.error("ERR this command is not about the connection"),
        }
        NextStep::Read
    }

    fn id(&self) -> i64 {
        i64::try_from(self.registration.record.id).unwrap_or(i64::MAX)
    }

    /// Turns replies on or off, as in Redis. Only `ON` gets a reply. While replies are off, `SKIP` changes nothing.
    fn set_replies(&mut self, mode: ReplyMode, reply: &mut ReplyWriter) {
        match mode {
            ReplyMode::On => reply.simple("OK"),
            ReplyMode::Skip if self.is_silent() => return,
            ReplyMode::Off | ReplyMode::Skip => {}
        }
        self.replies = mode;
    }

    /// Opens the gate for the right credentials, and returns the error for others. Stops waiting once the client has left.
    ///
    /// After an attempt that failed, or that opened the gate, the client has its reply before the next request is looked at. So
    /// each attempt takes a turn of the connection, and the client's departure is noticed.
    async fn log_in(
        &mut self,
        Credentials { user, password }: Credentials<'_>,
        output: &Output<'_>,
    ) -> (Result<(), &'static str>, NextStep) {
        if self.gate.guard().is_none() {
            return (Err(NO_PASSWORD), NextStep::Read);
        }
        let given = match user {
            Some(name) => Given::User { name, password },
            None => Given::Password(password),
        };
        let was_open = self.gate.is_open();
        let message = match self.gate.open(&given, output.client_left()).await {
            Ok(()) => {
                self.record_user();
                return (Ok(()), if was_open { NextStep::Read } else { NextStep::Continue });
            }
            Err(LoginError::Wrong) => WRONG_PASSWORD,
            Err(LoginError::QueueFull) => TOO_MANY_LOGINS,
            Err(LoginError::ClientLeft) => return (Err(CLIENT_LEFT), NextStep::Close),
        };
        (Err(message), if self.gate.is_exhausted() { NextStep::Close } else { NextStep::Continue })
    }

    /// Returns the rules and the actor that the client may use.
    #[inline]
    pub fn scope(&self) -> &Scope {
        self.gate.identity().scope()
    }

    /// Checks that the client may send this command.
    ///
    /// # Errors
    /// It has not logged in, or lacks the right.
    #[inline]
    pub fn check(&self, row: &CommandRow) -> Result<(), CommandError> {
        match self.gate.may(row.category) {
            Ok(()) => Ok(()),
            Err(_) if self.gate.is_open() => {
                if let Some(guard) = self.gate.guard() {
                    guard.count_forbidden();
                }
                let user = self.gate.identity().name().unwrap_or(DEFAULT_USER);
                Err(CommandError::forbidden(user, &row.full_name()))
            }
            Err(_) if row.is_public() => Ok(()),
            Err(_) => Err(CommandError::NO_AUTH),
        }
    }

    /// Answers `HELLO`: logs in, switches the protocol's version, names the connection, and describes the server. Does nothing of
    /// this if the client has to log in and has not.
    async fn hello(&mut self, hello: Hello<'_>, output: &mut Output<'_>) -> NextStep {
        let (login, next) = match hello.credentials {
            Some(credentials) => self.log_in(credentials, output).await,
            None => (Ok(()), NextStep::Read),
        };
        let admitted = login.and(if self.gate.is_open() { Ok(()) } else { Err(HELLO_WITHOUT_PASSWORD) });
        if let Err(error) = admitted {
            ReplyWriter::new(output.bytes, self.version).error(error);
            return next;
        }
        self.version = hello.version.unwrap_or(self.version);
        self.registration.profile().version = self.version;
        if let Some(name) = hello.name {
            self.registration.profile().name = name.to_vec();
        }
        let mut reply = ReplyWriter::new(output.bytes, self.version);
        reply.map(7);
        ["server", "divvy", "version", REDIS_VERSION].iter().for_each(|text| reply.bulk(text.as_bytes()));
        reply.bulk(b"proto");
        reply.integer(self.version.number());
        reply.bulk(b"id");
        reply.integer(self.id());
        ["mode", "standalone", "role", "master", "modules"].iter().for_each(|text| reply.bulk(text.as_bytes()));
        reply.array(0);
        next
    }
}

/// The connected clients, by number.
#[derive(Debug, Default)]
pub struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<ClientRecord>>>,
    seen: AtomicU64,
}

/// A connected client.
#[derive(Debug)]
struct ClientRecord {
    id: u64,
    peer: SocketAddr,
    /// The server's address of the connection; `None` if the system does not know it.
    local: Option<SocketAddr>,
    since: Instant,
    /// Time of the last command, in milliseconds after `since`.
    active: AtomicU64,
    activity: Mutex<Activity>,
    profile: Mutex<Profile>,
}

/// The activity of a client.
#[derive(Debug, Clone, Copy, Default)]
struct Activity {
    /// The last command.
    command: Option<&'static CommandRow>,
    /// Number of requests that wait for `EXEC`; `None` without a `MULTI`.
    queued: Option<usize>,
}

/// A client's description of itself.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Name of the user; `None` for a client without one.
    pub user: Option<Arc<str>>,
    pub version: Version,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
}

/// Lists a client as connected until this is dropped.
#[derive(Debug)]
pub struct Registration {
    clients: Arc<Clients>,
    record: Arc<ClientRecord>,
    /// The last activity in the record. It rarely changes.
    activity: Activity,
}

impl Clients {
    /// Lists a new client.
    pub fn register(self: &Arc<Self>, peer: SocketAddr, local: Option<SocketAddr>) -> Registration {
        let since = Instant::now();
        let id = self.seen.fetch_add(1, Relaxed) + 1;
        let (active, activity, profile) = Default::default();
        let record = Arc::new(ClientRecord { id, peer, local, since, active, activity, profile });
        self.connected.lock().insert(id, Arc::clone(&record));
        Registration { clients: Arc::clone(self), record, activity: Activity::default() }
    }

    /// Returns the number of clients since the start.
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Returns the number of connected clients.
    pub fn connected(&self) -> usize {
        self.connected.lock().len()
    }

    /// Returns a line for each client, in Redis's format.
    pub fn list(&self) -> String {
        // The lines are written without the lock: connecting clients wait for the lock.
        let listed: Vec<_> = self.connected.lock().values().map(Arc::clone).collect();
        let now = Instant::now();
        let mut lines = String::new();
        listed.iter().for_each(|record| record.write(now, &mut lines));
        lines
    }
}

impl Registration {
    /// Records the client's activity. Without a command, the last command stays.
    pub fn record_activity(&mut self, command: Option<&'static CommandRow>, queued: Option<usize>) {
        let active = Instant::now().saturating_duration_since(self.record.since);
        self.record.active.store(u64::try_from(active.as_millis()).unwrap_or(u64::MAX), Relaxed);
        let activity = Activity { command: command.or(self.activity.command), queued };
        let essence = |activity: Activity| (activity.command.map(std::ptr::from_ref), activity.queued);
        if essence(activity) != essence(self.activity) {
            self.activity = activity;
            *self.record.activity.lock() = activity;
        }
    }

    /// Returns the client's description of itself.
    pub fn profile(&self) -> MutexGuard<'_, Profile> {
        self.record.profile.lock()
    }

    /// Returns the client's line.
    pub fn line(&self) -> String {
        let mut line = String::new();
        self.record.write(Instant::now(), &mut line);
        line
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.connected.lock().remove(&self.record.id);
    }
}

impl ClientRecord {
    fn write(&self, now: Instant, out: &mut String) {
        let profile = self.profile.lock().clone();
        let activity = *self.activity.lock();
        let age = now.saturating_duration_since(self.since);
        let idle = age.saturating_sub(Duration::from_millis(self.active.load(Relaxed)));
        let local = self.local.map_or_else(String::new, |local| local.to_string());
        let queued = activity.queued.map_or(-1, |queued| i64::try_from(queued).unwrap_or(i64::MAX));
        // Clients require all fields of Redis. Fields about descriptors and buffers, which are unknown here, are 0 or -1.
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "id={} addr={} laddr={local} fd=-1 name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={queued} \
             qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={} \
             user={} redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer,
            text(&profile.name),
            age.as_secs(),
            idle.as_secs(),
            if activity.queued.is_some() { "x" } else { "N" },
            activity.command.map_or("NULL".into(), CommandRow::full_name),
            profile.user.as_deref().unwrap_or(DEFAULT_USER),
            profile.version.number(),
            text(&profile.library),
            text(&profile.library_version),
        );
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_listed_while_they_are_connected() {
        let clients = Arc::new(Clients::default());
        let peer = SocketAddr::from(([192, 0, 2, 1], 5));
        let first = clients.register(peer, None);
        let second = clients.register(peer, Some(SocketAddr::from(([192, 0, 2, 9], 9049))));
        second.profile().name = b"me".to_vec();
        let lines = clients.list();
        let line: Vec<_> = lines.lines().nth(1).unwrap().split(' ').collect();
        assert_eq!(line[..5], ["id=2", "addr=192.0.2.1:5", "laddr=192.0.2.9:9049", "fd=-1", "name=me"]);
        assert_eq!(lines.lines().count(), 2);
        drop(first);
        assert_eq!(clients.list(), second.line());
        assert_eq!((clients.seen(), clients.connected()), (2, 1));
    }
}
