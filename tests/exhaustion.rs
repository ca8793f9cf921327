//! Clients that make the server use as much memory as they can with valid requests: many counters per request, long
//! actors, unread replies, calls that wait for each other. Memory stays within `--max-buffer-memory` plus a fixed
//! amount, and other clients are answered during the attack.
//!
//! `cargo test` runs small attacks and checks the memory. `DIVVY_TEST_EXHAUSTION=full` runs full attacks on RocksDB,
//! and prints the memory of each and the longest wait of other clients. `DIVVY_TEST_ATTACKED` is another binary to
//! attack.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use divvy::server::grpc::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use divvy::server::grpc::messages::kuadrant::service::ratelimit::v1::ReserveRequest;
use prost::bytes::Bytes;

use crate::robustness::MIB;
use crate::support::http2::{descriptor, framed};
use crate::support::{DIVVY, PATIENCE, RulesFile, Server, connect, encode, http, program};

const RULES_OF_A_STACK: usize = 16;
const LONG: usize = 60_000;
const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";

/// Returns a stack of as many rules as possible, a concurrency limit, and limits for other clients.
fn rules() -> RulesFile {
    let stacked = |number: usize| {
        let policy = if number < RULES_OF_A_STACK { "matchPolicy = and\n" } else { "" };
        let (credits, seconds) = (1_000_000_000 + number, 36_000 * number);
        format!("[user=*]\ncreditLimit = {credits}\nresetSeconds = {seconds}\nactorField = user\n{policy}\n")
    };
    let others = "[other=*]\ncreditLimit = 1000000000\nresetSeconds = 3600\n\n\
                  [call=* id=*]\ncreditLimit = 1000000\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\n\n\
                  [tokens=*]\ncreditLimit = 1000000000\nresetSeconds = 36000\nactorField = tokens\n\n\
                  [default]\ncreditLimit = 0\nresetSeconds = 0\n";
    RulesFile::ini(&(1..=RULES_OF_A_STACK).map(stacked).chain([others.to_owned()]).collect::<Vec<_>>().concat())
}

/// The scale of an attack.
#[derive(Clone, Copy)]
struct Scale {
    is_full: bool,
}

impl Scale {
    fn of(self, full: usize, small: usize) -> usize {
        if self.is_full { full } else { small }
    }
}

struct Attack {
    name: &'static str,
    run: fn(&Server, Scale),
}

const ATTACKS: [Attack; 10] = [
    Attack { name: "185,000 hits on 16 rules in one MULTI", run: stacked_hits_in_a_transaction },
    Attack { name: "1,080 hits with a 60 KB actor on 16 rules in one MULTI", run: long_actors_in_a_transaction },
    Attack { name: "2 such hits on each of 1,000 connections", run: long_actors_on_many_connections },
    Attack {
        name: "2 hits with new 60 KB actors on 16 rules on each of 300 connections",
        run: new_long_actors_on_many_connections,
    },
    Attack { name: "600 such hits, one after the other", run: new_long_actors_one_after_the_other },
    Attack { name: "500 hits on 16 rules on each of 500 connections", run: stacked_hits_on_many_connections },
    Attack { name: "4 batches of 1,000 hits on 16 rules on each of 100 connections over HTTP", run: batches_over_http },
    Attack {
        name: "4 calls of 4,000 descriptors on 16 rules on each of 50 connections",
        run: calls_of_many_descriptors,
    },
    Attack { name: "1,000 unread Reserve calls on each of 100 connections", run: unread_calls },
    Attack { name: "20,000 Envoy calls about one lease", run: calls_about_one_lease },
];

fn hit(user: &str) -> Vec<u8> {
    encode(&[b"DIVVY.HIT", format!("user={user}").as_bytes()])
}

/// Queues up to `count` of these requests, as many as fit into memory, and executes them. Returns how many were
/// answered.
fn transaction(server: &Server, count: usize, request: impl Fn(usize) -> Vec<u8>) -> usize {
    const AT_ONCE: usize = 500;
    let mut client = server.resp();
    assert_eq!(client.command("MULTI"), "OK");
    for first in (0..count).step_by(AT_ONCE) {
        let requests: Vec<_> = (first..count.min(first + AT_ONCE)).map(&request).collect();
        for part in requests.chunks(if requests[0].len() > LONG { 10 } else { AT_ONCE }) {
            client.send(&part.concat());
            part.iter().for_each(|_| assert_eq!(client.read_reply(), "QUEUED"));
        }
    }
    client.send(&encode(&[b"EXEC"]));
    let reply = client.read_reply();
    assert!(!reply.contains("-ERR"), "{}", &reply[..reply.len().min(200)]);
    reply.matches("[1 ").count()
}

fn stacked_hits_in_a_transaction(server: &Server, scale: Scale) {
    let count = scale.of(185_000, 20_000);
    assert_eq!(transaction(server, count, |number| hit(&format!("u{}", number % 1_000))), count);
}

fn long_actors_in_a_transaction(server: &Server, scale: Scale) {
    let count = scale.of(1_080, 100);
    let actor = "x".repeat(LONG);
    assert_eq!(transaction(server, count, |_| hit(&actor)), count);
}

/// Sends each client's requests before any reply is read. Then reads all replies.
fn on_connections(server: &Server, connections: usize, replies: usize, requests: impl Fn(usize) -> Vec<u8> + Sync) {
    const THREADS: usize = 8;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let requests = &requests;
            scope.spawn(move || {
                let mut clients: Vec<_> =
                    (thread..connections).step_by(THREADS).map(|number| (number, server.resp())).collect();
                // All earlier requests are answered first, and the disk may be slow.
                let patience = Some(10 * PATIENCE);
                clients.iter().for_each(|(_, client)| client.stream().set_read_timeout(patience).unwrap());
                clients.iter_mut().for_each(|(number, client)| client.send(&requests(*number)));
                for (_, client) in &mut clients {
                    (0..replies).for_each(|_| {
                        let reply = client.read_reply();
                        assert!(reply.starts_with("[1 "), "{reply}");
                    });
                }
            });
        }
    });
}

fn long_actors_on_many_connections(server: &Server, scale: Scale) {
    let requests = hit(&"x".repeat(LONG)).repeat(2);
    on_connections(server, scale.of(1_000, 150), 2, |_| requests.clone());
}

/// Returns an actor that differs from others only at its end.
fn long_actor(number: usize) -> String {
    format!("{}{number:05}", "x".repeat(LONG - 5))
}

fn new_long_actors_on_many_connections(server: &Server, scale: Scale) {
    let requests = |number| [hit(&long_actor(2 * number)), hit(&long_actor(2 * number + 1))].concat();
    on_connections(server, scale.of(300, 50), 2, requests);
}

fn new_long_actors_one_after_the_other(server: &Server, scale: Scale) {
    let mut client = server.resp();
    for number in 0..scale.of(600, 60) {
        client.send(&hit(&long_actor(number)));
        let reply = client.read_reply();
        assert!(reply.starts_with("[1 "), "{reply}");
    }
}

fn stacked_hits_on_many_connections(server: &Server, scale: Scale) {
    on_connections(server, scale.of(500, 100), 500, |number| hit(&format!("u{number}")).repeat(500));
}

fn batches_over_http(server: &Server, scale: Scale) {
    let hits: Vec<_> = (0..1_000).map(|number| format!(r#"{{"operation":{{"user":"u{number}"}}}}"#)).collect();
    let body = format!(r#"{{"hits":[{}]}}"#, hits.join(","));
    let request = http::encode("POST", "/v1/hits", &[("content-type", "application/json")], body.as_bytes());
    let mut clients: Vec<_> = (0..scale.of(100, 30)).map(|_| connect(server.http)).collect();
    for _ in 0..scale.of(4, 1) {
        clients.iter_mut().for_each(|client| client.write_all(&request).unwrap());
        for client in &mut clients {
            let (status, body) = read_response(client);
            assert_eq!((status.as_str(), body.matches("\"allowed\":true").count()), ("HTTP/1.1 200 OK", 1_000));
        }
    }
}

/// Returns the status line and the body.
fn read_response(stream: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (head.lines().next().unwrap().to_uppercase(), String::from_utf8(body).unwrap())
}

/// Counts of calls, by answer.
#[derive(Default, Debug)]
struct AnswerCounts<N = u64> {
    ok: N,
    refused: N,
    /// The client left before an answer came.
    none: N,
}

/// Calls made at the same time on each of several connections. `window` is the number of bytes that a client lets the
/// server send ahead on a stream.
struct Calls<'a> {
    connections: usize,
    of_each: usize,
    path: &'a str,
    message: Bytes,
    window: u32,
    /// How long clients that read nothing stay connected after the last call.
    stay: Duration,
}

impl Calls<'_> {
    fn make(self, server: &Server) -> AnswerCounts {
        let answered = Arc::new(AnswerCounts::<AtomicU64>::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut clients = tokio::task::JoinSet::new();
            for _ in 0..self.connections {
                let (path, message, answered) =
                    (format!("http://divvy{}", self.path), self.message.clone(), Arc::clone(&answered));
                let (address, of_each, window, stay) = (server.grpc, self.of_each, self.window, self.stay);
                clients.spawn(async move {
                    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
                    let mut builder = h2::client::Builder::new();
                    builder.initial_window_size(window).initial_max_send_streams(of_each);
                    // A busy client may read hundreds of replies at once.
                    builder.data_frame_budget(usize::MAX);
                    let (send, connection) = builder.handshake::<_, Bytes>(socket).await.unwrap();
                    let connection = tokio::spawn(connection);
                    let mut calls = tokio::task::JoinSet::new();
                    for _ in 0..of_each {
                        let request = hyper::Request::post(&path).header("content-type", "application/grpc");
                        let request = request.header("te", "trailers").body(()).unwrap();
                        let mut send = send.clone().ready().await.unwrap();
                        let (response, mut stream) = send.send_request(request, false).unwrap();
                        stream.send_data(message.clone(), true).unwrap();
                        let answered = Arc::clone(&answered);
                        calls.spawn(async move {
                            let response = match response.await {
                                Ok(response) => response,
                                Err(error) => {
                                    if answered.none.fetch_add(1, Relaxed) == 0 {
                                        println!("the first that has no answer: {error}");
                                    }
                                    return 0;
                                }
                            };
                            match response.status().as_u16() {
                                200 => answered.ok.fetch_add(1, Relaxed),
                                _ => answered.refused.fetch_add(1, Relaxed),
                            };
                            let mut body = response.into_body();
                            // Nothing is read unless the window is open.
                            while let Some(Ok(read)) = body.data().await {
                                let _ = body.flow_control().release_capacity(read.len());
                            }
                            0
                        });
                    }
                    if window > 0 {
                        while calls.join_next().await.is_some() {}
                    } else {
                        tokio::time::sleep(stay).await;
                    }
                    connection.abort();
                });
            }
            while let Some(done) = clients.join_next().await {
                done.unwrap();
            }
        });
        let count = |of: &AtomicU64| of.load(Relaxed);
        AnswerCounts { ok: count(&answered.ok), refused: count(&answered.refused), none: count(&answered.none) }
    }
}

fn calls_of_many_descriptors(server: &Server, scale: Scale) {
    let descriptors = vec![descriptor("user=u"); 4_000];
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
    let connections = scale.of(50, 10);
    let calls = Calls {
        connections,
        of_each: 4,
        path: RATE_LIMIT,
        message: framed(&request),
        window: 1 << 20,
        stay: Duration::ZERO,
    };
    let answered = calls.make(server);
    assert!(answered.none == 0 && answered.ok > 0, "{answered:?}");
    println!("{answered:?}");
}

fn unread_calls(server: &Server, scale: Scale) {
    let request = ReserveRequest {
        domain: "d".into(),
        descriptors: vec![descriptor("tokens=t")],
        amount: 1,
        ..ReserveRequest::default()
    };
    let (connections, stay) = (scale.of(100, 20), Duration::from_secs(scale.of(10, 3) as u64));
    let calls = Calls { connections, of_each: 1_000, path: RESERVE, message: framed(&request), window: 0, stay };
    let answered = calls.make(server);
    println!("{answered:?}");
}

fn calls_about_one_lease(server: &Server, scale: Scale) {
    let descriptors = vec![descriptor("call=c id=one")];
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
    let calls = Calls {
        connections: 20,
        of_each: scale.of(1_000, 100),
        path: RATE_LIMIT,
        message: framed(&request),
        window: 65_535,
        stay: Duration::ZERO,
    };
    let answered = calls.make(server);
    assert!(answered.none == 0 && answered.ok > 0, "{answered:?}");
}

/// Returns the longest wait of other clients during the attack, on existing and new connections.
fn worst_wait(server: &Server, attack: impl FnOnce()) -> Duration {
    /// Marks the end of the attack, even after a panic.
    struct EndSignal<'a>(&'a AtomicBool);
    impl Drop for EndSignal<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let (done, worst) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = |hit: &mut dyn FnMut()| {
        while !done.load(Relaxed) {
            let begun = Instant::now();
            hit();
            worst.fetch_max(begun.elapsed().as_micros() as u64, Relaxed);
            thread::sleep(Duration::from_millis(2));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut line = server.line();
            ask(&mut || assert!(line.hit("other=line").0));
        });
        scope.spawn(|| {
            let mut resp = server.resp();
            ask(&mut || assert!(resp.command("DIVVY.HIT other=resp").starts_with("[1 ")));
        });
        scope.spawn(|| {
            ask(&mut || assert!(server.resp().command("DIVVY.HIT other=new").starts_with("[1 ")));
        });
        let _over = EndSignal(&done);
        attack();
    });
    Duration::from_micros(worst.load(Relaxed))
}

/// Returns the program to attack.
fn attacked() -> Command {
    program(&std::env::var("DIVVY_TEST_ATTACKED").unwrap_or_else(|_| DIVVY.to_owned()))
}

/// Runs a small attack on a server with little memory for buffers.
fn stays_within_its_buffers(Attack { name, run }: &Attack) {
    const BUFFERS: u64 = 16 * MIB;
    let (rules, dir) = (rules(), tempfile::tempdir().unwrap());
    let (data, buffers) = (dir.path().join("data"), BUFFERS.to_string());
    let flags = [rules.path(), "--data-dir", data.to_str().unwrap(), "--max-buffer-memory", &buffers];
    let server = Server::start_as(&mut attacked(), &flags);
    let before = server.peak_resident();
    worst_wait(&server, || run(&server, Scale { is_full: false }));
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < BUFFERS + 80 * MIB, "{name}: it grew by {} MiB", grown / MIB);
    let deadline = Instant::now() + PATIENCE;
    while !http::get(server.http, "/metrics").body.contains("divvy_buffer_memory_bytes 0\n") {
        assert!(Instant::now() < deadline, "{name}: memory is held for ended requests");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn attacks_are_answered_in_bounded_memory() {
    ATTACKS.iter().for_each(stays_within_its_buffers);
}

/// Runs all attacks at full scale and prints a table, if requested.
#[test]
fn attacks_at_full_scale_are_answered_in_bounded_memory() {
    if std::env::var("DIVVY_TEST_EXHAUSTION").as_deref() != Ok("full") {
        return;
    }
    let only = std::env::var("DIVVY_TEST_ATTACK").ok();
    println!("| attack | peak memory | worst wait of others | seconds |\n|---|---|---|---|");
    for Attack { name, run } in
        ATTACKS.iter().filter(|attack| only.as_deref().is_none_or(|only| attack.name.contains(only)))
    {
        let (rules, dir) = (rules(), tempfile::tempdir().unwrap());
        let data = dir.path().join("data");
        let server = Server::start_as(&mut attacked(), &[rules.path(), "--data-dir", data.to_str().unwrap()]);
        let begun = Instant::now();
        let worst = worst_wait(&server, || run(&server, Scale { is_full: true }));
        let (peak, seconds) = (server.peak_resident() / MIB, begun.elapsed().as_secs_f32());
        println!("| {name} | {peak} MiB | {} ms | {seconds:.1} |", worst.as_millis());
    }
}
