//! Facts about the server that RESP clients can ask for: `INFO`, `ROLE`, `CONFIG GET`, `DBSIZE`, `TIME`.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::client::{Clients, REDIS_VERSION};
use super::{TERMS, write_limiter_error};
use crate::errors;
use crate::net::auth::Guard;
use crate::net::protocol::Protocol;
use crate::operations::stats;
use crate::protocol::resp::{Arguments, ReplyWriter};
use crate::server_context::ServerContext;
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::rules::Pattern;
use divvy_telemetry::metrics::FrontRequests;

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
const MIB: f64 = 1024.0 * 1024.0;

/// The sections of `INFO`. Redis has no errors and no metrics.
const SECTIONS: [&str; 11] = [
    "Server",
    "Clients",
    "Memory",
    "Persistence",
    "Stats",
    "Errors",
    "Replication",
    "Modules",
    "Cluster",
    "Metrics",
    "Keyspace",
];
/// Sections that contain values from `/metrics`.
const WITH_NUMBERS: [&str; 3] = ["Memory", "Persistence", "Metrics"];

/// The front: the state that all its sessions share.
pub struct RespFront {
    pub server: ServerContext,
    /// Logs clients in, unless the front is open.
    pub guard: Option<Arc<Guard>>,
    address: Option<SocketAddr>,
    /// Id of this run of the server: 40 hexadecimal digits.
    run_id: String,
    pub clients: Arc<Clients>,
    pub requests: FrontRequests,
}

impl RespFront {
    /// Creates the front. `guard` logs clients in.
    pub fn new(server: &ServerContext, guard: Option<Arc<Guard>>, listener: Option<&TcpListener>) -> Self {
        Self {
            server: server.clone(),
            guard,
            address: listener.and_then(|listener| listener.local_addr().ok()),
            run_id: run_id(),
            clients: Arc::default(),
            requests: server.limiter.metrics().requests.front(Protocol::Resp.name()),
        }
    }

    /// Returns the requested sections in Redis's format. `everything`, `all`, `default` and no section at all stand for
    /// every section. Unknown sections are left out.
    pub async fn info(&self, requested: &[Vec<u8>]) -> String {
        let is_asked = |section: &&str| {
            let names = [*section, "all", "everything", "default"];
            requested.is_empty()
                || requested.iter().any(|word| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes())))
        };
        let sections = || SECTIONS.into_iter().filter(is_asked);
        // A client may request one section each time it connects, and the values of the others would cost too much.
        let numbers = match sections().any(|section| WITH_NUMBERS.contains(&section)) {
            true => stats::numbers(&self.server.limiter).await,
            false => Vec::new(),
        };
        let mut text = String::new();
        for section in sections() {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            // Writing to a String cannot fail.
            let _ = write!(text, "{separator}# {section}\r\n{}", self.lines(section, &numbers).await);
        }
        text
    }

    async fn lines(&self, section: &str, numbers: &[(String, f64)]) -> String {
        match section {
            "Server" => self.server(),
            "Clients" => format!(
                "connected_clients:{}\r\ncluster_connections:0\r\nmaxclients:{}\r\nblocked_clients:0\r\n\
                 tracking_clients:0\r\n",
                self.clients.connected(),
                self.server.limits.max_connections,
            ),
            "Memory" => memory(numbers),
            "Persistence" => self.persistence(numbers),
            "Stats" => format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nhits_accepted:{}\r\nhits_rejected:{}\r\n",
                self.clients.seen(),
                self.requests.total(),
                stats::hits(&self.server.limiter, "accepted"),
                stats::hits(&self.server.limiter, "rejected"),
            ),
            "Errors" => {
                let errors = stats::errors(&self.server.limiter);
                errors.map(|(front, code, text)| format!("last_{front}_{code}:{text}\r\n")).collect()
            }
            // A master without replicas or a backlog.
            "Replication" => format!(
                "role:master\r\nconnected_slaves:0\r\nmaster_failover_state:no-failover\r\nmaster_replid:{}\r\n\
                 master_replid2:{:0>40}\r\nmaster_repl_offset:0\r\nsecond_repl_offset:-1\r\nrepl_backlog_active:0\r\n\
                 repl_backlog_size:0\r\nrepl_backlog_first_byte_offset:0\r\nrepl_backlog_histlen:0\r\n",
                self.run_id, 0,
            ),
            "Cluster" => "cluster_enabled:0\r\n".to_owned(),
            "Metrics" => numbers.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect(),
            "Keyspace" => match self.server.limiter.approximate_len().await {
                Ok(counters) => format!("db0:keys={counters},expires=0,avg_ttl=0\r\n"),
                Err(error) => format!("error:{}\r\n", errors::describe(&error, &TERMS)),
            },
            _ => String::new(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the uptime")]
    fn server(&self) -> String {
        let port = self.address.map_or(0, |address| address.port());
        let rules = self.server.limiter.active_rules().map_or(0, |policy| policy.rules().rules().len());
        let uptime = self.server.operations.started.elapsed().as_secs();
        format!(
            "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ndivvy_version:{}\r\nprocess_id:{}\r\n\
             run_id:{}\r\ntcp_port:{port}\r\nuptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\nrules:{rules}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.run_id,
            uptime / SECONDS_PER_DAY,
        )
    }

    fn persistence(&self, numbers: &[(String, f64)]) -> String {
        let store = self.server.limiter.store();
        let mut lines = format!(
            "loading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:0\r\naof_rewrite_in_progress:0\r\nstore:{}\r\n",
            store.name()
        );
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

    /// Writes the settings that Redis's tools ask for, under Redis's names.
    pub fn write_settings(&self, patterns: Arguments, reply: &mut ReplyWriter) {
        let is_durable = self.server.limiter.store().on_disk().is_some();
        let settings = [
            ("appendonly", if is_durable { "yes" } else { "no" }.to_owned()),
            ("databases", "1".to_owned()),
            ("maxclients", self.server.limits.max_connections.to_string()),
            ("port", self.address.map_or(0, |address| address.port()).to_string()),
            ("save", String::new()),
            ("timeout", self.server.limits.timeouts.idle.map_or(0, |limit| limit.as_secs()).to_string()),
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
        match self.server.limiter.approximate_len().await {
            Ok(counters) => reply.integer(i64::try_from(counters).unwrap_or(i64::MAX)),
            Err(error) => write_limiter_error(&error, reply),
        }
    }

    /// Writes the seconds since the Unix epoch, and the microseconds of the current second.
    pub fn write_time(&self, reply: &mut ReplyWriter) {
        let now = self.server.limiter.now().as_nanos();
        reply.array(2);
        reply.bulk((now / NANOS_PER_SECOND).to_string().as_bytes());
        reply.bulk((now % NANOS_PER_SECOND / 1000).to_string().as_bytes());
    }
}

/// Returns an id for a run of the server.
fn run_id() -> String {
    let random = RandomState::new();
    let mut digits: String = (0..3).map(|part| format!("{:016x}", random.hash_one(part))).collect();
    digits.truncate(40);
    digits
}

/// Describes the resident memory, because the allocator's own figure is unknown. redis-cli uses the first field that
/// begins with `used_memory`.
fn memory(numbers: &[(String, f64)]) -> String {
    let resident = number(numbers, "process_resident_memory_bytes");
    let human = format!("{:.2}M", resident / MIB);
    format!(
        "used_memory:{resident}\r\nused_memory_human:{human}\r\nused_memory_rss:{resident}\r\n\
         used_memory_rss_human:{human}\r\nmaxmemory:0\r\nmaxmemory_human:0B\r\nmaxmemory_policy:noeviction\r\n\
         mem_allocator:mimalloc\r\n"
    )
}

/// Returns the number with this name and no labels, or 0.
fn number(numbers: &[(String, f64)], name: &str) -> f64 {
    numbers.iter().find(|(known, _)| known == name).map_or(0.0, |(_, value)| *value)
}
