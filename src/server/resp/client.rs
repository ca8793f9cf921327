//! The state of a connection's client, and the commands about the connection.

use super::clients::{Profile, Registration};
use super::info::REDIS_VERSION;
use crate::access::{DEFAULT_USER, Given};
use crate::audit::Caller;
use crate::limiter::Scope;
use crate::protocol::command::{Command, CommandMatch, Credentials, Hello, LibraryInfo, ReplyMode};
use crate::protocol::resp::{ReplyWriter, Version};
use crate::server::changes::{Operator, caller_name};
use crate::server::net::auth::Gate;
use crate::server::net::session::NextStep;

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_WITHOUT_PASSWORD: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                                      HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                                      and select the RESP protocol version at the same time";
/// The reply to a client that has not logged in.
pub const NO_AUTH: &str = "NOAUTH Authentication required.";
/// Name of the front.
pub const FRONT: &str = "resp";

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

    /// Records the client's user for `CLIENT LIST`.
    fn record_user(&self) {
        if let Some(name) = self.gate.identity().name() {
            self.registration.update(|profile| profile.user = Some(name.into()));
        }
    }

    /// Records the client's activity for `CLIENT LIST`.
    pub fn record_activity(&mut self, command: Option<CommandMatch>, queued: Option<usize>) {
        self.registration.record_activity(command, queued);
    }

    /// Returns the client as the operator of a change.
    pub fn operator(&self) -> Operator {
        Operator { caller: self.caller(), scope: self.scope().clone() }
    }

    /// Returns the client as the caller of a change.
    pub fn caller(&self) -> Caller {
        Caller::client(FRONT, Some(self.gate.peer()), caller_name(self.gate.identity()))
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
    pub async fn answer(&mut self, command: Command<'_>, output: &mut Vec<u8>) -> NextStep {
        let login = match command.credentials() {
            Some(credentials) => self.log_in(credentials).await,
            None => Ok(()),
        };
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
        NextStep::Read
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

    /// Opens the gate for the right credentials.
    async fn log_in(&mut self, Credentials { user, password }: Credentials<'_>) -> Result<(), &'static str> {
        if self.gate.guard().is_none() {
            return Err(NO_PASSWORD);
        }
        let given = match user {
            Some(name) => Given::User { name, password },
            None => Given::Password(password),
        };
        if !self.gate.open(&given).await {
            return Err(WRONG_PASSWORD);
        }
        self.record_user();
        Ok(())
    }

    /// Returns the rules and the actor that the client may use.
    #[inline]
    pub fn scope(&self) -> &Scope {
        self.gate.identity().scope()
    }

    /// Returns the error for a command that the client may not send.
    pub fn refusal(&self, found: CommandMatch) -> String {
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
    /// connection, and describes the server. Changes nothing if the client has to log in and has not.
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
        for (field, value) in [("server", "divvy"), ("version", REDIS_VERSION)] {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"proto");
        reply.integer(self.version.number());
        reply.bulk(b"id");
        reply.integer(self.id());
        for (field, value) in [("mode", "standalone"), ("role", "master")] {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"modules");
        reply.array(0);
    }
}
