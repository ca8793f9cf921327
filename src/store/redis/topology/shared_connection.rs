//! One connection, from the attempt to make it to its end.
//!
//! A task of its own connects, and goes on when the batch that began it gives up: asking sentinels of which one hangs
//! takes longer than a batch may wait.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::RedisError;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Breaker;
use super::endpoint::Endpoint;
use crate::store::redis::wire::{Answer, Connection, LastReply, timed_out};

/// An attempt is given up after this, or after the batches' timeout when that is longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);

/// A connection that is being made, is there, or could not be made; clones share it.
#[derive(Clone)]
pub struct SharedConnection(Arc<Attempt>);

/// What came of the attempt.
type Connected = Result<Arc<Connection>, Arc<RedisError>>;

struct Attempt {
    result: watch::Receiver<Option<Connected>>,
    last_reply: Arc<LastReply>,
}

/// What came of sending commands.
pub enum Sent {
    /// All replies, one after the other.
    Answered(Bytes),
    /// Not in time. They may have been carried out.
    Unanswered,
    /// The connection broke under them. They may have been carried out.
    Broken(Arc<RedisError>),
    /// The connection had broken before: nothing was sent.
    Not,
    /// There is no connection: nothing was sent.
    Unreachable(Arc<RedisError>),
}

impl SharedConnection {
    /// Connects, on `runtime`; a success ends an outage, as it takes an answer of Redis. `heard` takes note of all
    /// answers, too.
    pub fn connect(
        runtime: &Handle,
        endpoint: Arc<Endpoint>,
        patience: Duration,
        breaker: Arc<Breaker>,
        heard: Arc<LastReply>,
    ) -> Self {
        let (sender, result) = watch::channel(None);
        let last_reply: Arc<LastReply> = Arc::default();
        let both = [Arc::clone(&last_reply), heard];
        runtime.spawn(async move {
            let connected = timeout(patience.max(LONGEST_ATTEMPT), endpoint.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(timed_out()));
            if connected.is_ok() {
                breaker.answered();
            }
            let connection = connected.map(|stream| Arc::new(Connection::open(stream, both)));
            sender.send_replace(Some(connection.map_err(Arc::new)));
        });
        Self(Arc::new(Attempt { result, last_reply }))
    }

    pub fn is_connected(&self) -> bool {
        matches!(&*self.0.result.borrow(), Some(Ok(_)))
    }

    /// Whether there is no connection, and will be none.
    pub fn has_failed(&self) -> bool {
        let is_over = self.0.result.has_changed().is_err();
        is_over && !self.is_connected()
    }

    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether anything came back on this connection since `begin`.
    pub fn has_answered_since(&self, begin: Instant) -> bool {
        self.0.last_reply.is_since(begin)
    }

    /// Sends the commands, which have so many replies together, once there is a connection.
    pub async fn send(&self, commands: &[u8], replies: usize, deadline: Instant) -> Sent {
        let connection = match self.connection(deadline).await {
            Ok(connection) => connection,
            Err(error) => return Sent::Unreachable(error),
        };
        match connection.ask(commands, replies, deadline).await {
            Answer::Replies(replies) => Sent::Answered(replies),
            Answer::Late => Sent::Unanswered,
            Answer::Broken(error) => Sent::Broken(error),
            Answer::NotSent => Sent::Not,
        }
    }

    async fn connection(&self, deadline: Instant) -> Connected {
        if let Some(Ok(connection)) = &*self.0.result.borrow() {
            return Ok(Arc::clone(connection));
        }
        let mut pending = self.0.result.clone();
        let result = match timeout_at(deadline, pending.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone(),
            _ => None,
        };
        result.unwrap_or_else(|| Err(Arc::new(timed_out())))
    }
}
