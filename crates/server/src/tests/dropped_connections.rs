//! Connections of every front are dropped at every point where they wait. Other connections continue.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::grpc::{GrpcFront, RateLimits};
use crate::http::{ApiSettings, CheckOperation, CheckSettings, HttpFront};
use crate::interruption::{WAYS, poll_then_drop};
use crate::line::LineFront;
use crate::net::accept::Front;
use crate::net::connection::Timeouts;
use crate::net::stream::{Plain, Stream};
use crate::net::work::MAX_AT_ONCE;
use crate::operations::Operations;
use crate::resp::RespFront;
use crate::tests::{connection_context, server};
use crate::*;
use divvy_core::clock::Clock;
use divvy_core::config::{self, Format};
use divvy_core::rules::Operation;
use divvy_limiter::exceptions::ExceptionTarget;
use divvy_limiter::inspection::{Order, RuleName, TopOf, Window};
use divvy_limiter::store::{Backend, Durability, RocksOptions, RocksStore, Store};
use divvy_limiter::{ActiveRules, CounterNames, Intent, PlanBuilder, Scope};
use divvy_telemetry::metrics::Metrics;

const RULES: &str = "[user=*]\ncreditLimit=1000000\nresetSeconds=3600\nactorField=user\nlabel=users\n\n[default]\ncreditLimit=0\nresetSeconds=0\n";
const HTTP: &[u8] = b"POST /v1/hit HTTP/1.1\r\nhost: divvy\r\ncontent-type: application/json\r\nconnection: close\r\n\
    content-length: 28\r\n\r\n{\"operation\":{\"user\":\"ada\"}}";
const JSON: &[u8] = b"POST /json HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\ncontent-length: 76\r\n\r\n\
    {\"domain\":\"edge\",\"descriptors\":[{\"entries\":[{\"key\":\"user\",\"value\":\"ada\"}]}]}";
/// HTTP/2 with prior knowledge: the preface, no settings, and a request that asks for `/readyz`, which asks the store
/// (RFC 9113 and 7541).
const HTTP_2: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x12\x01\x05\0\0\0\x01\x82\x86\x04\x07/readyz\x01\x05divvy";
/// More polls than a connection with one request takes.
const MANY: usize = 200;
const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    server: ServerContext,
}

impl Served {
    fn new(limiter: Limiter) -> Self {
        let second = Duration::from_secs(1);
        let timeouts = Timeouts { auth: second, handshake: second, ..super::timeouts(30 * second) };
        Self { server: server(Arc::new(limiter), timeouts) }
    }

    /// Drops a connection with this request after each possible number of polls.
    async fn drop_connections<F: Front>(&self, front: F, request: &[u8], name: &str) {
        self.drop_requests(front, || request.to_vec(), name).await;
    }

    /// Same as [`Served::drop_connections`], with another request on each connection.
    async fn drop_requests<F: Front>(&self, front: F, mut request: impl FnMut() -> Vec<u8>, name: &str) {
        let (front, listener) = (Arc::new(front), TcpListener::bind("127.0.0.1:0").await.unwrap());
        for dropped in WAYS {
            let mut has_ended = false;
            for polls in 0..MANY {
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
                let (stream, peer) = listener.accept().await.unwrap();
                client.write_all(&request()).await.unwrap();
                client.shutdown().await.unwrap();
                let stream = Stream::Left(Plain::new(stream, F::PROTOCOL, peer));
                let served =
                    front.serve(stream, connection_context(&self.server.memory, self.server.limiter.metrics(), peer));
                has_ended = poll_then_drop(served, polls, dropped).await.is_some();
                let hit = timeout(PATIENCE, self.hit()).await;
                hit.unwrap_or_else(|_| panic!("{name}: no hit is answered after {polls} polls ({dropped:?})"));
                if has_ended {
                    break;
                }
            }
            assert!(has_ended, "{name}: a connection with one request never ends");
        }
    }

    async fn hit(&self) {
        let mut builder = PlanBuilder::default();
        self.server.limiter.begin(&mut builder, &Scope::EVERYTHING);
        builder.add(&[("user", "bob")].into_iter().collect::<Operation>(), Intent::Hit, None);
        let mut plan = builder.build();
        self.server.limiter.apply(&mut plan).await;
        assert!(plan.report().verdict(0).unwrap().allowed);
    }
}

async fn drop_at_every_await(durability: Durability) {
    let dir = tempfile::tempdir().unwrap();
    let options = RocksOptions { durability, cache_memory: 100_000, ..RocksOptions::default() };
    let store = Backend::Rocks(RocksStore::open(dir.path(), options).unwrap());
    let metrics = Metrics::new();
    let policy =
        ActiveRules::new(config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules, &metrics, CounterNames::Usual);
    let served = Served::new(Limiter::new(Some(policy), store, Clock::system(), metrics));
    let server = &served.server;
    let line = LineFront::new(server, None);
    served.drop_connections(line, b"HIT user=ada\n", "line").await;
    let resp = || RespFront::new(server, None, None);
    served.drop_connections(resp(), b"DIVVY.HIT user=ada\r\n", "RESP").await;
    served.drop_connections(resp(), b"DIVVY.COUNTERS user=*\r\n", "a listing over RESP").await;
    let api = ApiSettings {
        headers: "draft".parse().unwrap(),
        check: CheckSettings {
            operation: CheckOperation::DEFAULT.parse().unwrap(),
            from: None,
            id: None,
            trusted_hops: 0,
            deny_status: StatusCode::TOO_MANY_REQUESTS,
        },
        origins: Vec::new(),
    };
    server.health.first().await;
    let settings = GrpcSettings { headers: "none".parse().unwrap(), atomic: false, ratelimit: Arc::default() };
    let rate_limits = || Arc::new(RateLimits::new(server, settings.clone()));
    let http =
        || HttpFront::new(server, FrontGuards::default(), api.clone(), "/metrics".to_owned(), rate_limits(), None);
    served.drop_connections(http(), HTTP, "HTTP/1").await;
    served.drop_connections(http(), HTTP_2, "HTTP/2").await;
    served.drop_connections(http(), JSON, "JSON").await;
    let grpc = GrpcFront::new(server, None, rate_limits()).unwrap();
    served.drop_connections(grpc, HTTP_2, "gRPC").await;

    drop_changes(&served, dir.path()).await;
    assert_ranked(&served.server.limiter);
    served.server.limiter.store().close().await.unwrap();
}

/// Checks that the hits of dropped connections count for their actors, as they do in the metrics.
fn assert_ranked(limiter: &Limiter) {
    let of = TopOf { rule: RuleName::Name("users"), order: Order::Taken, window: Window::Hour, count: 10 };
    let ranking = limiter.top(of, &Scope::EVERYTHING).unwrap().ranking;
    let hits: u64 = limiter.metrics().hits.counted().iter().map(|count| count.hits).sum();
    let error: u64 = ranking.actors.iter().map(|actor| actor.error).sum();
    assert!(ranking.total.abs_diff(hits) <= error, "{hits} hits: {ranking:?}");
    assert_eq!(ranking.actors.len(), 2);
}

/// Drops connections that change a limit. The audit log must have each change, once.
async fn drop_changes(served: &Served, dir: &Path) {
    let path = dir.join("audit.log");
    let limiter = Arc::clone(&served.server.limiter);
    let audit = AuditLog::new(Some(path.clone()), true, Clock::system(), Arc::clone(limiter.metrics())).unwrap();
    let operations = Operations::new(limiter, Arc::clone(&audit));
    let slots = operations.slots.clone();
    let front = RespFront::new(&ServerContext { operations, ..served.server.clone() }, None, None);
    let mut credits = 0;
    let set = || {
        credits += 1;
        format!("DIVVY.LIMIT SET users ada {credits}\r\n").into_bytes()
    };
    served.drop_requests(front, set, "a new limit over RESP").await;

    // A change that began has a slot until it is done.
    let all_slots = futures_util::future::join_all((0..MAX_AT_ONCE).map(|_| slots.take()));
    timeout(PATIENCE, all_slots).await.expect("every change that began ends");
    audit.finish().await;
    let lines: Vec<Value> =
        fs::read_to_string(&path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with_status = |status| lines.iter().filter(|line| line["status"] == status).collect::<Vec<_>>();
    let done = with_status("done");
    assert!(!done.is_empty());
    // Each change begins with the limit that the one before it has left.
    assert_eq!(done[0]["before"], Value::Null);
    for pair in done.windows(2) {
        assert_eq!(pair[0]["after"], pair[1]["before"]);
    }
    let limit = served
        .server
        .limiter
        .exception_of(ExceptionTarget::limit("users", "ada"), &Scope::EVERYTHING)
        .unwrap()
        .unwrap();
    assert_eq!(done.last().unwrap()["after"]["credits"], limit.credits.unwrap());
    assert_eq!(with_status("attempted").len(), done.len());
    assert_eq!(lines.len(), 2 * done.len(), "no other outcome");
    served
        .server
        .limiter
        .remove_exception(ExceptionTarget::limit("users", "ada"), None, &Scope::EVERYTHING)
        .await
        .unwrap();
}

/// Runs on several threads, because work that a connection hands to other threads continues while it is dropped.
#[test]
fn connections_may_be_dropped_wherever_they_wait() {
    for durability in [Durability::Wal, Durability::Sync, Durability::Lazy] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(drop_at_every_await(durability));
    }
}
