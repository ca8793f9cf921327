//! Sockets: listening, accepting, caps and timeouts, and the end of it all.
//!
//! Every front is an accept loop ([`accept`]) that gives each connection to its protocol: [`line`] and [`resp`] are
//! sessions of one read-answer-write loop ([`connection`]), [`http`] and [`grpc`] are libraries'. Nothing here judges a request or
//! knows a rule.

mod accept;
pub mod auth;
pub mod connection;
mod grpc;
pub mod http;
mod line;
mod resp;
mod stream;
pub mod tls;
mod workers;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::accept::Acceptor;
use self::auth::Access;
use self::connection::Timeouts;
use self::grpc::GrpcFront;
use self::http::HttpFront;
pub use self::http::{ApiSettings, DEFAULT_METRICS_PATH, InvalidMetricsPath, check_metrics_path};
use self::line::LineFront;
use self::resp::RespFront;
use self::tls::Tls;
use self::workers::Workers;
pub use self::workers::default_threads;
use crate::limiter::Limiter;
use crate::protocol::resp::Limits as RespLimits;

/// Connections open at once, all fronts together.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
/// Bytes in the body of an HTTP request, and in a gRPC message.
pub const DEFAULT_MAX_BODY: usize = 64 * 1024;
/// How long a client may take nothing of what was answered.
pub const DEFAULT_WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take to give the password.
pub const DEFAULT_AUTH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a TLS handshake may take.
pub const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections are read on after the server stopped accepting, so that what was on its way is answered.
const DRAIN_GRACE: Duration = Duration::from_millis(250);
/// How long the end may take from then on: connections still busy are cut.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Bounds on what clients may do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub max_connections: usize,
    pub max_line: usize,
    pub max_pairs: usize,
    /// Bytes in the body of an HTTP request, and in a gRPC message.
    pub max_body: usize,
    pub resp: RespLimits,
    pub timeouts: Timeouts,
}

/// How the server is run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub limits: Limits,
    pub access: Access,
    pub tls: Secured,
    pub api: ApiSettings,
    /// Threads that connections run on.
    pub threads: usize,
    /// Where HTTP shows the metrics; begins with a slash.
    pub metrics_path: String,
}

/// The fronts that are served, each on its listening socket.
#[derive(Debug, Default)]
pub struct Fronts {
    pub line: Option<TcpListener>,
    pub resp: Option<TcpListener>,
    pub http: Option<TcpListener>,
    pub grpc: Option<TcpListener>,
}

/// The fronts that speak TLS.
#[derive(Debug, Clone, Default)]
pub struct Secured {
    pub line: Option<Arc<Tls>>,
    pub resp: Option<Arc<Tls>>,
    pub http: Option<Arc<Tls>>,
    pub grpc: Option<Arc<Tls>>,
}

/// Serves until `draining` is cancelled, then answers what had been received, at most for a
/// bounded time.
///
/// # Errors
/// The system's, when it refuses a thread; a front's, when it cannot be set up.
pub async fn run(
    limiter: Arc<Limiter>,
    fronts: Fronts,
    settings: Settings,
    draining: CancellationToken,
) -> io::Result<()> {
    let Settings { limits, access, tls, api, threads, metrics_path } = settings;
    let acceptor = Acceptor {
        workers: Workers::start(threads)?,
        slots: Arc::new(Semaphore::new(limits.max_connections)),
        connections: TaskTracker::new(),
        limits,
        metrics: Arc::clone(limiter.metrics()),
        draining: draining.clone(),
        closing: CancellationToken::new(),
    };
    let http = HttpFront::new(Arc::clone(&limiter), limits, &access, api, &metrics_path, draining.clone());
    let resp = RespFront::new(Arc::clone(&limiter), limits, access.resp, fronts.resp.as_ref());
    let grpc = GrpcFront::new(Arc::clone(&limiter), limits, access.grpc, draining)?;
    tokio::join!(
        acceptor.run(fronts.line, tls.line, LineFront::new(limiter, limits, access.line)),
        acceptor.run(fronts.resp, tls.resp, resp),
        acceptor.run(fronts.http, tls.http, http),
        acceptor.run(fronts.grpc, tls.grpc, grpc),
    );

    tokio::time::sleep(DRAIN_GRACE).await;
    acceptor.closing.cancel();
    acceptor.connections.close();
    if tokio::time::timeout(DRAIN_LIMIT, acceptor.connections.wait()).await.is_err() {
        tracing::warn!(connections = acceptor.connections.len(), "closing connections that are still busy");
    }
    Ok(())
}

/// Binds a listening socket.
///
/// # Errors
/// The system's, with the address.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}
