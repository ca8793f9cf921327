//! A connection's byte stream, whatever carries it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::tls;
use crate::logging::Sometimes;

/// What every front reads from and writes to.
pub enum Stream {
    Plain(Plain),
    /// Boxed: it is large, and most connections are plain.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection without TLS. A client that begins a TLS handshake is told, and then seems to have ended the connection:
/// no front takes its bytes for requests.
pub struct Plain {
    stream: TcpStream,
    /// Until the first bytes have come.
    greeting: Option<Greeting>,
    /// They were TLS's.
    is_refused: bool,
}

/// Whom to tell what, when the first bytes are TLS's.
#[derive(Debug, Clone, Copy)]
pub struct Greeting {
    pub front: &'static str,
    pub peer: SocketAddr,
    /// Nothing where it is empty.
    pub answer: &'static [u8],
}

impl Plain {
    pub fn new(stream: TcpStream, greeting: Greeting) -> Self {
        Self { stream, greeting: Some(greeting), is_refused: false }
    }

    /// Reads away what the client goes on to send: what is unread when the connection is closed would make the kernel
    /// reset it, and with it the answer.
    fn discard(&self) {
        let mut unread = [0; 4096];
        // More than a kernel holds is a client that never ends.
        for _ in 0..1024 {
            if !matches!(self.stream.try_read(&mut unread), Ok(1..)) {
                return;
            }
        }
    }
}

impl Greeting {
    fn refuse(self, stream: &TcpStream) {
        static TLS_ON_A_PLAIN_PORT: Sometimes = Sometimes::new();
        // Best effort: a new socket's buffer has room for a line.
        let _ = stream.try_write(self.answer);
        TLS_ON_A_PLAIN_PORT.say(|more| {
            let Self { front, peer, .. } = self;
            tracing::warn!(front, %peer, more, "TLS on a plain port: this front does not speak TLS; see --tls-cert and --tls-fronts");
        });
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
            && let Some(greeting) = this.greeting.take()
            && buffer.filled().get(before..).is_some_and(tls::is_handshake)
        {
            greeting.refuse(&this.stream);
            this.is_refused = true;
            buffer.set_filled(before);
        }
        read
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(&mut plain.stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
