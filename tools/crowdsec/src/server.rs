//! The server for bouncers: the read side of CrowdSec's Local API (`GET /v1/decisions`, `GET /v1/decisions/stream` and
//! `POST /v1/usage-metrics`), and `/metrics`.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, crypto};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::decisions::Decisions;
use crate::filter::{DecisionQuery, FilterError};
use crate::keys::BouncerKeys;
use crate::listing::Bouncer;
use crate::metrics::Metrics;
use crate::upstream::API_KEY;

/// Maximum number of connections at a time. Bouncers ask every few seconds.
const MAX_CONNECTIONS: usize = 1_024;
/// Maximum time until a request's head is there, which is also how long a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time for a TLS handshake, and for a request's body.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a request's body (bytes). Nothing of it is kept.
const MAX_BODY: usize = 64 << 10;
/// Number of low bits of an IPv6 address that one machine may choose.
const HOST_BITS: u32 = 64;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The answers for bouncers.
pub struct BouncerServer {
    decisions: Arc<Decisions>,
    /// The keys of bouncers; `None` lets all of them ask.
    keys: Option<BouncerKeys>,
    metrics: Arc<Metrics>,
}

/// A request that is refused.
struct Refusal(StatusCode, String);

impl From<FilterError> for Refusal {
    fn from(error: FilterError) -> Self {
        Self(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl BouncerServer {
    /// Creates a server of these decisions.
    pub fn new(decisions: Arc<Decisions>, keys: Option<BouncerKeys>, metrics: Arc<Metrics>) -> Self {
        Self { decisions, keys, metrics }
    }

    /// Serves bouncers, and never returns.
    pub async fn run(self: Arc<Self>, listener: TcpListener, tls: Option<TlsAcceptor>) {
        /// Pause after an error such as too many open files, which the end of a connection may solve.
        const PAUSE: Duration = Duration::from_millis(100);
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a bouncer's connection");
                    sleep(PAUSE).await;
                    continue;
                }
            };
            let (server, tls) = (Arc::clone(&self), tls.clone());
            tokio::spawn(async move {
                server.serve(stream, peer, tls).await;
                drop(slot);
            });
        }
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>) {
        match tls {
            None => self.serve_stream(stream, peer).await,
            Some(tls) => match timeout(PIECE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.serve_stream(stream, peer).await,
                Ok(Err(error)) => tracing::debug!(%peer, %error, "a bouncer's TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "a bouncer's TLS handshake took too long"),
            },
        }
    }

    async fn serve_stream(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send, peer: SocketAddr) {
        let service = service_fn(|request| {
            let server = Arc::clone(&self);
            async move { Ok::<_, Infallible>(server.answer(request, peer.ip()).await) }
        });
        let mut builder = http1::Builder::new();
        let builder = builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        // A client may leave at any time.
        if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
            tracing::debug!(%peer, %error, "a bouncer's connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        // The answer to HEAD is that to GET, without its body.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        let answer = match (method, request.uri().path()) {
            (&Method::GET, "/metrics") => return self.scrape(),
            (&Method::GET, "/v1/decisions") => self.list(&request).await,
            (&Method::GET, "/v1/decisions/stream") => self.stream(&request, peer).await,
            (&Method::POST, "/v1/usage-metrics") => self.usage_metrics(request).await,
            (_, "/metrics" | "/v1/decisions" | "/v1/decisions/stream" | "/v1/usage-metrics") => {
                Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, "another method is needed here".to_owned()))
            }
            _ => Err(Refusal(StatusCode::NOT_FOUND, "there is nothing here".to_owned())),
        };
        let response = answer.unwrap_or_else(|Refusal(status, message)| {
            json_response(status, whole(json!({ "message": message }).to_string()))
        });
        self.metrics.answered_bouncer(response.status().as_str());
        response
    }

    fn scrape(&self) -> Response<Body> {
        let text = self.metrics.text().unwrap_or_default();
        let mut response = Response::new(whole(text));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
        response
    }

    /// Returns the name of the bouncer's key.
    fn admit(&self, headers: &HeaderMap) -> Result<Option<Arc<str>>, Refusal> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let plain = headers.get_all(API_KEY).iter().map(HeaderValue::as_bytes);
        let bearer =
            headers.get_all(AUTHORIZATION).iter().filter_map(|value| value.as_bytes().strip_prefix(b"Bearer "));
        let found: Vec<_> = plain.chain(bearer).collect();
        match *found {
            [key] => keys.find(key).map(|name| Some(name.into())),
            _ => None,
        }
        .ok_or_else(|| Refusal(StatusCode::FORBIDDEN, "send one of the keys in --bouncer-keys as X-Api-Key".to_owned()))
    }

    /// Answers with the decisions in force.
    async fn list(&self, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
        self.admit(request.headers())?;
        let filter = DecisionQuery::parse(request.uri().query().unwrap_or_default())?.filter()?;
        self.update().await?;
        let mut answer = self.decisions.list(filter).await;
        let mut first = Bytes::new();
        while first.is_empty() && !answer.is_written() {
            first = answer.next().unwrap_or_default();
            yield_now().await;
        }
        // A short answer has its length in its head.
        let is_short = answer.is_written();
        let body = if is_short { whole(first) } else { in_pieces(std::iter::once(first).chain(answer)) };
        Ok(json_response(StatusCode::OK, body))
    }

    /// Answers with the decisions that are new, and those that have ended, since the bouncer's last request.
    async fn stream(&self, request: &Request<Incoming>, peer: IpAddr) -> Result<Response<Body>, Refusal> {
        let user = self.admit(request.headers())?;
        let query = DecisionQuery::parse(request.uri().query().unwrap_or_default())?;
        let (is_startup, filter) = (query.is_startup()?, query.filter()?);
        let agent = request.headers().get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
        let bouncer = Bouncer::new(user, Some(machine(peer)), agent);
        self.update().await?;
        let answer = self.decisions.stream(bouncer, is_startup, filter).await;
        Ok(json_response(StatusCode::OK, in_pieces(answer)))
    }

    /// Accepts what a bouncer reports about itself, so that it does not log an error every few minutes.
    async fn usage_metrics(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        self.admit(request.headers())?;
        let refused = |detail: String| Refusal(StatusCode::BAD_REQUEST, detail);
        let body = timeout(PIECE_TIMEOUT, Limited::new(request.into_body(), MAX_BODY).collect()).await;
        let body = body.map_err(|_| refused("the body takes too long".to_owned()))?;
        let body = body.map_err(|error| refused(error.to_string()))?.to_bytes();
        match serde_json::from_slice(&body) {
            Ok(Value::Object(_)) => Ok(json_response(StatusCode::CREATED, whole("{}"))),
            _ => Err(refused("the body is not a JSON object".to_owned())),
        }
    }

    /// Updates the decisions, even if the bouncer does not wait for it.
    async fn update(&self) -> Result<(), Refusal> {
        let decisions = Arc::clone(&self.decisions);
        let failed =
            |error: String| Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("divvy does not answer: {error}"));
        match tokio::spawn(async move { decisions.update().await }).await {
            Ok(updated) => updated.map_err(|error| failed(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

fn json_response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn whole(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

fn in_pieces(pieces: impl Iterator<Item = Bytes> + Send + 'static) -> Body {
    let pieces = stream::unfold(pieces, |mut pieces| async {
        loop {
            let piece = pieces.next()?;
            // Other requests run between two pieces. Many may be empty, if the bouncer wants few of many decisions.
            yield_now().await;
            if !piece.is_empty() {
                return Some((Ok(Frame::data(piece)), pieces));
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Returns what distinguishes a machine: an IPv4 address, or the network of an IPv6 address.
fn machine(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> HOST_BITS << HOST_BITS).into()),
        address => address,
    }
}

/// Reads the certificate and the key of the server.
///
/// # Errors
/// A file cannot be used.
pub fn tls_acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let named = |flag: &'static str, path: &Path| format!("{flag}: {}", path.display());
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).with_context(|| named("--tls-cert", certificate))?.collect();
    let chain = chain.with_context(|| named("--tls-cert", certificate))?;
    let secret = PrivateKeyDer::from_pem_file(key).with_context(|| named("--tls-key", key))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let config = builder.with_single_cert(chain, secret).with_context(|| named("--tls-cert", certificate))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
