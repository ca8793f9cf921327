//! The server: listeners, connections and fronts, from start to shutdown.
//!
//! | module | purpose |
//! |---|---|
//! | [`net`] | everything that does not depend on a protocol: listeners, TLS, logins, connections, bounds on memory and work |
//! | [`protocol`] | bytes ↔ requests and replies, of RESP and the line protocol |
//! | [`operations`] | what operators ask for, and its lines in the audit log |
//! | [`errors`] | texts of errors for clients; the last error of each kind |
//! | [`mod@health`] | readiness, and tasks that restart after a panic |
//! | [`server_context`] | the state that all fronts share, and the bounds for their clients |
//! | [`recent_reloads`] | the last reloads of the rules |
//! | [`mod@line`] | the front for Divvy's line protocol |
//! | [`resp`] | the front for Redis clients |
//! | [`http`] | the HTTP front: `transport` serves connections, `routes` leads requests to their endpoints in `api`, and those of the live page to its crate |
//! | [`grpc`] | the gRPC front, on the HTTP front's transport |
//! | [`xds`] | the client that receives ratelimit's configuration from a management server |
//!
//! Each front has an accept loop per socket ([`net::accept`]) that passes connections to its protocol. All protocols are sessions of one
//! read-answer-write loop ([`net::connection`]). This module decides nothing about requests.

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
mod recent_reloads;
mod resp;
mod server_context;
pub mod xds;

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

pub use self::grpc::GrpcSettings;
use self::grpc::{GrpcFront, RateLimits};
pub use self::health::{Health, keep_running, survive};
use self::http::HttpFront;
use self::http::page::Page;
pub use self::http::{ApiSettings, DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
use self::line::LineFront;
use self::net::accept::{Acceptor, MAX_PARTINGS, Workers};
pub use self::net::accept::{BLOCKING_KEEP_ALIVE, MAX_BLOCKING_THREADS, bind, default_threads};
use self::net::auth::FrontGuards;
pub use self::net::connection::{DEFAULT_REQUEST_TIMEOUT, DEFAULT_WRITE_TIMEOUT, Timeouts};
use self::net::places::Places;
use self::net::tls::Tls;
pub use self::net::{auth, sessions, tls};
pub use self::recent_reloads::{RecentReloads, RulesReload};
use self::resp::RespFront;
use self::server_context::ServerContext;
pub use self::server_context::{DEFAULT_MAX_BODY, DEFAULT_MAX_BUFFER_MEMORY, DEFAULT_MAX_CONNECTIONS, Limits};
use divvy_access::audit::AuditLog;
use divvy_limiter::Limiter;

/// How long the server still reads from connections after it stopped accepting new ones, so that requests on their way
/// are answered.
const DRAIN_GRACE: Duration = Duration::from_millis(250);
/// How long connections may be busy after that before they are closed.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub guards: FrontGuards,
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

/// A value for each front.
#[derive(Debug, Clone, Default)]
pub struct PerFront<T> {
    /// The line protocol.
    pub line: T,
    /// RESP, for Redis clients.
    pub resp: T,
    /// HTTP: the API, health and metrics.
    pub http: T,
    /// gRPC: the services of Envoy and Kuadrant.
    pub grpc: T,
}

/// The listening sockets of the fronts; empty for a front that is not served.
pub type Fronts = PerFront<Vec<TcpListener>>;

/// The TLS settings of the fronts; `None` for plain TCP.
pub type Secured = PerFront<Option<Arc<Tls>>>;

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
    let Settings { limits, drain, guards, audit, tls, api, grpc, threads, metrics_path } = settings;
    let server = ServerContext::new(limiter, audit, limits, health);
    let stopping = CancellationToken::new();
    let acceptor = Acceptor {
        workers: Workers::start(threads)?,
        places: Places::new(limits.max_connections, limits.max_connections_per_address),
        server: server.clone(),
        connections: TaskTracker::new(),
        partings: Arc::new(Semaphore::new(MAX_PARTINGS)),
        stopping: stopping.clone(),
        closing: CancellationToken::new(),
    };
    let line = LineFront::new(&server, guards.line.clone());
    let resp = RespFront::new(&server, guards.resp.clone(), fronts.resp.first());
    let rate_limits = Arc::new(RateLimits::new(&server, grpc));
    let grpc = GrpcFront::new(&server, guards.grpc.clone(), Arc::clone(&rate_limits))?;
    let http = HttpFront::new(&server, guards, api, metrics_path, rate_limits, page.clone());
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
