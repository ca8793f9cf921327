//! Requests to a whole server with one thread, over one connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use crate::valgrind::{CALLGRIND, collected};

/// A request that a server answers, again and again.
pub struct Served {
    pub name: &'static str,
    request: &'static str,
}

pub const SERVED: [Served; 1] = [Served {
    name: "check: HTTP",
    request: "GET /v1/check HTTP/1.1\r\nHost: 127.0.0.1:8322\r\nX-Original-Method: POST\r\n\
        X-Original-URI: /v1/search?q=x\r\nX-Original-Host: shop.example\r\nX-Forwarded-For: 192.168.1.1\r\n\
        X-Real-IP: 192.168.1.1\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n\r\n",
}];

const RULES: &str = "[method=POST path=/v1/search* ip=*]\ncreditLimit=1000000000\nresetSeconds=3600\nactorField=ip\n\
    [default]\ncreditLimit=0\nresetSeconds=0\n";
/// A server answers this many requests, and twice as many. The difference does not include its start.
const REQUESTS: u64 = 10_000;

/// Returns the instructions of a request.
pub fn count(served: &Served) -> u64 {
    let [few, many] = [REQUESTS, 2 * REQUESTS].map(|requests| instructions(served.request, requests));
    (many - few) / REQUESTS
}

fn instructions(request: &str, requests: u64) -> u64 {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let rules = directory.path().join("rules.ini");
    std::fs::write(&rules, RULES).expect("a file of rules");
    let mut command = Command::new("valgrind");
    command.args(CALLGRIND).arg(env!("CARGO_BIN_EXE_divvy")).arg("serve").arg(rules);
    command.args(["--store", "memory", "--threads", "1", "--listen", "none", "--resp-listen", "none"]);
    command.args(["--grpc-listen", "none", "--http-listen", "127.0.0.1:0"]);
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("valgrind is installed");
    let mut lines = BufReader::new(server.stdout.take().expect("standard output")).lines();
    let address = lines.find_map(|line| Some(line.ok()?.strip_prefix("HTTP on ")?.to_owned())).expect("an address");
    let mut stream = TcpStream::connect(address).expect("a connection");
    for _ in 0..requests {
        stream.write_all(request.as_bytes()).expect("a request is sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut part = [0; 4096];
            let length = stream.read(&mut part).expect("an answer");
            assert!(length > 0, "the server closes the connection");
            answer.extend_from_slice(&part[..length]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    drop(stream);
    terminate(&server);
    let output = server.wait_with_output().expect("the server ends");
    collected(&output.stderr)[0]
}

fn terminate(server: &Child) {
    let killed = Command::new("kill").arg(server.id().to_string()).status().expect("kill");
    assert!(killed.success(), "the server ended before");
}
