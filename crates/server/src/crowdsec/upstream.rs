//! Requests for decisions to a CrowdSec server. Each has a connection of its own, because there is one every few seconds.
//!
//! The server at the other end is not trusted to be quick, honest or there: every wait and every length has a bound.

use std::error::Error as _;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{self, HOST, USER_AGENT};
use axum::http::uri::InvalidUri;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{error::Elapsed, timeout};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use crate::protocol::crowdsec::{AnswerError, AnswerReader, DecisionList};
use divvy_core::units::Approximate;

/// Header with the key of a bouncer.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// CrowdSec lists its bouncers by this name and version.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("divvy/", env!("CARGO_PKG_VERSION")));

/// Maximum time for a connection, including its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for a piece of the answer. CrowdSec's database may take a while until the first one.
const PIECE_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum length of an answer (bytes): more than a million decisions.
const MAX_ANSWER: u64 = 256 << 20;
/// Maximum length of the answer's head, and of a piece (bytes).
const MAX_BUFFER: usize = 64 << 10;

/// A CrowdSec server whose decisions divvy follows.
#[derive(Debug, Clone)]
pub struct Upstream {
    address: String,
    host: HeaderValue,
    /// The target of a request for all decisions.
    all: Uri,
    /// The target of a request for the changes since the last one.
    changes: Uri,
    key: HeaderValue,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// An address or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidUpstream {
    /// The text is no URL.
    #[error("it is not a URL ({0}); write one such as http://127.0.0.1:8080")]
    NoUrl(#[from] url::ParseError),
    /// It is not a URL of HTTP, or has parts that a Local API does not have.
    #[error("write a URL such as http://127.0.0.1:8080, without a user, a query or a fragment")]
    OtherUrl,
    /// The path cannot be sent.
    #[error("its path cannot be sent: {0}")]
    Path(#[from] InvalidUri),
    /// The key is empty or has characters that cannot be sent.
    #[error("the key must be the only line of the file, in printable ASCII characters")]
    Key,
}

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
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
    /// The server refuses the key.
    #[error("it refuses the key (status {0}): `cscli bouncers add divvy` makes one")]
    Key(StatusCode),
    /// The answer has another status than 200.
    #[error("it answers with status {0}")]
    Status(StatusCode),
    /// The answer is not what CrowdSec sends.
    #[error("{0}")]
    Answer(#[from] AnswerError),
    /// The answer is too long.
    #[error("the answer is longer than {}", Approximate(MAX_ANSWER))]
    TooLong,
}

impl FetchError {
    /// Returns whether the request may have reached the server. If so, the server may believe that the answer was read.
    pub fn may_have_been_answered(&self) -> bool {
        !matches!(self, Self::Connect(..) | Self::Slow { wanted: CONNECTION, .. } | Self::Key(_))
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

impl Upstream {
    /// Reads the address of a Local API and the key of a bouncer. An `https` address needs a configuration of TLS.
    ///
    /// # Errors
    /// [`InvalidUpstream`]
    pub fn new(url: &Url, key: &str, tls: Option<Arc<ClientConfig>>) -> Result<Self, InvalidUpstream> {
        let is_plain = url.username().is_empty() && url.password().is_none();
        let (Some(host), true, None, None) = (url.host(), is_plain, url.query(), url.fragment()) else {
            return Err(InvalidUpstream::OtherUrl);
        };
        let (Some(port), Ok(name)) = (url.port_or_known_default(), server_name(&host)) else {
            return Err(InvalidUpstream::OtherUrl);
        };
        let tls = match (url.scheme(), tls) {
            ("http", None) => None,
            ("https", Some(config)) => Some((config, name)),
            _ => return Err(InvalidUpstream::OtherUrl),
        };
        let address = format!("{host}:{port}");
        let path = format!("{}/v1/decisions/stream", url.path().trim_end_matches('/'));
        let target = |is_startup: bool| format!("{path}?startup={is_startup}&scopes=ip,range").parse::<Uri>();
        let is_printable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        let mut key = HeaderValue::from_str(key).ok().filter(|_| is_printable).ok_or(InvalidUpstream::Key)?;
        key.set_sensitive(true);
        let host = HeaderValue::from_str(&address).map_err(|_| InvalidUpstream::OtherUrl)?;
        Ok(Self { address, host, all: target(true)?, changes: target(false)?, key, tls })
    }

    /// Returns the address, for the log.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks for all decisions (`is_startup`), or for those since the last answer, and calls `take` with the text of each.
    /// A request that fails may have called it for some of them.
    ///
    /// # Errors
    /// [`FetchError`]
    pub async fn fetch(&self, is_startup: bool, take: impl FnMut(DecisionList, &[u8])) -> Result<(), FetchError> {
        let fetched = timeout(ANSWER_TIMEOUT, self.fetch_in_any_time(is_startup, take)).await;
        fetched.map_err(|_: Elapsed| FetchError::Slow { wanted: "complete answer", time: ANSWER_TIMEOUT })?
    }

    async fn fetch_in_any_time(
        &self,
        is_startup: bool,
        take: impl FnMut(DecisionList, &[u8]),
    ) -> Result<(), FetchError> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let connected =
            connected.map_err(|_: Elapsed| FetchError::Slow { wanted: CONNECTION, time: CONNECT_TIMEOUT })?;
        let stream = connected.map_err(|error| FetchError::Connect(self.address.clone(), error))?;
        let mut builder = http1::Builder::new();
        let (mut sender, connection) =
            builder.max_buf_size(MAX_BUFFER).handshake::<_, Empty<Bytes>>(TokioIo::new(stream)).await?;
        let exchange = async {
            let response = in_time(sender.send_request(self.request(is_startup))).await??;
            match response.status() {
                StatusCode::OK => read(response.into_body(), take).await,
                status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(FetchError::Key(status)),
                status => Err(FetchError::Status(status)),
            }
        };
        let mut exchange = pin!(exchange);
        tokio::select! {
            result = &mut exchange => result,
            // The last pieces may have arrived, and are not read yet.
            _ = connection => exchange.await,
        }
    }

    fn request(&self, is_startup: bool) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = if is_startup { self.all.clone() } else { self.changes.clone() };
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(USER_AGENT, AGENT);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        headers.insert(API_KEY, self.key.clone());
        request
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

async fn read(mut body: Incoming, mut take: impl FnMut(DecisionList, &[u8])) -> Result<(), FetchError> {
    if body.size_hint().lower() > MAX_ANSWER {
        return Err(FetchError::TooLong);
    }
    let (mut reader, mut length) = (AnswerReader::default(), 0_u64);
    while let Some(frame) = in_time(body.frame()).await? {
        let Ok(piece) = frame?.into_data() else { continue };
        length = length.saturating_add(piece.len() as u64);
        if length > MAX_ANSWER {
            return Err(FetchError::TooLong);
        }
        reader.read(&piece, &mut take)?;
        // A fast sender must leave time for this thread's other tasks.
        tokio::task::yield_now().await;
    }
    Ok(reader.finish()?)
}

/// Waits for a piece of the answer.
async fn in_time<T>(piece: impl Future<Output = T>) -> Result<T, FetchError> {
    timeout(PIECE_TIMEOUT, piece).await.map_err(|_: Elapsed| FetchError::Slow { wanted: "answer", time: PIECE_TIMEOUT })
}

#[cfg(test)]
mod tests;
