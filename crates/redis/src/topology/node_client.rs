//! The connections to one Redis server. They are made when they are needed, and replaced when they break.
//!
//! Each runtime that runs batches has a connection of its own, which its batches share. The task that drives a
//! connection belongs to the runtime that made it. So no thread waits for another one that is busy, and no thread has a
//! connection whose runtime has ended. A separate task connects. It continues if the batch that began it gives up, because
//! finding out which sentinels hang takes longer than a batch may wait.
//!
//! The actions in flight are bounded, because Redis carries out one command after the other. Without a bound, its queue would grow
//! until every batch, even the first ones in the queue, exceeded its timeout. Redis would then work on results that no caller awaits.

#![expect(clippy::disallowed_methods, reason = "how long Redis has been silent")]

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::RedisError;
use tokio::runtime::{self, Handle};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::breaker::Breaker;
use super::replication::{READ_EVERY, Replication};
use crate::wire::connection::{Answer, Commands, Connection, LastReply, Unanswered};
use crate::wire::stream::{Endpoint, closed, timed_out};
use crate::wire::{Call, Failure, Reply};

/// A call with less than this fraction of the store's timeout left says nothing about Redis. Its batch has spent the
/// rest of the time on waiting for others, or on earlier calls.
const TELLING_PART: u32 = 4;

/// Initial capacity, which suffices for most commands.
const COMMAND_BYTES: usize = 256;

const TOO_FEW: Failure = Failure::Foreign("fewer replies than calls");
/// Maximum duration of an attempt, unless the batches' timeout is longer.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(3);
/// The result of the attempt.
type Connected = Result<Arc<Connection>, Arc<RedisError>>;
/// Maximum number of actions in flight to Redis. At 25 µs each, Redis carries them out in less than a usual timeout.
/// They are enough to keep Redis busy over any network: with round trips of 3 ms, they allow a million actions per
/// second.
const MOST_ACTIONS: usize = 4096;

/// The connections to one server.
pub struct NodeClient {
    server: Arc<Server>,
    connections: Mutex<HashMap<runtime::Id, Arc<SharedConnection>, foldhash::fast::RandomState>>,
    /// Permits for actions in flight.
    in_flight: Semaphore,
}

/// A call. A cluster node may require ASKING before it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub call: &'a Call,
    pub asking: bool,
}

impl NodeClient {
    pub fn new(endpoint: Endpoint, timeout: Duration, replication: Option<Replication>) -> Self {
        let (breaker, last_reply) = (Breaker::default(), Arc::default());
        let server = Server { endpoint, timeout, replication, breaker, last_reply };
        Self { server: Arc::new(server), connections: Mutex::default(), in_flight: Semaphore::new(MOST_ACTIONS) }
    }

    /// Makes the calls in one round trip. Redis does not carry out a call whose script it has forgotten. Such a call is
    /// sent once more, with the script's text.
    pub async fn exchange(&self, requests: &[Request<'_>], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let actions = requests.iter().map(|request| request.call.actions).sum();
        let Some(_permit) = enter(&self.in_flight, actions, deadline).await else {
            return vec![Err(self.out_of_time(deadline)); requests.len()];
        };
        let mut replies = self.send(requests, false, deadline).await;
        let is_forgotten =
            |reply: &Result<Reply, Failure>| reply.as_ref().is_err_and(|failure| failure.code() == Some("NOSCRIPT"));
        let forgotten = requests.iter().zip(&mut replies).filter(|(_, reply)| is_forgotten(reply));
        let (again, places): (Vec<_>, Vec<_>) = forgotten.unzip();
        if !again.is_empty() {
            let answers = self.send(&again, true, deadline).await;
            places.into_iter().zip(answers).for_each(|(place, reply)| *place = reply);
        }
        replies
    }

    /// Makes calls in one round trip. If one fails, all fail.
    pub async fn ask<const N: usize>(&self, calls: [Call; N], deadline: Instant) -> Result<[Reply; N], Failure> {
        let requests = calls.each_ref().map(|call| Request { call, asking: false });
        let replies: Result<Vec<_>, _> = self.exchange(&requests, deadline).await.into_iter().collect();
        replies?.try_into().map_err(|_| TOO_FEW)
    }

    /// Returns whether there is a connection, on any runtime.
    pub fn is_connected(&self) -> bool {
        self.connections.lock().values().any(|connection| connection.is_connected())
    }

    /// Returns the server's replicas, if they must confirm changes.
    pub fn replication(&self) -> Option<&Replication> {
        self.server.replication.as_ref()
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
        let confirms = self.replication().filter(|_| requests.iter().any(|request| request.call.may_write()));
        if let Some(replication) = confirms {
            replication.breaker.admit(begin, timeout)?;
        }
        let replies = requests.len() + requests.iter().filter(|request| request.asking).count();
        let commands = Commands { bytes: commands, replies, may_write: confirms.is_some() };
        let mut connection = self.connection();
        let mut answer = connection.ask(commands, deadline).await;
        if matches!(answer, Err(Unanswered::NotSent)) {
            // The connection broke while it was idle.
            self.drop_connection(&connection);
            connection = self.connection();
            answer = connection.ask(commands, deadline).await;
        }
        match answer {
            Ok(replies) => {
                confirms.into_iter().for_each(|replication| replication.breaker.answered());
                let replies = read_replies(requests, replies);
                self.note_answer(&replies, &connection);
                Ok(replies)
            }
            Err(Unanswered::Unconfirmed(replies, unconfirmed)) => {
                let mut replies = read_replies(requests, replies);
                self.note_answer(&replies, &connection);
                let done = replies.iter_mut().filter(|reply| reply.is_ok());
                let failed = done.map(|reply| *reply = Err(Failure::Unconfirmed(unconfirmed))).count();
                match confirms {
                    Some(replication) if failed > 0 => {
                        replication.note_unconfirmed(failed, unconfirmed);
                        // A new connection reads the replicas at once.
                        self.drop_connection(&connection);
                    }
                    // A call that was refused changed nothing. It may be sent again, with its script.
                    Some(replication) => replication.breaker.answered(),
                    None => {}
                }
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
        match refusals.find(|failure| failure.code() == Some("READONLY")) {
            // The server takes no writes, because it is a replica by now. A new connection finds the master.
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

/// Returns the reply to each request. The reply to ASKING comes before that to the call.
fn read_replies(requests: &[Request<'_>], replies: Vec<Reply>) -> Vec<Result<Reply, Failure>> {
    let mut replies = replies.into_iter();
    let take = |request: &Request<'_>| {
        let reply = replies.nth(usize::from(request.asking)).ok_or(TOO_FEW)?;
        reply.error().map_or(Ok(reply), |error| Err(error.into()))
    };
    requests.iter().map(take).collect()
}

/// State that all connections to one server share.
pub struct Server {
    pub endpoint: Endpoint,
    /// Maximum time that a batch waits.
    pub timeout: Duration,
    /// The replicas that must confirm each change. `None` if they need not.
    pub replication: Option<Replication>,
    pub breaker: Breaker,
    /// Time of the last reply on any of these connections.
    pub last_reply: Arc<LastReply>,
}

impl Server {
    async fn connect(&self, heard: [Arc<LastReply>; 2]) -> Result<Connection, RedisError> {
        let connection = Connection::open(self.endpoint.connect().await?, heard);
        if let Some(replication) = &self.replication {
            replication.read(&connection, Instant::now() + self.timeout).await?;
        }
        Ok(connection)
    }
}

/// A connection that is being made, exists, or has failed.
pub struct SharedConnection {
    result: watch::Receiver<Option<Connected>>,
    /// The last reply on this connection.
    pub last_reply: Arc<LastReply>,
}

impl SharedConnection {
    /// Connects, on `runtime`. If it succeeds, an outage is over, because connecting takes a reply from Redis.
    pub fn connect(runtime: &Handle, server: Arc<Server>) -> Self {
        let (sender, result) = watch::channel(None);
        let last_reply: Arc<LastReply> = Arc::default();
        let heard = [Arc::clone(&last_reply), Arc::clone(&server.last_reply)];
        runtime.spawn(async move {
            let connection = timeout(server.timeout.max(LONGEST_ATTEMPT), server.connect(heard)).await;
            let connection = connection.unwrap_or_else(|_| Err(timed_out()));
            if connection.is_ok() {
                server.breaker.answered();
            }
            sender.send_replace(Some(connection.map(Arc::new).map_err(Arc::new)));
            if let Some(replication) = &server.replication {
                follow(replication, &sender, server.timeout).await;
            }
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

    /// Sends commands as soon as there is a connection.
    pub async fn ask(&self, commands: Commands<'_>, deadline: Instant) -> Answer {
        let connection = self.connection(deadline).await.map_err(Unanswered::Unreachable)?;
        connection.ask(commands, deadline).await
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

/// Reads the replicas again as long as the connection is in use. Replaces it by an error if they are no longer what the
/// operator requires.
async fn follow(replication: &Replication, connected: &watch::Sender<Option<Connected>>, patience: Duration) {
    loop {
        tokio::select! {
            () = connected.closed() => return,
            () = sleep(READ_EVERY) => {}
        }
        let Some(Ok(connection)) = connected.borrow().clone() else { return };
        let read = replication.read(&connection, Instant::now() + patience).await;
        if let Err(error) = read
            && replication.refusal().is_some()
        {
            connected.send_replace(Some(Err(Arc::new(error))));
        }
    }
}

/// Waits until this number of actions may be sent. They are in flight until the permit is dropped. Returns `None` if there is no
/// room in time. Batches enter in order.
async fn enter(in_flight: &Semaphore, actions: usize, deadline: Instant) -> Option<SemaphorePermit<'_>> {
    let actions = u32::try_from(actions.min(MOST_ACTIONS)).unwrap_or(u32::MAX);
    // Fast path: there is room, so no timer is needed. No batch overtakes another, because a waiting batch has
    // already reserved all the room there is.
    if let Ok(permit) = in_flight.try_acquire_many(actions) {
        return Some(permit);
    }
    timeout_at(deadline, in_flight.acquire_many(actions)).await.ok()?.ok()
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
        let client = NodeClient::new(Endpoint::server(url.into_connection_info().unwrap(), None), TIMEOUT, None);
        let ask = |time| client.ask([Call::command(&[b"DBSIZE"])], Instant::now() + time);
        assert!(ask(TIMEOUT / 10).await.is_err());
        assert!(client.server.breaker.admit(Instant::now(), TIMEOUT).is_ok());
        assert!(ask(TIMEOUT).await.is_err());
        assert!(client.server.breaker.admit(Instant::now(), TIMEOUT).is_err());
    }

    #[tokio::test]
    async fn batch_without_room_in_time_is_refused_and_the_largest_batch_enters() {
        let (in_flight, now) = (Semaphore::new(MOST_ACTIONS), Instant::now());
        let most = enter(&in_flight, MOST_ACTIONS - 1, now).await.unwrap();
        let last = enter(&in_flight, 1, now).await.unwrap();
        assert!(enter(&in_flight, 1, now).await.is_none());
        assert!(enter(&in_flight, 0, now).await.is_some(), "a batch without actions");
        drop((most, last));
        assert!(enter(&in_flight, 10 * MOST_ACTIONS, now).await.is_some());
    }
}
