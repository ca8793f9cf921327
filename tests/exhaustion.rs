//! Clients that make the server use as much memory as they can with valid requests: many counters per request, long
//! actors, unread replies, calls that wait for each other. Memory stays within `--max-buffer-memory` plus a fixed
//! amount, and other clients are answered during the attack.
//!
//! `cargo test` runs small attacks and checks the memory. `DIVVY_TEST_EXHAUSTION=full` runs full attacks on RocksDB,
//! and prints the memory of each and the longest wait of other clients. `DIVVY_TEST_ATTACKED` is another binary to
//! attack.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use divvy::server::grpc::Rpc;
use divvy::server::grpc::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

use crate::robustness::MIB;
use crate::support::http2::{Http2Client, descriptor, request};
use crate::support::{DIVVY, PATIENCE, Place, Server, encode, eventually, http, number, program};

const RULES_OF_A_STACK: usize = 16;
const LONG: usize = 60_000;

/// Returns a stack of as many rules as possible, a concurrency limit, and limits for other clients.
fn place() -> Place {
    let stacked = |number: usize| {
        let policy = if number < RULES_OF_A_STACK { "matchPolicy = and\n" } else { "" };
        let (credits, seconds) = (1_000_000_000 + number, 36_000 * number);
        format!("[user=*]\ncreditLimit = {credits}\nresetSeconds = {seconds}\nactorField = user\n{policy}\n")
    };
    let others = "[other=*]\ncreditLimit = 1000000000\nresetSeconds = 3600\n\n\
                  [call=* id=*]\ncreditLimit = 1000000\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\n\n\
                  [tokens=*]\ncreditLimit = 1000000000\nresetSeconds = 36000\nactorField = tokens\n\n\
                  [default]\ncreditLimit = 0\nresetSeconds = 0\n";
    Place::new(&(1..=RULES_OF_A_STACK).map(stacked).chain([others.to_owned()]).collect::<String>())
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

/// A name and an attack.
type Attack = (&'static str, fn(&Server, Scale));

const ATTACKS: [Attack; 10] = [
    ("185,000 hits on 16 rules in one MULTI", stacked_hits_in_a_transaction),
    ("1,080 hits with a 60 KB actor on 16 rules in one MULTI", long_actors_in_a_transaction),
    ("2 such hits on each of 1,000 connections", long_actors_on_many_connections),
    ("2 hits with new 60 KB actors on 16 rules on each of 300 connections", new_long_actors_on_many_connections),
    ("600 such hits, one after the other", new_long_actors_one_after_the_other),
    ("500 hits on 16 rules on each of 500 connections", stacked_hits_on_many_connections),
    ("4 batches of 1,000 hits on 16 rules on each of 100 connections over HTTP", batches_over_http),
    ("4 calls of 4,000 descriptors on 16 rules on each of 50 connections", calls_of_many_descriptors),
    ("1,000 unread Reserve calls on each of 100 connections", unread_calls),
    ("20,000 Envoy calls about one lease", calls_about_one_lease),
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
    let mut clients: Vec<_> = (0..scale.of(100, 30)).map(|_| server.http()).collect();
    for _ in 0..scale.of(4, 1) {
        clients.iter_mut().for_each(|client| client.send(&request));
        for client in &mut clients {
            let response = client.read_response();
            assert_eq!((response.status, response.body.matches("\"allowed\":true").count()), (200, 1_000));
        }
    }
}

/// Makes this many calls at the same time on each of several connections. All of them must be answered, and one must be
/// allowed.
fn make_calls(server: &Server, connections: usize, of_each: usize, descriptors: &[RateLimitDescriptor]) {
    let ok = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let call = || request(Rpc::EnvoyShouldRateLimit, "", descriptors.to_vec(), "");
                let responses = Http2Client::connect(server.grpc).send_all((0..of_each).map(|_| call()).collect());
                ok.fetch_add(responses.iter().filter(|response| response.status == 200).count() as u64, Relaxed);
            });
        }
    });
    assert!(ok.load(Relaxed) > 0);
}

fn calls_of_many_descriptors(server: &Server, scale: Scale) {
    make_calls(server, scale.of(50, 10), 4, &vec![descriptor("user=u"); 4_000]);
}

/// Calls of clients that let the server send nothing, and stay connected for a while.
fn unread_calls(server: &Server, scale: Scale) {
    let stay = Duration::from_secs(scale.of(10, 3) as u64);
    let clients: Vec<_> = (0..scale.of(100, 20))
        .map(|_| {
            let client = Http2Client::connect_with_window(server.grpc, 0);
            let call = || request(Rpc::KuadrantReserve, "", vec![descriptor("tokens=t")], "");
            client.send_unread((0..1_000).map(|_| call()).collect());
            client
        })
        .collect();
    let deadline = Instant::now() + stay;
    while Instant::now() < deadline {
        clients.iter().for_each(Http2Client::turn);
    }
}

fn calls_about_one_lease(server: &Server, scale: Scale) {
    make_calls(server, 20, scale.of(1_000, 100), &[descriptor("call=c id=one")]);
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
fn stays_within_its_buffers((name, run): &Attack) {
    const BUFFERS: u64 = 16 * MIB;
    let place = place();
    let server = place.on_disk_as(&mut attacked(), &["--max-buffer-memory", &BUFFERS.to_string()]);
    let before = server.peak_resident();
    worst_wait(&server, || run(&server, Scale { is_full: false }));
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < BUFFERS + 80 * MIB, "{name}: it grew by {} MiB", grown / MIB);
    let is_freed = eventually(|| number(&server, "divvy_buffer_memory_bytes") == 0);
    assert!(is_freed, "{name}: memory is held for ended requests");
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
    for (name, run) in ATTACKS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| name.contains(only))) {
        let place = place();
        let server = place.on_disk_as(&mut attacked(), &[]);
        let begun = Instant::now();
        let worst = worst_wait(&server, || run(&server, Scale { is_full: true }));
        let (peak, seconds) = (server.peak_resident() / MIB, begun.elapsed().as_secs_f32());
        println!("| {name} | {peak} MiB | {} ms | {seconds:.1} |", worst.as_millis());
    }
}
