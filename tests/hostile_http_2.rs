//! Hostile HTTP/2 clients (RFC 9113) flood the server with expensive frames. Other clients are answered during the
//! flood, and neither memory nor the log grows with it.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use divvy::logging::MESSAGES_PER_SECOND;

use crate::http_2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, PRIORITY, SETTINGS, WINDOW_UPDATE, error,
    frame, head, literal, reset,
};
use crate::support::{COMPAT_RULES, PATIENCE, Server, connect, http};

const MIB: u64 = 1 << 20;
/// Connections of each flood that read answers, and connections that do not.
const READERS: usize = 2;
const SILENT: usize = 1;
/// Successive attempts on each of these connections.
const ATTEMPTS: usize = 2;
/// Steps of a flood on one connection.
const STEPS: u32 = 20_000;
/// Steps that are written at once.
const AT_ONCE: u32 = 500;
/// How long a client that reads nothing waits for the server to continue reading.
const ENOUGH: Duration = Duration::from_secs(1);

/// Returns the frames of a step.
type Flood = fn(step: u32) -> Vec<u8>;

const FLOODS: [(&str, Flood); 11] = [
    ("requests that are reset", |step| [request(step, END_STREAM), reset(stream(step))].concat()),
    ("calls that are reset", |step| [call(step), reset(stream(step))].concat()),
    ("requests that the server resets", |step| [request(step, 0), error(stream(step))].concat()),
    ("requests that never end", |step| request(step, 0)),
    ("calls without a look at the answers", call),
    ("a head that never ends", |step| match step {
        0 => frame(HEADERS, END_STREAM, 1, &head("GET", "/", &[])),
        _ => frame(CONTINUATION, 0, 1, &literal("x", "y")),
    }),
    ("settings", |_| frame(SETTINGS, 0, 0, &[])),
    ("pings", |_| frame(PING, 0, 0, &[0; 8])),
    ("empty data", |step| match step {
        0 => request(0, 0),
        _ => frame(DATA, 0, 1, &[]),
    }),
    ("priorities", |_| frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 0])),
    ("windows", |_| frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
];

fn stream(step: u32) -> u32 {
    2 * step + 1
}

/// Returns the shortest request: `GET /` from the static table (RFC 7541, appendix A).
fn request(step: u32, flags: u8) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream(step), &[0x82, 0x86, 0x84])
}

/// Returns a call of Envoy's service with an invalid message.
fn call(step: u32) -> Vec<u8> {
    let fields = [("content-type", "application/grpc"), ("te", "trailers")];
    let head = head("POST", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", &fields);
    let head = frame(HEADERS, END_HEADERS, stream(step), &head);
    [head, frame(DATA, END_STREAM, stream(step), &[0; 5])].concat()
}

/// Writes the flood until the server stops reading it, and waits until the server has closed the connection.
fn pour(address: SocketAddr, flood: Flood, reads: bool) {
    let mut connection = connect(address);
    connection.set_write_timeout(Some(if reads { PATIENCE } else { ENOUGH })).unwrap();
    let mut replies = connection.try_clone().unwrap();
    let reader = thread::spawn(move || while reads && matches!(replies.read(&mut [0; 1 << 16]), Ok(1..)) {});
    let greeting = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let mut is_open = connection.write_all(&greeting).is_ok();
    let mut step = 0;
    while is_open && step < STEPS {
        let frames: Vec<_> = (step..step + AT_ONCE).flat_map(flood).collect();
        is_open = connection.write_all(&frames).is_ok();
        step += AT_ONCE;
    }
    let _ = connection.shutdown(std::net::Shutdown::Write);
    reader.join().unwrap();
}

#[test]
fn floods_of_all_kinds_at_once_leave_others_served() {
    let (server, log) = Server::logged(&[COMPAT_RULES, "--store", "memory"]);
    let (before, begun) = (server.peak_resident(), Instant::now());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (mut line, mut resp) = (server.line(), server.resp());
            let mut worst = Duration::ZERO;
            while !is_over.load(Relaxed) {
                let asked = Instant::now();
                line.hit("method=GET path=/status");
                assert!(resp.command("DIVVY.HIT method=GET path=/status").starts_with('['));
                assert_eq!(http::get(server.http, "/healthz").status, 200);
                worst = worst.max(asked.elapsed());
            }
            worst
        });
        let mut floods = Vec::new();
        for (name, flood) in FLOODS {
            for address in [server.http, server.grpc] {
                for connection in 0..READERS + SILENT {
                    let pour = move || (0..ATTEMPTS).for_each(|_| pour(address, flood, connection < READERS));
                    floods.push((name, scope.spawn(pour)));
                }
            }
        }
        let ended: Vec<_> = floods.into_iter().map(|(name, flood)| (name, flood.join())).collect();
        is_over.store(true, Relaxed);
        let worst = other.join().expect("the others were answered");
        ended.into_iter().for_each(|(name, ended)| ended.expect(name));
        println!("others waited for {worst:?} at most");
    });
    let grown = server.peak_resident().saturating_sub(before);
    let (lines, most) = (log.text().lines().count(), 20 + MESSAGES_PER_SECOND * (begun.elapsed().as_secs() + 1));
    println!("memory grew by {} MiB, and the log has {lines} lines", grown / MIB);
    assert!(grown < 150 * MIB, "memory grew by {} MiB", grown / MIB);
    assert!(lines as u64 <= most, "{}", log.text());
}
