//! Sockets: listening, accepting, caps and timeouts, and the end of it all.
//!
//! Every front is an accept loop that gives each connection to [`connection::serve`] with its protocol's session.
//! Nothing here judges a request or knows a rule.

pub mod connection;
mod line;
mod resp;
mod workers;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::{Session, Timeouts};
use self::line::LineSession;
use self::resp::{RespSession, Shared};
use self::workers::Workers;
pub use self::workers::default_threads;
use crate::limiter::Limiter;
use crate::protocol::resp::Limits as RespLimits;

/// Connections open at once, all fronts together.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
/// How long a client may take nothing of what was answered.
pub const DEFAULT_WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long connections are read on after the server stopped accepting, so that what was on its way is answered.
const DRAIN_GRACE: Duration = Duration::from_millis(250);
/// How long the end may take from then on: connections still busy are cut.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// A connection silent for so long is probed, lest clients that vanished without a FIN use up the slots.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Pause after a failed accept (too many open files, mostly), lest the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bounds on what clients may do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub max_connections: usize,
    pub max_line: usize,
    pub max_pairs: usize,
    pub resp: RespLimits,
    pub timeouts: Timeouts,
}

/// The fronts that are served, each on its listening socket.
#[derive(Debug, Default)]
pub struct Fronts {
    pub line: Option<TcpListener>,
    pub resp: Option<TcpListener>,
}

/// Serves on `threads` threads until `draining` is cancelled, then answers what had been received, at most for a
/// bounded time.
///
/// # Errors
/// The system's, when it refuses a thread.
pub async fn run(
    limiter: Arc<Limiter>,
    fronts: Fronts,
    limits: Limits,
    threads: usize,
    draining: CancellationToken,
) -> io::Result<()> {
    let server = Server {
        workers: Workers::start(threads)?,
        slots: Arc::new(Semaphore::new(limits.max_connections)),
        connections: TaskTracker::new(),
        limits,
        draining,
        closing: CancellationToken::new(),
    };
    let line =
        server.accept_loop(fronts.line, |_| LineSession::new(Arc::clone(&limiter), limits.max_line, limits.max_pairs));
    let shared = Arc::new(Shared::new(Arc::clone(&limiter), limits, fronts.resp.as_ref()));
    let resp = server.accept_loop(fronts.resp, |peer| RespSession::new(Arc::clone(&shared), peer));
    tokio::join!(line, resp);

    tokio::time::sleep(DRAIN_GRACE).await;
    server.closing.cancel();
    server.connections.close();
    if tokio::time::timeout(DRAIN_LIMIT, server.connections.wait()).await.is_err() {
        tracing::warn!(connections = server.connections.len(), "closing connections that are still busy");
    }
    Ok(())
}

struct Server {
    workers: Workers,
    slots: Arc<Semaphore>,
    connections: TaskTracker,
    limits: Limits,
    /// No more connections are accepted.
    draining: CancellationToken,
    /// Connections end once they have answered.
    closing: CancellationToken,
}

impl Server {
    async fn accept_loop<S: Session + 'static>(
        &self,
        listener: Option<TcpListener>,
        session: impl Fn(SocketAddr) -> S,
    ) {
        let Some(listener) = listener else { return };
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer, session(peer)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn start<S: Session + 'static>(&self, stream: TcpStream, peer: SocketAddr, session: S) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            tracing::warn!(%peer, limit = self.limits.max_connections, "too many connections: refused one");
            // Best effort: a new socket's buffer has room for a line, and nobody waits for it.
            let _ = stream.try_write(S::TOO_MANY);
            return;
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, %peer, "cannot set a connection's options");
        }
        let (timeouts, closing) = (self.limits.timeouts, self.closing.clone());
        // The socket moves from this runtime's poller to the worker's.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, %peer, "cannot hand a connection over"),
        };
        let serve = async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => connection::serve(stream, session, timeouts, closing).await,
                Err(error) => tracing::warn!(%error, %peer, "cannot take a connection over"),
            }
            drop(slot);
        };
        self.connections.spawn_on(serve, self.workers.next());
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Replies are written whole; waiting for more to send would only delay them.
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
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
