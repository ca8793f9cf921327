//! Accepting: each front's loop, the slots that all of them share, and the threads that connections go to.
//!
//! What a connection says is its [`Front`]'s business.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Limits;
use super::stream::Stream;
use super::tls::{Alpn, Tls};
use super::workers::Workers;
use crate::logging::Sometimes;
use crate::metrics::{FrontConnections, Metrics};

/// A connection silent for so long is probed, lest clients that vanished without a FIN use up the slots.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Pause after a failed accept (too many open files, mostly), lest the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

// What clients can cause at will.
static CANNOT_ACCEPT: Sometimes = Sometimes::new();
static CANNOT_PREPARE: Sometimes = Sometimes::new();
static CANNOT_SERVE: Sometimes = Sometimes::new();
static TOO_MANY: Sometimes = Sometimes::new();

/// A protocol that is served on a listening socket.
pub trait Front: Send + Sync + 'static {
    /// What metrics call it.
    const NAME: &'static str;
    /// What a client is told that comes when there are too many; empty where only answers may be sent.
    const TOO_MANY: &'static [u8];
    /// What clients may ask for in a TLS handshake.
    const ALPN: Alpn = Alpn::None;

    /// Serves one connection to its end. Once `closing` is cancelled it ends when it has answered what came in.
    fn serve(
        &self,
        stream: Stream,
        peer: SocketAddr,
        closing: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// What all accept loops share.
pub struct Acceptor {
    pub workers: Workers,
    pub slots: Arc<Semaphore>,
    pub connections: TaskTracker,
    pub limits: Limits,
    pub metrics: Arc<Metrics>,
    /// No more connections are accepted.
    pub draining: CancellationToken,
    /// Connections end once they have answered.
    pub closing: CancellationToken,
}

impl Acceptor {
    /// Accepts until [`Acceptor::draining`] is cancelled.
    pub async fn run<F: Front>(&self, listener: Option<TcpListener>, tls: Option<Arc<Tls>>, front: F) {
        let Some(listener) = listener else { return };
        let (front, connections) = (Arc::new(front), self.metrics.connections.front(F::NAME));
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer, tls.as_ref(), &front, &connections),
                    Err(error) => {
                        CANNOT_ACCEPT.say(|more| tracing::warn!(%error, more, "cannot accept a connection"));
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    fn start<F: Front>(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        tls: Option<&Arc<Tls>>,
        front: &Arc<F>,
        connections: &FrontConnections,
    ) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            connections.refused.inc();
            let limit = self.limits.max_connections;
            TOO_MANY.say(|more| tracing::warn!(%peer, limit, more, "too many connections: refused one"));
            if tls.is_none() {
                // Best effort: a new socket's buffer has room for a line, and nobody waits for it.
                let _ = stream.try_write(F::TOO_MANY);
            }
            return;
        };
        if let Err(error) = prepare(&stream) {
            CANNOT_PREPARE.say(|more| tracing::debug!(%error, %peer, more, "cannot set a connection's options"));
        }
        // The socket moves from this runtime's poller to the worker's, and registers there when it is first polled.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return cannot_serve(&error, peer),
        };
        let worker = self.workers.next();
        let stream = {
            let _inside = worker.enter();
            match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => return cannot_serve(&error, peer),
            }
        };
        let (closing, open) = (self.closing.clone(), connections.opened());
        let Some(tls) = tls else {
            let serving = front.serve(Stream::Plain(stream), peer, closing);
            let serve = async move {
                serving.await;
                drop((slot, open));
            };
            self.connections.spawn_on(serve, worker);
            return;
        };
        let (tls, front, limit) = (Arc::clone(tls), Arc::clone(front), self.limits.timeouts.handshake);
        let serve = async move {
            let secured = tokio::select! {
                biased;
                () = closing.cancelled() => None,
                secured = tls.accept(stream, peer, F::ALPN, limit) => secured,
            };
            if let Some(stream) = secured {
                front.serve(Stream::Tls(Box::new(stream)), peer, closing).await;
            }
            drop((slot, open));
        };
        self.connections.spawn_on(serve, worker);
    }
}

fn cannot_serve(error: &io::Error, peer: SocketAddr) {
    CANNOT_SERVE.say(|more| tracing::warn!(%error, %peer, more, "cannot hand a connection to its thread"));
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Replies are written whole; waiting for more to send would only delay them.
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}
