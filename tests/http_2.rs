//! HTTP/2 frame by frame (RFC 9113): clients that are slow, silent or rude in ways that only it allows.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::{COMPAT_RULES, PATIENCE, RulesFile, Server, connect, http};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Between two reads of a client that is slow on purpose.
const PACE: Duration = Duration::from_millis(100);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header as a literal without a table (RFC 7541).
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

fn head(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "divvy")];
    fields.iter().chain(more).flat_map(|(name, value)| literal(name, value)).collect()
}

/// A client that lets so many bytes be sent ahead on each stream.
struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

struct Frame {
    kind: u8,
    flags: u8,
    payload: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr, window: u32) -> Self {
        let mut stream = connect(address);
        stream.set_read_timeout(Some(PACE)).unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
        stream.write_all(&frame(SETTINGS, 0, 0, &initial_window)).unwrap();
        Self { stream, received: Vec::new() }
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.stream.write_all(&frame(kind, flags, stream, payload)).unwrap();
    }

    /// Lets so many bytes more be sent, on the stream and on the connection.
    fn widen(&mut self, stream: u32, bytes: u32) {
        for stream in [stream, 0] {
            self.send(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
        }
    }

    /// The frames that came within [`PACE`]; `None` when the server has ended the connection.
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
            let Some(payload) = self.received.get(9..9 + length).map(<[u8]>::to_vec) else { break };
            self.received.drain(..9 + length);
            frames.push(Frame { kind, flags, payload });
        }
        Some(frames)
    }
}

/// Rules of which `/v1/rules` has much to tell.
fn many_rules() -> RulesFile {
    let rule = |number: u32| format!("[path=/{number}]\ncreditLimit=1\nresetSeconds=60\nlabel=rule-{number}\n");
    RulesFile::ini(&[(0..1000).map(rule).collect(), "[default]\ncreditLimit=0\nresetSeconds=0\n".to_owned()].concat())
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_its_reply() {
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
            // As a reader that takes so much at a time: the rest of the pace is spent in reading.
            std::thread::sleep(PACE / 2);
            client.widen(1, STEP);
        }
    }
    assert_eq!(received, expected);
}

#[test]
fn an_idle_watch_of_the_server_s_health_is_left_alone() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--write-timeout", "1"]);
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
    let metrics = http::get(server.http, "/metrics").body;
    assert!(metrics.contains("divvy_limits_reached_total{limit=\"write-timeout\"} 0"), "{metrics}");
}

#[test]
fn a_client_that_takes_less_than_a_kilobyte_in_each_timeout_is_cut() {
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
    let metrics = http::get(server.http, "/metrics").body;
    assert!(metrics.contains("divvy_limits_reached_total{limit=\"write-timeout\"} 1"), "{metrics}");
}

#[test]
fn streams_that_are_reset_leave_nothing_behind() {
    let rules = many_rules();
    let server = Server::start(&[rules.path(), "--store", "memory"]);
    for path in ["/v1/rules", "/metrics", "/healthz"] {
        for _ in 0..10 {
            let mut client = Client::connect(server.http, 0);
            for stream in (1..60).step_by(2) {
                let request = frame(HEADERS, END_STREAM | END_HEADERS, stream, &head("GET", path, &[]));
                let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
                // The server may have ended the connection: so many resets are an attack.
                let _ = client.stream.write_all(&[request, reset].concat());
            }
            client.frames();
        }
    }
    let start = Instant::now();
    while !http::get(server.http, "/metrics").body.contains("divvy_buffer_memory_bytes 0\n") {
        assert!(start.elapsed() < PATIENCE, "memory is held for streams that are gone");
        std::thread::sleep(PACE);
    }
}
