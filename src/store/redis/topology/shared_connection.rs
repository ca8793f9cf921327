//! One connection, from the attempt to make it to its end.
//!
//! A task of its own connects. It goes on if the batch that began it gives up: finding out which sentinels hang takes longer
//! than a batch may wait.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Breaker;
use super::endpoint::Endpoint;
use crate::store::redis::wire::{Answer, Connection, LastReply, Unanswered, timed_out};

/// An attempt ends after this time, or after the batches' timeout if that is longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);

/// A server, as all connections to it know it.
pub struct Server {
    pub endpoint: Endpoint,
    /// The longest that a batch waits.
    pub timeout: Duration,
    pub breaker: Breaker,
    /// On any connection.
    pub last_reply: Arc<LastReply>,
}

/// A connection that is being made, is there, or could not be made.
pub struct SharedConnection {
    result: watch::Receiver<Option<Connected>>,
    /// On this connection.
    pub last_reply: Arc<LastReply>,
}

/// The result of the attempt.
type Connected = Result<Arc<Connection>, Arc<RedisError>>;

impl SharedConnection {
    /// Connects, on `runtime`. A success ends an outage, because it takes a reply of Redis.
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

    /// Sends commands that have this number of replies together, once there is a connection.
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
