//! Binds listening sockets and accepts connections: one loop per front, admission, and the handover to worker threads.
//!
//! Each [`Front`] interprets the bytes of its connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::{Admission, ConnectionBound};
use super::connection::{self, ConnectionContext};
use super::memory::BufferMemory;
use super::stream::{AnswerToOthers, Greeting, Plain, Stream};
use super::tls::{Alpn, NoHandshake, Tls};
use super::workers::Workers;
use crate::Limits;
use crate::keep_running::keep_running;
use divvy_telemetry::logging::LogThrottle;
use divvy_telemetry::metrics::{Bound, FrontConnections, Metrics, Task};

/// Silence after which a connection is probed. Otherwise, clients that vanished without a FIN would keep occupying
/// connections.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Pause after a failed accept, which is usually caused by too many open files. Without it, the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of refused connections that are closed in an orderly way at a time. Others are closed at once.
pub const MAX_PARTINGS: usize = 64;

// Clients can cause this message at will, so it is throttled.
static CANNOT_ACCEPT: LogThrottle = LogThrottle::new();
static CANNOT_PREPARE: LogThrottle = LogThrottle::new();
static CANNOT_SERVE: LogThrottle = LogThrottle::new();
static TOO_MANY: LogThrottle = LogThrottle::new();

/// A protocol that is served on a listening socket.
pub trait Front: Send + Sync + 'static {
    /// Name of the front in metrics.
    const NAME: &'static str;
    /// Message for a client beyond the maximum number of connections. Empty if the protocol allows only answers.
    const TOO_MANY: &'static [u8];
    /// Message for a client that uses TLS if the front does not.
    const NO_TLS: &'static [u8];
    /// Message for a client that does not use TLS if the front does.
    const ONLY_TLS: &'static [u8];
    /// Answer to a connection without TLS whose first bytes belong to another front's protocol.
    const ANSWER_TO_OTHERS: AnswerToOthers;
    /// Protocols that clients may choose in a TLS handshake.
    const ALPN: Alpn = Alpn::None;

    /// Serves one connection until it ends. When the server is closing, answers the requests that have arrived, and
    /// ends.
    fn serve(
        &self,
        stream: Stream,
        peer: SocketAddr,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// A front, and its listening socket.
struct ServedFront<F> {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    front: Arc<F>,
    connections: FrontConnections,
}

/// The state that all accept loops share.
pub struct Acceptor {
    pub workers: Workers,
    pub admission: Arc<Admission>,
    pub memory: Arc<BufferMemory>,
    pub connections: TaskTracker,
    /// A permit for each refused connection that is being closed.
    pub partings: Arc<Semaphore>,
    pub limits: Limits,
    pub metrics: Arc<Metrics>,
    /// Cancelled when no more connections are accepted.
    pub stopping: CancellationToken,
    /// Cancelled when connections must end as soon as they have answered.
    pub closing: CancellationToken,
}

impl Acceptor {
    /// Accepts connections until [`Acceptor::stopping`] is cancelled. A problem with one connection never ends the
    /// loop.
    pub async fn run<F: Front>(&self, listener: Option<TcpListener>, tls: Option<Arc<Tls>>, front: F) {
        let Some(listener) = listener else { return };
        let connections = self.metrics.connections.front(F::NAME);
        let served = ServedFront { listener, tls, front: Arc::new(front), connections };
        keep_running(Task::Accept, &self.metrics, || self.accept(&served)).await;
    }

    async fn accept<F: Front>(&self, served: &ServedFront<F>) {
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return self.accept_waiting(served).await,
                accepted = served.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer, served),
                    Err(error) => {
                        CANNOT_ACCEPT.say(|more| tracing::warn!(%error, more, "cannot accept a connection"));
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Accepts the connections that are waiting. The kernel would reset them when the socket is closed, and their clients may
    /// have sent requests already.
    async fn accept_waiting<F: Front>(&self, served: &ServedFront<F>) {
        for _ in 0..BACKLOG {
            match poll!(pin!(unconstrained(served.listener.accept()))) {
                Poll::Ready(Ok((stream, peer))) => self.start(stream, peer, served),
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    fn start<F: Front>(&self, stream: TcpStream, peer: SocketAddr, served: &ServedFront<F>) {
        let ServedFront { tls, front, connections, .. } = served;
        let place = match self.admission.admit(peer.ip()) {
            Ok(place) => place,
            Err(full) => {
                connections.refused.inc();
                return self.refuse(stream, peer, full, if tls.is_none() { F::TOO_MANY } else { b"" });
            }
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
        let context = ConnectionContext {
            closing: self.closing.clone(),
            memory: self.memory.share(),
            metrics: Arc::clone(&self.metrics),
        };
        let open = connections.opened();
        let Some(tls) = tls else {
            let greeting = Greeting { front: F::NAME, peer, answer: F::NO_TLS };
            let plain = Plain::new(stream, greeting).answering_others(F::ANSWER_TO_OTHERS);
            let serving = front.serve(Stream::Plain(plain), peer, context);
            let serve = async move {
                serving.await;
                drop((place, open));
            };
            self.connections.spawn_on(serve, worker);
            return;
        };
        let (tls, front, limit) = (Arc::clone(tls), Arc::clone(front), self.limits.timeouts.handshake);
        let serve = async move {
            let secured = tokio::select! {
                biased;
                () = context.closing.cancelled() => Err(NoHandshake::Failed),
                secured = tls.accept(stream, Greeting { front: F::NAME, peer, answer: F::ONLY_TLS }, F::ALPN, limit) => secured,
            };
            match secured {
                Ok(stream) => front.serve(Stream::Tls(Box::new(stream)), peer, context).await,
                Err(NoHandshake::TooSlow) => context.metrics.limits.reached(Bound::HandshakeTimeout),
                Err(NoHandshake::Failed) => {}
            }
            drop((place, open));
        };
        self.connections.spawn_on(serve, worker);
    }

    fn refuse(&self, stream: TcpStream, peer: SocketAddr, full: ConnectionBound, message: &[u8]) {
        let (reached, limit, from) = match full {
            ConnectionBound::Total => (Bound::Connections, self.limits.max_connections, ""),
            ConnectionBound::Address => {
                let limit = self.limits.max_connections_per_address.unwrap_or(0);
                (Bound::ConnectionsPerAddress, limit, " from one address")
            }
        };
        self.metrics.limits.reached(reached);
        TOO_MANY.say(|more| tracing::warn!(%peer, limit, more, "too many connections{from}: refused a connection"));
        // Best effort: a new socket's buffer has room for a line, and nothing waits for it.
        let _ = stream.try_write(message);
        // The client's bytes must be read, or else a reset would overtake the message.
        if let Ok(parting) = Arc::clone(&self.partings).try_acquire_owned() {
            tokio::spawn(async move {
                connection::close(stream).await;
                drop(parting);
            });
        }
    }
}

fn cannot_serve(error: &io::Error, peer: SocketAddr) {
    CANNOT_SERVE.say(|more| tracing::warn!(%error, %peer, more, "cannot pass a connection to its thread"));
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Replies are written whole, so waiting for more output would only delay them.
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}

/// Maximum number of connections that wait to be accepted. The kernel's own bound (net.core.somaxconn, usually 4096)
/// may be lower.
pub const BACKLOG: u32 = 4096;

/// Binds a listening socket. With `reuse_port`, other processes of the same user may listen on the same port if they set
/// it too, and the kernel distributes the connections.
///
/// # Errors
/// The name cannot be resolved, or the system refuses the socket.
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
    // A restarted server can bind before the connections of the old one have ended.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(reuse_port)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
