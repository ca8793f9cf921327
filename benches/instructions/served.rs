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
    request: &'static str,
    /// The beginning of each answer, and the number of lines after which it is whole.
    answer: (&'static str, usize),
}

const HTTP: &str = "HTTP";
const ROCKSDB: &str = "rocksdb";

pub const SERVED: [Served; 3] = [
    Served {
        name: "check: HTTP",
        front: HTTP,
        store: "memory",
        connections: 1,
        request: "GET /v1/check HTTP/1.1\r\nHost: 127.0.0.1:8322\r\nX-Original-Method: POST\r\n\
            X-Original-URI: /v1/search?q=x\r\nX-Original-Host: shop.example\r\nX-Forwarded-For: 192.168.1.1\r\n\
            X-Real-IP: 192.168.1.1\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\r\n",
        answer: ("HTTP/1.1 200", 6),
    },
    Served {
        name: "one at a time, 50 connections: RESP",
        front: "RESP",
        store: ROCKSDB,
        connections: 50,
        request: "*4\r\n$9\r\nDIVVY.HIT\r\n$11\r\nmethod=POST\r\n$21\r\npath=/v1/search/items\r\n$14\r\nip=192.168.1.1\r\n",
        answer: ("*3\r\n:1\r\n", 4),
    },
    Served {
        name: "one at a time, 50 connections: HTTP",
        front: HTTP,
        store: ROCKSDB,
        connections: 50,
        request: "POST /v1/hit HTTP/1.1\r\nhost: 127.0.0.1:8322\r\ncontent-type: application/json\r\ncontent-length: 76\r\n\r\n\
            {\"operation\":{\"method\":\"POST\",\"path\":\"/v1/search/items\",\"ip\":\"192.168.1.1\"}}",
        answer: ("HTTP/1.1 200", 8),
    },
];

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
    command.args(["--threads", "1", "--listen", "none", "--grpc-listen", "none"]);
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
    for _ in 0..requests / served.connections as u64 {
        // All requests of a round are there when the server goes on, so each run has the same turns.
        signal(&server, "-STOP");
        for client in &mut clients {
            client.write_all(served.request.as_bytes()).expect("a request is sent");
        }
        signal(&server, "-CONT");
        clients.iter_mut().for_each(|client| read_answer(client, served.answer));
    }
    drop(clients);
    signal(&server, "-TERM");
    let output = server.wait_with_output().expect("the server ends");
    collected(&output.stderr)[0]
}

/// Reads an answer that begins with this text, and has this number of lines.
fn read_answer(client: &mut TcpStream, (beginning, lines): (&str, usize)) {
    let mut answer = Vec::new();
    while answer.iter().filter(|byte| **byte == b'\n').count() < lines {
        let mut part = [0; 4096];
        let length = client.read(&mut part).expect("an answer");
        assert!(length > 0, "the server closes the connection");
        answer.extend_from_slice(&part[..length]);
    }
    assert!(answer.starts_with(beginning.as_bytes()), "{}", String::from_utf8_lossy(&answer));
}

fn signal(server: &Child, signal: &str) {
    let killed = Command::new("kill").arg(signal).arg(server.id().to_string()).status().expect("kill");
    assert!(killed.success(), "the server ended before");
}
