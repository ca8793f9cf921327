//! The connections to one Redis server: made when they are needed, replaced when they broke.
//!
//! Each of the runtimes that batches run on has a connection of its own, shared by its batches: what drives a
//! connection is a task of the runtime that made it, so no thread waits for another, busy one, and none is left with a
//! connection whose runtime has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Pipeline, RedisError};
use tokio::runtime::{self, Handle};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::breaker::Breaker;
use super::call::{Call, Failure, Reply};
use super::target::Source;

/// An attempt to connect is given up after this, or after the batches' timeout when that is longer. It goes on behind
/// the back of batches that gave up: asking sentinels of which one hangs takes longer than a batch may wait.
const CONNECTING_LIMIT: Duration = Duration::from_secs(3);

const TOO_FEW: Failure = Failure::Foreign("fewer replies than calls");

/// The connections to one server.
pub(super) struct Link {
    source: Arc<Source>,
    timeout: Duration,
    breaker: Arc<Breaker>,
    attempts: Mutex<HashMap<runtime::Id, Attempt, foldhash::fast::RandomState>>,
    began: Instant,
    /// When Redis answered last, in nanoseconds since `began`.
    answered_ns: AtomicU64,
}

/// A call, perhaps one that a cluster node takes only after ASKING.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub call: &'a Call,
    pub asking: bool,
}

impl Link {
    pub(super) fn new(source: Source, timeout: Duration) -> Self {
        Self {
            source: Arc::new(source),
            timeout,
            breaker: Arc::default(),
            attempts: Mutex::default(),
            began: Instant::now(),
            answered_ns: AtomicU64::new(0),
        }
    }

    /// Makes the calls in one round trip. Scripts that Redis has forgotten are sent once more with their text: Redis
    /// did not carry those calls out.
    pub(super) async fn exchange(&self, requests: &[Request<'_>], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let mut replies = self.send(requests, Call::command, deadline).await;
        let is_forgotten = |reply: &Result<Reply, Failure>| reply.as_ref().is_err_and(Failure::is_forgotten_script);
        let forgotten = requests.iter().zip(&mut replies).filter(|(_, reply)| is_forgotten(reply));
        let (again, places): (Vec<_>, Vec<_>) = forgotten.unzip();
        if !again.is_empty() {
            let second = self.send(&again, Call::command_with_text, deadline).await;
            places.into_iter().zip(second).for_each(|(place, reply)| *place = reply);
        }
        replies
    }

    /// Makes one call.
    pub(super) async fn ask(&self, call: &Call, deadline: Instant) -> Result<Reply, Failure> {
        let mut replies = self.exchange(&[Request { call, asking: false }], deadline).await;
        replies.pop().unwrap_or(Err(TOO_FEW))
    }

    /// Ends the connections. The next call would make new ones.
    pub(super) fn close(&self) {
        self.attempts.lock().clear();
    }

    async fn send(
        &self,
        requests: &[Request<'_>],
        command: fn(&Call) -> redis::Cmd,
        deadline: Instant,
    ) -> Vec<Result<Reply, Failure>> {
        let mut pipeline = Pipeline::with_capacity(requests.len());
        for request in requests {
            if request.asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(command(request.call));
        }
        let mut values = match self.round_trip(&pipeline, deadline).await {
            Ok(values) => values.into_iter(),
            Err(failure) => return vec![Err(failure); requests.len()],
        };
        let replies = requests.iter().map(|request| {
            if request.asking {
                values.next();
            }
            values.next().map_or(Err(TOO_FEW), |value| Ok(value.extract_error()?))
        });
        replies.collect()
    }

    async fn round_trip(&self, pipeline: &Pipeline, deadline: Instant) -> Result<Vec<Reply>, Failure> {
        let begin = Instant::now();
        self.breaker.admit(begin, self.timeout)?;
        let attempt = self.attempt();
        let mut connection = match attempt.connection(deadline).await {
            Ok(connection) => connection,
            Err(failure) => {
                self.breaker.failed(&failure, Instant::now());
                return Err(failure);
            }
        };
        match timeout_at(deadline, connection.req_packed_commands(pipeline, 0, pipeline.len())).await {
            Ok(Ok(values)) => {
                self.note_answer(&values, &attempt);
                Ok(values)
            }
            // The connection broke: the next call makes a new one, at once.
            Ok(Err(error)) => {
                self.drop_attempt(&attempt);
                Err(Failure::from(error))
            }
            Err(_) => {
                let failure = Failure::Timeout(self.timeout);
                self.note_silence(&failure, begin, &attempt);
                Err(failure)
            }
        }
    }

    fn note_answer(&self, values: &[Reply], attempt: &Attempt) {
        let since = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.answered_ns.store(since, Relaxed);
        let refusal = values.iter().find_map(|value| match value {
            Reply::ServerError(error) => Some(Failure::from(RedisError::from(error.clone()))),
            _ => None,
        });
        match refusal {
            // It is a replica by now; who the master is has to be found out anew.
            Some(failure) if failure.is_wrong_server() => {
                self.drop_attempt(attempt);
                self.breaker.failed(&failure, Instant::now());
            }
            _ => self.breaker.answered(),
        }
    }

    /// A call was not answered in time. If others were meanwhile, Redis is just slow; otherwise it hangs, or the
    /// connection leads nowhere.
    fn note_silence(&self, failure: &Failure, begin: Instant, attempt: &Attempt) {
        let answered = self.began + Duration::from_nanos(self.answered_ns.load(Relaxed));
        if answered <= begin {
            self.drop_attempt(attempt);
            self.breaker.failed(failure, Instant::now());
        }
    }

    /// This runtime's connection, or the attempt at one; begun if there is none.
    fn attempt(&self) -> Attempt {
        let runtime = Handle::current();
        let mut attempts = self.attempts.lock();
        if let Some(attempt) = attempts.get(&runtime.id()).filter(|attempt| !attempt.has_failed()) {
            return attempt.clone();
        }
        let limit = CONNECTING_LIMIT.max(self.timeout);
        let attempt = Attempt::begin(&runtime, Arc::clone(&self.source), limit, Arc::clone(&self.breaker));
        attempts.insert(runtime.id(), attempt.clone());
        attempt
    }

    /// Lets the next call connect anew, unless another one has begun to already.
    fn drop_attempt(&self, attempt: &Attempt) {
        self.attempts.lock().retain(|_, other| !other.0.same_channel(&attempt.0));
    }
}

/// An attempt to connect, and the connection once it has succeeded; clones share it.
#[derive(Clone)]
struct Attempt(watch::Receiver<Option<Result<MultiplexedConnection, Arc<RedisError>>>>);

impl Attempt {
    fn begin(runtime: &Handle, source: Arc<Source>, limit: Duration, breaker: Arc<Breaker>) -> Self {
        let (result, attempt) = watch::channel(None);
        runtime.spawn(async move {
            let connected = timeout(limit, source.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(timed_out()));
            // Connecting is a round trip: Redis answers.
            if connected.is_ok() {
                breaker.answered();
            }
            result.send_replace(Some(connected.map_err(Arc::new)));
        });
        Self(attempt)
    }

    fn has_failed(&self) -> bool {
        self.0.has_changed().is_err() && !matches!(&*self.0.borrow(), Some(Ok(_)))
    }

    async fn connection(&self, deadline: Instant) -> Result<MultiplexedConnection, Failure> {
        if let Some(Ok(connection)) = &*self.0.borrow() {
            return Ok(connection.clone());
        }
        let mut attempt = self.0.clone();
        let result = match timeout_at(deadline, attempt.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone(),
            _ => None,
        };
        result.unwrap_or_else(|| Err(timed_out().into())).map_err(Failure::Unreachable)
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
