//! One connection, from the attempt to make it to its end.
//!
//! A task of its own connects, and goes on when the batch that began it gives up: asking sentinels of which one hangs
//! takes longer than a batch may wait.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Pipeline, RedisError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Breaker;
use super::call::Reply;
use super::source::Source;

/// An attempt is given up after this, or after the batches' timeout when that is longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);

/// A connection that is being made, is there, or could not be made; clones share it.
#[derive(Clone)]
pub(super) struct SharedConnection {
    result: watch::Receiver<Option<Result<MultiplexedConnection, Arc<RedisError>>>>,
    answers: Arc<Answers>,
}

/// What came of sending a pipeline.
pub(super) enum Sent {
    Answered(Vec<Reply>),
    /// Not in time. It may have been carried out.
    Unanswered,
    /// The connection broke under it. It may have been carried out.
    Broken(RedisError),
    /// The connection had broken before: nothing was sent.
    Not,
    /// There is no connection: nothing was sent.
    Unreachable(Arc<RedisError>),
}

impl SharedConnection {
    /// Connects, on `runtime`; a success ends an outage, as it takes an answer of Redis.
    pub(super) fn connect(runtime: &Handle, source: Arc<Source>, patience: Duration, breaker: Arc<Breaker>) -> Self {
        let (sender, result) = watch::channel(None);
        runtime.spawn(async move {
            let connected = timeout(patience.max(LONGEST_ATTEMPT), source.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(timed_out()));
            if connected.is_ok() {
                breaker.answered();
            }
            sender.send_replace(Some(connected.map_err(Arc::new)));
        });
        Self { result, answers: Arc::default() }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(&*self.result.borrow(), Some(Ok(_)))
    }

    /// Whether there is no connection, and will be none.
    pub(super) fn has_failed(&self) -> bool {
        let is_over = self.result.has_changed().is_err();
        is_over && !self.is_connected()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.result.same_channel(&other.result)
    }

    /// Whether anything came back on this connection since `begin`.
    pub(super) fn has_answered_since(&self, begin: Instant) -> bool {
        self.answers.any_since(begin)
    }

    /// Sends the pipeline once there is a connection.
    pub(super) async fn send(&self, pipeline: &Pipeline, deadline: Instant) -> Sent {
        let mut connection = match self.connection(deadline).await {
            Ok(connection) => connection,
            Err(error) => return Sent::Unreachable(error),
        };
        let mut request = pin!(connection.req_packed_commands(pipeline, 0, pipeline.len()));
        let answer = match poll!(request.as_mut()) {
            // What writes to the socket is another task of this thread, and has not run since: it had ended before.
            Poll::Ready(Err(error)) if error.is_connection_dropped() => return Sent::Not,
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => timeout_at(deadline, request).await,
        };
        match answer {
            Ok(Ok(values)) => {
                self.answers.note();
                Sent::Answered(values)
            }
            Ok(Err(error)) => Sent::Broken(error),
            Err(_) => Sent::Unanswered,
        }
    }

    async fn connection(&self, deadline: Instant) -> Result<MultiplexedConnection, Arc<RedisError>> {
        if let Some(Ok(connection)) = &*self.result.borrow() {
            return Ok(connection.clone());
        }
        let mut pending = self.result.clone();
        let result = match timeout_at(deadline, pending.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone(),
            _ => None,
        };
        result.unwrap_or_else(|| Err(Arc::new(timed_out())))
    }
}

/// When anything was answered last.
pub(super) struct Answers {
    began: Instant,
    /// In nanoseconds since `began`.
    last_ns: AtomicU64,
}

impl Default for Answers {
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    fn default() -> Self {
        Self { began: Instant::now(), last_ns: AtomicU64::new(0) }
    }
}

impl Answers {
    #[expect(clippy::disallowed_methods, reason = "how long ago Redis was heard")]
    pub(super) fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_ns.store(now, Relaxed);
    }

    pub(super) fn any_since(&self, begin: Instant) -> bool {
        self.began + Duration::from_nanos(self.last_ns.load(Relaxed)) > begin
    }
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// What is said of a connection that broke as soon as it was made.
pub(super) fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}
