//! Sockets: listening, accepting, limits, timeouts and shutdown.
//!
//! Every front is an accept loop ([`accept`]) that gives each connection to its protocol: [`mod@line`] and [`resp`] are
//! sessions of one read-answer-write loop ([`connection`]), [`http`] and [`grpc`] are libraries'. Nothing here decides about a request or
//! knows a rule.

mod accept;
mod admission;
#[cfg(test)]
mod alike;
pub mod auth;
mod calls_in_flight;
pub mod connection;
#[cfg(all(test, feature = "rocksdb"))]
mod dropped;
#[cfg(test)]
#[path = "../../tests/support/dropped.rs"]
mod ended_early;
mod freed;
mod grpc;
mod health;
pub mod http;
mod keep_running;
mod limits;
mod line;
mod memory;
mod origin;
mod pool;
mod progress;
mod resp;
mod room;
mod stream;
pub mod tls;
mod told;
mod turns;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::accept::Acceptor;
use self::admission::Admission;
use self::auth::Access;
use self::grpc::GrpcFront;
pub use self::grpc::GrpcSettings;
pub use self::health::Health;
pub use self::http::{ApiSettings, DEFAULT_METRICS_PATH, InvalidMetricsPath, StreamBounds, check_metrics_path};
use self::http::{BodyBounds, HttpFront};
pub use self::keep_running::{keep_running, survive};
pub use self::limits::Limits;
use self::line::LineFront;
use self::memory::BufferMemory;
use self::resp::RespFront;
use self::tls::Tls;
use self::turns::Turns;
use self::workers::Workers;
pub use self::workers::{BLOCKING_KEEP_ALIVE, MAX_BLOCKING_THREADS, default_threads};
use crate::limiter::Limiter;

/// Connections open at once, all fronts together.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
/// Bytes in the body of an HTTP request, and in a gRPC message.
pub const DEFAULT_MAX_BODY: usize = 64 * 1024;
/// How long a request may take to arrive.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may take less than [`progress::LEAST`] bytes of what was answered.
pub const DEFAULT_WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Output of one connection that is gathered before it is written (bytes).
pub const DEFAULT_MAX_OUTPUT: usize = 256 * 1024;
/// What all connections together may hold beyond each one's own small buffers (bytes).
pub const DEFAULT_MAX_BUFFER_MEMORY: usize = 128 * 1024 * 1024;
/// How long a client may take to give the password.
pub const DEFAULT_AUTH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a TLS handshake may take.
pub const DEFAULT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections are read on after the server stopped accepting, so that what was on its way is answered.
pub const DEFAULT_DRAIN_GRACE: Duration = Duration::from_millis(250);
/// How long the end may take from then on: connections still busy are cut.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How the server ends.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    /// How long all goes on, but for /readyz, so that load balancers notice.
    pub delay: Duration,
    /// How long connections are read on after the server stopped accepting.
    pub grace: Duration,
    /// How long answering what came in may take from then on.
    pub timeout: Duration,
}

/// How the server is run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub limits: Limits,
    pub drain: Drain,
    pub access: Access,
    pub tls: Secured,
    pub api: ApiSettings,
    /// What gateways that ask over gRPC tell their clients.
    pub grpc: GrpcSettings,
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

/// Serves until `draining` is cancelled, and for the drain's delay; then answers what had been received, at most for a
/// bounded time.
///
/// # Errors
/// The system's, when it refuses a thread; a front's, when it cannot be set up.
pub async fn run(
    limiter: Arc<Limiter>,
    fronts: Fronts,
    settings: Settings,
    health: Arc<Health>,
    draining: CancellationToken,
) -> io::Result<()> {
    let Settings { limits, drain, access, tls, api, grpc, threads, metrics_path } = settings;
    let metrics = Arc::clone(limiter.metrics());
    let memory = BufferMemory::new(limits.max_buffer_memory, Arc::clone(&metrics));
    let stopping = CancellationToken::new();
    let acceptor = Acceptor {
        workers: Workers::start(threads)?,
        admission: Admission::new(limits.max_connections, limits.max_connections_per_address),
        memory: Arc::clone(&memory),
        metrics: Arc::clone(&metrics),
        connections: TaskTracker::new(),
        partings: Arc::new(Semaphore::new(accept::MAX_PARTINGS)),
        limits,
        stopping: stopping.clone(),
        closing: CancellationToken::new(),
    };
    let turns = Turns::new(turns::MAX_AT_ONCE);
    let resp = RespFront::new(
        Arc::clone(&limiter),
        limits,
        access.resp.clone(),
        fronts.resp.as_ref(),
        Arc::clone(&memory),
        turns.clone(),
    );
    let line = LineFront::new(Arc::clone(&limiter), limits, access.line.clone(), Arc::clone(&memory));
    let bounds = BodyBounds { timeouts: limits.timeouts, memory, expansion: 1 };
    let http = HttpFront::new(
        Arc::clone(&limiter),
        limits,
        bounds.clone(),
        &access,
        api,
        &metrics_path,
        turns,
        Arc::clone(&health),
    );
    let grpc = GrpcFront::new(Arc::clone(&limiter), limits, grpc, bounds, access.grpc, health)?;
    let stop = async {
        draining.cancelled().await;
        tokio::time::sleep(drain.delay).await;
        stopping.cancel();
    };
    tokio::join!(
        stop,
        acceptor.run(fronts.line, tls.line, line),
        acceptor.run(fronts.resp, tls.resp, resp),
        acceptor.run(fronts.http, tls.http, http),
        acceptor.run(fronts.grpc, tls.grpc, grpc),
    );

    tokio::time::sleep(drain.grace).await;
    acceptor.closing.cancel();
    acceptor.connections.close();
    if tokio::time::timeout(drain.timeout, acceptor.connections.wait()).await.is_err() {
        tracing::warn!(connections = acceptor.connections.len(), "closing connections that are still busy");
    }
    Ok(())
}

/// Binds a listening socket. With `reuse_port`, other processes of the same user that do the same may listen there, too,
/// and the kernel deals out the connections.
///
/// # Errors
/// The system's.
pub async fn bind(address: &str, reuse_port: bool) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in tokio::net::lookup_host(address).await? {
        match listen(address, reuse_port) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listen(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // So that a restart need not wait for the old connections' ends.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(reuse_port)?;
    socket.bind(address)?;
    socket.listen(accept::BACKLOG)
}
