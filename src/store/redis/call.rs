//! What is asked of Redis, and what can go wrong with it.

use std::sync::Arc;
use std::time::Duration;

use redis::cluster_routing::Slot;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::arguments::Arguments;
use super::command::{write_argument, write_command, write_head};
use super::reply::Reply;
use super::script::Script;
use crate::store::error::StoreError;
use crate::store::listing::invalid_cursor;

/// The key that tells whether writes are taken.
pub(super) const PROBE: &[u8] = b"divvy.probe";

/// The errors with which Redis refuses all hits: it is a replica, starts, has no memory or no disk, lacks replicas or
/// another part of its cluster, runs a script that does not end, does not accept divvy's user any more, or
/// redirects calls, as a node of a cluster does.
const OUT_OF_ORDER: [&str; 13] = [
    "READONLY",
    "LOADING",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "NOAUTH",
    "NOPERM",
    "MOVED",
    "ASK",
];

/// See [`Failure::ManySlots`].
const MANY_SLOTS: &str = "a Redis Cluster cannot take from these counters together, because they are in different slots: \
                          nothing was taken; send the hits one by one, or let their rules be stacks of one tenant";

/// One call.
pub(super) enum Call {
    Script {
        script: &'static Script,
        /// Sent by its text at once, so that Redis cannot have forgotten it.
        brings_text: bool,
        key: Vec<u8>,
        /// Of a group's other buckets.
        other_keys: Vec<Vec<u8>>,
        arguments: Arguments,
        /// How many of a batch's actions it takes.
        actions: usize,
    },
    /// Whether a server takes writes: this key is gone after a millisecond.
    Probe { key: Vec<u8> },
    /// Reads the value under this name.
    Get { key: &'static [u8] },
    /// Writes a value under this name, unless there is one.
    SetIfNone { key: &'static [u8], value: String },
    /// How many keys a server has.
    Count,
    /// Which process it is, among other things.
    ServerInfo,
    /// A page of the keys that match.
    Scan { cursor: u64, pattern: Vec<u8>, count: usize },
    /// Which nodes of a cluster have which slots.
    Slots,
}

impl Call {
    /// The key that says which node of a cluster is to be asked; empty where any node will do.
    pub(super) fn key(&self) -> &[u8] {
        match self {
            Self::Script { key, .. } | Self::Probe { key } => key,
            Self::Get { key } | Self::SetIfNone { key, .. } => key,
            Self::Count | Self::ServerInfo | Self::Scan { .. } | Self::Slots => &[],
        }
    }

    /// Whether all of its keys are in the slot of the first.
    pub(super) fn is_in_one_slot(&self) -> bool {
        let Self::Script { key, other_keys, .. } = self else { return true };
        other_keys.iter().all(|other| Slot::for_key(other) == Slot::for_key(key))
    }

    /// How many of a batch's actions it takes.
    pub(super) fn actions(&self) -> usize {
        if let Self::Script { actions, .. } = self { *actions } else { 0 }
    }

    /// The script that it runs.
    pub(super) fn script(&self) -> Option<&'static Script> {
        if let Self::Script { script, .. } = self { Some(script) } else { None }
    }

    /// Writes the command; a script by its hash, which Redis may have forgotten (after a restart, a failover, SCRIPT FLUSH).
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Script { script, brings_text: false, .. } => self.write_script(script.by_hash(), out),
            Self::Script { script, brings_text: true, .. } => self.write_script(script.with_text(), out),
            Self::Probe { key } => write_command(&[b"SET", key, b"1", b"PX", b"1"], out),
            Self::Get { key } => write_command(&[b"GET", key], out),
            Self::SetIfNone { key, value } => write_command(&[b"SET", key, value.as_bytes(), b"NX"], out),
            Self::Count => write_command(&[b"DBSIZE"], out),
            Self::ServerInfo => write_command(&[b"INFO", b"server"], out),
            Self::Scan { cursor, pattern, count } => {
                let (cursor, count) = (cursor.to_string(), count.to_string());
                write_command(&[b"SCAN", cursor.as_bytes(), b"MATCH", pattern, b"COUNT", count.as_bytes()], out);
            }
            Self::Slots => write_command(&[b"CLUSTER", b"SLOTS"], out),
        }
    }

    /// Writes the command; a script with its text, so that Redis remembers it.
    pub(super) fn write_with_text(&self, out: &mut Vec<u8>) {
        match self {
            Self::Script { script, .. } => self.write_script(script.with_text(), out),
            _ => self.write(out),
        }
    }

    /// Writes a call of a script, which begins with `start`.
    fn write_script(&self, start: &[u8], out: &mut Vec<u8>) {
        let Self::Script { key, other_keys, arguments, .. } = self else { return };
        write_head(4 + other_keys.len() + arguments.len(), out);
        out.extend_from_slice(start);
        write_keys(key, other_keys, out);
        out.extend_from_slice(arguments.as_bytes());
    }
}

/// How many there are, and the keys.
fn write_keys(key: &[u8], other_keys: &[Vec<u8>], out: &mut Vec<u8>) {
    write_argument(itoa::Buffer::new().format(1 + other_keys.len()).as_bytes(), out);
    write_argument(key, out);
    other_keys.iter().for_each(|key| write_argument(key, out));
}

/// Why a call has no answer.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// Nothing came back in time. The call may have been carried out.
    Timeout(Duration),
    /// The batch had waited for others, which Redis answered, until no time was left, or hardly any. The call may have been
    /// carried out.
    Overloaded,
    /// There was no connection to send the call on.
    Unreachable(Arc<RedisError>),
    /// This happened a moment ago, so the call was not sent.
    Suspended(Arc<Failure>),
    /// Redis refused it, or the connection broke: then the call may have been carried out.
    Redis(Arc<RedisError>),
    /// It went to this node of a cluster.
    AtNode(Arc<str>, Arc<Failure>),
    /// No node of the cluster has the key's slot.
    NoNode,
    /// It was not sent: no node of a cluster has all of its keys.
    ManySlots,
    /// Redis answered, but not what it should have.
    Foreign(&'static str),
    /// A listing was to go on where no page has ended, or where one ended before the cluster changed.
    Cursor(String),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Redis(error.into())
    }
}

impl Failure {
    pub(super) fn cursor(cursor: &str) -> Self {
        Self::Cursor(cursor.to_owned())
    }

    /// What went wrong, at whichever node.
    fn cause(&self) -> &Self {
        if let Self::AtNode(_, failure) = self { failure.cause() } else { self }
    }

    /// Whether Redis did not carry the call out because it does not know the script.
    pub(super) fn is_forgotten_script(&self) -> bool {
        self.is(ServerErrorKind::NoScript)
    }

    /// Whether the call asked a server that no longer is, or never was, the one that takes writes.
    pub(super) fn is_wrong_server(&self) -> bool {
        self.code() == Some("READONLY")
    }

    /// Whether it is certain that the call was not carried out.
    pub(super) fn was_not_done(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Suspended(_) | Self::NoNode | Self::ManySlots => true,
            Self::Redis(error) => matches!(
                error.kind(),
                ErrorKind::Server(
                    ServerErrorKind::ReadOnly
                        | ServerErrorKind::TryAgain
                        | ServerErrorKind::ClusterDown
                        | ServerErrorKind::MasterDown
                )
            ),
            Self::AtNode(_, failure) => failure.was_not_done(),
            Self::Timeout(_) | Self::Overloaded | Self::Foreign(_) | Self::Cursor(_) => false,
        }
    }

    /// Where the node of a cluster that was asked sends the call, if it does.
    pub(super) fn redirection(&self) -> Option<Redirection> {
        let Self::Redis(error) = self else { return None };
        let asking = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => false,
            ErrorKind::Server(ServerErrorKind::Ask) => true,
            _ => return None,
        };
        let (node, _) = error.redirect_node()?;
        Some(Redirection { node: node.to_owned(), asking })
    }

    /// Whether Redis could not be reached, or refuses every client; otherwise only this call had no useful answer.
    fn is_outage(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Unreachable(_) | Self::Suspended(_) | Self::NoNode => true,
            Self::Redis(error) => match self.code() {
                Some(code) => OUT_OF_ORDER.contains(&code),
                None => error.is_io_error() || error.is_connection_dropped(),
            },
            Self::AtNode(_, failure) => failure.is_outage(),
            Self::Overloaded | Self::ManySlots | Self::Foreign(_) | Self::Cursor(_) => false,
        }
    }

    /// The error's first word, of an error within a script the inner one's: before version 7, Redis says `ERR Error
    /// running script (call to f_…): @user_script:12: -READONLY You can't write…`, and what a user may not do within a
    /// script is an `ERR` in all versions.
    fn code(&self) -> Option<&str> {
        let Self::Redis(error) = self else { return None };
        let detail = error.detail().filter(|_| error.code() == Some("ERR")).unwrap_or_default();
        if detail.starts_with("The user executing the script") {
            return Some("NOPERM");
        }
        let (_, inner) = detail.split_once(": -").unwrap_or_default();
        inner.split(' ').next().filter(|code| !code.is_empty()).or(error.code())
    }

    /// What to tell the operator about the Redis that is called `name`.
    pub(super) fn describe(&self, name: &str) -> StoreError {
        match self.cause() {
            Self::Cursor(cursor) => invalid_cursor(cursor),
            Self::ManySlots => StoreError::Impossible(MANY_SLOTS),
            Self::Overloaded => StoreError::overloaded(self.text(name)),
            _ if self.is_outage() => StoreError::unreachable(self.text(name)),
            _ => StoreError::new(self.text(name)),
        }
    }

    fn text(&self, name: &str) -> String {
        match self {
            Self::Timeout(time) => format!("Redis at {name} did not answer within {} ms", time.as_millis()),
            Self::Overloaded => format!("Redis at {name} is overloaded: too many hits are waiting for it"),
            Self::Unreachable(error) => format!("cannot connect to Redis at {name}: {error}"),
            Self::Suspended(failure) => failure.text(name),
            Self::AtNode(node, failure) => match &**failure {
                Self::Redis(error) => format!("Redis at {node}: {error}"),
                failure => failure.text(node),
            },
            Self::Redis(error) if self.redirection().is_some() => {
                format!("Redis at {name} belongs to a cluster ({error}): give the URLs of two or more of its nodes")
            }
            Self::Redis(error) => format!("Redis at {name}: {error}"),
            Self::NoNode => format!("no node of the Redis cluster at {name} serves this key's slot"),
            Self::ManySlots => MANY_SLOTS.to_owned(),
            Self::Foreign(wanted) => format!("Redis at {name} sent an unexpected reply: {wanted}"),
            Self::Cursor(cursor) => invalid_cursor(cursor).to_string(),
        }
    }

    fn is(&self, kind: ServerErrorKind) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::Server(kind))
    }
}

/// A cluster node's word that another one is to be asked.
pub(super) struct Redirection {
    /// `host:port`; the host is empty where it is the one that answered.
    pub node: String,
    /// Only for this call, after ASKING: the slot is on its way there.
    pub asking: bool,
}

/// Reads the reply to [`Call::Count`].
pub(super) fn number_of_keys(reply: Reply) -> Result<u64, Failure> {
    redis::from_redis_value(reply.value()?).map_err(|_| Failure::Foreign("the number of keys is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> Failure {
        Failure::from(Reply::from_line(line).error().unwrap())
    }

    #[test]
    fn only_what_everybody_is_refused_is_an_outage() {
        let at_node = |failure: Failure| Failure::AtNode("a:1".into(), failure.into());
        for line in ["-OOM no memory\r\n", "-LOADING wait\r\n", "-READONLY a replica\r\n", "-MISCONF no disk\r\n"] {
            assert!(refusal(line).is_outage() && at_node(refusal(line)).is_outage(), "{line}");
        }
        for line in
            ["-WRONGTYPE no string\r\n", "-ERR the key does not hold a number of credits\r\n", "-NOSCRIPT x\r\n"]
        {
            assert!(!refusal(line).is_outage() && !at_node(refusal(line)).is_outage(), "{line}");
        }
        let in_a_script =
            |error: &str| refusal(&format!("-ERR Error running script (call to f_1): @user_script:12: {error}\r\n"));
        assert!(in_a_script("-OOM no memory").is_outage());
        assert!(in_a_script("-READONLY You can't write").is_wrong_server());
        assert!(!in_a_script("-WRONGTYPE no string").is_outage());
        assert!(!in_a_script("12: a mistake").is_outage());
        let forbidden =
            "-ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:2.\r\n";
        assert!(refusal(forbidden).is_outage());
        assert!(Failure::Timeout(Duration::ZERO).is_outage());
        assert!(Failure::from(crate::store::redis::io_error::closed()).is_outage());
        assert!(!Failure::Foreign("x").is_outage());
    }
}
