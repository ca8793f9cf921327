//! What the RESP front tells about the server: `INFO`, `CONFIG GET`, `DBSIZE`, `TIME`.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener;

use super::clients::Clients;
use crate::clock::NANOS_PER_SECOND;
use crate::limiter::Limiter;
use crate::metrics::FrontRequests;
use crate::protocol::resp::{Arguments, ReplyWriter};
use crate::rules::Pattern;
use crate::server::Limits;
use crate::server::auth::Guard;
use crate::server::memory::BufferMemory;
use crate::server::told;
use crate::server::turns::Turns;

/// The Redis whose protocol and error texts this front follows. `HELLO` and `INFO` tell it alike: clients choose their
/// features by whichever they ask. divvy's own version is a field of its own.
pub const REDIS_VERSION: &str = "7.2.0";

/// What all clients of the front share.
pub struct Shared {
    pub limiter: Arc<Limiter>,
    pub limits: Limits,
    /// Asks for the password.
    pub guard: Option<Arc<Guard>>,
    address: Option<SocketAddr>,
    started: Instant,
    pub clients: Arc<Clients>,
    pub requests: FrontRequests,
    /// What transactions hold is on this account.
    pub memory: Arc<BufferMemory>,
    /// At requests that take long or have long replies.
    pub turns: Turns,
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "the uptime")]
    pub fn new(
        limiter: Arc<Limiter>,
        limits: Limits,
        guard: Option<Arc<Guard>>,
        listener: Option<&TcpListener>,
        requests: FrontRequests,
        memory: Arc<BufferMemory>,
        turns: Turns,
    ) -> Self {
        Self {
            requests,
            limiter,
            limits,
            guard,
            address: listener.and_then(|listener| listener.local_addr().ok()),
            started: Instant::now(),
            clients: Arc::default(),
            memory,
            turns,
        }
    }

    /// The sections asked for (`everything`, `all`, `default` or none: all of them), as Redis lays them out.
    pub async fn info(&self, asked: &[Vec<u8>]) -> String {
        let counters = self.limiter.approximate_len().await;
        let numbers = self.numbers().await;
        let sections = [
            ("Server", self.server()),
            ("Clients", self.clients()),
            ("Memory", format!("used_memory_rss:{}\r\n", number(&numbers, "process_resident_memory_bytes"))),
            ("Persistence", self.persistence(&numbers)),
            ("Stats", self.stats()),
            ("Metrics", metrics(&numbers)),
            (
                "Keyspace",
                counters
                    .map_or_else(|e| format!("error:{}\r\n", told::store_error(&e)), |n| format!("db0:keys={n}\r\n")),
            ),
        ];
        let is_asked = |name: &str| {
            asked.is_empty()
                || asked.iter().any(|word| {
                    [name, "all", "everything", "default"].iter().any(|it| word.eq_ignore_ascii_case(it.as_bytes()))
                })
        };
        let mut text = String::new();
        for (name, lines) in sections.iter().filter(|(name, _)| is_asked(name)) {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}# {name}\r\n{lines}");
        }
        text
    }

    #[expect(clippy::disallowed_methods, reason = "the uptime")]
    fn server(&self) -> String {
        let port = self.address.map_or(0, |address| address.port());
        let rules = self.limiter.policy().map_or(0, |policy| policy.rules().rules().len());
        format!(
            "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ndivvy_version:{}\r\nprocess_id:{}\r\n\
             tcp_port:{port}\r\nuptime_in_seconds:{}\r\nrules:{rules}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.started.elapsed().as_secs(),
        )
    }

    fn clients(&self) -> String {
        let connected = self.clients.connected();
        format!("connected_clients:{connected}\r\nmaxclients:{}\r\n", self.limits.max_connections)
    }

    /// What `/metrics` shows, but for histograms: the one source of figures.
    async fn numbers(&self) -> Vec<(String, f64)> {
        let limiter = Arc::clone(&self.limiter);
        // The store's figures cost system calls.
        let numbers = tokio::task::spawn_blocking(move || limiter.metrics().numbers(limiter.store_metrics()));
        numbers.await.unwrap_or_default()
    }

    fn persistence(&self, numbers: &[(String, f64)]) -> String {
        let store = self.limiter.store();
        let mut lines = format!("loading:0\r\nstore:{}\r\n", store.name());
        if let Some(rocks) = store.on_disk() {
            let durability = format!("{:?}", rocks.durability()).to_lowercase();
            let _ = write!(
                lines,
                "durability:{durability}\r\ndata_dir:{}\r\ndisk_bytes:{}\r\nlast_commit_status:{}\r\n",
                rocks.path().display(),
                number(numbers, "divvy_rocksdb_disk_bytes"),
                if number(numbers, "divvy_commits_failing") > 0.0 { "err" } else { "ok" },
            );
        }
        lines
    }

    fn stats(&self) -> String {
        let counted = self.limiter.metrics().hits.counted();
        let hits = |status: &str| -> u64 {
            counted.iter().filter(|counted| counted.status == status).map(|counted| counted.hits).sum()
        };
        format!(
            "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nhits_accepted:{}\r\nhits_rejected:{}\r\n",
            self.clients.seen(),
            self.requests.total(),
            hits("accepted"),
            hits("rejected"),
        )
    }

    /// The settings that Redis's tools ask for, under Redis's names.
    pub fn write_settings(&self, patterns: Arguments, reply: &mut ReplyWriter) {
        let is_durable = self.limiter.store().on_disk().is_some();
        let settings = [
            ("appendonly", if is_durable { "yes" } else { "no" }.to_owned()),
            ("databases", "1".to_owned()),
            ("maxclients", self.limits.max_connections.to_string()),
            ("port", self.address.map_or(0, |address| address.port()).to_string()),
            ("save", String::new()),
            ("timeout", self.limits.timeouts.idle.map_or(0, |limit| limit.as_secs()).to_string()),
        ];
        let patterns: Vec<_> = patterns
            .iter()
            .map(|pattern| Pattern::parse(&String::from_utf8_lossy(pattern).to_ascii_lowercase()))
            .collect();
        let found: Vec<_> =
            settings.iter().filter(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name))).collect();
        reply.map(found.len());
        for (name, value) in found {
            reply.bulk(name.as_bytes());
            reply.bulk(value.as_bytes());
        }
    }

    pub async fn write_size(&self, reply: &mut ReplyWriter<'_>) {
        match self.limiter.approximate_len().await {
            Ok(counters) => reply.integer(i64::try_from(counters).unwrap_or(i64::MAX)),
            Err(error) => reply.error(format_args!("ERR {}", told::store_error(&error))),
        }
    }

    /// Seconds since the Unix epoch, and microseconds of the present one.
    pub fn write_time(&self, reply: &mut ReplyWriter) {
        let now = self.limiter.now().as_nanos();
        reply.array(2);
        reply.bulk((now / NANOS_PER_SECOND).to_string().as_bytes());
        reply.bulk((now % NANOS_PER_SECOND / 1000).to_string().as_bytes());
    }
}

fn metrics(numbers: &[(String, f64)]) -> String {
    let mut lines = String::new();
    for (name, value) in numbers {
        // Writing to a String cannot fail.
        let _ = write!(lines, "{name}:{value}\r\n");
    }
    lines
}

/// The number with this name, which has no labels; 0 when there is none.
fn number(numbers: &[(String, f64)], name: &str) -> f64 {
    numbers.iter().find(|(known, _)| known == name).map_or(0.0, |(_, value)| *value)
}
