//! Failures: the reasons why a call has no result.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use divvy_store::{StoreError, invalid_cursor};

/// The errors that mean that all hits are refused: Redis is a replica, is starting, has no memory or no disk, lacks
/// replicas or another part of its cluster, runs a script that does not end, no longer accepts divvy's user, or
/// redirects calls as a node of a cluster does.
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

/// The reason why a call has no result.
#[derive(Debug, Clone)]
pub enum Failure {
    /// No reply came in time. The call may have been carried out.
    Timeout(Duration),
    /// The batch waited for others, which Redis answered, until almost no time was left. The call may have been carried
    /// out.
    Overloaded,
    /// There was no connection to send the call on.
    Unreachable(Arc<RedisError>),
    /// An earlier call failed like this a moment ago, so this one was not sent.
    Suspended(Arc<Failure>),
    /// Redis refused the call, or the connection broke. In the second case, the call may have been carried out.
    Redis(Arc<RedisError>),
    /// A failure at this node of a cluster.
    AtNode(Arc<str>, Arc<Failure>),
    /// No node of the cluster has the key's slot.
    NoNode,
    /// The call was not sent: no node of the cluster has all of its keys.
    ManySlots,
    /// Redis sent a reply that divvy does not understand.
    Foreign(&'static str),
    /// A listing was to continue at a cursor that Redis never issued, or issued before the cluster changed.
    Cursor(String),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Redis(error.into())
    }
}

impl Failure {
    /// Returns the failure without its node.
    fn cause(&self) -> &Self {
        if let Self::AtNode(_, failure) = self { failure.cause() } else { self }
    }

    /// Returns whether Redis refused the call because it no longer has the script.
    pub fn is_forgotten_script(&self) -> bool {
        self.code() == Some("NOSCRIPT")
    }

    /// Returns whether the call went to a server that takes no writes, such as a replica.
    pub fn is_wrong_server(&self) -> bool {
        self.code() == Some("READONLY")
    }

    /// Returns whether the call was certainly not carried out.
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

    /// Returns whether the connection broke before the reply came.
    pub fn is_broken_connection(&self) -> bool {
        match self.cause() {
            Self::Redis(error) => error.code().is_none() && (error.is_io_error() || error.is_connection_dropped()),
            _ => false,
        }
    }

    /// Returns where a node of a cluster redirects the call, if it does.
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

    /// Returns whether Redis could not be reached, or refuses every hit. Otherwise, only this call failed.
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

    /// Returns the first word of the error, or of the inner error if a script failed: before version 7, Redis sends `ERR Error
    /// running script (call to f_…): @user_script:12: -READONLY You can't write…`. If the user may not run a command in a
    /// script, all versions send an `ERR`.
    fn code(&self) -> Option<&str> {
        let Self::Redis(error) = self else { return None };
        let detail = error.detail().filter(|_| error.code() == Some("ERR")).unwrap_or_default();
        if detail.starts_with("The user executing the script") {
            return Some("NOPERM");
        }
        let (_, inner) = detail.split_once(": -").unwrap_or_default();
        inner.split(' ').next().filter(|code| !code.is_empty()).or(error.code())
    }

    /// Describes the failure for the operator. `name` is this Redis.
    pub fn describe(&self, name: &str) -> StoreError {
        match self.cause() {
            Self::Cursor(cursor) => invalid_cursor(cursor),
            Self::ManySlots => StoreError::Impossible(MANY_SLOTS),
            Self::Overloaded => StoreError::Overloaded(self.text(name).into()),
            _ if self.is_outage() => StoreError::Unreachable(self.text(name).into()),
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
}

/// The node that a call is redirected to by a node of a cluster.
pub struct Redirection {
    /// `host:port`. An empty host stands for the host of the node that answered.
    pub node: String,
    /// Whether only this call goes there, after ASKING, because the slot is moving.
    pub asking: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reply;
    use crate::wire::stream::closed;

    fn refusal(line: &str) -> Failure {
        Failure::from(Reply::from_line(line).error().unwrap())
    }

    #[test]
    fn only_an_error_that_refuses_all_hits_is_an_outage() {
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
