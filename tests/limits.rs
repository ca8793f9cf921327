//! Clients that exceed limits: slow, greedy, or too many. Other clients are served.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::http_2::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, head};
use crate::robustness::{MIB, others_are_served_by, resp_flood};
use crate::support::{COMPAT_RULES, PATIENCE, Server, connect, encode, http, number};

/// Time between two bytes of a deliberately slow client.
const PACE: Duration = Duration::from_millis(100);

/// Sends `head`, then repeats `drip` at short intervals, until the server closes the connection. Returns its answer.
fn drip(address: SocketAddr, head: &[u8], drip: &[u8]) -> String {
    let mut stream = connect(address);
    stream.set_read_timeout(Some(PACE)).unwrap();
    stream.write_all(head).unwrap();
    let start = Instant::now();
    let (mut answer, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return String::from_utf8(answer).unwrap(),
            Ok(length) => answer.extend_from_slice(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(start.elapsed() < PATIENCE, "the server waits for ever");
                // Fails once the server has closed the connection. Its answer can still be read.
                let _ = stream.write_all(drip);
            }
            Err(error) => panic!("after {answer:?}: {error}"),
        }
    }
}

#[test]
fn slow_requests_are_cut_on_every_front() {
    others_are_served_by(&["--request-timeout", "1"], 32 * MIB, |server| {
        let line = drip(server.line, b"HIT method=GET path=/status\nHIT method=", b"x");
        let reported: Vec<_> = line.lines().collect();
        assert_eq!(reported[1..], ["ERR unknown \"the request was not finished within 1 seconds\""], "{line}");
        assert!(reported[0].starts_with("OK true "), "what was complete was answered: {line}");

        let resp = drip(server.resp, b"*2\r\n$11\r\nDIVVY.HIT\r\n$60000\r\n", b"x");
        assert!(resp.starts_with("-ERR Protocol error"), "not even a lie about a length keeps it: {resp}");
        let resp = drip(server.resp, b"*2\r\n$9\r\nDIVVY.HIT\r\n$60000\r\n", b"x");
        assert_eq!(resp, "-ERR the request was not finished within 1 seconds\r\n");

        for head in [&b"GET /healthz HTTP/1.1\r\nx: "[..], b"PRI * HTT"] {
            let answer = drip(server.http, head, b"");
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
        }
        let before = reached(server, "request-timeout");
        let answer = drip(server.http, b"GET /healthz HTTP/1.1\r\nx: ", b"x");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert_eq!(reached(server, "request-timeout") - before, 1);
        assert!(drip(server.grpc, b"PRI * HTT", b"").is_empty());
    });
}

#[test]
fn steady_client_is_never_disconnected() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--request-timeout", "2"]);
    let mut client = server.line();
    let start = Instant::now();
    client.send(b"HIT method=GE");
    // There is always an unfinished request, but each is completed within a fraction of the time limit.
    while start.elapsed() < Duration::from_secs(3) {
        client.stream().set_read_timeout(Some(PACE)).unwrap();
        assert_eq!(client.stream().read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        client.send(b"T path=/status\nHIT method=GE");
        assert!(client.try_read_verdict().is_some());
    }
}

#[test]
fn connections_per_address_are_limited() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--max-connections-per-address", "2"]);
    let mut first = server.line();
    let mut second = server.resp();
    first.hit("method=GET path=/status");
    assert_eq!(second.command("PING"), "PONG");
    assert_eq!(server.resp().read_reply(), "-ERR max number of clients reached");

    let mut other = from([127, 0, 0, 2], server.resp);
    other.write_all(&encode(&[b"PING"])).unwrap();
    let mut reply = [0; 7];
    other.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n", "another address has its own places");
}

/// Connects from another of this machine's addresses.
fn from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn refused_client_gets_the_reason_even_after_sending_a_request() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--max-connections", "1"]);
    let mut only = server.line();
    only.hit("method=GET path=/status");
    for _ in 0..30 {
        // If a server closes a connection with unread input, the connection is reset and the message lost. divvy must
        // avoid that.
        let mut refused = server.resp();
        let _ = refused.try_send(&encode(&[b"PING"]).repeat(1000));
        assert_eq!(refused.read_reply(), "-ERR max number of clients reached");
        assert_eq!(http::get(server.http, "/healthz").status, 503);
    }
    only.hit("method=GET path=/status");
}

#[test]
fn exactly_ten_thousand_connections_are_accepted() {
    const MANY: usize = 10_000;
    /// Requests of each client in one burst.
    const BURST: usize = 100;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let server = Server::start(&[COMPAT_RULES, "--store", "memory"]);
    let before = server.peak_resident();
    let mut first = server.line();
    let connections: Vec<_> = (1..MANY).map(|_| connect(server.line)).collect();
    let burst = b"HIT method=DELETE path=/\n".repeat(BURST);
    for connection in &connections {
        (&*connection).write_all(&burst).unwrap();
    }
    let mut replies = [0; b"OK false 0 0\n".len() * BURST];
    for connection in &connections {
        (&*connection).read_exact(&mut replies).unwrap();
        assert!(replies.ends_with(b"\nOK false 0 0\n"));
    }
    assert_eq!(server.resp().read_reply(), "-ERR max number of clients reached");
    assert_eq!(http::get(server.http, "/healthz").status, 503);
    assert_eq!(server.line().read_line(), "");
    first.hit("method=GET path=/status");
    // Buffers for such a burst alone would take more memory, so waiting connections must not have any.
    let each = server.peak_resident().saturating_sub(before) / MANY as u64;
    assert!(each < 24 * 1024, "{each} bytes for each connection");
}

#[test]
fn unfinished_requests_share_one_bound_on_memory() {
    const BOUND: u64 = 16 * MIB;
    let flags = ["--max-buffer-memory", &BOUND.to_string()];
    // The allowance covers the bound, the fixed memory of connections, and memory that the allocator keeps.
    others_are_served_by(&flags, BOUND + 80 * MIB, |server| {
        let head = b"*31\r\n$9\r\nDIVVY.HIT\r\n";
        let mut greedy: Vec<_> = (0..300).map(|_| connect(server.resp)).collect();
        let chunk = [&b"$30000\r\n"[..], &[b'x'; 30_000], b"\r\n"].concat();
        let mut reported = 0;
        for client in &mut greedy {
            client.write_all(head).unwrap();
        }
        for _ in 0..29 {
            for client in &mut greedy {
                // Fails for clients that were disconnected.
                let _ = client.write_all(&chunk);
            }
        }
        let start = Instant::now();
        let mut cut = 0;
        while cut <= 200 {
            assert!(start.elapsed() < PATIENCE, "only {cut} were cut");
            cut = reached(server, "max-buffer-memory");
        }
        for client in &mut greedy {
            client.set_nonblocking(true).unwrap();
            let mut answer = [0; 128];
            // Otherwise, the client may continue, or it sent so much after the end that the system dropped the server's
            // message.
            if let Ok(length @ 1..) = client.read(&mut answer) {
                let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
                assert_eq!(answer, "-ERR the server has no memory left for requests of this size: try again later\r\n");
                reported += 1;
            }
        }
        assert!(reported > 0);
        drop(greedy);
        // The memory has been freed: a large request is served again.
        let mut client = server.resp();
        let large = [&[b'x'; 60_000][..]; 15];
        let served = (0..100).any(|_| {
            let is_served = client.command_of(&large).starts_with("-ERR unknown command");
            if !is_served {
                client = server.resp();
            }
            is_served
        });
        assert!(served);
    });
}

#[test]
fn unread_replies_share_one_bound_on_memory() {
    const BOUND: u64 = 4 * MIB;
    let flags = ["--max-buffer-memory", &BOUND.to_string()];
    others_are_served_by(&flags, BOUND + 32 * MIB, |server| {
        let flood = resp_flood();
        let silent: Vec<_> = (0..100).map(|_| flood_once(server.resp, &flood)).collect();
        drop(silent);
    });
}

/// Writes as much as the kernel's buffers accept at once.
fn flood_once(address: SocketAddr, flood: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    stream.set_nonblocking(true).unwrap();
    let _ = stream.write_all(flood);
    stream
}

/// Returns how often a limit was reached.
fn reached(server: &Server, limit: &str) -> u64 {
    number(server, &format!("divvy_limits_reached_total{{limit=\"{limit}\"}}"))
}

#[test]
fn limit_that_is_reached_is_counted_under_its_name() {
    let keys: Vec<_> = (0..257).map(|key| format!("k{key}")).collect();
    let check = keys.iter().map(|key| format!("{key}=query:{key}")).collect::<Vec<_>>().join(" ");
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--check-operation", &check]);
    let pairs: Vec<_> = keys.iter().map(|key| format!("{key}=1")).collect();
    let command: Vec<_> =
        ["DIVVY.HIT"].into_iter().chain(pairs.iter().map(String::as_str)).map(str::as_bytes).collect();
    let operation: serde_json::Map<_, _> = keys.iter().map(|key| (key.clone(), json!("1"))).collect();
    let post =
        |path: &str, body: &str| http::encode("POST", path, &[("content-type", "application/json")], body.as_bytes());
    let attacks = [
        ("max-line", server.line, [vec![b'x'; 17_000], b"\n".to_vec()].concat()),
        ("max-pairs", server.line, format!("HIT {}\n", pairs.join(" ")).into_bytes()),
        ("max-pairs", server.resp, encode(&command)),
        ("max-pairs", server.http, post("/v1/hit", &json!({ "operation": operation }).to_string())),
        ("max-pairs", server.http, http::encode("GET", &format!("/v1/check?{}", pairs.join("&")), &[], b"")),
        ("max-arguments", server.resp, b"*1025\r\n".to_vec()),
        ("max-argument", server.resp, b"*1\r\n$65537\r\n".to_vec()),
        ("max-body", server.http, post("/v1/hit", &" ".repeat(65_537))),
        (
            "max-hits",
            server.http,
            post("/v1/hits", &json!({ "hits": vec![json!({ "operation": {} }); 1_001] }).to_string()),
        ),
    ];
    for (limit, address, attack) in attacks {
        let before = reached(&server, limit);
        let mut stream = connect(address);
        stream.write_all(&attack).unwrap();
        let mut answer = [0; 1024];
        let length = stream.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(length > 0, "{limit}: no answer");
        assert_eq!(reached(&server, limit), before + 1, "{limit}: {answer}");
    }
}

/// Returns the first bytes of an HTTP/2 client that accepts no data and requests `path` this many times.
fn asks_with_closed_windows(path: &str, times: u32) -> Vec<u8> {
    let initial_window_of_0 = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let request = |number| frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &head("GET", path, &[]));
    [PREFACE.to_vec(), initial_window_of_0].into_iter().chain((0..times).map(request)).flatten().collect()
}

#[test]
fn unread_http_2_replies_have_one_bound_and_an_end() {
    const CLIENTS: u64 = 20;
    let flags = ["--max-buffer-memory", "1000000", "--write-timeout", "1"];
    let server = Server::start(&[&[COMPAT_RULES, "--store", "memory"], &flags[..]].concat());
    let before = server.peak_resident();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| connect(server.http)).collect();
    for client in &mut clients {
        client.write_all(&asks_with_closed_windows("/metrics", 60)).unwrap();
    }
    assert_eq!(http::get(server.http, "/healthz").status, 200, "others are served");
    for client in &mut clients {
        // Reads until the server ends the connection, in order or by a reset.
        let _ = client.read_to_end(&mut Vec::new());
    }
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < 48 * MIB, "{grown} bytes");
    assert_eq!(reached(&server, "write-timeout"), CLIENTS);
    assert!(reached(&server, "max-buffer-memory") > 0);
}
