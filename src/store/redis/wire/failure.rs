//! Failures: the reasons why a call has no answer.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::contract::{StoreError, invalid_cursor};

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

/// Why a call has no answer.
#[derive(Debug, Clone)]
pub enum Failure {
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
    pub fn cursor(cursor: &str) -> Self {
        Self::Cursor(cursor.to_owned())
    }

    /// What went wrong, at whichever node.
    fn cause(&self) -> &Self {
        if let Self::AtNode(_, failure) = self { failure.cause() } else { self }
    }

    /// Whether Redis did not carry the call out because it does not know the script.
    pub fn is_forgotten_script(&self) -> bool {
        self.is(ServerErrorKind::NoScript)
    }

    /// Whether the call asked a server that no longer is, or never was, the one that takes writes.
    pub fn is_wrong_server(&self) -> bool {
        self.code() == Some("READONLY")
    }

    /// Whether it is certain that the call was not carried out.
    pub fn was_not_done(&self) -> bool {
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
    pub fn redirection(&self) -> Option<Redirection> {
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
    pub fn describe(&self, name: &str) -> StoreError {
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
pub struct Redirection {
    /// `host:port`; the host is empty where it is the one that answered.
    pub node: String,
    /// Only for this call, after ASKING: the slot is on its way there.
    pub asking: bool,
}

#[cfg(test)]
mod tests {
    use super::super::io_error::closed;
    use super::super::reply::Reply;
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
        assert!(Failure::from(closed()).is_outage());
        assert!(!Failure::Foreign("x").is_outage());
    }
}
