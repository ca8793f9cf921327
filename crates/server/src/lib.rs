//! The server: listeners, connections and fronts, from start to shutdown.
//!
//! | module | purpose |
//! |---|---|
//! | [`net`] | everything that does not depend on a protocol: listeners, TLS, logins, connections, bounds on memory and work |
//! | [`protocol`] | bytes ↔ requests and replies, of RESP and the line protocol |
//! | [`operations`] | what operators ask for, and its lines in the audit log |
//! | [`errors`] | texts of errors for clients; the last error of each kind |
//! | [`mod@health`] | readiness, and tasks that restart after a panic |
//! | [`reload_log`] | the last reloads of the rules |
//! | [`mod@line`] | the front for Divvy's line protocol |
//! | [`resp`] | the front for Redis clients |
//! | [`http`] | the HTTP front: `transport` serves connections, `routes` leads requests to their endpoints in `api`, and those of the live page to its crate |
//! | [`grpc`] | the gRPC front, on the HTTP front's transport |
//!
//! Each front is an accept loop ([`net::accept`]) that passes connections to its protocol. The line protocol and RESP
//! are sessions of one read-answer-write loop ([`net::connection`]); HTTP and gRPC run on libraries. This module
//! decides nothing about requests, and does not depend on rules.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, clippy::string_slice, reason = "a test may ask the clock, and panic")
)]

mod errors;
pub mod grpc;
mod health;
pub mod http;
mod line;
mod net;
mod operations;
pub mod protocol;
mod reload_log;
mod resp;

#[cfg(test)]
#[path = "../../../tests/support/interruption.rs"]
mod interruption;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::grpc::GrpcFront;
pub use self::grpc::GrpcSettings;
pub use self::health::{Health, keep_running, survive};
use self::http::page::Page;
pub use self::http::{ApiSettings, DEFAULT_METRICS_PATH, InvalidMetricsPath, StreamBounds, check_metrics_path};
use self::http::{BodyBounds, HttpFront};
use self::line::LineFront;
use self::net::accept::{Acceptor, Admission, MAX_PARTINGS, Workers};
pub use self::net::accept::{BLOCKING_KEEP_ALIVE, MAX_BLOCKING_THREADS, bind, default_threads};
use self::net::auth::Guards;
pub use self::net::connection::{DEFAULT_REQUEST_TIMEOUT, DEFAULT_WRITE_TIMEOUT, Timeouts};
use self::net::memory::BufferMemory;
use self::net::tls::Tls;
use self::net::work::{MAX_AT_ONCE, WorkSlots};
pub use self::net::{auth, sessions, tls};
use self::operations::Operations;
use self::protocol::{DEFAULT_MAX_PAIRS, resp::Limits as RespLimits};
pub use self::reload_log::{Reload, ReloadLog};
use self::resp::RespFront;
use divvy_access::audit::AuditLog;
use divvy_limiter::Limiter;

/// How long the server still reads from connections after it stopped accepting new ones, so that requests on their way
/// are answered.
const DRAIN_GRACE: Duration = Duration::from_millis(250);
/// How long connections may be busy after that before they are closed.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of open connections of all fronts.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
/// Maximum length of the body of an HTTP request, and of a gRPC message (bytes).
pub const DEFAULT_MAX_BODY: usize = 64 * 1024;
/// Budget for the buffers of all connections, without the free part of each (bytes).
pub const DEFAULT_MAX_BUFFER_MEMORY: usize = 128 * 1024 * 1024;
/// Output of a connection after which it writes before it answers more (bytes). One write of this size keeps a fast network busy.
const MAX_OUTPUT: usize = 256 * 1024;

/// Bounds for clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of open connections of all fronts.
    pub max_connections: usize,
    /// Maximum number from one address, or from one IPv6 network of 64 bits; `None` if only the total is bounded.
    pub max_connections_per_address: Option<usize>,
    /// Maximum length of a line, without its terminator (bytes).
    pub max_line: usize,
    /// Maximum number of pairs in an operation.
    pub max_pairs: usize,
    /// Output of a connection after which it writes before it answers more (bytes). A single reply may be longer.
    pub max_output: usize,
    /// Budget for the buffers of all connections, without the free part of each (bytes).
    pub max_buffer_memory: usize,
    /// Maximum length of the body of an HTTP request, and of a gRPC message (bytes).
    pub max_body: usize,
    /// Bounds on requests of the RESP front.
    pub resp: RespLimits,
    /// HTTP/2 connections of the HTTP front.
    pub http_streams: StreamBounds,
    /// Connections of the gRPC front.
    pub grpc_streams: StreamBounds,
    /// Timeouts of all connections.
    pub timeouts: Timeouts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: DEFAULT_MAX_CONNECTIONS as usize,
            max_connections_per_address: None,
            max_line: protocol::line::DEFAULT_MAX_LINE,
            max_pairs: DEFAULT_MAX_PAIRS,
            max_output: MAX_OUTPUT,
            max_buffer_memory: DEFAULT_MAX_BUFFER_MEMORY,
            max_body: DEFAULT_MAX_BODY,
            resp: RespLimits::default(),
            http_streams: StreamBounds::HTTP,
            grpc_streams: StreamBounds::GRPC,
            timeouts: Timeouts::default(),
        }
    }
}

#[cfg(test)]
impl Limits {
    /// Returns small bounds for tests, with these timeouts.
    pub(crate) fn for_tests(timeouts: Timeouts) -> Self {
        Self { max_connections: 10, max_line: 1000, max_pairs: 10, timeouts, ..Self::default() }
    }
}

/// Timing of the shutdown.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// How long the server works as usual, except that /readyz fails, so that load balancers can react.
    pub delay: Duration,
    /// Maximum time after it stopped accepting and reading for the answers to received requests.
    pub timeout: Duration,
}

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Bounds for clients.
    pub limits: Limits,
    /// Timing of the shutdown.
    pub drain: Drain,
    /// Guards of the fronts.
    pub access: Guards,
    /// The log of changes by operators.
    pub audit: Arc<AuditLog>,
    /// TLS of the fronts.
    pub tls: Secured,
    /// Settings of the HTTP API.
    pub api: ApiSettings,
    /// Settings of the gRPC front.
    pub grpc: GrpcSettings,
    /// Number of threads that serve connections.
    pub threads: usize,
    /// Path of the metrics over HTTP. It begins with a slash.
    pub metrics_path: String,
}

/// The listening sockets of the fronts; `None` for a front that is not served.
#[derive(Debug, Default)]
pub struct Fronts {
    /// Socket of the line protocol.
    pub line: Option<TcpListener>,
    /// Socket of RESP, for Redis clients.
    pub resp: Option<TcpListener>,
    /// Socket of HTTP: the API, health and metrics.
    pub http: Option<TcpListener>,
    /// Socket of gRPC: the services of Envoy and Kuadrant.
    pub grpc: Option<TcpListener>,
}

/// The TLS settings of the fronts; `None` for plain TCP.
#[derive(Debug, Clone, Default)]
pub struct Secured {
    /// TLS settings of the line protocol.
    pub line: Option<Arc<Tls>>,
    /// TLS settings of RESP.
    pub resp: Option<Arc<Tls>>,
    /// TLS settings of HTTP.
    pub http: Option<Arc<Tls>>,
    /// TLS settings of gRPC.
    pub grpc: Option<Arc<Tls>>,
}

/// Serves until `draining` is cancelled and the drain's delay has passed. Then answers the requests that have been received,
/// within the drain's timeout. Without a `page`, there is no live page.
///
/// # Errors
/// The system refuses a thread, or a front cannot be set up.
pub async fn run(
    limiter: Arc<Limiter>,
    fronts: Fronts,
    settings: Settings,
    page: Option<Arc<dyn Page>>,
    health: Arc<Health>,
    draining: CancellationToken,
) -> io::Result<()> {
    let Settings { limits, drain, access, audit, tls, api, grpc, threads, metrics_path } = settings;
    let metrics = Arc::clone(limiter.metrics());
    let memory = BufferMemory::new(limits.max_buffer_memory, Arc::clone(&metrics));
    let stopping = CancellationToken::new();
    let acceptor = Acceptor {
        workers: Workers::start(threads)?,
        admission: Admission::new(limits.max_connections, limits.max_connections_per_address),
        memory: Arc::clone(&memory),
        metrics: Arc::clone(&metrics),
        connections: TaskTracker::new(),
        partings: Arc::new(Semaphore::new(MAX_PARTINGS)),
        limits,
        stopping: stopping.clone(),
        closing: CancellationToken::new(),
    };
    let slots = WorkSlots::new(MAX_AT_ONCE);
    let operations = Operations::new(Arc::clone(&limiter), audit);
    let resp = RespFront::new(
        Arc::clone(&limiter),
        operations.clone(),
        limits,
        access.resp.clone(),
        fronts.resp.as_ref(),
        Arc::clone(&memory),
        slots.clone(),
    );
    let line = LineFront::new(Arc::clone(&limiter), limits, access.line.clone(), Arc::clone(&memory));
    let bounds = BodyBounds { timeouts: limits.timeouts, memory, expansion: 1 };
    let http = HttpFront::new(
        Arc::clone(&limiter),
        operations,
        limits,
        bounds.clone(),
        &access,
        api,
        &metrics_path,
        slots,
        Arc::clone(&health),
        page.clone(),
    );
    let grpc = GrpcFront::new(Arc::clone(&limiter), limits, grpc, bounds, access.grpc, health)?;
    let stop = async {
        draining.cancelled().await;
        tokio::time::sleep(drain.delay).await;
        stopping.cancel();
    };
    let run_page = async {
        if let Some(page) = page {
            page.run(stopping.clone()).await;
        }
    };
    tokio::join!(
        stop,
        run_page,
        acceptor.run(fronts.line, tls.line, line),
        acceptor.run(fronts.resp, tls.resp, resp),
        acceptor.run(fronts.http, tls.http, http),
        acceptor.run(fronts.grpc, tls.grpc, grpc),
    );

    tokio::time::sleep(DRAIN_GRACE).await;
    acceptor.closing.cancel();
    acceptor.connections.close();
    if tokio::time::timeout(drain.timeout, acceptor.connections.wait()).await.is_err() {
        tracing::warn!(connections = acceptor.connections.len(), "closing connections that are still busy");
    }
    Ok(())
}
