//! Storms: clients of every front hang up at any moment, thousands of times, while others continue to count. Afterwards
//! every front answers and no acknowledged hit is lost, even after a SIGKILL.
//!
//! `DIVVY_TEST_STORM_SECONDS` sets the duration of a storm (default 5), and `DIVVY_TEST_SEED` its course.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use divvy::server::grpc::messages::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use h2::client::SendRequest;
use hyper::Request;
use prost::Message;
use prost::bytes::Bytes;
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use socket2::SockRef;
use tokio::time::timeout;

use crate::support::http2::{descriptor, framed};
use crate::support::{LineClient, PATIENCE, Place, Server, http, seed, setting};

const RULES: &str = "
[domain=storm user=*] creditLimit=1000000000 resetSeconds=360000 actorField=user
[default] creditLimit=0 resetSeconds=0
";
const CREDIT: u64 = 1_000_000_000;
/// Connections that a thread opens, uses and closes at once.
const AT_ONCE: usize = 16;
/// Maximum time that a client waits before it hangs up.
const LONGEST: Duration = Duration::from_micros(800);
/// Number of threads that count and stay connected.
const STEADY: usize = 2;
const USERS: u64 = 40;

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

type MakeRequest = fn(&mut Rng) -> Vec<u8>;

#[test]
fn storm_of_disconnects_affects_no_other_client_in_wal_mode() {
    storm("wal");
}

#[test]
fn storm_of_disconnects_affects_no_other_client_in_sync_mode() {
    storm("sync");
}

#[test]
fn storm_of_disconnects_affects_no_other_client_in_lazy_mode() {
    storm("lazy");
}

fn storm(durability: &str) {
    let mut rng = Rng::seed_from_u64(seed());
    let place = Place::new(RULES);
    let server = place.on_disk(&["--durability", durability, "--threads", "4"]);
    let hung_up = &AtomicU64::new(0);
    let length = Duration::from_secs(setting("DIVVY_TEST_STORM_SECONDS", 5));
    let begun = Instant::now();
    let until = begun + length;
    let counted = thread::scope(|scope| {
        let line = server.line;
        let steady: Vec<_> = (0..STEADY).map(|client| scope.spawn(move || count(line, client, until))).collect();
        // HTTP/1 gets most of the time, because its handlers are dropped as soon as the client is gone.
        let closed: [(SocketAddr, MakeRequest, f64); 3] =
            [(server.http, post, 0.6), (server.line, self::line, 0.7), (server.resp, resp, 0.8)];
        for (address, request, share) in closed {
            two_at_once(begun + length.mul_f64(share), &mut rng, |rng, until| {
                hang_up(address, request, rng, until, hung_up);
            });
        }
        for (address, is_grpc, share) in [(server.http, false, 0.9), (server.grpc, true, 1.0)] {
            two_at_once(begun + length.mul_f64(share), &mut rng, |rng, until| {
                reset_streams(address, is_grpc, rng, until, hung_up);
            });
        }
        steady.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    println!(
        "{durability}: {} requests were abandoned, {} hits counted",
        hung_up.load(Relaxed),
        counted.iter().sum::<u64>()
    );
    assert!(hung_up.load(Relaxed) > 0);
    every_front_answers(&server);

    let mut client = server.line();
    for (number, counted) in counted.iter().enumerate() {
        let (_, credit, _) = client.hit(&format!("domain=storm user=steady-{number}"));
        assert_eq!(CREDIT - credit, counted + 1, "steady-{number}: every hit is counted once");
    }
    let before = credits(&mut client);
    if durability == "lazy" {
        // A listing writes the remaining counters.
        let listed = server.resp().command("DIVVY.COUNTERS domain=storm user=*");
        assert!(listed.starts_with('['), "{listed}");
    }
    server.kill();
    let server = place.on_disk(&["--durability", durability]);
    let after = credits(&mut server.line());
    for (user, credit) in before {
        // Requests of clients that hung up may also have been counted since.
        assert!(after[&user] < credit, "{user} has {} after a restart, and had {credit}", after[&user]);
    }
}

fn two_at_once(until: Instant, rng: &mut Rng, part: impl Fn(Rng, Instant) + Sync) {
    thread::scope(|scope| {
        for _ in 0..2 {
            let (rng, part) = (Rng::seed_from_u64(rng.random()), &part);
            scope.spawn(move || part(rng, until));
        }
    });
}

/// Returns the credits left after a hit of every user.
fn credits(client: &mut LineClient) -> BTreeMap<String, u64> {
    let steady = (0..STEADY).map(|number| format!("steady-{number}"));
    let users = (0..USERS).map(|number| format!("u{number}")).chain(steady);
    users.map(|user| (user.clone(), client.hit(&format!("domain=storm user={user}")).1)).collect()
}

/// Sends hits of one user one by one. Returns how many were acknowledged. Each must be.
fn count(line: SocketAddr, client: usize, until: Instant) -> u64 {
    let mut connection = LineClient::connect(line);
    let mut counted = 0;
    while Instant::now() < until {
        let (_, credit, _) = connection
            .try_hit(&format!("domain=storm user=steady-{client}"))
            .unwrap_or_else(|| panic!("a hit was not answered within {PATIENCE:?}, after {counted} that were"));
        counted += 1;
        assert_eq!(CREDIT - credit, counted);
    }
    counted
}

fn user(rng: &mut Rng) -> String {
    format!("u{}", rng.random_range(0..USERS))
}

fn json(rng: &mut Rng) -> String {
    format!(r#"{{"operation":{{"domain":"storm","user":"{}"}}}}"#, user(rng))
}

fn post(rng: &mut Rng) -> Vec<u8> {
    http::encode("POST", "/v1/hit", &[("content-type", "application/json")], json(rng).as_bytes())
}

fn line(rng: &mut Rng) -> Vec<u8> {
    format!("HIT domain=storm user={}\n", user(rng)).into_bytes()
}

fn resp(rng: &mut Rng) -> Vec<u8> {
    format!("DIVVY.HIT domain=storm user={}\r\n", user(rng)).into_bytes()
}

/// Opens connections, sends a request on each, some truncated, and closes all within a moment, without reading the
/// replies.
fn hang_up(address: SocketAddr, request: MakeRequest, mut rng: Rng, until: Instant, count: &AtomicU64) {
    while Instant::now() < until {
        let mut connections: Vec<_> = (0..AT_ONCE).map(|_| TcpStream::connect(address).unwrap()).collect();
        for connection in &mut connections {
            let mut bytes = request(&mut rng);
            if rng.random_bool(0.1) {
                bytes.truncate(rng.random_range(0..bytes.len()));
            }
            if rng.random_bool(0.3) {
                // Resets the connection instead of closing it in order.
                SockRef::from(&*connection).set_linger(Some(Duration::ZERO)).unwrap();
            }
            connection.write_all(&bytes).unwrap();
        }
        thread::sleep(LONGEST.mul_f64(rng.random()));
        count.fetch_add(connections.len() as u64, Relaxed);
    }
}

/// Opens HTTP/2 streams and cancels them, or ends the whole connection. If the server closes the connection, opens a
/// new one.
fn reset_streams(address: SocketAddr, is_grpc: bool, mut rng: Rng, until: Instant, count: &AtomicU64) {
    wait(async {
        while Instant::now() < until {
            let Some(mut client) = Http2::connect(address).await else { continue };
            for _ in 0..rng.random_range(1..30) {
                let (path, body) =
                    if is_grpc { (RATE_LIMIT, grpc_hit(&mut rng)) } else { ("/v1/hit", json(&mut rng).into()) };
                let Some(()) = client.abandon(path, is_grpc, body, &mut rng).await else { break };
                count.fetch_add(1, Relaxed);
            }
        }
    });
}

fn grpc_hit(rng: &mut Rng) -> Vec<u8> {
    let descriptors = vec![descriptor(&format!("user={}", user(rng)))];
    framed(&RateLimitRequest { domain: "storm".into(), descriptors, ..RateLimitRequest::default() }).into()
}

/// An HTTP/2 client, with or without gRPC.
struct Http2 {
    send: SendRequest<Bytes>,
    /// The task that drives the connection, which is ended when this is dropped.
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Http2 {
    async fn connect(address: SocketAddr) -> Option<Self> {
        let socket = tokio::net::TcpStream::connect(address).await.ok()?;
        let (send, connection) = h2::client::handshake(socket).await.ok()?;
        let connection = tokio::spawn(async move {
            // The task ends with an error if the server has closed the connection.
            let _ = connection.await;
        });
        Some(Self { send, connection })
    }

    /// Sends a request and cancels it within a moment.
    async fn abandon(&mut self, path: &str, is_grpc: bool, body: Vec<u8>, rng: &mut Rng) -> Option<()> {
        let mut send = self.send.clone().ready().await.ok()?;
        let (_response, mut stream) = send.send_request(request(path, is_grpc), false).ok()?;
        let is_whole = rng.random_bool(0.9);
        let half = body.len() / 2;
        let bytes = if is_whole { Bytes::from(body) } else { Bytes::from(body).slice(..half) };
        stream.send_data(bytes, is_whole).ok()?;
        let end = Instant::now() + LONGEST.mul_f64(rng.random());
        while Instant::now() < end {
            tokio::task::yield_now().await;
        }
        stream.send_reset(h2::Reason::CANCEL);
        Some(())
    }

    /// Sends a request. Returns the status and the body of the response.
    async fn ask(&mut self, path: &str, is_grpc: bool, body: Vec<u8>) -> (u16, Vec<u8>) {
        let mut send = self.send.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(request(path, is_grpc), false).unwrap();
        stream.send_data(body.into(), true).unwrap();
        let response = response.await.unwrap();
        let status = response.status().as_u16();
        let (mut received, mut body) = (Vec::new(), response.into_body());
        while let Some(data) = body.data().await {
            received.extend(data.unwrap());
        }
        (status, received)
    }
}

fn request(path: &str, is_grpc: bool) -> Request<()> {
    let kind = if is_grpc { "application/grpc" } else { "application/json" };
    let request = Request::post(format!("http://divvy{path}")).header("content-type", kind);
    request.header("te", "trailers").body(()).unwrap()
}

fn every_front_answers(server: &Server) {
    let hit = "domain=storm user=after";
    assert_eq!(server.line().hit(hit).1, CREDIT - 1);
    let reply = server.resp().command(&format!("DIVVY.HIT {hit}"));
    assert!(reply.starts_with(&format!("[1 {} ", CREDIT - 2)), "{reply}");
    let body = r#"{"operation":{"domain":"storm","user":"after"}}"#;
    let answer = server.http().post("/v1/hit", body);
    assert_eq!((answer.status, answer.json()["remaining"].as_u64()), (200, Some(CREDIT - 3)));
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    let answers = async {
        let mut http2 = Http2::connect(server.http).await.unwrap();
        assert_eq!(http2.ask("/v1/hit", false, body.into()).await.0, 200);
        let mut grpc = Http2::connect(server.grpc).await.unwrap();
        let (status, reply) = grpc.ask(RATE_LIMIT, true, grpc_hit(&mut Rng::seed_from_u64(0))).await;
        assert_eq!(status, 200);
        let reply = RateLimitResponse::decode(&reply[5..]).unwrap();
        assert_eq!(reply.overall_code, 1, "{reply:?}");
        let (_, health) = grpc.ask(HEALTH, true, vec![0; 5]).await;
        assert_eq!(health, [0, 0, 0, 0, 2, 8, 1], "SERVING");
    };
    wait(async { timeout(PATIENCE, answers).await.unwrap() });
}

/// Runs the future on its own threads.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(future)
}
