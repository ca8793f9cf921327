//! TLS: the server's certificate, client certificates, and handshakes.
//!
//! The crate rustls implements TLS. New connections use the files that were loaded last ([`reload`]).

mod certificate_name;
mod files;
pub mod hello;
pub mod reload;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::certificate_name::certificate_name;
pub use self::files::{Files, TlsError};
use self::hello::HANDSHAKE;
use super::connection;
use super::stream::Greeting;
use crate::logging::{Escaped, LogThrottle};
use crate::metrics::Counter;

/// Protocols that a client may choose from in its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// No choice: the port determines the protocol.
    None,
    /// HTTP/2 or HTTP/1.1.
    Http,
}

/// Reason why a handshake did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoHandshake {
    /// The client sent plain text, or TLS failed.
    Failed,
    /// The handshake did not end in time.
    TooSlow,
}

/// The configuration of handshakes, until a newer one is loaded.
#[derive(Debug)]
pub struct Tls {
    current: ArcSwap<Configs>,
    failed: Counter,
    requires_certificates: bool,
}

/// Configurations with the same certificate, one for each choice of protocols.
#[derive(Debug)]
struct Configs {
    plain: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

impl Configs {
    fn new(config: ServerConfig) -> Self {
        let mut http = config.clone();
        http.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { plain: Arc::new(config), http: Arc::new(http) }
    }
}

impl Tls {
    /// Returns whether clients need a certificate.
    pub fn requires_certificates(&self) -> bool {
        self.requires_certificates
    }

    /// Performs the handshake.
    ///
    /// # Errors
    /// The handshake did not complete. The client got an alert if that was possible.
    #[expect(clippy::disallowed_methods, reason = "how long a handshake may take")]
    pub async fn accept(
        &self,
        stream: TcpStream,
        Greeting { front, peer, answer }: Greeting,
        alpn: Alpn,
        limit: Duration,
    ) -> Result<TlsStream<TcpStream>, NoHandshake> {
        let deadline = Instant::now() + limit;
        if speaks_plain_text(&stream, deadline).await {
            self.count_failure(front, peer, "plain text on a TLS port: the client does not speak TLS");
            // Best effort: a new socket's buffer has room for a line.
            let _ = stream.try_write(answer);
            connection::close(stream).await;
            return Err(NoHandshake::Failed);
        }
        let configs = self.current.load_full();
        let config = match alpn {
            Alpn::None => &configs.plain,
            Alpn::Http => &configs.http,
        };
        let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream).into_fallible();
        match timeout_at(deadline, handshake).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err((error, stream))) => {
                self.count_failure(front, peer, &error.to_string());
                // The alert must not be lost in a reset.
                connection::close(stream).await;
                Err(NoHandshake::Failed)
            }
            Err(_) => {
                self.count_failure(front, peer, "timed out");
                Err(NoHandshake::TooSlow)
            }
        }
    }

    fn count_failure(&self, front: &str, peer: SocketAddr, reason: &str) {
        static FAILED: LogThrottle = LogThrottle::new();
        self.failed.inc();
        FAILED.say(|more| {
            tracing::warn!(front, %peer, reason = %Escaped::error(reason), more, "TLS handshake failed");
        });
    }
}

/// Returns whether the client's first byte, which stays unread, begins something other than a handshake.
async fn speaks_plain_text(stream: &TcpStream, deadline: Instant) -> bool {
    let mut first = [0];
    // The handshake notices an end, an error and silence.
    matches!(timeout_at(deadline, stream.peek(&mut first)).await, Ok(Ok(1..))) && first != [HANDSHAKE]
}
