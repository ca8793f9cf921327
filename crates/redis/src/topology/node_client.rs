//! The connections to one Redis server. They are made when they are needed, and replaced when they break.
//!
//! Each runtime that runs batches has a connection of its own, which its batches share. The task that drives a
//! connection belongs to the runtime that made it. So no thread waits for another one that is busy, and no thread has a
//! connection whose runtime has ended.

#![expect(clippy::disallowed_methods, reason = "how long Redis has been silent")]

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;

use super::breaker::Breaker;
use super::endpoint::Endpoint;
use super::shared_connection::{Server, SharedConnection};
use crate::wire::{Call, Failure, InFlight, Reply, Unanswered, closed};

/// A call with less than this fraction of the store's timeout left says nothing about Redis. Its batch has spent the
/// rest of the time on waiting for others, or on earlier calls.
const TELLING_PART: u32 = 4;

/// Maximum number of times that a batch sends the scripts that Redis has forgotten. Redis may forget them again in
/// between.
const MOST_LOADS: usize = 3;

/// Initial capacity, which suffices for most commands.
const COMMAND_BYTES: usize = 256;

const TOO_FEW: Failure = Failure::Foreign("fewer replies than calls");

/// The connections to one server.
pub struct NodeClient {
    server: Arc<Server>,
    connections: Mutex<HashMap<runtime::Id, Arc<SharedConnection>, foldhash::fast::RandomState>>,
    in_flight: InFlight,
}

/// A call. A cluster node may require ASKING before it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub call: &'a Call,
    pub asking: bool,
}

impl Request<'_> {
    /// Takes the reply to the call, and the reply to ASKING before it.
    fn take_reply(&self, replies: &mut impl Iterator<Item = Reply>) -> Result<Reply, Failure> {
        let reply = replies.nth(usize::from(self.asking)).ok_or(TOO_FEW)?;
        reply.error().map_or(Ok(reply), |error| Err(error.into()))
    }
}

impl NodeClient {
    pub fn new(endpoint: Endpoint, timeout: Duration) -> Self {
        let server = Server { endpoint, timeout, breaker: Breaker::default(), last_reply: Arc::default() };
        Self { server: Arc::new(server), connections: Mutex::default(), in_flight: InFlight::default() }
    }

    /// Makes the calls in one round trip. Redis does not carry out a call whose script it has forgotten. Such a call is
    /// sent once more, with the script's text.
    pub async fn exchange(&self, requests: &[Request<'_>], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let actions = requests.iter().map(|request| request.call.actions).sum();
        let Some(_permit) = self.in_flight.enter(actions, deadline).await else {
            return vec![Err(self.out_of_time(deadline)); requests.len()];
        };
        let mut replies = self.send(requests, false, deadline).await;
        for _ in 0..MOST_LOADS {
            let is_forgotten = |reply: &Result<Reply, Failure>| reply.as_ref().is_err_and(Failure::is_forgotten_script);
            let forgotten = requests.iter().zip(&mut replies).filter(|(_, reply)| is_forgotten(reply));
            let (again, places): (Vec<_>, Vec<_>) = forgotten.unzip();
            if again.is_empty() {
                break;
            }
            let answers = self.send(&again, true, deadline).await;
            places.into_iter().zip(answers).for_each(|(place, reply)| *place = reply);
        }
        replies
    }

    /// Makes one call.
    pub async fn ask(&self, call: Call, deadline: Instant) -> Result<Reply, Failure> {
        let [reply] = self.ask_all([call], deadline).await?;
        Ok(reply)
    }

    /// Makes calls in one round trip. If one fails, all fail.
    pub async fn ask_all<const N: usize>(&self, calls: [Call; N], deadline: Instant) -> Result<[Reply; N], Failure> {
        let requests = calls.each_ref().map(|call| Request { call, asking: false });
        let replies: Result<Vec<_>, _> = self.exchange(&requests, deadline).await.into_iter().collect();
        replies?.try_into().map_err(|_| TOO_FEW)
    }

    /// Returns whether there is a connection, on any runtime.
    pub fn is_connected(&self) -> bool {
        self.connections.lock().values().any(|connection| connection.is_connected())
    }

    /// Ends the connections. The next call would make new ones.
    pub fn close(&self) {
        self.connections.lock().clear();
    }

    /// Sends the calls. If `texts` is set, the first call of each script includes its text.
    async fn send(&self, requests: &[Request<'_>], texts: bool, deadline: Instant) -> Vec<Result<Reply, Failure>> {
        let mut commands = Vec::with_capacity(COMMAND_BYTES * requests.len());
        let mut brought = Vec::new();
        for Request { call, asking } in requests {
            if *asking {
                Call::command(&[b"ASKING"]).write(false, &mut commands);
            }
            let unknown = call.script.filter(|script| texts && !brought.contains(&script.name));
            brought.extend(unknown.map(|script| script.name));
            call.write(unknown.is_some(), &mut commands);
        }
        let replies = self.round_trip(&commands, requests, deadline).await;
        replies.unwrap_or_else(|failure| vec![Err(failure); requests.len()])
    }

    /// Sends the requests' commands.
    async fn round_trip(
        &self,
        commands: &[u8],
        requests: &[Request<'_>],
        deadline: Instant,
    ) -> Result<Vec<Result<Reply, Failure>>, Failure> {
        let (begin, timeout) = (Instant::now(), self.server.timeout);
        let is_telling = deadline.saturating_duration_since(begin) >= timeout / TELLING_PART;
        self.server.breaker.admit(begin, timeout)?;
        let expected = requests.len() + requests.iter().filter(|request| request.asking).count();
        let mut connection = self.connection();
        let mut answer = connection.ask(commands, expected, deadline).await;
        if matches!(answer, Err(Unanswered::NotSent)) {
            // The connection broke while it was idle.
            self.drop_connection(&connection);
            connection = self.connection();
            answer = connection.ask(commands, expected, deadline).await;
        }
        match answer {
            Ok(replies) => {
                let mut replies = replies.into_iter();
                let replies: Vec<_> = requests.iter().map(|request| request.take_reply(&mut replies)).collect();
                self.note_answer(&replies, &connection);
                Ok(replies)
            }
            Err(Unanswered::Late) if !is_telling => Err(self.out_of_time(deadline)),
            Err(Unanswered::Late) => Err(self.note_silence(begin, &connection)),
            // The next call makes a new connection at once.
            Err(Unanswered::Broken(error)) => {
                self.drop_connection(&connection);
                Err(Failure::Redis(error))
            }
            // The attempt continues for other callers.
            Err(Unanswered::Unreachable(error)) if !is_telling && !connection.has_failed() => {
                Err(Failure::Unreachable(error))
            }
            Err(Unanswered::Unreachable(error)) => Err(self.note_outage(Failure::Unreachable(error))),
            Err(Unanswered::NotSent) => Err(self.note_outage(Failure::Unreachable(Arc::new(closed())))),
        }
    }

    /// Returns the failure of a batch that has spent its time waiting for others. `begin` is one timeout before the
    /// deadline. Redis is overloaded, unless it answered none of the others either.
    fn out_of_time(&self, deadline: Instant) -> Failure {
        let timeout = self.server.timeout;
        let began = deadline.checked_sub(timeout).unwrap_or(deadline);
        if self.server.last_reply.is_since(began) { Failure::Overloaded } else { Failure::Timeout(timeout) }
    }

    fn note_answer(&self, replies: &[Result<Reply, Failure>], connection: &Arc<SharedConnection>) {
        let mut refusals = replies.iter().filter_map(|reply| reply.as_ref().err());
        match refusals.find(|failure| failure.is_wrong_server()) {
            // The server is a replica by now. A new connection finds the master.
            Some(failure) => {
                self.drop_connection(connection);
                self.note_outage(failure.clone());
            }
            None => self.server.breaker.answered(),
        }
    }

    /// Records that a call had no reply in time. If other calls got replies, Redis is only slow. Otherwise Redis hangs,
    /// or this connection leads nowhere.
    fn note_silence(&self, begin: Instant, connection: &Arc<SharedConnection>) -> Failure {
        if !connection.last_reply.is_since(begin) {
            self.drop_connection(connection);
        }
        let failure = Failure::Timeout(self.server.timeout);
        if self.server.last_reply.is_since(begin) { failure } else { self.note_outage(failure) }
    }

    fn note_outage(&self, failure: Failure) -> Failure {
        self.server.breaker.failed(&failure, Instant::now());
        failure
    }

    /// Returns this runtime's connection, or the attempt to make it. Begins an attempt if necessary.
    fn connection(&self) -> Arc<SharedConnection> {
        let runtime = Handle::current();
        let mut connections = self.connections.lock();
        if let Some(connection) = connections.get(&runtime.id()).filter(|connection| !connection.has_failed()) {
            return Arc::clone(connection);
        }
        let connection = Arc::new(SharedConnection::connect(&runtime, Arc::clone(&self.server)));
        connections.insert(runtime.id(), Arc::clone(&connection));
        connection
    }

    /// Drops the connection so that the next call connects again, unless another call has already begun to.
    fn drop_connection(&self, connection: &Arc<SharedConnection>) {
        self.connections.lock().retain(|_, other| !Arc::ptr_eq(other, connection));
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    #[tokio::test]
    async fn call_with_hardly_any_time_opens_no_breaker() {
        const TIMEOUT: Duration = Duration::from_millis(200);
        // This server accepts connections, and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        let client = NodeClient::new(Endpoint::server(url.into_connection_info().unwrap(), None), TIMEOUT);
        let ask = |time| client.ask(Call::command(&[b"DBSIZE"]), Instant::now() + time);
        assert!(ask(TIMEOUT / 10).await.is_err());
        assert!(client.server.breaker.admit(Instant::now(), TIMEOUT).is_ok());
        assert!(ask(TIMEOUT).await.is_err());
        assert!(client.server.breaker.admit(Instant::now(), TIMEOUT).is_err());
    }
}
