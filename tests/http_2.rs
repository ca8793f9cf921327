//! HTTP/2 frame by frame (RFC 9113): clients that are slow, silent or abusive in ways that only HTTP/2 allows.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{COMPAT_RULES, PATIENCE, RulesFile, Server, connect, http, number, until};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;
/// Time between two reads of a deliberately slow client.
const PACE: Duration = Duration::from_millis(100);

/// Connection preface: the first bytes of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a header as a literal that is not in a table (RFC 7541).
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

pub fn head(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "divvy")];
    fields.iter().chain(more).flat_map(|(name, value)| literal(name, value)).collect()
}

/// A client that lets the server send this many bytes ahead on each stream.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr, window: u32) -> Self {
        let mut stream = connect(address);
        stream.set_read_timeout(Some(PACE)).unwrap();
        stream.write_all(PREFACE).unwrap();
        let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
        stream.write_all(&frame(SETTINGS, 0, 0, &initial_window)).unwrap();
        Self { stream, received: Vec::new() }
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.stream.write_all(&frame(kind, flags, stream, payload)).unwrap();
    }

    /// Lets the server send `bytes` more, on the stream and on the connection.
    fn widen(&mut self, stream: u32, bytes: u32) {
        for stream in [stream, 0] {
            self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
        }
    }

    /// Returns the frames received within [`PACE`]; `None` if the server has ended the connection.
    fn frames(&mut self) -> Option<Vec<Frame>> {
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => return None,
            Ok(length) => self.received.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
        let mut frames = Vec::new();
        while let Some(head) = self.received.get(..9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(payload) = self.received.get(9..9 + length).map(<[u8]>::to_vec) else { break };
            self.received.drain(..9 + length);
            frames.push(Frame { kind, flags, stream, payload });
        }
        Some(frames)
    }
}

/// Returns rules that make the reply of `/v1/rules` long.
fn many_rules() -> RulesFile {
    let rule = |number: u32| format!("[path=/{number}]\ncreditLimit=1\nresetSeconds=60\nlabel=rule-{number}\n");
    RulesFile::ini(&[(0..1000).map(rule).collect(), "[default]\ncreditLimit=0\nresetSeconds=0\n".to_owned()].concat())
}

#[test]
fn client_that_reads_slowly_gets_all_of_its_reply() {
    const STEP: u32 = 2048;
    let rules = many_rules();
    let server = Server::start(&[rules.path(), "--store", "memory", "--write-timeout", "1"]);
    let expected = http::get(server.http, "/v1/rules").body.len();
    assert!(expected > 80_000, "{expected} bytes take it well over two write timeouts");
    let mut client = Client::connect(server.http, STEP);
    client.send(HEADERS, END_STREAM | END_HEADERS, 1, &head("GET", "/v1/rules", &[]));
    let (mut received, start) = (0, Instant::now());
    loop {
        let frames = client.frames().unwrap_or_else(|| panic!("cut after {received} of {expected} bytes"));
        let data: Vec<_> = frames.iter().filter(|frame| frame.kind == DATA).collect();
        received += data.iter().map(|frame| frame.payload.len()).sum::<usize>();
        if data.iter().any(|frame| frame.flags & END_STREAM != 0) {
            break;
        }
        assert!(start.elapsed() < PATIENCE);
        if !data.is_empty() {
            // The rest of the pace is spent in reading.
            std::thread::sleep(PACE / 2);
            client.widen(1, STEP);
        }
    }
    assert_eq!(received, expected);
}

#[test]
fn idle_health_watch_is_not_closed() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--write-timeout", "1"]);
    until(|| http::get(server.http, "/readyz").status == 200);
    let mut client = Client::connect(server.grpc, 65_535);
    let more = [("content-type", "application/grpc"), ("te", "trailers")];
    client.send(HEADERS, END_HEADERS, 1, &head("POST", "/grpc.health.v1.Health/Watch", &more));
    client.send(DATA, END_STREAM, 1, &[0; 5]);
    let start = Instant::now();
    let mut messages = 0;
    while start.elapsed() < Duration::from_secs(4) {
        let frames = client.frames().expect("the server ended an idle watch");
        messages += frames.iter().filter(|frame| frame.kind == DATA && !frame.payload.is_empty()).count();
    }
    assert_eq!(messages, 1, "the present health");
    client.send(PING, 0, 0, b"are you?");
    while !client.frames().unwrap().iter().any(|frame| frame.kind == PING && frame.flags & ACK != 0) {
        assert!(start.elapsed() < PATIENCE);
    }
    assert_eq!(number(&server, "divvy_limits_reached_total{limit=\"write-timeout\"}"), 0);
}

#[test]
fn client_that_reads_less_than_a_kilobyte_per_timeout_is_disconnected() {
    let rules = many_rules();
    let server = Server::start(&[rules.path(), "--store", "memory", "--write-timeout", "2"]);
    let mut client = Client::connect(server.http, 10);
    client.send(HEADERS, END_STREAM | END_HEADERS, 1, &head("GET", "/v1/rules", &[]));
    let start = Instant::now();
    while client.frames().is_some() {
        assert!(start.elapsed() < PATIENCE, "it is served for ever");
        std::thread::sleep(PACE);
        let _ = client.stream.write_all(&frame(WINDOW_UPDATE, 0, 1, &10_u32.to_be_bytes()));
    }
    assert_eq!(number(&server, "divvy_limits_reached_total{limit=\"write-timeout\"}"), 1);
}

#[test]
fn reset_streams_leave_nothing_behind() {
    let rules = many_rules();
    let server = Server::start(&[rules.path(), "--store", "memory"]);
    for path in ["/v1/rules", "/metrics", "/healthz"] {
        for _ in 0..10 {
            let mut client = Client::connect(server.http, 0);
            for stream in (1..60).step_by(2) {
                let request = frame(HEADERS, END_STREAM | END_HEADERS, stream, &head("GET", path, &[]));
                let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
                client.stream.write_all(&[request, reset].concat()).unwrap();
            }
            assert!(client.frames().is_some(), "the connection was closed");
        }
    }
    // No memory is held for streams that are gone.
    until(|| number(&server, "divvy_buffer_memory_bytes") == 0);
}

/// Returns requests, each followed by `after`.
fn requests(count: u32, flags: u8, after: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let head = head("GET", "/healthz", &[]);
    let request = |stream| [frame(HEADERS, flags | END_HEADERS, stream, &head), after(stream)].concat();
    (0..count).flat_map(|number| request(2 * number + 1)).collect()
}

pub fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())
}

/// Widens the stream's window beyond the maximum, so that the server resets the stream.
pub fn error(stream: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &(i32::MAX).to_be_bytes())
}

impl Client {
    /// Returns the frames up to the first one that is last.
    fn frames_until(&mut self, is_last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let (start, mut frames) = (Instant::now(), Vec::new());
        while !frames.iter().any(&is_last) {
            assert!(start.elapsed() < PATIENCE, "it does not come");
            frames.extend(self.frames().expect("the connection is open"));
        }
        frames
    }
}

fn is_answer(frame: &Frame) -> bool {
    frame.kind == DATA && frame.payload == b"ok\n"
}

#[test]
fn requests_reset_at_once_affect_neither_the_connection_nor_other_answers() {
    const RESETS: u32 = 20_000;
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--threads", "1"]);
    let mut client = Client::connect(server.http, 65_535);
    client.stream.write_all(&requests(RESETS, END_STREAM, reset)).unwrap();
    client.send(HEADERS, END_STREAM | END_HEADERS, 2 * RESETS + 1, &head("GET", "/healthz", &[]));
    let frames = client.frames_until(|frame| frame.stream == 2 * RESETS + 1 && is_answer(frame));
    assert!(frames.iter().all(|frame| frame.kind != GOAWAY), "the server says goodbye");
}

#[test]
fn bound_on_faulty_requests_closes_the_connection() {
    let (server, log) = Server::logged(&[COMPAT_RULES, "--store", "memory"]);
    for address in [server.http, server.grpc] {
        let mut client = Client::connect(address, 65_535);
        // The server closes the connection while this is sent.
        let _ = client.stream.write_all(&requests(11_000, 0, error));
        let frames = client.frames_until(|frame| frame.kind == GOAWAY);
        let goodbye = frames.iter().find(|frame| frame.kind == GOAWAY).unwrap();
        assert_eq!(goodbye.payload[4..8], ENHANCE_YOUR_CALM.to_be_bytes());
    }
    log.await_count(2, "closed an HTTP/2 connection with too many faulty requests");
    assert_eq!(log.count("h2::"), 0, "{}", log.text());
}

/// Until the messages of calls arrive, they reserve no memory that others need.
#[test]
fn calls_without_a_message_block_no_other_call() {
    const UNFINISHED: u32 = 1_000;
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--request-timeout", "600"]);
    let call = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";
    let head = head("POST", call, &[("content-type", "application/grpc"), ("te", "trailers")]);
    let mut silent = Client::connect(server.grpc, 65_535);
    let calls: Vec<_> = (0..UNFINISHED).flat_map(|number| frame(HEADERS, END_HEADERS, 2 * number + 1, &head)).collect();
    silent.stream.write_all(&calls).unwrap();
    silent.send(PING, 0, 0, &[0; 8]);
    silent.frames_until(|frame| frame.kind == PING && frame.flags == ACK);

    let mut other = Client::connect(server.grpc, 65_535);
    other.send(HEADERS, END_HEADERS, 1, &head);
    other.send(DATA, END_STREAM, 1, &[0; 5]);
    other.frames_until(|frame| frame.kind == HEADERS && frame.stream == 1);
}

#[test]
fn requests_beyond_the_bound_in_flight_are_refused() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory"]);
    let call = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    for (address, path, bound) in [(server.http, "/v1/hit", 64), (server.grpc, call, 1_024)] {
        let mut client = Client::connect(address, 65_535);
        // Their bodies never arrive.
        let head = head("POST", path, &[("content-type", "application/grpc"), ("te", "trailers")]);
        for stream in (1..=2 * bound + 1).step_by(2) {
            client.send(HEADERS, END_HEADERS, stream, &head);
        }
        let frames = client.frames_until(|frame| frame.kind == RST_STREAM);
        let refused = frames.iter().find(|frame| frame.kind == RST_STREAM).unwrap();
        assert_eq!((refused.stream, &refused.payload[..]), (2 * bound + 1, &REFUSED_STREAM.to_be_bytes()[..]));
    }
}
