//! "Acknowledged means replicated": how many replicas must confirm each change at one server.
//!
//! A new connection reads how many replicas the server has, and whether it takes writes without them, because after a
//! failover it leads to another server. It reads that again every second, because replicas come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use tokio::time::Instant;

use super::breaker::Breaker;
use crate::options::{ReplicaAcks, RequiredReplicas};
use crate::wire::connection::{Commands, Connection, Unanswered, Unconfirmed, Wait};
use crate::wire::stream::{closed, timed_out};
use crate::wire::{Call, Failure, Reply};

/// The interval at which a connection reads the replicas again.
pub const READ_EVERY: Duration = Duration::from_secs(1);

/// Makes the [`Replication`] of each server, if replicas must confirm changes.
#[derive(Clone, Default)]
pub struct MakeReplication {
    pub acks: Option<ReplicaAcks>,
    pub failures: Arc<AtomicU64>,
}

impl MakeReplication {
    /// Returns the replication of the server with this address.
    pub fn of_server(&self, name: String) -> Option<Replication> {
        let failures = Arc::clone(&self.failures);
        let (breaker, report) = (Breaker::default(), Mutex::default());
        Some(Replication { acks: self.acks?, name, failures, breaker, report })
    }
}

/// The replicas of one server.
pub struct Replication {
    acks: ReplicaAcks,
    /// The server's address, for the log.
    name: String,
    /// Number of calls that too few replicas confirmed in time, at all servers.
    failures: Arc<AtomicU64>,
    /// Refuses writes for a moment after one that too few replicas confirmed.
    pub breaker: Breaker,
    /// The last report. `None` if the server is a replica, or has not been asked.
    report: Mutex<Option<Report>>,
}

/// A master's report on its replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The number that are connected.
    pub replicas: u32,
    /// The number that must confirm each change.
    pub required: u32,
    /// The number without which the master takes no writes. `None` if the user may not read it.
    min_replicas: Option<u32>,
    is_refused: bool,
}

impl Replication {
    pub fn report(&self) -> Option<Report> {
        *self.report.lock()
    }

    /// Returns the reason why the server may not be used, if there is one.
    pub fn refusal(&self) -> Option<String> {
        self.report().filter(|report| report.is_refused).map(|report| report.refusal())
    }

    /// Records that too few replicas have confirmed this number of calls.
    #[expect(clippy::disallowed_methods, reason = "how long to refuse writes")]
    pub fn note_unconfirmed(&self, calls: usize, unconfirmed: Unconfirmed) {
        self.failures.fetch_add(calls as u64, Relaxed);
        self.breaker.failed(&Failure::Unconfirmed(unconfirmed), Instant::now());
    }

    /// Reads the replicas, and requires them for the writes on this connection.
    ///
    /// # Errors
    /// The server does not answer, the user may not run the commands, or the replicas are not what the operator requires.
    pub async fn read(&self, connection: &Connection, deadline: Instant) -> Result<(), RedisError> {
        let [info, min_replicas, wait] = ask(connection, deadline).await?;
        let info: String = redis::from_redis_value(info.value()?).unwrap_or_default();
        let report = info.lines().any(|line| line == "role:master").then(|| self.assess(&info, &min_replicas));
        let required = match (self.acks.replicas, report) {
            (RequiredReplicas::Number(number), _) => number,
            (RequiredReplicas::All, Some(report)) => report.required,
            // A replica refuses writes. If it is promoted, nothing is confirmed until the next report.
            (RequiredReplicas::All, None) => u32::MAX,
        };
        connection.require(Wait { replicas: required, timeout: self.acks.timeout });
        let before = std::mem::replace(&mut *self.report.lock(), report);
        let Some(report) = report else { return Ok(()) };
        if before != Some(report) {
            self.log(&report);
        }
        wait.value()?;
        if report.is_refused { Err(std::io::Error::other(report.refusal()).into()) } else { Ok(()) }
    }

    fn assess(&self, info: &str, min_replicas: &Reply) -> Report {
        let is_online = |line: &&str| line.starts_with("slave") && line.contains(",state=online,");
        let replicas = u32::try_from(info.lines().filter(is_online).count()).unwrap_or(u32::MAX);
        let setting: Option<(String, u32)> = min_replicas.decode("not a setting").ok();
        let min_replicas = setting.map(|(_, number)| number);
        let (required, is_refused) = match self.acks.replicas {
            RequiredReplicas::Number(number) => (number, false),
            // Without that many, the master takes no writes. A replica that has just joined must confirm them at once.
            RequiredReplicas::All => {
                let is_refused = replicas == 0 || min_replicas.is_some_and(|least| least < replicas);
                (replicas.max(min_replicas.unwrap_or(0)), is_refused)
            }
        };
        Report { replicas, required, min_replicas, is_refused }
    }

    fn log(&self, report: &Report) {
        let Report { replicas, required, min_replicas, .. } = *report;
        let redis = &self.name;
        let min_replicas = min_replicas.map_or("unknown".to_owned(), |least| least.to_string());
        let problems = report.problems().join("; ");
        if problems.is_empty() {
            tracing::info!(%redis, replicas, required, min_replicas, "replicas confirm each change");
        } else {
            tracing::warn!(%redis, replicas, required, min_replicas, "replicas must confirm each change: {problems}");
        }
    }
}

impl Report {
    /// Describes how a failover may lose a change that was confirmed, and why none may be confirmed.
    fn problems(&self) -> Vec<String> {
        let Self { replicas, required, min_replicas, is_refused } = *self;
        if is_refused {
            return vec![self.refusal()];
        }
        let problems = [
            (replicas > required, "more are connected, and a failover may promote one that has not confirmed it"),
            (replicas < required, "fewer are connected, so no change is confirmed"),
            (
                min_replicas.is_some_and(|least| least < required),
                "min-replicas-to-write is lower, so a master without them takes writes",
            ),
            (min_replicas.is_none(), "this user may not read min-replicas-to-write (+config|get)"),
        ];
        problems.into_iter().filter(|(is_there, _)| *is_there).map(|(_, problem)| problem.to_owned()).collect()
    }

    fn refusal(&self) -> String {
        let Self { replicas, min_replicas, .. } = self;
        match min_replicas {
            Some(least) if *replicas > 0 => format!(
                "--redis-min-replicas-ack all needs min-replicas-to-write {replicas} or more, as many as there are \
                 replicas, but it is {least}"
            ),
            _ => "--redis-min-replicas-ack all needs a replica, but none is connected".to_owned(),
        }
    }
}

/// Asks for the roles, for the setting, and whether the user may wait.
async fn ask(connection: &Connection, deadline: Instant) -> Result<[Reply; 3], RedisError> {
    let mut bytes = Vec::new();
    let words: [&[&[u8]]; 3] =
        [&[b"INFO", b"replication"], &[b"CONFIG", b"GET", b"min-replicas-to-write"], &[b"WAIT", b"0", b"1"]];
    words.iter().for_each(|words| Call::command(words).write(false, &mut bytes));
    let commands = Commands { bytes: &bytes, replies: words.len(), may_write: false };
    match connection.ask(commands, deadline).await {
        Ok(replies) => replies.try_into().map_err(|_| closed()),
        Err(Unanswered::Late) => Err(timed_out()),
        Err(_) => Err(closed()),
    }
}
