//! TLS: the certificate that the fronts show, the clients' that they ask for, and handshakes.
//!
//! TLS itself is rustls's. New connections get what was loaded last ([`reload`]); a connection keeps what it began with.

mod files;
pub mod reload;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntCounter;
use rustls::{InvalidMessage, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::files::{Files, TlsError};
use super::connection;
use crate::logging::{Escaped, Sometimes};

/// The protocols that a client may choose from in its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// The port says which protocol it is.
    None,
    /// HTTP/2 or HTTP/1.1
    Http,
}

/// How a handshake ended that did not come off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoHandshake {
    Failed,
    TooSlow,
}

/// What handshakes go by, until something newer is loaded.
#[derive(Debug)]
pub struct Tls {
    current: ArcSwap<Configs>,
    failed: IntCounter,
    asks_for_certificates: bool,
}

/// The same certificate for either choice of protocols.
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
    /// Whether only clients with a certificate come in.
    pub fn asks_for_certificates(&self) -> bool {
        self.asks_for_certificates
    }

    /// Shakes hands.
    ///
    /// # Errors
    /// It did not come off, which the client has been told as far as it could be.
    pub async fn accept(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        alpn: Alpn,
        limit: Duration,
    ) -> Result<TlsStream<TcpStream>, NoHandshake> {
        let configs = self.current.load_full();
        let config = match alpn {
            Alpn::None => &configs.plain,
            Alpn::Http => &configs.http,
        };
        let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream).into_fallible();
        match timeout(limit, handshake).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err((error, stream))) => {
                self.count_failure(peer, &reason(&error));
                // The alert must not get lost in a reset.
                connection::close(stream).await;
                Err(NoHandshake::Failed)
            }
            Err(_) => {
                self.count_failure(peer, "it took too long");
                Err(NoHandshake::TooSlow)
            }
        }
    }

    fn count_failure(&self, peer: SocketAddr, reason: &str) {
        static FAILED: Sometimes = Sometimes::new();
        self.failed.inc();
        FAILED.say(|more| {
            tracing::warn!(%peer, reason = %Escaped::error(reason), more, "a TLS handshake failed");
        });
    }
}

fn reason(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "the client does not speak TLS".to_owned()
        }
        _ => error.to_string(),
    }
}
