//! The state of a connection's client, and the commands about the connection.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;

use super::clients::{Profile, Registration};
use super::info::REDIS_VERSION;
use crate::error_log;
use crate::net::auth::Gate;
use crate::net::connection::NextStep;
use crate::net::front::Protocol;
use crate::operations::{Admission, Operator, caller_name};
use crate::protocol::command::table::Spec;
use crate::protocol::command::{Command, Credentials, Hello, LibraryInfo, ReplyMode};
use crate::protocol::resp::{ReplyWriter, Version};
use divvy_access::audit::Caller;
use divvy_access::{Category, DEFAULT_USER, Given, LoginError};
use divvy_limiter::{Limiter, Scope};
use divvy_telemetry::metrics::ErrorKind;

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_WITHOUT_PASSWORD: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                                      HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                                      and select the RESP protocol version at the same time";
const TOO_MANY_LOGINS: &str = "ERR too many logins are being verified: try again";
const CLIENT_LEFT: &str = "ERR the connection was closed before the login was verified";
/// The reply to a client that has not logged in.
pub const NO_AUTH: &str = "NOAUTH Authentication required.";
/// Stands in `CLIENT LIST` for the user of a client that has not logged in. No user has such a name.
const NO_USER: &str = "(none)";

/// Result of an attempt to log in.
#[derive(Debug, Clone, Copy)]
pub struct Login {
    result: Result<(), &'static str>,
    /// After an attempt that failed, or that opened the gate, the client has its reply before the next request is looked at. So
    /// each attempt takes a turn of the connection, and the client's departure is noticed.
    next: NextStep,
}

impl Login {
    /// The result for a command without credentials.
    pub const NONE: Self = Self { result: Ok(()), next: NextStep::Read };
}

/// A client of a connection.
#[derive(Debug)]
pub struct Client {
    registration: Registration,
    /// The gate, closed until the client has logged in.
    pub gate: Gate,
    pub version: Version,
    name: Vec<u8>,
    replies: ReplyMode,
}

impl Client {
    pub fn new(registration: Registration, gate: Gate) -> Self {
        let client = Self { registration, gate, version: Version::default(), name: Vec::new(), replies: ReplyMode::On };
        client.record_user();
        client
    }

    /// Counts an error of this client, and notes it as the last one of its kind.
    pub fn count_error(&self, limiter: &Limiter, kind: ErrorKind, reason: impl Display) {
        error_log::count(limiter.metrics(), Protocol::Resp, kind, || self.gate.error_client(), reason);
    }

    /// Counts an error, and writes it unless the client wants no reply.
    pub fn refuse(&self, limiter: &Limiter, error: &str, is_muted: bool, output: &mut Vec<u8>) {
        self.count_error(limiter, ErrorKind::Unknown, error);
        if !is_muted {
            ReplyWriter::new(output, self.version).error(error);
        }
    }

    /// Notes an error of this client as the last one of its kind, without counting it.
    pub fn note_error(&self, kind: ErrorKind, reason: impl Display) {
        error_log::note(Protocol::Resp, kind, || self.gate.error_client(), reason);
    }

    /// Records the client's user for `CLIENT LIST`.
    fn record_user(&self) {
        let user = match self.gate.identity().name() {
            // A new profile has no user, either.
            None if self.gate.is_open() => return,
            None => NO_USER,
            Some(name) => name,
        };
        self.registration.update(|profile| profile.user = Some(user.into()));
    }

    /// Records the client's activity for `CLIENT LIST`.
    pub fn record_activity(&mut self, command: Option<&'static Spec>, queued: Option<usize>) {
        self.registration.record_activity(command, queued);
    }

    /// Returns the client as the operator of a change of this category.
    pub fn operator(&self, category: Option<Category>) -> Operator {
        let admission = |authority, category| Admission { authority, identity: self.gate.identity().clone(), category };
        let authority = self.gate.guard().map(|guard| Arc::clone(guard.authority()));
        Operator {
            caller: self.caller(),
            scope: self.scope().clone(),
            admission: authority.zip(category).map(|(authority, category)| admission(authority, category)),
        }
    }

    /// Returns the client as the caller of a change.
    pub fn caller(&self) -> Caller {
        Caller::client(Protocol::Resp.front(), Some(self.gate.peer()), caller_name(self.gate.identity()))
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

    /// Answers a command about the connection. `login` is the result of [`Client::log_in`].
    pub fn answer(&mut self, command: Command<'_>, login: Login, output: &mut Vec<u8>) -> NextStep {
        let Login { result: login, next } = login;
        let mut reply = ReplyWriter::new(output, self.version);
        match command {
            Command::Ping(None) => reply.simple("PONG"),
            Command::Ping(Some(message)) | Command::Echo(message) => reply.bulk(message),
            Command::Hello(hello) => self.hello(hello, login, output),
            Command::Auth(_) => match login {
                Ok(()) => reply.simple("OK"),
                Err(error) => reply.error(error),
            },
            Command::Select | Command::Unwatch | Command::ClientSwitch => reply.simple("OK"),
            Command::ClientReply(mode) => self.set_replies(mode, &mut reply),
            Command::Quit => {
                reply.simple("OK");
                return NextStep::Close;
            }
            Command::ResetConnection => {
                reply.simple("RESET");
                self.gate.reset();
                self.version = Version::default();
                self.name.clear();
                self.replies = ReplyMode::On;
                self.registration.update(|profile| *profile = Profile::default());
                self.record_user();
            }
            Command::ClientId => reply.integer(self.id()),
            Command::ClientInfo => reply.bulk(self.registration.line().as_bytes()),
            Command::ClientGetName if self.name.is_empty() => reply.null(),
            Command::ClientGetName => reply.bulk(&self.name),
            Command::ClientSetName(name) => {
                self.set_name(name);
                reply.simple("OK");
            }
            Command::ClientSetInfo(LibraryInfo::Name(name)) => {
                self.registration.update(|profile| profile.library = name.to_vec());
                reply.simple("OK");
            }
            Command::ClientSetInfo(LibraryInfo::Version(version)) => {
                self.registration.update(|profile| profile.library_version = version.to_vec());
                reply.simple("OK");
            }
            _ => reply.error("ERR this command is not about the connection"),
        }
        next
    }

    fn id(&self) -> i64 {
        i64::try_from(self.registration.id()).unwrap_or(i64::MAX)
    }

    fn set_name(&mut self, name: &[u8]) {
        self.name = name.to_vec();
        self.registration.update(|profile| profile.name = name.to_vec());
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

    /// Opens the gate if the command has the right credentials. Stops waiting once `left` ends.
    pub async fn log_in(&mut self, command: &Command<'_>, left: impl Future<Output = ()>) -> Login {
        let Some(Credentials { user, password }) = command.credentials() else { return Login::NONE };
        if self.gate.guard().is_none() {
            return Login { result: Err(NO_PASSWORD), ..Login::NONE };
        }
        let given = match user {
            Some(name) => Given::User { name, password },
            None => Given::Password(password),
        };
        let was_open = self.gate.is_open();
        let error = match self.gate.open(&given, left).await {
            Ok(()) => {
                self.record_user();
                let next = if was_open { NextStep::Read } else { NextStep::Continue };
                return Login { result: Ok(()), next };
            }
            Err(error) => error,
        };
        let is_over = error == LoginError::ClientLeft || self.gate.is_exhausted();
        let message = match error {
            LoginError::Wrong => WRONG_PASSWORD,
            LoginError::QueueFull => TOO_MANY_LOGINS,
            LoginError::ClientLeft => CLIENT_LEFT,
        };
        Login { result: Err(message), next: if is_over { NextStep::Close } else { NextStep::Continue } }
    }

    /// Returns the rules and the actor that the client may use.
    #[inline]
    pub fn scope(&self) -> &Scope {
        self.gate.identity().scope()
    }

    /// Returns the error for a command that the client may not send.
    pub fn refusal(&self, found: &Spec) -> String {
        if !self.gate.is_open() {
            return NO_AUTH.to_owned();
        }
        if let Some(guard) = self.gate.guard() {
            guard.count_forbidden();
        }
        let name = self.gate.identity().name().unwrap_or(DEFAULT_USER);
        format!("NOPERM User {name} has no permissions to run the '{}' command", found.full_name())
    }

    /// Answers `HELLO` after the attempt to log in, if there was one: switches the protocol's version, names the
    /// connection, and describes the server. Operations nothing if the client has to log in and has not.
    fn hello(&mut self, hello: Hello, login: Result<(), &'static str>, output: &mut Vec<u8>) {
        let admitted = login.and(if self.gate.is_open() { Ok(()) } else { Err(HELLO_WITHOUT_PASSWORD) });
        if let Err(error) = admitted {
            return ReplyWriter::new(output, self.version).error(error);
        }
        self.version = hello.version.unwrap_or(self.version);
        let version = self.version;
        self.registration.update(|profile| profile.version = version);
        if let Some(name) = hello.name {
            self.set_name(name);
        }
        let mut reply = ReplyWriter::new(output, self.version);
        reply.map(7);
        ["server", "divvy", "version", REDIS_VERSION].iter().for_each(|text| reply.bulk(text.as_bytes()));
        reply.bulk(b"proto");
        reply.integer(self.version.number());
        reply.bulk(b"id");
        reply.integer(self.id());
        ["mode", "standalone", "role", "master", "modules"].iter().for_each(|text| reply.bulk(text.as_bytes()));
        reply.array(0);
    }
}
