//! Accepting: each front's loop, who is let in, and the threads that connections go to.
//!
//! What a connection says is its [`Front`]'s business.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::{Admission, Full};
use super::connection::{self, Lease};
use super::memory::BufferMemory;
use super::occasionally::Occasionally;
use super::stream::Stream;
use super::workers::Workers;
use crate::metrics::{Limit, Metrics};

/// A connection silent for so long is probed, lest clients that vanished without a FIN use up the slots.
const KEEPALIVE: Duration = Duration::from_secs(300);
/// Pause after a failed accept (too many open files, mostly), lest the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that may wait to be accepted; the kernel's own bound (net.core.somaxconn, mostly 4096) may be lower.
pub const BACKLOG: u32 = 4096;
/// Refused connections that are ended in an orderly way at a time; further ones are cut.
pub const MAX_PARTINGS: usize = 64;

/// A protocol that is served on a listening socket.
pub trait Front: Send + Sync + 'static {
    /// What a client is told that comes when there are too many; empty where only answers may be sent.
    const TOO_MANY: &'static [u8];

    /// Serves one connection to its end. Once the lease is over it ends when it has answered what came in.
    fn serve(&self, stream: Stream, peer: SocketAddr, lease: Lease) -> impl Future<Output = ()> + Send + 'static;
}

/// What all accept loops share.
pub struct Acceptor {
    pub workers: Workers,
    pub admission: Arc<Admission>,
    pub memory: Arc<BufferMemory>,
    pub metrics: Arc<Metrics>,
    pub connections: TaskTracker,
    /// Each a refused connection that is being ended.
    pub partings: Arc<Semaphore>,
    pub complaints: Occasionally,
    /// No more connections are accepted.
    pub stopping: CancellationToken,
    /// Connections end once they have answered.
    pub closing: CancellationToken,
}

impl Acceptor {
    /// Accepts until [`Acceptor::stopping`] is cancelled.
    pub async fn run(&self, listener: Option<TcpListener>, front: impl Front) {
        let Some(listener) = listener else { return };
        loop {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return self.accept_waiting(&listener, &front).await,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer, &front),
                    Err(error) => {
                        self.complain(|| tracing::warn!(%error, "cannot accept a connection"));
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Accepts the connections that wait by now: the kernel would reset them when the socket is closed, and the client
    /// may have sent a request already.
    async fn accept_waiting(&self, listener: &TcpListener, front: &impl Front) {
        for _ in 0..BACKLOG {
            match poll!(pin!(unconstrained(listener.accept()))) {
                Poll::Ready(Ok((stream, peer))) => self.start(stream, peer, front),
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    fn start<F: Front>(&self, stream: TcpStream, peer: SocketAddr, front: &F) {
        let place = match self.admission.admit(peer.ip()) {
            Ok(place) => place,
            Err(full) => return self.refuse::<F>(stream, peer, full),
        };
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, %peer, "cannot set a connection's options");
        }
        // The socket moves from this runtime's poller to the worker's, and registers there when it is first polled.
        let stream = match stream.into_std() {
            Ok(stream) => stream,
            Err(error) => return tracing::warn!(%error, %peer, "cannot hand a connection over"),
        };
        let worker = self.workers.next();
        let stream = {
            let _inside = worker.enter();
            match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => return tracing::warn!(%error, %peer, "cannot take a connection over"),
            }
        };
        let lease =
            Lease { closing: self.closing.clone(), memory: self.memory.share(), metrics: Arc::clone(&self.metrics) };
        let serving = front.serve(Stream::Plain(stream), peer, lease);
        let serve = async move {
            serving.await;
            drop(place);
        };
        self.connections.spawn_on(serve, worker);
    }

    fn refuse<F: Front>(&self, stream: TcpStream, peer: SocketAddr, full: Full) {
        let (limit, from) = match full {
            Full::InAll => (Limit::Connections, ""),
            Full::Address => (Limit::ConnectionsPerAddress, " from one address"),
        };
        self.metrics.limits.reached(limit);
        self.complain(|| tracing::warn!(%peer, "too many connections{from}: refused one"));
        // Best effort: a new socket's buffer has room for a line, and nobody waits for it.
        let _ = stream.try_write(F::TOO_MANY);
        // What the client has sent is unread: without its being read, the reset would overtake the line.
        if let Ok(parting) = Arc::clone(&self.partings).try_acquire_owned() {
            tokio::spawn(async move {
                connection::close(Stream::Plain(stream)).await;
                drop(parting);
            });
        }
    }

    /// Writes to the log, unless it was written to a moment ago: clients must not be able to fill the disk.
    fn complain(&self, write: impl FnOnce()) {
        if let Some(kept_back) = self.complaints.due() {
            write();
            if kept_back > 0 {
                tracing::warn!(times = kept_back, "connections failed or were refused since this was last logged");
            }
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Replies are written whole; waiting for more to send would only delay them.
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))
}
