//! The endpoint of connections: a server, or the master that sentinels name, and the byte stream to it, over TCP, TLS or a unix
//! socket, after the greetings.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates, TlsMode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::options::{InvalidRedisTarget, RedisSentinel};

/// Maximum time to connect to one server, including its greetings.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A server to connect to.
pub struct Endpoint {
    info: ConnectionInfo,
    certificates: Option<TlsCertificates>,
    /// The sentinels that name the master, if there are any. They are asked at each connect. So after a failover, a new
    /// connection goes to the new master.
    sentinels: Option<tokio::sync::Mutex<SentinelClient>>,
}

impl Endpoint {
    pub fn server(info: ConnectionInfo, certificates: Option<TlsCertificates>) -> Self {
        Self { info, certificates, sentinels: None }
    }

    /// Returns the master that these sentinels name, with this server's user, password, database and TLS.
    pub fn behind(self, infos: &[ConnectionInfo], sentinel: &RedisSentinel) -> Result<Self, InvalidRedisTarget> {
        let addresses = infos.iter().map(|info| info.addr().clone());
        let builder = SentinelClientBuilder::new(addresses, &sentinel.master, SentinelServerType::Master);
        let mut builder = builder.map_err(InvalidRedisTarget::Sentinel)?;
        let master = self.info.redis_settings();
        builder = builder.set_client_to_redis_db(master.db());
        if let Some(user) = master.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = master.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(auth) = &sentinel.auth {
            let (user, password) =
                auth.split_once(':').map_or((None, auth.as_str()), |(user, rest)| (Some(user), rest));
            builder = builder.set_client_to_sentinel_password(password);
            if let Some(user) = user {
                builder = builder.set_client_to_sentinel_username(user);
            }
        }
        if is_tls(&self.info) {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(certificates) = &self.certificates {
                builder = builder.set_client_to_redis_certificates(certificates.clone());
            }
        }
        let client = builder.build().map_err(InvalidRedisTarget::Sentinel)?;
        Ok(Self { sentinels: Some(tokio::sync::Mutex::new(client)), ..self })
    }

    /// Returns another node of this server's cluster.
    pub fn node(&self, host: String, port: u16) -> Self {
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self::server(self.info.clone().set_addr(addr), self.certificates.clone())
    }

    pub async fn connect(&self) -> Result<Stream, RedisError> {
        let info = match &self.sentinels {
            None => self.info.clone(),
            Some(client) => client.lock().await.async_get_client().await?.get_connection_info().clone(),
        };
        let stream = timeout(CONNECT_TIMEOUT, connect(&info, self.certificates.as_ref())).await;
        stream.unwrap_or_else(|_| Err(timed_out()))
    }
}

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// The bytes of a connection.
pub type Stream = Pin<Box<dyn Duplex>>;

pub trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// Connects and exchanges the greetings: user and password, the database, the protocol's version.
pub async fn connect(info: &ConnectionInfo, certificates: Option<&TlsCertificates>) -> Result<Stream, RedisError> {
    let stream: Stream = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Box::pin(connect_tcp(host, *port).await?),
        ConnectionAddr::TcpTls { host, port, .. } => {
            let connector = TlsConnector::from(Arc::new(client_config(certificates)?));
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            Box::pin(connector.connect(name, connect_tcp(host, *port).await?).await?)
        }
        ConnectionAddr::Unix(path) => Box::pin(UnixStream::connect(path).await?),
        other => return Err(io::Error::new(io::ErrorKind::Unsupported, other.to_string()).into()),
    };
    // Lends the stream to the client library for the greetings.
    let shared = Arc::new(Mutex::new(stream));
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    drop(MultiplexedConnection::new_with_config(info.redis_settings(), Lent(Arc::clone(&shared)), config).await?);
    Arc::try_unwrap(shared).map(Mutex::into_inner).map_err(|_| closed())
}

async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // A write contains all commands that are ready, so waiting for more gains nothing.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A stream that is given back after use.
struct Lent(Arc<Mutex<Stream>>);

impl AsyncRead for Lent {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.lock().as_mut().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().as_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().as_mut().poll_shutdown(cx)
    }
}

/// Returns the error of a connection that this side has closed.
pub fn closed() -> RedisError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

/// Returns the error of a connection that took too long to make.
pub fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Returns the settings of a connection: the given authorities, or else the system's, and divvy's own certificate if it has one.
pub fn client_config(certificates: Option<&TlsCertificates>) -> Result<ClientConfig, RedisError> {
    let given = certificates.and_then(|certificates| certificates.root_cert.as_deref());
    let builder = ClientConfig::builder().with_root_certificates(authorities(given)?);
    let config = match certificates.and_then(|certificates| certificates.client_tls.as_ref()) {
        None => Ok(builder.with_no_client_auth()),
        Some(own) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&own.client_cert).collect();
            let key = PrivateKeyDer::from_pem_slice(&own.client_key).map_err(io::Error::other)?;
            builder.with_client_auth_cert(chain.map_err(io::Error::other)?, key)
        }
    };
    Ok(config.map_err(io::Error::other)?)
}

fn authorities(given: Option<&[u8]>) -> io::Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(given) = given else {
        let system = rustls_native_certs::load_native_certs();
        if let Some(error) = system.errors.into_iter().next() {
            return Err(io::Error::other(error));
        }
        store.add_parsable_certificates(system.certs);
        return Ok(store);
    };
    for certificate in CertificateDer::pem_slice_iter(given) {
        store.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(store)
}
