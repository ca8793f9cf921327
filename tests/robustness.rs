//! Hostile and broken clients. During their attacks, the server answers other clients, and its memory stays bounded.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::support::{COMPAT_RULES, LineClient, RespClient, Server, connect, encode, metrics, on_local_stores, until};

pub const MIB: u64 = 1 << 20;

/// Sends hits on both fronts while `attack` runs. The server must answer each, and its peak memory must be small.
fn others_are_served_during(attack: impl FnOnce(&Server)) {
    others_are_served_by(&[], 32 * MIB, attack);
}

/// Does the same as `others_are_served_during`, with these flags. The server may grow by `growth` bytes.
pub fn others_are_served_by(flags: &[&str], growth: u64, attack: impl FnOnce(&Server)) {
    let server = Server::start(&[&[COMPAT_RULES, "--store", "memory"], flags].concat());
    let before = server.peak_resident();
    let done = Arc::new(AtomicBool::new(false));
    let other = {
        let (line, resp, done) = (server.line, server.resp, Arc::clone(&done));
        thread::spawn(move || {
            let (mut line, mut resp) = (LineClient::connect(line), RespClient::connect(resp));
            while !done.load(Relaxed) {
                line.hit("method=GET path=/status");
                assert!(resp.command("DIVVY.HIT method=GET path=/status").starts_with('['));
                thread::sleep(Duration::from_millis(1));
            }
        })
    };
    attack(&server);
    done.store(true, Relaxed);
    other.join().expect("the other clients were answered");
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < growth, "the server grew by {grown} bytes");
}

/// Writes until the server closes the connection. Returns its answer.
fn write_until_closed(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    // The server may close the connection, and its kernel refuse the rest, before everything is written.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn requests_over_a_limit_are_rejected() {
    others_are_served_during(|server| {
        let mebibytes = vec![b'a'; 2 * MIB as usize];
        for (address, bytes, expected) in [
            (server.resp, b"*1\r\n".repeat(200_000), "-ERR Protocol error: expected '$', got '*'\r\n"),
            (server.resp, b"*1000000\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length\r\n"),
            (server.resp, b"*1\r\n$1000000000\r\n".to_vec(), "-ERR Protocol error: invalid bulk length\r\n"),
            (server.resp, mebibytes.clone(), "-ERR Protocol error: too big inline request\r\n"),
            (server.line, mebibytes, "ERR unknown \""),
        ] {
            let answer = write_until_closed(address, &bytes);
            assert!(answer.starts_with(expected) && answer.lines().count() == 1, "{answer:?}");
        }
    });
}

#[test]
fn unfinished_array_byte_by_byte_is_not_rescanned() {
    others_are_served_during(|server| {
        let mut stream = connect(server.resp);
        stream.write_all(b"*1024\r\n").unwrap();
        for byte in b"$3\r\na=b\r\n".repeat(1023) {
            stream.write_all(&[byte]).unwrap();
        }
        stream.write_all(b"$4\r\nlast\r\n").unwrap();
        let mut reply = [0; 32];
        let length = stream.read(&mut reply).unwrap();
        assert!(reply[..length].starts_with(b"-ERR unknown command 'a=b'"));
    });
}

#[test]
fn hits_before_an_overlong_line_are_answered() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut bytes = b"HIT method=GET path=/status\n".to_vec();
    bytes.resize(bytes.len() + 20_000, b'x');
    let answer = write_until_closed(server.line, &bytes);
    let lines: Vec<_> = answer.lines().collect();
    assert_eq!(lines[0], "OK true 999 60");
    assert!(lines[1].starts_with("ERR unknown \""), "{answer}");
}

#[test]
fn clients_that_never_read_use_bounded_memory() {
    others_are_served_during(|server| {
        let silent: Vec<TcpStream> = [(server.line, line_flood()), (server.resp, resp_flood())]
            .into_iter()
            .flat_map(|(address, flood)| (0..4).map(move |_| flooded(address, &flood)))
            .collect();
        thread::sleep(Duration::from_millis(500));
        drop(silent);
    });
}

fn line_flood() -> Vec<u8> {
    b"HIT method=GET path=/status\n".repeat(10_000)
}

pub fn resp_flood() -> Vec<u8> {
    // The request with the longest answer per byte.
    encode(&[b"COMMAND", b"DOCS"]).repeat(10_000)
}

/// Writes until the server accepts no more.
pub fn flooded(address: SocketAddr, flood: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    for _ in 0..100 {
        if stream.write_all(flood).is_err() {
            return stream;
        }
    }
    panic!("the server goes on reading from a client that does not");
}

#[test]
fn client_that_never_reads_is_closed_after_a_while() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--write-timeout", "1"]);
    let mut stream = flooded(server.line, &line_flood());
    // A busy machine may take a while. The client reads nothing until the server has given up.
    until(|| metrics::scrape(server.http).value("divvy_connections", &[("front", "line")]) == 0.0);
    // The connection may end in order or by a reset, but it must end.
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[test]
fn idle_connections_are_closed() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory", "--idle-timeout", "1"]);
    let mut client = server.line();
    client.hit("method=GET path=/status");
    assert_eq!(client.read_line(), "", "closed by the server");
}

#[test]
fn two_hundred_connections_share_a_bucket_exactly() {
    const CREDITS: usize = 10_000;
    on_local_stores("[a=b] creditLimit=10000 resetSeconds=3600\n[default] creditLimit=0", |server| {
        let (line, resp) = (server.line, server.resp);
        let start = |number| thread::spawn(move || if number % 2 == 0 { line_hits(line) } else { resp_hits(resp) });
        let clients: Vec<_> = (0..200).map(start).collect();
        let allowed: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert_eq!(allowed, CREDITS);
    });
}

fn line_hits(address: SocketAddr) -> usize {
    let mut client = LineClient::connect(address);
    (0..60).filter(|_| client.hit("a=b").0).count()
}

fn resp_hits(address: SocketAddr) -> usize {
    let mut client = RespClient::connect(address);
    client.send(&encode(&[b"DIVVY.HIT", b"a=b"]).repeat(60));
    (0..60).filter(|_| client.read_reply().starts_with("[1 ")).count()
}
