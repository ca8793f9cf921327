//! What a connection knows of its client, and the commands that are about nothing else.

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::protocol::command::{Command, Credentials, Hello, LibraryInfo};
use crate::protocol::resp::{ReplyWriter, Version};
use crate::server::auth::Gate;
use crate::server::connection::Next;

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_WITHOUT_PASSWORD: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                                      HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client \
                                      and select the RESP protocol version at the same time";
/// The only user there is.
const USER: &[u8] = b"default";

/// A client, as far as it told.
#[derive(Debug)]
pub struct Client {
    id: u64,
    peer: SocketAddr,
    /// Shut until the client has given the password.
    pub gate: Gate,
    pub version: Version,
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
}

impl Client {
    pub fn new(id: u64, peer: SocketAddr, gate: Gate) -> Self {
        Self {
            id,
            peer,
            gate,
            version: Version::default(),
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
        }
    }

    /// Answers a command that concerns the connection alone.
    pub fn answer(&mut self, command: Command, output: &mut Vec<u8>) -> Next {
        let mut reply = ReplyWriter::new(output, self.version);
        match command {
            Command::Ping(None) => reply.simple("PONG"),
            Command::Ping(Some(message)) | Command::Echo(message) => reply.bulk(message),
            Command::Hello(hello) => self.hello(hello, output),
            Command::Auth(credentials) => match self.admit(credentials) {
                Ok(()) => reply.simple("OK"),
                Err(error) => reply.error(error),
            },
            Command::Select => reply.simple("OK"),
            Command::Quit => {
                reply.simple("OK");
                return Next::Close;
            }
            Command::ResetConnection => {
                reply.simple("RESET");
                self.gate.reset();
                *self = Self::new(self.id, self.peer, self.gate.clone());
            }
            Command::ClientId => reply.integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            Command::ClientInfo => reply.bulk(self.info().as_bytes()),
            Command::ClientGetName if self.name.is_empty() => reply.null(),
            Command::ClientGetName => reply.bulk(&self.name),
            Command::ClientSetName(name) => {
                self.name = name.to_vec();
                reply.simple("OK");
            }
            Command::ClientSetInfo(LibraryInfo::Name(name)) => {
                self.library = name.to_vec();
                reply.simple("OK");
            }
            Command::ClientSetInfo(LibraryInfo::Version(version)) => {
                self.library_version = version.to_vec();
                reply.simple("OK");
            }
            Command::Hit(_)
            | Command::Peek(_)
            | Command::Forget(_)
            | Command::Explain(_)
            | Command::Tokens(_)
            | Command::Session(_)
            | Command::Throttle(_)
            | Command::Rules
            | Command::Counters(_)
            | Command::ForgetCounters(_)
            | Command::Backup(_)
            | Command::Info(_)
            | Command::ConfigGet(_)
            | Command::DbSize
            | Command::Time
            | Command::Describe(_) => reply.error("ERR this command is not about the connection"),
        }
        Next::Read
    }

    /// Opens the gate for the right password.
    fn admit(&mut self, credentials: Credentials) -> Result<(), &'static str> {
        if !self.gate.has_password() {
            return Err(NO_PASSWORD);
        }
        let is_user = credentials.user.is_none_or(|user| user == USER);
        if is_user && self.gate.open(credentials.password) { Ok(()) } else { Err(WRONG_PASSWORD) }
    }

    fn hello(&mut self, hello: Hello, output: &mut Vec<u8>) {
        let admitted = match hello.credentials {
            Some(credentials) => self.admit(credentials),
            None if self.gate.is_open() => Ok(()),
            None => Err(HELLO_WITHOUT_PASSWORD),
        };
        if let Err(error) = admitted {
            return ReplyWriter::new(output, self.version).error(error);
        }
        self.version = hello.version.unwrap_or(self.version);
        if let Some(name) = hello.name {
            self.name = name.to_vec();
        }
        let mut reply = ReplyWriter::new(output, self.version);
        reply.map(7);
        for (field, value) in [("server", "divvy"), ("version", env!("CARGO_PKG_VERSION"))] {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"proto");
        reply.integer(self.version.number());
        reply.bulk(b"id");
        reply.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        for (field, value) in [("mode", "standalone"), ("role", "master")] {
            reply.bulk(field.as_bytes());
            reply.bulk(value.as_bytes());
        }
        reply.bulk(b"modules");
        reply.array(0);
    }

    fn info(&self) -> String {
        format!(
            "id={} addr={} name={} db=0 resp={} lib-name={} lib-ver={}\n",
            self.id,
            self.peer,
            text(&self.name),
            self.version.number(),
            text(&self.library),
            text(&self.library_version),
        )
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
