//! Fast routes answer like the router: same status, headers, body and counts, byte for byte.

mod grpc;
mod http;

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

use super::*;
use crate::grpc::GrpcFront;
use crate::health::Health;
use crate::http::{
    ApiSettings, BodyBounds, Call, CheckOperation, CheckSettings, FastRoute, HttpFront, Incoming, RateLimitHeaders,
    Reply, Routes, UnsentReplies, WebOrigins, serve_routes,
};
use crate::net::auth::Guard;
use crate::net::connection::{ConnectionContext, Timeouts};
use crate::net::memory::BufferMemory;
use crate::net::stream::{Greeting, Plain, Stream};
use crate::net::work_slots::{MAX_AT_ONCE, WorkSlots};
use crate::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::protocol::envoy::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::protocol::envoy::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use divvy_access::{Authority, User, Users};
use divvy_core::clock::Clock;
use divvy_core::config::{self, Format};
use divvy_limiter::store::{Backend, MemoryStore};
use divvy_limiter::{CounterNames, Policy};
use divvy_telemetry::metrics::Metrics;

/// Length of the windows in seconds. The remaining seconds always have the same number of digits.
const RESET: u64 = 259_200;
const RULES: &str = "[user=*]\ncreditLimit=3\nresetSeconds=259200\nactorField=user\nlabel=by-user\n\n\
    [priced=*]\ncreditLimit=3\nresetSeconds=259200\ncostField=priced\n\n[default]\ncreditLimit=0\nresetSeconds=0\n";
const MAX_BODY: usize = 500;
const MAX_PAIRS: usize = 3;
const PASSWORD: &str = "open sesame";
const PATIENCE: Duration = Duration::from_secs(30);
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Leaves all requests to the router.
struct RouterOnly;

impl FastRoute for RouterOnly {
    async fn answer<B: Incoming>(&self, request: Request<B>) -> Result<Response<Reply>, Request<Body>> {
        Err(request.map(Body::new))
    }
}

/// A server's fronts for HTTP and gRPC.
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
        let limits = Limits { max_pairs: MAX_PAIRS, max_body: MAX_BODY, ..Limits::for_tests(timeouts) };
        let memory = BufferMemory::new(limits.max_buffer_memory, Arc::clone(limiter.metrics()));
        let bounds = BodyBounds { timeouts, memory: Arc::clone(&memory), expansion: 1 };
        let headers: RateLimitHeaders = "draft,x".parse().unwrap();
        let operation = CheckOperation::DEFAULT.parse().unwrap();
        let check = CheckSettings {
            operation,
            from: None,
            id: None,
            trusted_hops: 0,
            deny_status: StatusCode::TOO_MANY_REQUESTS,
        };
        let (origins, crowdsec_field) = (WebOrigins::default(), "ip".into());
        let api = ApiSettings { headers, check, origins, crowdsec_field };
        let guard = |front| {
            let users = Users::new([User::with_password(password?)]).unwrap();
            let metrics = &limiter.metrics().access;
            let authority = Arc::new(Authority::new(users, metrics.password_hashes.clone()));
            Some(Arc::new(Guard::new(authority, front, false, metrics)))
        };
        let access = Access { hit: guard("http"), grpc: guard("grpc"), ..Access::default() };
        let health = Health::start(&limiter, CancellationToken::new()).unwrap();
        health.first().await;
        let slots = WorkSlots::new(MAX_AT_ONCE);
        let shared = || Arc::clone(&limiter);
        let audit = AuditLog::in_log(Clock::system(), Arc::clone(limiter.metrics()));
        let http = HttpFront::new(
            shared(),
            Operations::new(shared(), audit),
            limits,
            bounds.clone(),
            &access,
            api,
            "/metrics",
            slots,
            Arc::clone(&health),
            None,
        );
        let grpc =
            GrpcFront::new(shared(), limits, GrpcSettings { headers, atomic: false }, bounds, access.grpc, health)
                .unwrap();
        Self { limiter, limits, memory, http, grpc }
    }

    /// Returns all counts, without times.
    fn counts(&self) -> Vec<String> {
        let text = self.limiter.metrics().render(Vec::new()).unwrap();
        let is_count = |line: &&str| !line.starts_with('#') && !line.contains("seconds") && line.starts_with("divvy_");
        text.lines().filter(is_count).map(str::to_owned).collect()
    }

    /// Begins a call on a new connection.
    fn call(&self) -> Call {
        UnsentReplies::new(self.memory.share()).begin(Version::HTTP_2).unwrap()
    }

    /// Opens a connection that `routes` serve.
    async fn connect(&self, routes: Arc<Routes<impl FastRoute>>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let stream = Stream::Plain(Plain::new(stream, Greeting { front: "test", peer, answer: b"" }));
        let metrics = Arc::clone(self.limiter.metrics());
        let context = ConnectionContext { closing: CancellationToken::new(), memory: self.memory.share(), metrics };
        tokio::spawn(serve_routes(stream, peer, routes, self.limits.timeouts, context));
        client
    }
}

/// Returns the same routes without the fast one.
fn without_fast<H>(routes: &Routes<H>) -> Arc<Routes<RouterOnly>> {
    Arc::new(Routes { fast: RouterOnly, router: routes.router.clone(), streams: routes.streams })
}

/// Removes everything that depends on the time: the date, and the remaining part of [`RESET`].
fn timeless(text: &str) -> String {
    let kept = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
    (RESET - 100..=RESET).fold(kept.collect(), |text: String, left| text.replace(&left.to_string(), "RESET"))
}

/// Otherwise the other tests would compare the router with itself.
#[tokio::test]
async fn plain_requests_do_not_reach_the_router() {
    let served = Served::new(None).await;
    let hit = Request::post("/v1/hit").header("content-type", "application/json");
    let hit = hit.body(Full::new(Bytes::from_static(b"{\"operation\":{\"user\":\"ada\"}}"))).unwrap();
    assert!(served.http.routes().fast.answer(hit).await.is_ok());
    for (bytes, is_plain) in grpc::messages() {
        let call = Request::post(SHOULD_RATE_LIMIT).body(Full::new(Bytes::from(bytes.clone()))).unwrap();
        assert_eq!(served.grpc.routes().fast.answer(call).await.is_ok(), is_plain, "{bytes:?}");
    }
}
