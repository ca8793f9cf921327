//! The server for bouncers: the read side of CrowdSec's Local API (`GET /v1/decisions`, `GET /v1/decisions/stream` and
//! `POST /v1/usage-metrics`), and `/metrics`. The decisions are the blocks of divvy about addresses and networks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::logging::{Escaped, LogThrottle};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
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

use crate::Shared;
use crate::decision::DecisionFilter;
use crate::divvy_api::{ALL_RULES, Block, Feed, MARK, OWNER, Update};
use crate::journal::{Bouncer, Bouncers, Journal, Reason, write_changes, write_list};
use crate::keys::BouncerKeys;
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

/// Pause after an error such as too many open files, which the end of a connection may solve.
const PAUSE: Duration = Duration::from_millis(100);
/// Minimum time between two questions to divvy.
const UPDATE_EVERY_NS: u64 = NANOS_PER_SECOND;
/// Number of decisions that are changed before other tasks of the thread run.
const PAGE: usize = 500;

const JSON: &str = "application/json";

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The answers for bouncers, from the decisions about the blocks of one field.
pub struct BouncerServer {
    shared: Arc<Shared>,
    /// The keys of bouncers; `None` lets all of them ask.
    keys: Option<BouncerKeys>,
    journal: Arc<Mutex<Journal>>,
    bouncers: Arc<Mutex<Bouncers>>,
    /// Its lock admits one update at a time.
    feed: tokio::sync::Mutex<Feed>,
    /// Time of the last update (nanoseconds since 1970); 0 before the first one that divvy answered.
    updated: AtomicU64,
}

/// A request that is refused.
struct Refusal(StatusCode, String);

/// A query that is not valid.
impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self(StatusCode::BAD_REQUEST, message)
    }
}

impl BouncerServer {
    /// Creates a server that follows the blocks of the shared field.
    pub fn new(shared: Arc<Shared>, keys: Option<BouncerKeys>) -> Self {
        let feed = tokio::sync::Mutex::new(Feed::new(&[("field", &shared.field)]));
        let (journal, bouncers, updated) = (Arc::default(), Arc::default(), AtomicU64::new(0));
        Self { shared, keys, journal, bouncers, feed, updated }
    }

    /// Serves bouncers, and never returns.
    pub async fn run(self: Arc<Self>, listener: TcpListener, tls: Option<TlsAcceptor>) {
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

    async fn answer(self: &Arc<Self>, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        // The answer to HEAD is that to GET, without its body.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        let answer = match (method, request.uri().path()) {
            (&Method::GET, "/metrics") => {
                let text = self.shared.metrics.text().unwrap_or_default();
                return response(StatusCode::OK, "text/plain; version=0.0.4", whole(text));
            }
            (&Method::GET, "/v1/decisions") => self.list(&request).await,
            (&Method::GET, "/v1/decisions/stream") => self.stream(&request, peer).await,
            (&Method::POST, "/v1/usage-metrics") => self.usage_metrics(request).await,
            (_, "/metrics" | "/v1/decisions" | "/v1/decisions/stream" | "/v1/usage-metrics") => {
                Err(Refusal(StatusCode::METHOD_NOT_ALLOWED, "another method is needed here".to_owned()))
            }
            _ => Err(Refusal(StatusCode::NOT_FOUND, "there is nothing here".to_owned())),
        };
        let response = answer.unwrap_or_else(|Refusal(status, message)| {
            response(status, JSON, whole(json!({ "message": message }).to_string()))
        });
        self.shared.metrics.bouncer_requests.with_label_values(&[response.status().as_str()]).inc();
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
    async fn list(self: &Arc<Self>, request: &Request<Incoming>) -> Result<Response<Body>, Refusal> {
        self.admit(request.headers())?;
        let filter = DecisionFilter::parse(request.uri().query().unwrap_or_default())?;
        let now = self.bring_up_to_date().await?;
        let mut pieces = write_list(Arc::clone(&self.journal), filter, now).peekable();
        let mut first = pieces.next().unwrap_or_default();
        while first.is_empty() {
            yield_now().await;
            first = pieces.next().unwrap_or_else(|| Bytes::from_static(b"null"));
        }
        // A short answer has its length in its head.
        let is_short = pieces.peek().is_none();
        let body = if is_short { whole(first) } else { in_pieces(iter::once(first).chain(pieces)) };
        Ok(response(StatusCode::OK, JSON, body))
    }

    /// Answers with the decisions that are new, and those that have ended, since the bouncer's last request, or with all of them
    /// if it starts or is not known.
    async fn stream(self: &Arc<Self>, request: &Request<Incoming>, peer: IpAddr) -> Result<Response<Body>, Refusal> {
        let user = self.admit(request.headers())?;
        let filter = DecisionFilter::parse(request.uri().query().unwrap_or_default())?;
        let agent = request.headers().get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
        let bouncer = Bouncer::new(user, machine(peer), agent);
        let now = self.bring_up_to_date().await?;
        let after = if filter.is_startup { 0 } else { self.bouncers.lock().position(&bouncer) };
        let (through, is_late) = {
            let journal = self.journal.lock();
            (journal.last_change, !journal.remembers_since(after))
        };
        if is_late {
            static LATE: LogThrottle = LogThrottle::new();
            let user = bouncer.user.as_deref().unwrap_or("-");
            LATE.say(|more| {
                tracing::warn!(
                    user,
                    more,
                    "a CrowdSec bouncer has not asked for long, and may keep decisions that have ended: restart it"
                );
            });
        }
        let bouncers = Arc::clone(&self.bouncers);
        // The bouncer is taken to have the decisions once its connection has accepted all of them.
        let done = move || bouncers.lock().advance(bouncer.clone(), through);
        let answer = write_changes(Arc::clone(&self.journal), filter, now, after..through, done);
        Ok(response(StatusCode::OK, JSON, in_pieces(answer)))
    }

    /// Accepts what a bouncer reports about itself, so that it does not log an error every few minutes.
    async fn usage_metrics(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        self.admit(request.headers())?;
        let body = timeout(PIECE_TIMEOUT, Limited::new(request.into_body(), MAX_BODY).collect()).await;
        let body =
            body.map_err(|_| "the body takes too long".to_owned())?.map_err(|error| error.to_string())?.to_bytes();
        match serde_json::from_slice(&body) {
            Ok(Value::Object(_)) => Ok(response(StatusCode::CREATED, JSON, whole("{}"))),
            _ => Err("the body is not a JSON object".to_owned().into()),
        }
    }

    /// Brings the decisions to the present, even if the bouncer does not wait for it. Returns the time.
    async fn bring_up_to_date(self: &Arc<Self>) -> Result<Timestamp, Refusal> {
        let server = Arc::clone(self);
        let updated = tokio::spawn(async move { server.update().await }).await;
        updated
            .map_err(anyhow::Error::new)
            .flatten()
            .map_err(|error| Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("divvy does not answer: {error:#}")))?;
        let now = self.shared.clock.now();
        // This may take long if many blocks have ended. Other tasks run in between.
        while !self.journal.lock().advance(PAGE, now) {
            yield_now().await;
        }
        Ok(now)
    }

    /// Asks divvy for the blocks that have changed, unless it was asked a moment ago. If it does not answer, the known blocks
    /// stay until they end. Run it to its end, because half an update would keep blocks that do not exist anymore.
    ///
    /// # Errors
    /// divvy has never answered.
    async fn update(&self) -> anyhow::Result<()> {
        let mut feed = self.feed.lock().await;
        let (now, updated) = (self.shared.clock.now(), self.updated.load(Relaxed));
        // Another request may have updated it a moment ago. After the clock was set back, the last update is no recent one.
        if (updated..updated.saturating_add(UPDATE_EVERY_NS)).contains(&now.as_nanos()) {
            return Ok(());
        }
        match self.shared.divvy.follow(&mut feed).await {
            Ok(update) => self.apply(update, now).await,
            Err(error) if updated == 0 => return Err(error),
            Err(error) => {
                static FAILED: LogThrottle = LogThrottle::new();
                let (divvy, error) = (&self.shared.divvy.client.address, format!("{error:#}"));
                let error = Escaped::error(&error);
                FAILED.say(
                    |more| tracing::warn!(divvy, %error, more, "cannot follow the blocks: bouncers get the known ones"),
                );
            }
        }
        self.updated.store(now.as_nanos(), Relaxed);
        Ok(())
    }

    /// Puts an update in force, some decisions at a time.
    async fn apply(&self, update: Update, now: Timestamp) {
        // Decisions that a whole update lacks have ended.
        let known = if update.is_whole { self.journal.lock().networks() } else { Vec::new() };
        let mut changed: BTreeMap<_, _> = known.into_iter().map(|network| (network, Vec::new())).collect();
        let is_whole = update.is_whole;
        let set = update.set.into_iter().map(|block| (block, true));
        for (block, is_set) in set.chain(update.removed.into_iter().map(|block| (block, false))) {
            let Some(network) = block.network(&self.shared.field) else { continue };
            let reason = reason_of(block, now);
            let reasons = changed.entry(network).or_insert_with(|| match is_whole {
                true => Vec::new(),
                false => self.journal.lock().reasons(network).to_vec(),
            });
            reasons.retain(|known| known.block != reason.block);
            reasons.extend(Some(reason).filter(|_| is_set));
        }
        let mut changed = changed.into_iter().peekable();
        while changed.peek().is_some() {
            {
                let mut journal = self.journal.lock();
                changed.by_ref().take(PAGE).for_each(|(network, reasons)| journal.replace(network, reasons, now));
            }
            yield_now().await;
        }
    }
}

fn response(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
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

/// Returns the reason for the decision about a block.
fn reason_of(Block { rule, actor, expires_in, reason, owner }: Block, now: Timestamp) -> Reason {
    let is_ban = rule == ALL_RULES && owner.as_deref() == Some(OWNER);
    let scenario = reason.as_deref().and_then(|reason| reason.strip_prefix(MARK)).filter(|_| is_ban);
    let (origin, scenario) = match (scenario, &reason) {
        (Some(scenario), _) => ("crowdsec", scenario.to_owned()),
        (None, Some(reason)) => ("divvy", format!("divvy/{rule}: {reason}")),
        (None, None) => ("divvy", format!("divvy/{rule}")),
    };
    let ends = expires_in.map(|seconds| now.plus(seconds.saturating_mul(NANOS_PER_SECOND)));
    Reason { block: format!("{rule} {actor}").into(), ends, origin, scenario: scenario.into() }
}

/// Reads the certificate and the key of the server.
///
/// # Errors
/// A file cannot be used.
pub fn tls_acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let named = || format!("--tls-cert: {}", certificate.display());
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.with_context(named)?;
    let secret = PrivateKeyDer::from_pem_file(key).with_context(|| format!("--tls-key: {}", key.display()))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let config = builder.with_single_cert(chain, secret).with_context(named)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;
    use crate::divvy_api::Divvy;
    use divvy_core::clock::Clock;
    use divvy_core::rules::Network;

    fn described(rule: &str, owner: Option<&str>, reason: Option<&str>) -> String {
        let actor = if rule == ALL_RULES { "ip=192.0.2.1" } else { "192.0.2.1" };
        let (owner, reason) = (owner.map(str::to_owned), reason.map(str::to_owned));
        let block = Block { rule: rule.into(), actor: actor.into(), expires_in: None, reason, owner };
        let Reason { origin, scenario, .. } = reason_of(block, Timestamp::EPOCH);
        format!("{origin} {scenario}")
    }

    #[test]
    fn scenario_names_the_rule_and_the_reason() {
        assert_eq!(described("*", None, None), "divvy divvy/*");
        assert_eq!(described("login", None, Some("5 denials")), "divvy divvy/login: 5 denials");
        assert_eq!(described("*", Some("crowdsec"), Some("crowdsec: ssh-bf")), "crowdsec ssh-bf");
        assert_eq!(described("*", None, Some("crowdsec: x")), "divvy divvy/*: crowdsec: x", "an operator's");
        assert_eq!(described("login", Some("crowdsec"), Some("crowdsec: x")), "divvy divvy/login: crowdsec: x");
    }

    #[tokio::test]
    async fn single_changes_have_the_effect_of_an_update() {
        let client =
            crate::client::Client::new(("--divvy-url", "http://127.0.0.1:1"), ("--divvy-ca", None), None).unwrap();
        let (divvy, metrics) = (Divvy { client }, Metrics::new().unwrap());
        let shared = Shared { divvy, field: "ip".to_owned(), clock: Clock::system(), metrics };
        let server = BouncerServer::new(Arc::new(shared), None);
        let block = |rule: &str, seconds: u64| {
            let (rule, actor) = (rule.to_owned(), "192.0.2.1".to_owned());
            Block { rule, actor, expires_in: Some(seconds), reason: None, owner: None }
        };
        let scenarios = || {
            let network = Network::parse("192.0.2.1").unwrap();
            let journal = server.journal.lock();
            journal.reasons(network).iter().map(|reason| reason.scenario.to_string()).collect::<Vec<_>>().join(" ")
        };
        let update = |is_whole, set: &[Block], removed: &[&str]| Update {
            is_whole,
            set: set.to_vec(),
            removed: removed.iter().map(|rule| block(rule, 0)).collect(),
        };
        for (update, expected) in [
            (update(true, &[block("a", 60)], &[]), "divvy/a"),
            (update(false, &[block("b", 120)], &[]), "divvy/b divvy/a"),
            (update(false, &[block("a", 180)], &[]), "divvy/a divvy/b"),
            (update(false, &[block("c", 30)], &["a", "other"]), "divvy/b divvy/c"),
            (update(true, &[block("c", 30), block("d", 20)], &[]), "divvy/c divvy/d"),
            (update(false, &[], &["c", "d"]), ""),
            (update(true, &[block("e", 20)], &[]), "divvy/e"),
            (update(true, &[], &[]), ""),
        ] {
            server.apply(update, Timestamp::EPOCH).await;
            assert_eq!(scenarios(), expected);
        }
    }
}
