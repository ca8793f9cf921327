//! What is asked of Redis, and what can go wrong with it.

use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

/// What Redis answered.
pub(super) type Reply = redis::Value;

/// A Lua script of one key.
pub(super) struct Script {
    text: &'static str,
    hash: std::sync::OnceLock<String>,
}

impl Script {
    pub(super) const fn new(text: &'static str) -> Self {
        Self { text, hash: std::sync::OnceLock::new() }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

/// One call on one key.
pub(super) enum Call {
    Get { key: Vec<u8> },
    Script { script: &'static Script, key: Vec<u8>, arguments: Vec<Vec<u8>> },
}

impl Call {
    /// The command; a script by its hash, which Redis may have forgotten (after a restart, a failover, SCRIPT FLUSH).
    pub(super) fn command(&self) -> Cmd {
        match self {
            Self::Get { key } => {
                let mut command = redis::cmd("GET");
                command.arg(key);
                command
            }
            Self::Script { script, key, arguments } => with_key("EVALSHA", script.hash(), key, arguments),
        }
    }

    /// The same with the script's text, which makes Redis remember the script.
    pub(super) fn command_with_text(&self) -> Cmd {
        match self {
            Self::Get { .. } => self.command(),
            Self::Script { script, key, arguments } => with_key("EVAL", script.text, key, arguments),
        }
    }
}

fn with_key(name: &str, script: &str, key: &[u8], arguments: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(1).arg(key).arg(arguments);
    command
}

/// Why a call has no answer.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// Nothing came back in time. The call may have been carried out.
    Timeout(Duration),
    /// Connecting failed a moment ago, and is tried again only after a pause.
    Down(std::sync::Arc<RedisError>),
    /// Redis refused it, or the connection broke.
    Redis(std::sync::Arc<RedisError>),
    /// Redis answered, but not what it should have.
    Foreign(&'static str),
    Damaged(crate::store::value::Damaged),
    /// Asked of a cluster what only one server can tell.
    NotInACluster,
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Redis(error.into())
    }
}

impl Failure {
    /// Whether Redis did not carry the call out because it does not know the script.
    pub(super) fn is_forgotten_script(&self) -> bool {
        self.is(ServerErrorKind::NoScript)
    }

    /// Whether the call asked a server that no longer is, or never was, the one that takes writes.
    pub(super) fn is_wrong_server(&self) -> bool {
        self.is(ServerErrorKind::ReadOnly)
    }

    /// Whether the server belongs to a cluster, and was asked as if it stood alone.
    pub(super) fn is_cluster_s(&self) -> bool {
        self.is(ServerErrorKind::Moved) || self.is(ServerErrorKind::Ask)
    }

    fn is(&self, kind: ServerErrorKind) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::Server(kind))
    }
}
