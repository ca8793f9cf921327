//! One connection, from the attempt to make it to its end.
//!
//! A separate task connects. It continues if the batch that began it gives up, because finding out which sentinels hang
//! takes longer than a batch may wait.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Breaker;
use super::endpoint::Endpoint;
use crate::wire::{Answer, Connection, LastReply, Unanswered, timed_out};

/// Maximum duration of an attempt, unless the batches' timeout is longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);

/// State that all connections to one server share.
pub struct Server {
    pub endpoint: Endpoint,
    /// Maximum time that a batch waits.
    pub timeout: Duration,
    pub breaker: Breaker,
    /// Time of the last reply on any of these connections.
    pub last_reply: Arc<LastReply>,
}

/// A connection that is being made, exists, or has failed.
pub struct SharedConnection {
    result: watch::Receiver<Option<Connected>>,
    /// The last reply on this connection.
    pub last_reply: Arc<LastReply>,
}

/// The result of the attempt.
type Connected = Result<Arc<Connection>, Arc<RedisError>>;

impl SharedConnection {
    /// Connects, on `runtime`. If it succeeds, an outage is over, because connecting takes a reply from Redis.
    pub fn connect(runtime: &Handle, server: Arc<Server>) -> Self {
        let (sender, result) = watch::channel(None);
        let last_reply: Arc<LastReply> = Arc::default();
        let heard = [Arc::clone(&last_reply), Arc::clone(&server.last_reply)];
        runtime.spawn(async move {
            let stream = timeout(server.timeout.max(LONGEST_ATTEMPT), server.endpoint.connect()).await;
            let stream = stream.unwrap_or_else(|_| Err(timed_out()));
            if stream.is_ok() {
                server.breaker.answered();
            }
            let connection = stream.map(|stream| Arc::new(Connection::open(stream, heard)));
            sender.send_replace(Some(connection.map_err(Arc::new)));
        });
        Self { result, last_reply }
    }

    pub fn is_connected(&self) -> bool {
        matches!(&*self.result.borrow(), Some(Ok(_)))
    }

    /// Returns whether the attempt failed.
    pub fn has_failed(&self) -> bool {
        let is_over = self.result.has_changed().is_err();
        is_over && !self.is_connected()
    }

    /// Sends commands as soon as there is a connection. They have this number of replies in total.
    pub async fn ask(&self, commands: &[u8], replies: usize, deadline: Instant) -> Answer {
        let connection = self.connection(deadline).await.map_err(Unanswered::Unreachable)?;
        connection.ask(commands, replies, deadline).await
    }

    async fn connection(&self, deadline: Instant) -> Connected {
        if let Some(Ok(connection)) = &*self.result.borrow() {
            return Ok(Arc::clone(connection));
        }
        let mut pending = self.result.clone();
        let result = match timeout_at(deadline, pending.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone(),
            _ => None,
        };
        result.unwrap_or_else(|| Err(Arc::new(timed_out())))
    }
}
