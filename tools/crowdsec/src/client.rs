//! The HTTP client, for CrowdSec and for divvy. Each request has a connection of its own, because there is one every few
//! seconds.
//!
//! The server at the other end is not trusted to be quick, honest or there: every wait and every length has a bound.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HOST, HeaderValue, USER_AGENT};
use hyper::http::uri::{InvalidUri, Uri};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, crypto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{error::Elapsed, timeout};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

/// CrowdSec lists its bouncers by this name and version.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("divvy/", env!("CARGO_PKG_VERSION")));

/// Maximum time for a connection, including its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for a piece of the answer. A database may take a while until the first one.
const PIECE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum length of the answer's head, and of a piece (bytes).
pub const MAX_BUFFER: usize = 64 << 10;

/// A server, and how to connect to it.
#[derive(Debug, Clone)]
pub struct Client {
    address: String,
    host: HeaderValue,
    /// The path of the URL, without a slash at its end.
    path: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// An address that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidUrl {
    /// The text is no URL.
    #[error("it is not a URL ({0}); write one such as http://127.0.0.1:8080")]
    NoUrl(#[from] url::ParseError),
    /// It is not a URL of HTTP, or has parts that the base of an API does not have.
    #[error("write a URL such as http://127.0.0.1:8080, without a user, a query or a fragment")]
    OtherUrl,
}

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("cannot connect to {0}: {1}")]
    Connect(String, io::Error),
    /// The server is too slow.
    #[error("no {wanted} within {} s", time.as_secs())]
    Slow {
        /// The part of the answer that did not arrive.
        wanted: &'static str,
        /// The time it may take.
        time: Duration,
    },
    /// The protocol was broken, or the connection ended.
    #[error("{}", with_cause(.0))]
    Http(#[from] hyper::Error),
    /// The path or the query cannot be sent.
    #[error("the path cannot be sent: {0}")]
    Path(#[from] InvalidUri),
}

impl ClientError {
    /// Returns whether the request may have reached the server.
    pub fn may_have_been_answered(&self) -> bool {
        !matches!(self, Self::Connect(..) | Self::Slow { wanted: CONNECTION, .. })
    }
}

const CONNECTION: &str = "connection";

/// Returns the message of an error of the library, which leaves the cause to its source.
fn with_cause(error: &hyper::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

impl Client {
    /// Reads the base URL of an API. An `https` URL needs a configuration of TLS.
    ///
    /// # Errors
    /// [`InvalidUrl`]
    pub fn new(url: &Url, tls: Option<Arc<ClientConfig>>) -> Result<Self, InvalidUrl> {
        let is_plain = url.username().is_empty() && url.password().is_none();
        let (Some(host), true, None, None) = (url.host(), is_plain, url.query(), url.fragment()) else {
            return Err(InvalidUrl::OtherUrl);
        };
        let (Some(port), Ok(name)) = (url.port_or_known_default(), server_name(&host)) else {
            return Err(InvalidUrl::OtherUrl);
        };
        let tls = match (url.scheme(), tls) {
            ("http", None) => None,
            ("https", Some(config)) => Some((config, name)),
            _ => return Err(InvalidUrl::OtherUrl),
        };
        let address = format!("{host}:{port}");
        let host = HeaderValue::from_str(&address).map_err(|_| InvalidUrl::OtherUrl)?;
        Ok(Self { address, host, path: url.path().trim_end_matches('/').to_owned(), tls })
    }

    /// Returns the address, for the log.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Creates a request for a path below the URL's own.
    ///
    /// # Errors
    /// The path cannot be sent.
    pub fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, ClientError> {
        let target: Uri = format!("{}{path}", self.path).parse()?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = target;
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(USER_AGENT, AGENT);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        Ok(request)
    }

    /// Sends the request, and calls `read` with the response.
    ///
    /// # Errors
    /// [`ClientError`], or that of `read`.
    pub async fn send<T, E: From<ClientError>>(
        &self,
        request: Request<Full<Bytes>>,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, E>,
    ) -> Result<T, E> {
        let sent = timeout(ANSWER_TIMEOUT, self.send_in_any_time(request, read)).await;
        sent.map_err(|_: Elapsed| ClientError::Slow { wanted: "complete answer", time: ANSWER_TIMEOUT })?
    }

    async fn send_in_any_time<T, E: From<ClientError>>(
        &self,
        request: Request<Full<Bytes>>,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, E>,
    ) -> Result<T, E> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let connected =
            connected.map_err(|_: Elapsed| ClientError::Slow { wanted: CONNECTION, time: CONNECT_TIMEOUT })?;
        let stream = connected.map_err(|error| ClientError::Connect(self.address.clone(), error))?;
        let mut builder = http1::Builder::new();
        let handshake = builder.max_buf_size(MAX_BUFFER).handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(ClientError::Http)?;
        let exchange = async {
            let response = in_time(sender.send_request(request)).await?.map_err(ClientError::Http)?;
            read(response).await
        };
        let mut exchange = pin!(exchange);
        tokio::select! {
            result = &mut exchange => result,
            // The last pieces may have arrived, and are not read yet.
            _ = connection => exchange.await,
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(&self.address).await?;
        let Some((config, name)) = &self.tls else { return Ok(Box::new(stream)) };
        let stream = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await?;
        Ok(Box::new(stream))
    }
}

/// A connection that can be read and written.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

fn server_name(host: &Host<&str>) -> Result<ServerName<'static>, rustls::pki_types::InvalidDnsNameError> {
    match host {
        Host::Domain(name) => ServerName::try_from((*name).to_owned()),
        Host::Ipv4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
    }
}

/// Returns the next piece of a body; `None` at its end.
///
/// # Errors
/// The connection ends, or the sender is too slow.
pub async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, ClientError> {
    while let Some(frame) = in_time(body.frame()).await? {
        // Other frames are trailers.
        if let Ok(piece) = frame?.into_data() {
            return Ok(Some(piece));
        }
    }
    Ok(None)
}

/// Returns a whole body, or `None` if it is longer than `max` bytes.
///
/// # Errors
/// The connection ends, or the sender is too slow.
pub async fn whole_body(mut body: Incoming, max: usize) -> Result<Option<Bytes>, ClientError> {
    let mut all = BytesMut::new();
    while let Some(piece) = next_piece(&mut body).await? {
        if piece.len() > max.saturating_sub(all.len()) {
            return Ok(None);
        }
        all.extend_from_slice(&piece);
    }
    Ok(Some(all.freeze()))
}

/// Waits for a piece of the answer.
async fn in_time<T>(piece: impl Future<Output = T>) -> Result<T, ClientError> {
    timeout(PIECE_TIMEOUT, piece)
        .await
        .map_err(|_: Elapsed| ClientError::Slow { wanted: "answer", time: PIECE_TIMEOUT })
}

/// Returns the configuration of TLS for a URL, if it begins with `https`: with the authorities in the file that `flag` names, or
/// those that this machine trusts.
///
/// # Errors
/// The file cannot be used, has no effect, or there are no authorities.
pub fn tls_for(url: &Url, file: Option<&Path>, flag: &str) -> anyhow::Result<Option<Arc<ClientConfig>>> {
    if url.scheme() != "https" {
        ensure!(file.is_none(), "{flag} has no effect: the URL does not begin with https");
        return Ok(None);
    }
    let mut authorities = RootCertStore::empty();
    match file {
        Some(path) => {
            let named = || format!("{flag}: {}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).with_context(named)? {
                authorities.add(certificate.with_context(named)?).with_context(named)?;
            }
        }
        None => {
            // Many systems have a few unusable certificates. The others suffice.
            authorities.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    ensure!(!authorities.is_empty(), "this machine trusts no certificate authority: name one with {flag}");
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let config = builder.with_safe_default_protocol_versions()?.with_root_certificates(authorities);
    Ok(Some(Arc::new(config.with_no_client_auth())))
}
