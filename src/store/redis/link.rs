//! The one connection to Redis, shared by all batches: made when it is needed, replaced when it broke.
//!
//! A Redis that cannot be connected to is left alone for a while, longer each time. Meanwhile calls fail at once, so
//! that nothing waits, and nothing is queued, for a Redis that is not there.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo};
use redis::{Pipeline, RedisError};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::call::{Call, Failure, Reply};
use super::cluster;
use super::target::{Connection, Target};
use crate::store::StoreError;

/// The pause after the first failure to connect; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    /// Boxed: what a client library keeps of addresses and settings is large beside everything else.
    target: Box<Target>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Counts connections, so that a call which failed does not take a newer connection for the one it used.
    generation: u64,
    outage: Option<Outage>,
}

/// Connecting failed, and is not tried before `until`.
struct Outage {
    until: Instant,
    pause: Duration,
    error: Arc<RedisError>,
}

impl Link {
    pub(super) fn new(target: Target, timeout: Duration) -> Self {
        Self { target: Box::new(target), timeout, state: Mutex::default() }
    }

    /// Makes the calls in one round trip. Scripts that Redis has forgotten are sent once more with their text: Redis
    /// did not carry those calls out.
    pub(super) async fn exchange(&self, calls: &[Call], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        if calls.is_empty() {
            return Vec::new();
        }
        let mut replies = self.send(calls.iter().map(Call::command).collect(), deadline).await;
        let is_forgotten = |reply: &Result<Reply, Failure>| reply.as_ref().is_err_and(Failure::is_forgotten_script);
        let forgotten = calls.iter().zip(&mut replies).filter(|(_, reply)| is_forgotten(reply));
        let (again, places): (Vec<_>, Vec<_>) =
            forgotten.map(|(call, reply)| (call.command_with_text(), reply)).unzip();
        if !again.is_empty() {
            let second = self.send(again, deadline).await;
            places.into_iter().zip(second).for_each(|(place, reply)| *place = reply);
        }
        replies
    }

    /// The number of keys, on all masters together.
    pub(super) async fn count_keys(&self, deadline: Instant) -> Result<u64, Failure> {
        let command = redis::cmd("DBSIZE");
        let (connection, generation) = self.connection(deadline).await?;
        let counting = async {
            match connection {
                Connection::Server(mut server) => server.req_packed_command(&command).await,
                Connection::Cluster(mut nodes) => {
                    let sum = Some(ResponsePolicy::Aggregate(redis::cluster_routing::AggregateOp::Sum));
                    nodes
                        .route_command(command, RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, sum)))
                        .await
                }
            }
        };
        let reply = self.within(deadline, counting).await;
        if let Err(failure) = &reply {
            self.note(failure, generation).await;
        }
        redis::from_redis_value(reply?).map_err(|_| Failure::Foreign("the number of keys is no number"))
    }

    /// Whether there is a connection; false while one is being made.
    pub(super) fn is_connected(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.connection.is_some())
    }

    /// A page of `SCAN`, which one server knows of itself alone.
    pub(super) async fn scan(&self, command: redis::Cmd, deadline: Instant) -> Result<Reply, Failure> {
        let (connection, generation) = self.connection(deadline).await?;
        let Connection::Server(mut server) = connection else { return Err(Failure::NotInACluster) };
        let reply = self.within(deadline, server.req_packed_command(&command)).await;
        if let Err(failure) = &reply {
            self.note(failure, generation).await;
        }
        reply
    }

    pub(super) async fn close(&self) {
        self.state.lock().await.connection = None;
    }

    /// What to tell the operator.
    pub(super) fn describe(&self, failure: &Failure) -> StoreError {
        let name = &self.target.name;
        StoreError::new(match failure {
            Failure::Timeout(time) => format!("Redis at {name} did not answer within {} ms", time.as_millis()),
            Failure::Down(error) => format!("cannot connect to Redis at {name}: {error}"),
            Failure::Redis(error) if failure.is_cluster_s() => {
                format!("Redis at {name} belongs to a cluster ({error}): give the URLs of two or more of its nodes")
            }
            Failure::Redis(error) => format!("Redis at {name}: {error}"),
            Failure::Foreign(wanted) => format!("Redis at {name} gave a foreign answer: {wanted}"),
            Failure::Damaged(damaged) => format!("Redis at {name}: {damaged}"),
            Failure::NotInACluster => format!(
                "Redis at {name} is a cluster, whose keys divvy does not list: \
                 name the actor, or use redis-cli --scan at each of its nodes"
            ),
        })
    }

    async fn send(&self, commands: Vec<redis::Cmd>, deadline: Instant) -> Vec<Result<Reply, Failure>> {
        let count = commands.len();
        let (connection, generation) = match self.connection(deadline).await {
            Ok(connected) => connected,
            Err(failure) => return vec![Err(failure); count],
        };
        let replies = match connection {
            Connection::Server(mut server) => {
                let mut pipeline = Pipeline::with_capacity(count);
                commands.into_iter().for_each(|command| {
                    pipeline.add_command(command);
                });
                match self.within(deadline, server.req_packed_commands(&pipeline, 0, count)).await {
                    Ok(values) => {
                        values.into_iter().map(|value| value.extract_error().map_err(Failure::from)).collect()
                    }
                    Err(failure) => vec![Err(failure); count],
                }
            }
            // Each command to its own node, all at once: the connection to a node pipelines what comes together.
            Connection::Cluster(nodes) => {
                let calls = commands.iter().map(|command| self.within(deadline, cluster::send(nodes.clone(), command)));
                join_all(calls).await
            }
        };
        if let Some(failure) = replies.iter().find_map(|reply| reply.as_ref().err()) {
            self.note(failure, generation).await;
        }
        replies
    }

    async fn within<T>(
        &self,
        deadline: Instant,
        answer: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, Failure> {
        match timeout_at(deadline, answer).await {
            Ok(Err(error)) if error.is_timeout() => Err(Failure::Timeout(self.timeout)),
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::Timeout(self.timeout)),
        }
    }

    /// The connection, made if there is none, and its generation.
    async fn connection(&self, deadline: Instant) -> Result<(Connection, u64), Failure> {
        let timed_out = |_| Failure::Timeout(self.timeout);
        let mut state = timeout_at(deadline, self.state.lock()).await.map_err(timed_out)?;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if let Some(outage) = state.outage.as_ref().filter(|outage| Instant::now() < outage.until) {
            return Err(Failure::Down(Arc::clone(&outage.error)));
        }
        let attempt = timeout_at(deadline, self.target.connect()).await;
        match attempt.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())) {
            Ok(connection) => {
                state.generation += 1;
                state.outage = None;
                state.connection = Some(connection.clone());
                Ok((connection, state.generation))
            }
            Err(error) => {
                let error = Arc::new(error);
                let pause = state.outage.as_ref().map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
                state.outage = Some(Outage { until: Instant::now() + pause, pause, error: Arc::clone(&error) });
                Err(Failure::Down(error))
            }
        }
    }

    /// Drops the connection if the failure says that it is of no use any more. A cluster's connection looks after its
    /// nodes by itself.
    async fn note(&self, failure: &Failure, generation: u64) {
        let is_broken = match failure {
            Failure::Timeout(_) => true,
            Failure::Redis(error) => error.is_unrecoverable_error() || error.is_io_error() || failure.is_wrong_server(),
            Failure::Down(_) | Failure::Foreign(_) | Failure::Damaged(_) | Failure::NotInACluster => false,
        };
        let mut state = self.state.lock().await;
        if is_broken && state.generation == generation && matches!(state.connection, Some(Connection::Server(_))) {
            state.connection = None;
        }
    }
}
