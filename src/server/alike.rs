//! What is answered before the router is answered as the router does: status, headers, body and counts, byte for byte.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, Version};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Frame};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::auth::{Guard, Password};
use super::connection::{Lease, Timeouts};
use super::grpc::GrpcFront;
use super::health::Health;
use super::http::RateLimitHeaders;
use super::http::{
    ApiSettings, BodyBounds, Call, CheckOperation, CheckSettings, Hot, HttpFront, Incoming, Reply, Routes, Unread,
    serve_routes,
};
use super::memory::BufferMemory;
use super::stream::{Greeting, Plain, Stream};
use super::turns::{MAX_AT_ONCE, Turns};
use super::*;
use crate::clock::Clock;
use crate::config::{self, Format};
use crate::limiter::{CounterNames, Policy};
use crate::metrics::Metrics;
use crate::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::protocol::resp::Limits as RespLimits;
use crate::store::{Backend, MemoryStore};

/// Seconds; so many that what is left of them has as many digits all the time.
const RESET: u64 = 259_200;
const RULES: &str = "[user=*]\ncreditLimit=3\nresetSeconds=259200\nactorField=user\nlabel=by-user\n\n\
    [priced=*]\ncreditLimit=3\nresetSeconds=259200\ncostField=priced\n\n[default]\ncreditLimit=0\nresetSeconds=0\n";
const MAX_BODY: usize = 500;
const MAX_PAIRS: usize = 3;
const PASSWORD: &str = "open sesame";
const PATIENCE: Duration = Duration::from_secs(30);
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Takes nothing: all is the router's.
struct RouterOnly;

impl Hot for RouterOnly {
    async fn answer<B: Incoming>(&self, request: Request<B>) -> Result<Response<Reply>, Request<Body>> {
        Err(request.map(Body::new))
    }
}

/// Both fronts of a server of its own.
struct Served {
    limiter: Arc<Limiter>,
    limits: Limits,
    memory: Arc<BufferMemory>,
    http: HttpFront,
    grpc: GrpcFront,
}

impl Served {
    async fn new(password: Option<&str>) -> Self {
        let metrics = Metrics::new();
        let rules = config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules;
        let policy = Policy::new(rules, &metrics, CounterNames::Usual);
        let store = Backend::Memory(MemoryStore::default());
        let limiter = Arc::new(Limiter::new(Some(policy), store, Clock::system(), metrics));
        let timeouts = Timeouts { idle: None, request: PATIENCE, write: PATIENCE, auth: PATIENCE, handshake: PATIENCE };
        let limits = Limits {
            max_connections: 10,
            max_connections_per_address: None,
            max_line: 1000,
            max_pairs: MAX_PAIRS,
            max_output: DEFAULT_MAX_OUTPUT,
            max_buffer_memory: DEFAULT_MAX_BUFFER_MEMORY,
            max_body: MAX_BODY,
            resp: RespLimits::default(),
            http_streams: StreamBounds::HTTP,
            grpc_streams: StreamBounds::GRPC,
            timeouts,
        };
        let memory = BufferMemory::new(limits.max_buffer_memory, Arc::clone(limiter.metrics()));
        let bounds = BodyBounds { timeouts, memory: Arc::clone(&memory), expansion: 1 };
        let headers: RateLimitHeaders = "draft,x".parse().unwrap();
        let operation = CheckOperation::DEFAULT.parse().unwrap();
        let check = CheckSettings { operation, trusted_hops: 0, deny_status: StatusCode::TOO_MANY_REQUESTS };
        let api = ApiSettings { headers, check, max_hits: 10 };
        let guard = |front| {
            let password = Arc::new(Password::new(password?).unwrap());
            Some(Arc::new(Guard::new(password, front, &limiter.metrics().access)))
        };
        let access = Access { hit: guard("http"), grpc: guard("grpc"), ..Access::default() };
        let health = Health::start(&limiter, CancellationToken::new()).unwrap();
        health.first().await;
        let turns = Turns::new(MAX_AT_ONCE);
        let shared = || Arc::clone(&limiter);
        let http =
            HttpFront::new(shared(), limits, bounds.clone(), &access, api, "/metrics", turns, Arc::clone(&health));
        let grpc =
            GrpcFront::new(shared(), limits, GrpcSettings { headers, atomic: false }, bounds, access.grpc, health)
                .unwrap();
        Self { limiter, limits, memory, http, grpc }
    }

    /// All that was counted, but for times.
    fn counts(&self) -> Vec<String> {
        let text = self.limiter.metrics().render(Vec::new()).unwrap();
        let is_count = |line: &&str| !line.starts_with('#') && !line.contains("seconds") && line.starts_with("divvy_");
        text.lines().filter(is_count).map(str::to_owned).collect()
    }

    /// A call on a connection of its own.
    fn call(&self) -> Call {
        Unread::new(self.memory.share()).begin(Version::HTTP_2).unwrap()
    }

    /// A connection that `routes` serve.
    async fn connect(&self, routes: Arc<Routes<impl Hot>>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let stream = Stream::Plain(Plain::new(stream, Greeting { front: "test", peer, answer: b"" }));
        let metrics = Arc::clone(self.limiter.metrics());
        let lease = Lease { closing: CancellationToken::new(), memory: self.memory.share(), metrics };
        tokio::spawn(serve_routes(stream, peer, routes, self.limits.timeouts, lease));
        client
    }
}

/// The same, without the part that is answered before the router.
fn without_hot<H>(routes: &Routes<H>) -> Arc<Routes<RouterOnly>> {
    Arc::new(Routes { hot: RouterOnly, router: routes.router.clone(), streams: routes.streams })
}

/// Without what depends on the time: the date, and how much of [`RESET`] is left.
fn timeless(text: &str) -> String {
    let kept = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
    (RESET - 100..=RESET).fold(kept.collect(), |text: String, left| text.replace(&left.to_string(), "RESET"))
}

/// All that is answered to these bytes, which come in pieces.
async fn exchange(mut client: TcpStream, pieces: &[&[u8]]) -> String {
    for piece in pieces {
        // It may have answered and closed the connection by then.
        let _ = client.write_all(piece).await;
        // The server reads each by itself, or not: it has to make no difference.
        tokio::task::yield_now().await;
    }
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut answer)).await.unwrap();
    timeless(&String::from_utf8(answer).unwrap())
}

/// A request over HTTP/1.1 with these lines of its head besides those that every one has.
fn posted(head: &str, body: &str) -> String {
    format!(
        "POST /v1/hit HTTP/1.1\r\nhost: divvy\r\n{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn http_requests() -> Vec<String> {
    let ada = r#"{"operation":{"user":"ada"}}"#;
    let long = format!(r#"{{"operation":{{"user":"{}"}}}}"#, "a".repeat(MAX_BODY));
    let mut requests: Vec<String> = [
        ada,
        ada,
        r#"{"operation":{"user":"ada"},"cost":1}"#,
        ada,
        r#" { "cost" : 0 , "operation" : { "user" : "a\u0064a", "x": "\"" } } "#,
        r#"{"operation":{"user":"eve"},"cost":4}"#,
        r#"{"operation":{"user":"eve"},"cost":null}"#,
        r#"{"operation":{"user":"eve","user":"bob"}}"#,
        r#"{"operation":{},"operation":{}}"#,
        r#"{"operation":{"priced":"2"}}"#,
        r#"{"operation":{"priced":"many"}}"#,
        r#"{"operation":{"nothing":"matches"}}"#,
        r#"{"operation":{"a":"1","b":"2","c":"3","d":"4"}}"#,
        r#"{"operation":{"a":"1","b":"2","c":"3","a":"4"}}"#,
        r#"{"operation":{"user":1}}"#,
        r#"{"operation":{"user":"ada"},"price":1}"#,
        r#"{"operation":{"user":"ada"},"cost":-1}"#,
        r#"{"operation":{"user":"ada"}"#,
        r#"{"operation":{"user":"ada"}} x"#,
        "{}",
        "[]",
        "",
        "\u{0}",
        &long,
    ]
    .map(|body| posted("", body))
    .into();
    requests.extend(
        [
            "authorization: Bearer open sesame\r\n",
            "authorization: bearer  open sesame\r\n",
            "authorization: Bearer open\r\n",
            "authorization: Basic open sesame\r\n",
            "authorization: Bearer open sesame\r\nauthorization: Bearer open sesame\r\n",
            "expect: 100-continue\r\n",
            "connection: close\r\n",
            "connection: keep-alive\r\naccept: text/html\r\ntransfer-encoding: identity\r\n",
            "content-type: text/plain\r\n",
            "content-length: 3\r\n",
        ]
        .map(|head| posted(head, r#"{"operation":{"user":"cyd"}}"#)),
    );
    let plain = posted("", ada);
    requests.extend([
        plain.replace("application/json", "text/plain"),
        plain.replace("application/json", "Application/JSON ; charset=utf-8"),
        plain.replace("content-type: application/json\r\n", ""),
        plain.replace("POST", "GET"),
        plain.replace("POST", "PUT"),
        plain.replace("POST", "HEAD"),
        plain.replace("POST", "OPTIONS"),
        plain.replace("/v1/hit", "/v1/hit/"),
        plain.replace("/v1/hit", "/v1/hit?user=bob"),
        plain.replace("/v1/hit", "/V1/hit"),
        plain.replace("/v1/hit", "/v1/%68it"),
        plain.replace("/v1/hit", "http://divvy/v1/hit"),
        plain.replace("/v1/hit", "/v1/peek"),
        plain.replace("/v1/hit", "/v1/hits"),
        plain.replace("/v1/hit", "/v1/rules"),
        plain.replace("HTTP/1.1", "HTTP/1.0"),
        plain.replace("content-length: 28", "content-length: 29"),
        plain.replace("content-length: 28", "content-length: 27"),
        plain.replace("content-length: 28", "content-length: 501"),
        plain.replace("content-length: 28", "content-length: x"),
        format!("{plain}{plain}{plain}"),
    ]);
    let chunked = plain.replace("content-length: 28", "transfer-encoding: chunked").replace(ada, "");
    let chunk = |body: &str| format!("{:x}\r\n{body}\r\n", body.len());
    let (begin, end) = ada.split_at(9);
    requests.extend([
        format!("{chunked}{}0\r\n\r\n", chunk(ada)),
        format!("{chunked}{}{}0\r\n\r\n", chunk(begin), chunk(end)),
        format!("{chunked}{}0\r\nx-trailer: 1\r\n\r\n", chunk(ada)),
        format!("{chunked}{}", chunk(ada)),
        format!("{chunked}zz\r\n"),
        format!("{chunked}{}0\r\n\r\n", chunk(&long)),
        format!("{chunked}{}{}0\r\n\r\n", chunk(&long[..300]), chunk(&long[300..])),
    ]);
    requests
}

#[tokio::test]
async fn hits_over_http_1_are_answered_as_by_the_router() {
    for password in [None, Some(PASSWORD)] {
        let (hot, plain) = (Served::new(password).await, Served::new(password).await);
        for request in http_requests() {
            let bytes = request.as_bytes();
            let (one, rest) = bytes.split_at(bytes.len() / 2);
            let (two, three) = rest.split_at(rest.len().saturating_sub(10));
            for pieces in [&[bytes][..], &[one, two, three]] {
                let answer = exchange(hot.connect(Arc::clone(hot.http.routes())).await, pieces).await;
                let expected = exchange(plain.connect(without_hot(plain.http.routes())).await, pieces).await;
                assert_eq!(answer, expected, "{request}");
                assert_eq!(hot.counts(), plain.counts(), "{request}");
            }
        }
        assert!(
            hot.counts().iter().any(|line| line.starts_with("divvy_requests_total{command=\"hit\",front=\"http\"}"))
        );
    }
}

/// A body in these frames.
fn body(frames: Vec<Frame<Bytes>>) -> Body {
    let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
    Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames)))
}

/// All of a response that is not the time.
async fn told(response: Response<Reply>) -> (StatusCode, String, Bytes, String) {
    let (head, body) = response.into_parts();
    let hints = (body.is_end_stream(), body.size_hint().exact());
    let collected = body.collect().await.unwrap();
    let rest = format!("{hints:?} {:?}", collected.trailers());
    (head.status, timeless(&format!("{:?}", head.headers)), collected.to_bytes(), rest)
}

fn message(asked: &RateLimitRequest) -> Vec<u8> {
    let encoded = asked.encode_to_vec();
    [&[0][..], &(encoded.len() as u32).to_be_bytes(), &encoded].concat()
}

fn descriptor(pairs: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries =
        pairs.iter().map(|(key, value)| Entry { key: (*key).to_owned().into(), value: (*value).to_owned().into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

fn asked(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}

/// Messages, and whether each is one that is decoded.
fn messages() -> Vec<(Vec<u8>, bool)> {
    let user = |name: &str| descriptor(&[("user", name)]);
    let minute = Some(RateLimitOverride { requests_per_unit: 1, unit: 2 });
    let no_unit = Some(RateLimitOverride { requests_per_unit: 1, unit: 0 });
    let plain = message(&asked(vec![user("ada")]));
    let mut messages: Vec<(Vec<u8>, bool)> = [
        asked(vec![user("ada")]),
        asked(vec![user("bob"), user("eve"), user("bob"), descriptor(&[("x", "y"), ("x", "z")]), user("cyd")]),
        asked(vec![RateLimitDescriptor { limit: minute, ..user("ada") }]),
        asked(vec![RateLimitDescriptor { limit: no_unit, ..user("ada") }]),
        asked(vec![RateLimitDescriptor { hits_addend: Some(9), ..user("ada") }]),
        asked(vec![RateLimitDescriptor { is_negative_hits: true, ..user("ada") }]),
        asked(vec![descriptor(&[("priced", "many")])]),
        asked(vec![descriptor(&[("", "ada")])]),
        asked(vec![descriptor(&[("a", "1"), ("b", "2"), ("c", "3")])]),
        asked(vec![descriptor(&[])]),
        asked(Vec::new()),
        RateLimitRequest { hits_addend: 2, ..asked(vec![user("dan")]) },
        RateLimitRequest { domain: Bytes::new(), ..asked(vec![user("ada")]) },
    ]
    .iter()
    .map(|asked| (message(asked), true))
    .collect();
    let changed = |place: usize, to: u8| {
        let mut bytes = plain.clone();
        bytes[place] = to;
        (bytes, false)
    };
    let long = asked(vec![user(&"a".repeat(MAX_BODY))]);
    messages.extend([
        changed(0, 1),
        changed(0, 2),
        changed(4, plain[4] + 1),
        changed(4, plain[4] - 1),
        changed(1, 0xff),
        changed(6, 0xff),
        (plain[..3].to_vec(), false),
        (Vec::new(), false),
        ([&plain[..], &plain].concat(), false),
        (message(&long), false),
    ]);
    // An empty message is one, too.
    messages.push((vec![0; 5], true));
    messages
}

/// With seconds that are left taken out of the message, where it is one.
fn without_time(bytes: &[u8]) -> (usize, Result<RateLimitResponse, Vec<u8>>) {
    let decoded = bytes.get(5..).and_then(|message| RateLimitResponse::decode(message).ok());
    let Some(mut answer) = decoded else { return (bytes.len(), Err(bytes.to_vec())) };
    for duration in answer.statuses.iter_mut().filter_map(|status| status.duration_until_reset.as_mut()) {
        duration.seconds = i64::from(duration.seconds > 0);
    }
    for header in &mut answer.response_headers_to_add {
        header.value = timeless(&header.value);
    }
    (bytes.len(), Ok(answer))
}

#[tokio::test]
async fn calls_are_answered_as_by_the_router() {
    let calls = |bytes: &[u8]| {
        let (bytes, call) =
            (Bytes::copy_from_slice(bytes), || Request::post(SHOULD_RATE_LIMIT).version(axum::http::Version::HTTP_2));
        let (one, two) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
        let mut trailers = axum::http::HeaderMap::new();
        trailers.insert("x-trailer", "1".parse().unwrap());
        let password = format!("Bearer {PASSWORD}");
        let whole = || Body::new(Full::new(bytes.clone()));
        vec![
            call().header("content-type", "application/grpc").header("te", "trailers").body(whole()),
            call().header("authorization", &password).body(whole()),
            call().header("authorization", "Bearer wrong").body(whole()),
            call().header("grpc-encoding", "gzip").body(whole()),
            call().header("grpc-encoding", "identity").body(whole()),
            call().method("GET").body(whole()),
            call().uri(SHOULD_RATE_LIMIT.to_lowercase()).body(whole()),
            call().body(body(vec![Frame::data(one), Frame::data(two)])),
            call().body(body(vec![Frame::data(bytes.clone()), Frame::trailers(trailers)])),
        ]
    };
    let peer = "192.0.2.1:5".parse().unwrap();
    for password in [None, Some(PASSWORD)] {
        let (hot, plain) = (Served::new(password).await, Served::new(password).await);
        let (with, without) = (Arc::clone(hot.grpc.routes()), without_hot(plain.grpc.routes()));
        for (bytes, _) in messages() {
            for (request, same) in calls(&bytes).into_iter().zip(calls(&bytes)) {
                let (request, same) = (request.unwrap(), same.unwrap());
                let what = format!("{request:?} {bytes:?}");
                let (status, headers, answer, rest) = told(with.answer(request, peer, &mut hot.call()).await).await;
                let expected = told(without.answer(same, peer, &mut plain.call()).await).await;
                assert_eq!((status, headers, rest), (expected.0, expected.1, expected.3), "{what}");
                assert_eq!(without_time(&answer), without_time(&expected.2), "{what}");
                assert_eq!(hot.counts(), plain.counts(), "{what}");
            }
        }
    }
}

/// Otherwise the comparisons above would compare the router with itself.
#[tokio::test]
async fn plain_requests_do_not_reach_the_router() {
    let served = Served::new(None).await;
    let hit = Request::post("/v1/hit").header("content-type", "application/json");
    let hit = hit.body(Full::new(Bytes::from_static(b"{\"operation\":{\"user\":\"ada\"}}"))).unwrap();
    assert!(served.http.routes().hot.answer(hit).await.is_ok());
    for (bytes, is_plain) in messages() {
        let call = Request::post(SHOULD_RATE_LIMIT).body(Full::new(Bytes::from(bytes.clone()))).unwrap();
        assert_eq!(served.grpc.routes().hot.answer(call).await.is_ok(), is_plain, "{bytes:?}");
    }
}
