//! Requests to a whole server with one thread. Each connection has one request in flight.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::valgrind::{CALLGRIND, collected};

/// A request that a server answers, again and again.
pub struct Served {
    pub name: &'static str,
    /// The front, as in the server's first lines.
    front: &'static str,
    store: &'static str,
    connections: usize,
    /// Returns what a client sends, in each round.
    request: fn(round: u32) -> Vec<u8>,
    /// Returns whether these bytes are a whole answer, or fails if they begin with another one.
    is_answer: fn(&[u8]) -> bool,
}

const ROCKSDB: &str = "rocksdb";

pub const SERVED: [Served; 4] = [
    Served {
        name: "check: HTTP",
        front: "HTTP",
        store: "memory",
        connections: 1,
        request: |_| {
            b"GET /v1/check HTTP/1.1\r\nHost: 127.0.0.1:8322\r\nX-Original-Method: POST\r\n\
            X-Original-URI: /v1/search?q=x\r\nX-Original-Host: shop.example\r\nX-Forwarded-For: 192.168.1.1\r\n\
            X-Real-IP: 192.168.1.1\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\r\n"
                .to_vec()
        },
        is_answer: |bytes| has_lines(bytes, "HTTP/1.1 200", 6),
    },
    Served {
        name: "one at a time, 50 connections: RESP",
        front: "RESP",
        store: ROCKSDB,
        connections: 50,
        request: |_| {
            b"*4\r\n$9\r\nDIVVY.HIT\r\n$11\r\nmethod=POST\r\n$21\r\npath=/v1/search/items\r\n$14\r\nip=192.168.1.1\r\n"
                .to_vec()
        },
        is_answer: |bytes| has_lines(bytes, "*3\r\n:1\r\n", 4),
    },
    Served {
        name: "one at a time, 50 connections: HTTP",
        front: "HTTP",
        store: ROCKSDB,
        connections: 50,
        request: |_| {
            b"POST /v1/hit HTTP/1.1\r\nhost: 127.0.0.1:8322\r\ncontent-type: application/json\r\ncontent-length: 76\r\n\r\n\
            {\"operation\":{\"method\":\"POST\",\"path\":\"/v1/search/items\",\"ip\":\"192.168.1.1\"}}"
                .to_vec()
        },
        is_answer: |bytes| has_lines(bytes, "HTTP/1.1 200", 8),
    },
    Served {
        name: "one at a time, 50 connections: gRPC",
        front: "gRPC",
        store: ROCKSDB,
        connections: 50,
        request: call,
        is_answer: |bytes| bytes.ends_with(b"grpc-status\x010"),
    },
];

/// Returns whether these bytes have this number of lines.
fn has_lines(bytes: &[u8], beginning: &str, lines: usize) -> bool {
    let is_begun = bytes.starts_with(beginning.as_bytes()) || beginning.as_bytes().starts_with(bytes);
    assert!(is_begun, "{}", String::from_utf8_lossy(bytes));
    bytes.iter().filter(|byte| **byte == b'\n').count() >= lines
}

/// Returns a call of Envoy's service in frames of HTTP/2, as a client sends it that has no table of headers.
fn call(round: u32) -> Vec<u8> {
    let field = |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
    let entries = [("method", "POST"), ("path", "/v1/search/items"), ("ip", "192.168.1.1")];
    let entries =
        entries.map(|(key, value)| field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat()));
    let message = [field(1, b"edge"), field(2, &entries.concat())].concat();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        (":authority", "127.0.0.1:8321"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let block = headers.map(|(name, value)| [vec![0], text(name), text(value)].concat()).concat();
    let frame = |kind: u8, flags: u8, stream: u32, content: &[u8]| {
        let length = (content.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
    };
    let greeting = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(4, 0, 0, &[])].concat();
    let (stream, prefix) = (2 * round + 1, [&[0], &(message.len() as u32).to_be_bytes()[..]].concat());
    let request = [frame(1, 4, stream, &block), frame(0, 1, stream, &[prefix, message].concat())].concat();
    if round == 0 { [greeting, request].concat() } else { request }
}

const RULES: &str = "[method=POST path=/v1/search* ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [default]\ncreditLimit=0\nresetSeconds=0\n";
/// How long a client waits for an answer. It is longer than a server takes under valgrind.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server answers this many requests, and twice as many. The difference does not include its start.
const REQUESTS: u64 = 10_000;

/// Returns the instructions of a request.
pub fn count(served: &Served) -> u64 {
    let [few, many] = [REQUESTS, 2 * REQUESTS].map(|requests| instructions(served, requests));
    (many - few) / REQUESTS
}

fn instructions(served: &Served, requests: u64) -> u64 {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let rules = directory.path().join("rules.ini");
    std::fs::write(&rules, RULES).expect("a file of rules");
    let mut command = Command::new("valgrind");
    command.args(CALLGRIND).arg(env!("CARGO_BIN_EXE_divvy")).arg("serve").arg(rules);
    command.args(["--threads", "1", "--listen", "none", "--grpc-listen", "127.0.0.1:0"]);
    command.args(["--resp-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--store", served.store]);
    if served.store == ROCKSDB {
        command.arg("--data-dir").arg(directory.path().join("data"));
    }
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("valgrind is installed");
    let mut lines = BufReader::new(server.stdout.take().expect("standard output")).lines();
    let prefix = format!("{} on ", served.front);
    let address = lines.find_map(|line| Some(line.ok()?.strip_prefix(&prefix)?.to_owned())).expect("an address");
    let connect = || {
        let client = TcpStream::connect(&address).expect("a connection");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        client
    };
    let mut clients: Vec<_> = (0..served.connections).map(|_| connect()).collect();
    for round in 0..requests as u32 / served.connections as u32 {
        let request = (served.request)(round);
        // All requests of a round are there when the server goes on, so each run has the same turns.
        signal(&server, "-STOP");
        for client in &mut clients {
            client.write_all(&request).expect("a request is sent");
        }
        signal(&server, "-CONT");
        clients.iter_mut().for_each(|client| read_answer(client, served.is_answer));
    }
    drop(clients);
    signal(&server, "-TERM");
    let output = server.wait_with_output().expect("the server ends");
    collected(&output.stderr)[0]
}

/// Reads an answer.
fn read_answer(client: &mut TcpStream, is_answer: fn(&[u8]) -> bool) {
    let mut answer = Vec::new();
    while answer.is_empty() || !is_answer(&answer) {
        let mut part = [0; 4096];
        let length = client.read(&mut part).expect("an answer");
        assert!(length > 0, "the server closes the connection");
        answer.extend_from_slice(&part[..length]);
    }
}

fn signal(server: &Child, signal: &str) {
    let killed = Command::new("kill").arg(signal).arg(server.id().to_string()).status().expect("kill");
    assert!(killed.success(), "the server ended before");
}
