//! The connections to one Redis server: made when they are needed, replaced when they broke.
//!
//! Each of the runtimes that batches run on has a connection of its own, shared by its batches: what drives a
//! connection is a task of the runtime that made it, so no thread waits for another, busy one, and none is left with a
//! connection whose runtime has ended.

#![expect(clippy::disallowed_methods, reason = "how long Redis has been silent")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::RedisError;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

use super::breaker::Breaker;
use super::endpoint::Endpoint;
use super::shared_connection::{Sent, SharedConnection};
use crate::store::redis::scan::{Cursor, Scan, ServerPage};
use crate::store::redis::wire::{Call, Failure, InFlight, LastReply, Reply, Script, closed, write_command};

/// A call that had less than this part of the store's timeout tells nothing about Redis: its batch had spent the rest on
/// waiting for others, or on the calls before.
const TELLING_PART: u32 = 4;

/// How often a batch brings along the scripts that Redis has forgotten: it may forget them again in between.
const MOST_LOADS: usize = 3;

/// Room for a usual command.
const COMMAND_BYTES: usize = 256;

const TOO_FEW: Failure = Failure::Foreign("fewer replies than calls");

/// The connections to one server.
pub struct NodeClient {
    endpoint: Arc<Endpoint>,
    timeout: Duration,
    breaker: Arc<Breaker>,
    connections: Mutex<HashMap<runtime::Id, SharedConnection, foldhash::fast::RandomState>>,
    in_flight: InFlight,
    /// On any connection.
    last_reply: Arc<LastReply>,
}

/// A call, perhaps one that a cluster node takes only after ASKING.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub call: &'a Call,
    pub asking: bool,
}

impl NodeClient {
    pub fn new(endpoint: Endpoint, timeout: Duration) -> Self {
        Self {
            endpoint: Arc::new(endpoint),
            timeout,
            breaker: Arc::default(),
            connections: Mutex::default(),
            in_flight: InFlight::default(),
            last_reply: Arc::default(),
        }
    }

    /// Makes the calls in one round trip. Those whose script Redis has forgotten are sent once more, with its text: Redis
    /// did not carry them out.
    pub async fn exchange(&self, requests: &[Request<'_>], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let actions = requests.iter().map(|request| request.call.actions()).sum();
        let Some(_permit) = self.in_flight.enter(actions, deadline).await else {
            return vec![Err(self.out_of_time(deadline)); requests.len()];
        };
        let mut replies = self.send(requests, Call::write, deadline).await;
        for _ in 0..MOST_LOADS {
            let is_forgotten = |reply: &Result<Reply, Failure>| reply.as_ref().is_err_and(Failure::is_forgotten_script);
            let forgotten = requests.iter().zip(&mut replies).filter(|(_, reply)| is_forgotten(reply));
            let (again, places): (Vec<_>, Vec<_>) = forgotten.unzip();
            if again.is_empty() {
                break;
            }
            // Redis knows a script again when its text has come once, before the calls behind.
            let mut known: Vec<&Script> = Vec::new();
            let write = |call: &Call, out: &mut Vec<u8>| match call.script() {
                Some(script) if !known.iter().any(|known| std::ptr::eq(*known, script)) => {
                    known.push(script);
                    call.write_with_text(out);
                }
                _ => call.write(out),
            };
            let answers = self.send(&again, write, deadline).await;
            places.into_iter().zip(answers).for_each(|(place, reply)| *place = reply);
        }
        replies
    }

    /// Makes one call.
    pub async fn ask(&self, call: &Call, deadline: Instant) -> Result<Reply, Failure> {
        let mut replies = self.exchange(&[Request { call, asking: false }], deadline).await;
        replies.pop().unwrap_or(Err(TOO_FEW))
    }

    /// A page of the server's keys, unless the cursor is of a process that it has replaced.
    pub async fn page(&self, scan: &Scan, begin: Cursor, deadline: Instant) -> Result<ServerPage, Failure> {
        let calls = scan.calls(begin.position);
        let requests = calls.each_ref().map(|call| Request { call, asking: false });
        let mut replies = self.exchange(&requests, deadline).await.into_iter();
        let mut next = || replies.next().unwrap_or(Err(TOO_FEW));
        let page = scan.read([next()?, next()?])?;
        if !begin.is_of(page.process) {
            return Err(Failure::cursor(&begin.to_string()));
        }
        Ok(page)
    }

    /// Whether there is a connection, on any runtime.
    pub fn is_connected(&self) -> bool {
        self.connections.lock().values().any(SharedConnection::is_connected)
    }

    /// Ends the connections. The next call would make new ones.
    pub fn close(&self) {
        self.connections.lock().clear();
    }

    async fn send(
        &self,
        requests: &[Request<'_>],
        mut write: impl FnMut(&Call, &mut Vec<u8>),
        deadline: Instant,
    ) -> Vec<Result<Reply, Failure>> {
        let mut commands = Vec::with_capacity(COMMAND_BYTES * requests.len());
        let mut expected = requests.len();
        for request in requests {
            if request.asking {
                write_command(&[b"ASKING"], &mut commands);
                expected += 1;
            }
            write(request.call, &mut commands);
        }
        let replies = match self.round_trip(&commands, expected, deadline).await {
            Ok(replies) if expected == requests.len() => return replies,
            Ok(replies) => replies,
            Err(failure) => return vec![Err(failure); requests.len()],
        };
        let mut replies = replies.into_iter();
        let answers = requests.iter().map(|request| {
            if request.asking {
                replies.next();
            }
            replies.next().unwrap_or(Err(TOO_FEW))
        });
        answers.collect()
    }

    /// Sends the commands, which have so many replies together.
    async fn round_trip(
        &self,
        commands: &[u8],
        expected: usize,
        deadline: Instant,
    ) -> Result<Vec<Result<Reply, Failure>>, Failure> {
        let begin = Instant::now();
        let is_telling = deadline.saturating_duration_since(begin) >= self.timeout / TELLING_PART;
        self.breaker.admit(begin, self.timeout)?;
        let mut connection = self.connection();
        let mut sent = connection.send(commands, expected, deadline).await;
        if matches!(sent, Sent::Not) {
            // It broke while it was idle.
            self.drop_connection(&connection);
            connection = self.connection();
            sent = connection.send(commands, expected, deadline).await;
        }
        match sent {
            Sent::Answered(answered) => {
                let replies = split(answered, expected);
                self.note_answer(&replies, &connection);
                Ok(replies)
            }
            Sent::Unanswered => {
                if !is_telling {
                    return Err(self.out_of_time(deadline));
                }
                let failure = Failure::Timeout(self.timeout);
                self.note_silence(&failure, begin, &connection);
                Err(failure)
            }
            // The next call makes a new connection, at once.
            Sent::Broken(error) => {
                self.drop_connection(&connection);
                Err(Failure::Redis(error))
            }
            // The attempt goes on, for others.
            Sent::Unreachable(error) if !is_telling && !connection.has_failed() => Err(Failure::Unreachable(error)),
            Sent::Unreachable(error) => Err(self.note_unreachable(error)),
            Sent::Not => Err(self.note_unreachable(Arc::new(closed()))),
        }
    }

    /// Why a batch, which began a timeout before the deadline, has spent its time on waiting for others: too much is asked
    /// of Redis, unless it answered none of those either.
    fn out_of_time(&self, deadline: Instant) -> Failure {
        let began = deadline.checked_sub(self.timeout).unwrap_or(deadline);
        if self.last_reply.is_since(began) { Failure::Overloaded } else { Failure::Timeout(self.timeout) }
    }

    fn note_answer(&self, replies: &[Result<Reply, Failure>], connection: &SharedConnection) {
        let mut refusals = replies.iter().filter_map(|reply| reply.as_ref().err());
        match refusals.find(|failure| failure.is_wrong_server()) {
            // It is a replica by now; who the master is has to be found out anew.
            Some(failure) => {
                self.drop_connection(connection);
                self.breaker.failed(failure, Instant::now());
            }
            None => self.breaker.answered(),
        }
    }

    /// A call was not answered in time. If others were meanwhile, Redis is just slow; otherwise it hangs, or this
    /// connection leads nowhere.
    fn note_silence(&self, failure: &Failure, begin: Instant, connection: &SharedConnection) {
        if !connection.has_answered_since(begin) {
            self.drop_connection(connection);
        }
        if !self.last_reply.is_since(begin) {
            self.breaker.failed(failure, Instant::now());
        }
    }

    fn note_unreachable(&self, error: Arc<RedisError>) -> Failure {
        let failure = Failure::Unreachable(error);
        self.breaker.failed(&failure, Instant::now());
        failure
    }

    /// This runtime's connection, or the attempt at one; begun if there is none.
    fn connection(&self) -> SharedConnection {
        let runtime = Handle::current();
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(&runtime.id()).filter(|connection| !connection.has_failed()) {
            return connection.clone();
        }
        let connection = SharedConnection::connect(
            &runtime,
            Arc::clone(&self.endpoint),
            self.timeout,
            Arc::clone(&self.breaker),
            Arc::clone(&self.last_reply),
        );
        connections.insert(runtime.id(), connection.clone());
        connection
    }

    /// Lets the next call connect anew, unless another one has begun to already.
    fn drop_connection(&self, connection: &SharedConnection) {
        self.connections.lock().retain(|_, other| !other.is(connection));
    }
}

/// The replies, each of them an answer or an error.
fn split(mut answered: Bytes, expected: usize) -> Vec<Result<Reply, Failure>> {
    let mut replies = Vec::with_capacity(expected);
    for _ in 0..expected {
        let reply = Reply::split_off(&mut answered).ok_or(TOO_FEW);
        replies.push(reply.and_then(|reply| reply.error().map_or(Ok(reply), |error| Err(error.into()))));
    }
    replies
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[tokio::test]
    async fn a_call_with_hardly_any_time_tells_nothing_about_redis() {
        const TIMEOUT: Duration = Duration::from_millis(200);
        // It takes connections, and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        let client = NodeClient::new(Endpoint::server(url.into_connection_info().unwrap(), None), TIMEOUT);
        let ask = |time| client.ask(&Call::Count, Instant::now() + time);
        assert!(ask(TIMEOUT / 10).await.is_err());
        assert!(client.breaker.admit(Instant::now(), TIMEOUT).is_ok());
        assert!(ask(TIMEOUT).await.is_err());
        assert!(client.breaker.admit(Instant::now(), TIMEOUT).is_err());
    }
}
