//! Binds listening sockets and accepts connections: one loop per socket, bounds on open connections, in total and per address, and
//! the worker threads that serve them.
//!
//! Each [`Front`] interprets the bytes of its connections. A connection stays on its thread, which has a single-threaded runtime,
//! so waking it costs no other thread anything. With tokio's work-stealing scheduler, hits without pipelining cost half as much
//! again.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use std::{io, thread};

use futures_util::future::join_all;
use futures_util::poll;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::connection::{self, ConnectionContext};
use super::places::{NoPlace, Places};
use super::protocol::Protocol;
use super::stream::{Plain, Stream, certificate_name};
use super::tls::Tls;
use crate::health::keep_running;
use crate::server_context::ServerContext;
use divvy_limiter::CallerTask;
use divvy_telemetry::logging::LogThrottle;
use divvy_telemetry::metrics::{Bound, FrontConnections, Task};

/// Silence after which a connection is probed. Otherwise, clients that vanished without a FIN would keep occupying
/// connections.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Longest write timeout that the kernel accepts. Longer ones would be an error.
const MAX_WRITE_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);
/// Pause after a failed accept, which is usually caused by too many open files. Without it, the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of refused connections that are closed in an orderly way at a time. Others are closed at once.
pub const MAX_PARTINGS: usize = 64;

// Clients can cause this message at will, so it is throttled.
static CANNOT_ACCEPT: LogThrottle = LogThrottle::new();
static CANNOT_SERVE: LogThrottle = LogThrottle::new();
static TOO_MANY: LogThrottle = LogThrottle::new();

/// A protocol that is served on a listening socket.
pub trait Front: Send + Sync + 'static {
    /// The protocol.
    const PROTOCOL: Protocol;

    /// Serves one connection until it ends. When the server is closing, answers the requests that have arrived, and
    /// ends.
    fn serve(self: &Arc<Self>, stream: Stream, context: ConnectionContext)
    -> impl Future<Output = ()> + Send + 'static;
}

/// A front, and what its connections have in common.
struct ServedFront<F> {
    tls: Option<Arc<Tls>>,
    front: Arc<F>,
    connections: FrontConnections,
}

/// The state that all accept loops share.
pub struct Acceptor {
    pub workers: Workers,
    pub places: Arc<Places<IpAddr>>,
    pub server: ServerContext,
    pub connections: TaskTracker,
    /// A permit for each refused connection that is being closed.
    pub partings: Arc<Semaphore>,
    /// Cancelled when no more connections are accepted.
    pub stopping: CancellationToken,
    /// Cancelled when connections must end as soon as they have answered.
    pub closing: CancellationToken,
}

impl Acceptor {
    /// Accepts connections on all sockets of a front until [`Acceptor::stopping`] is cancelled. A problem with one
    /// connection never ends a loop.
    pub async fn run<F: Front>(&self, listeners: Vec<TcpListener>, tls: Option<Arc<Tls>>, front: F) {
        let connections = self.server.limiter.metrics().connections.front(F::PROTOCOL.name());
        let served = ServedFront { tls, front: Arc::new(front), connections };
        let (served, metrics) = (&served, self.server.limiter.metrics());
        let accept = |listener| async move {
            keep_running(Task::Accept, metrics, || self.accept(listener, served)).await;
        };
        join_all(listeners.iter().map(accept)).await;
    }

    async fn accept<F: Front>(&self, listener: &TcpListener, served: &ServedFront<F>) {
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return self.accept_waiting(listener, served).await,
                accepted = listener.accept() => match accepted {
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
    async fn accept_waiting<F: Front>(&self, listener: &TcpListener, served: &ServedFront<F>) {
        for _ in 0..BACKLOG {
            match poll!(pin!(unconstrained(listener.accept()))) {
                Poll::Ready(Ok((stream, peer))) => self.start(stream, peer, served),
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    fn start<F: Front>(&self, stream: TcpStream, peer: SocketAddr, served: &ServedFront<F>) {
        let ServedFront { tls, front, connections, .. } = served;
        let place = match self.places.take(Some(network(peer.ip()))) {
            Ok(place) => place,
            Err(reached) => {
                connections.refused.inc();
                return self.refuse(stream, peer, reached, if tls.is_none() { F::PROTOCOL.too_many() } else { b"" });
            }
        };
        let worker = self.workers.next();
        let stream = match prepare(stream, worker, self.server.limits.timeouts.write) {
            Ok(stream) => stream,
            Err(error) => {
                CANNOT_SERVE.say(|more| tracing::warn!(%error, %peer, more, "cannot serve a connection"));
                return;
            }
        };
        let mut context = ConnectionContext {
            peer,
            local: stream.local_addr().ok(),
            certificate: None,
            closing: self.closing.clone(),
            memory: self.server.memory.share(),
            metrics: Arc::clone(self.server.limiter.metrics()),
        };
        let open = connections.opened();
        let Some(tls) = tls else {
            let serving = front.serve(Stream::Left(Plain::new(stream, F::PROTOCOL, peer)), context);
            let serve = async move {
                serving.await;
                drop((place, open));
            };
            self.connections.spawn_on(CallerTask::new(serve), worker);
            return;
        };
        let (tls, front, limit) = (Arc::clone(tls), Arc::clone(front), self.server.limits.timeouts.handshake);
        let serve = async move {
            let secured = tokio::select! {
                biased;
                () = context.closing.cancelled() => None,
                secured = tls.accept(stream, F::PROTOCOL, limit, &context) => secured,
            };
            if let Some(stream) = secured {
                context.certificate = certificate_name(&stream);
                front.serve(Stream::Right(Box::new(stream)), context).await;
            }
            drop((place, open));
        };
        self.connections.spawn_on(CallerTask::new(serve), worker);
    }

    fn refuse(&self, stream: TcpStream, peer: SocketAddr, reached: NoPlace, message: &[u8]) {
        let (bound, limit, from) = match reached {
            NoPlace::OfKey => {
                let limit = self.server.limits.max_connections_per_address.unwrap_or(0);
                (Bound::ConnectionsPerAddress, limit, " from one address")
            }
            NoPlace::InTotal => (Bound::Connections, self.server.limits.max_connections, ""),
        };
        self.server.limiter.metrics().limits.reached.count(bound);
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

/// Sets the options of a connection, and moves it to its thread. There it registers with the poller when it is first polled.
fn prepare(stream: TcpStream, worker: &Handle, write_timeout: Duration) -> io::Result<TcpStream> {
    // Replies are written whole, so waiting for more output would only delay them.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    // The kernel ends the connection of a client that is gone, or that reads none of its replies. `count_timeout` counts it.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(write_timeout.min(MAX_WRITE_TIMEOUT)))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    let stream = stream.into_std()?;
    let _inside = worker.enter();
    TcpStream::from_std(stream)
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

/// Bits of an IPv6 address that identify a network. A customer can choose the other bits freely.
const NETWORK_BITS: u32 = 64;

/// Returns the address, or the network that counts as one address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << (Ipv6Addr::BITS - NETWORK_BITS)))
        }
        address => address,
    }
}

/// Maximum number of threads of a runtime for blocking work: commits, logins, name resolution, and what runs in the
/// [`WorkSlots`](super::work::WorkSlots) of requests, of changes, of scrapes and of the live page. These are more slots than
/// threads, so work may wait for a thread.
pub const MAX_BLOCKING_THREADS: usize = 8;
/// How long an idle blocking thread is kept. Each keeps some memory for itself.
pub const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Number of tasks that a runtime runs before it takes one that another thread has passed to it, such as a new
/// connection, or a waiter of a commit that another thread made. Tokio's default is 31: a new connection would wait for
/// 31 busy ones.
const TASKS_BEFORE_PASSED_ONES: u32 = 4;

/// The threads. They stop when this is dropped.
pub struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    _running: DropGuard,
}

impl Workers {
    /// Starts this number of threads, but at least one.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(threads: usize) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let handles = (0..threads.max(1)).map(|_| start_one(ended.clone())).collect::<io::Result<_>>()?;
        Ok(Self { handles, next: AtomicUsize::new(0), _running: ended.drop_guard() })
    }

    /// Returns the next thread, in rotation.
    #[expect(
        clippy::indexing_slicing,
        reason = "a remainder is below the number of threads, and there is at least one"
    )]
    pub fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Relaxed) % self.handles.len();
        &self.handles[turn]
    }
}

fn start_one(ended: CancellationToken) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP_ALIVE)
        .global_queue_interval(TASKS_BEFORE_PASSED_ONES)
        .build()?;
    let handle = runtime.handle().clone();
    handle.spawn(return_freed_memory());
    thread::Builder::new().name("divvy-worker".into()).spawn(move || runtime.block_on(ended.cancelled()))?;
    Ok(handle)
}

/// Returns half of the number of processors, but at least one. The other half is for the kernel and RocksDB's background work.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, |processors| processors.get() / 2).max(1)
}

/// Interval at which a thread returns memory that it does not use.
const RETURN_MEMORY_EVERY: Duration = Duration::from_secs(5);

/// Returns freed memory of the thread that polls this, at intervals. Never ends.
///
/// The allocator keeps memory that a thread has freed for the same thread. It only checks whether the thread has been idle when
/// the thread allocates again. After a burst, an idle server would keep all of that memory.
async fn return_freed_memory() {
    loop {
        tokio::time::sleep(RETURN_MEMORY_EVERY).await;
        divvy_sys::return_freed_memory();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_of_one_client_count_as_one() {
        for (one, other) in [("192.0.2.1", "::ffff:192.0.2.1"), ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2")] {
            assert_eq!(network(ip(one)), network(ip(other)));
        }
        assert_ne!(network(ip("2001:db8:0:1::1")), network(ip("2001:db8:0:2::1")));
    }
}
