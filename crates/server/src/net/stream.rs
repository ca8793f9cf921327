//! A connection's byte stream, over plain TCP or TLS: its first bytes, the name in the client's certificate, and whether the
//! client is still there.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use super::protocol::Protocol;
use divvy_telemetry::logging::LogThrottle;
use divvy_telemetry::metrics::{Bound, Metrics};

/// Interval between checks whether a client that has sent something is still connected.
const ASKED_AGAIN: Duration = Duration::from_millis(100);

/// The byte stream of a connection: without TLS, or with it. The latter is boxed, because it is large, and most connections are plain.
pub type Stream = Either<Plain, Box<TlsStream<TcpStream>>>;

/// A connection without TLS. A client that begins a TLS handshake, or that speaks another port's protocol, gets an
/// error, and then appears to have closed the connection, so that no front takes its bytes for requests.
pub struct Plain {
    stream: TcpStream,
    protocol: Protocol,
    peer: SocketAddr,
    /// Whether the first bytes have arrived.
    has_begun: bool,
    /// Whether the first bytes showed such a client.
    is_refused: bool,
}

impl Plain {
    pub fn new(stream: TcpStream, protocol: Protocol, peer: SocketAddr) -> Self {
        Self { stream, protocol, peer, has_begun: false, is_refused: false }
    }

    /// Answers a client whose first bytes are no requests of this front. Returns whether it is one.
    fn refuse(&self, first: &[u8]) -> bool {
        static OF_TLS: LogThrottle = LogThrottle::new();
        static OF_OTHERS: LogThrottle = LogThrottle::new();
        let (front, peer) = (self.protocol.name(), self.peer);
        let (throttle, answer, mistake) = if first.starts_with(&[HANDSHAKE, TLS_VERSION]) {
            (&OF_TLS, self.protocol.no_tls(), "TLS on a plaintext port: see --tls-cert and --tls-fronts")
        } else if let Some(answer) = self.protocol.answer_to_others(first) {
            (&OF_OTHERS, answer, "a client speaks the protocol of another port")
        } else {
            return false;
        };
        // Best effort: a new socket's buffer has room for a line.
        let _ = self.stream.try_write(&answer);
        throttle.say(|more| tracing::warn!(front, %peer, more, "{mistake}: refused the connection"));
        true
    }

    /// Reads and drops the client's input. If the socket is closed with unread input, the kernel resets the connection,
    /// and the error is lost.
    fn discard(&self) {
        let mut unread = [0; 4096];
        // The loop is bounded, because a client may send more than a kernel buffers and never stop.
        for _ in 0..1024 {
            if !matches!(self.stream.try_read(&mut unread), Ok(1..)) {
                return;
            }
        }
    }
}

impl AsyncRead for Plain {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_refused {
            this.discard();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        if read.is_ready()
            && !std::mem::replace(&mut this.has_begun, true)
            && this.refuse(buffer.filled().get(before..).unwrap_or_default())
        {
            this.is_refused = true;
            buffer.set_filled(before);
        }
        read
    }
}

impl AsyncWrite for Plain {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Usually there is room, and the poller need not be asked.
        match self.stream.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Pin::new(&mut self.stream).poll_write(context, bytes)
            }
            done => Poll::Ready(done),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Is ready when a read may return something. While it is pending, there is nothing to read.
///
/// # Errors
/// The connection is broken.
pub fn poll_readable(stream: &Stream, context: &mut Context) -> Poll<io::Result<()>> {
    match stream {
        Stream::Left(plain) => plain.stream.poll_read_ready(context),
        // Some input may have been decrypted already.
        Stream::Right(_) => Poll::Ready(Ok(())),
    }
}

/// Ends when the client has closed the connection, or its sending side.
pub async fn left(stream: &Stream) {
    let socket = match stream {
        Stream::Left(plain) => &plain.stream,
        Stream::Right(stream) => stream.get_ref().0,
    };
    loop {
        match socket.ready(Interest::READABLE).await {
            // Unread input would be reported again immediately.
            Ok(ready) if !ready.is_read_closed() => tokio::time::sleep(ASKED_AGAIN).await,
            Ok(_) | Err(_) => return,
        }
    }
}

/// Type of the first record of a TLS connection (RFC 8446, 5.1).
pub const HANDSHAKE: u8 = 22;
/// First byte of the version in that record.
const TLS_VERSION: u8 = 3;

/// Returns the name in the client's certificate: the first DNS name or URI among the alternative names, or else the common name.
/// `None` if there is no certificate, or none of them, or the name is no plain text.
pub fn certificate_name(stream: &TlsStream<TcpStream>) -> Option<Arc<str>> {
    let (_, certificate) = parse_x509_certificate(stream.get_ref().1.peer_certificates()?.first()?).ok()?;
    // An error: the extension is there twice.
    let alternatives = certificate.subject_alternative_name().ok()?;
    let names = alternatives.iter().flat_map(|names| &names.value.general_names);
    let alternative = names.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some(*name),
        _ => None,
    });
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let name = alternative.chain(common).next()?;
    let is_plain = !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace());
    is_plain.then(|| name.into())
}

/// Counts the end of a connection by the kernel, because its client did not read its replies in time.
pub fn count_timeout(error: &io::Error, metrics: &Metrics) {
    if error.kind() == io::ErrorKind::TimedOut {
        metrics.limits.reached.count(Bound::WriteTimeout);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::tests::connect;

    #[tokio::test]
    async fn closed_connection_is_noticed_even_with_unread_input() {
        let (server, mut client) = connect(Protocol::Line).await;
        client.write_all(b"unread").await.unwrap();
        let mut closed = pin!(left(&server));
        assert!(poll!(closed.as_mut()).is_pending());
        drop(client);
        closed.await;
    }
}
