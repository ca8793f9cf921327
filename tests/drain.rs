//! Shutdown: every request received is answered once, and every counted request was answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;

use crate::robustness::{flooded, resp_flood};
use crate::support::{COMPAT_RULES, LineClient, Place, RespClient, Server, connect, encode, http, until};

const CREDITS: u64 = 100_000_000;

fn place() -> Place {
    Place::new(&format!("[a=b] creditLimit={CREDITS} resetSeconds=360000\n[default] creditLimit=0"))
}

#[test]
fn requests_sent_before_the_end_are_answered_exactly_once() {
    const SENT: usize = 3000;
    let place = place();
    let server = place.on_disk(&[]);
    let (line, resp) = (server.line, server.resp);
    let all_sent = Arc::new(Barrier::new(9));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let all_sent = Arc::clone(&all_sent);
            thread::spawn(move || {
                let (address, request) = if number % 2 == 0 {
                    (line, b"HIT a=b\n".to_vec())
                } else {
                    (resp, encode(&[b"DIVVY.HIT", b"a=b"]))
                };
                let mut stream = connect(address);
                stream.write_all(&request.repeat(SENT)).unwrap();
                all_sent.wait();
                let mut replies = String::new();
                stream.read_to_string(&mut replies).expect("an orderly end, not a reset");
                let verdicts =
                    if number % 2 == 0 { replies.matches("OK true ") } else { replies.matches("*3\r\n:1\r\n") };
                assert_eq!(verdicts.count(), SENT);
                assert!(replies.ends_with('\n'), "the last one is whole");
            })
        })
        .collect();
    all_sent.wait();
    assert!(server.terminate().success());
    for client in clients {
        client.join().unwrap();
    }
    let server = place.on_disk(&[]);
    let (_, left, _) = server.line().hit("a=b");
    assert_eq!(left, CREDITS - 8 * SENT as u64 - 1);
}

#[test]
fn under_load_exactly_the_answered_requests_are_counted() {
    let place = place();
    let server = place.on_disk(&[]);
    let (line, resp, http) = (server.line, server.resp, server.http);
    let answered = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = [one_at_a_time, pipelined, connecting_anew, over_http]
        .into_iter()
        .flat_map(|client| [client; 3])
        .map(|client| {
            let answered = Arc::clone(&answered);
            thread::spawn(move || client([line, resp, http], &answered))
        })
        .collect();
    until(|| answered.load(Relaxed) > 5_000);
    assert!(server.terminate().success());
    for client in clients {
        client.join().unwrap();
    }
    let server = place.on_disk(&[]);
    let (_, left, _) = server.line().hit("a=b");
    assert_eq!(CREDITS - left - 1, answered.load(Relaxed));
}

/// Sends each of these hits until the server is gone, and counts the replies.
fn one_at_a_time([line, _, _]: [SocketAddr; 3], answered: &AtomicU64) {
    let mut client = LineClient::connect(line);
    while client.try_hit("a=b").is_some() {
        answered.fetch_add(1, Relaxed);
    }
}

fn pipelined([_, resp, _]: [SocketAddr; 3], answered: &AtomicU64) {
    const BURST: usize = 50;
    let mut client = RespClient::connect(resp);
    let burst = encode(&[b"DIVVY.HIT", b"a=b"]).repeat(BURST);
    while client.try_send(&burst).is_some() {
        for _ in 0..BURST {
            match client.try_read_reply() {
                Some(reply) => assert!(reply.starts_with("[1 "), "{reply}"),
                None => return,
            }
            answered.fetch_add(1, Relaxed);
        }
    }
}

/// Sends requests on one connection, which is kept alive.
fn over_http([_, _, http]: [SocketAddr; 3], answered: &AtomicU64) {
    const ALLOWED: &[u8] = b"{\"allowed\":true,";
    let hit = http::encode("POST", "/v1/hit", &[("content-type", "application/json")], br#"{"operation":{"a":"b"}}"#);
    let mut stream = connect(http);
    while stream.write_all(&hit).is_ok() {
        let (mut reply, mut chunk) = (Vec::new(), [0; 4096]);
        while !reply.windows(ALLOWED.len()).any(|bytes| bytes == ALLOWED) {
            match stream.read(&mut chunk) {
                Ok(length @ 1..) => reply.extend_from_slice(&chunk[..length]),
                Ok(_) | Err(_) => return,
            }
        }
        answered.fetch_add(1, Relaxed);
    }
}

fn connecting_anew([line, _, _]: [SocketAddr; 3], answered: &AtomicU64) {
    while let Ok(mut stream) = TcpStream::connect(line) {
        let mut reply = String::new();
        if stream.write_all(b"HIT a=b\n").is_err()
            || stream.shutdown(std::net::Shutdown::Write).is_err()
            || stream.read_to_string(&mut reply).is_err()
            || reply.is_empty()
        {
            return;
        }
        assert!(reply.starts_with("OK true ") && reply.ends_with('\n'), "{reply:?}");
        answered.fetch_add(1, Relaxed);
    }
}

#[test]
fn readiness_ends_before_service_and_a_second_signal_ends_both() {
    let place = Place::compat();
    // Longer than any test waits, so only the second signal can end it.
    let server = place.on_disk(&["--drain-delay", "3600"]);
    let mut old = server.line();
    assert_eq!(old.hit("method=GET path=/status").1, 999);
    assert_eq!(http::get(server.http, "/readyz").status, 200);
    server.signal("-TERM");
    until(|| http::get(server.http, "/readyz").status == 503);
    assert_eq!(http::get(server.http, "/healthz").status, 200);
    assert_eq!(old.hit("method=GET path=/status").1, 998, "open connections are served");
    let mut new = server.line();
    assert_eq!(new.hit("method=GET path=/status").1, 997, "new connections are, too");
    assert!(server.terminate().success());
    assert_eq!(old.read_line(), "");

    let server = place.on_disk(&[]);
    assert_eq!(server.line().hit("method=GET path=/status").1, 996, "nothing was lost");
}

#[test]
fn second_signal_does_not_wait_for_a_client_that_never_reads() {
    let server =
        Server::start(&[COMPAT_RULES, "--store", "memory", "--drain-timeout", "3600", "--write-timeout", "3600"]);
    let silent = flooded(server.resp, &resp_flood());
    server.signal("-INT");
    until(|| TcpStream::connect(server.line).is_err());
    assert!(server.terminate().success());
    drop(silent);
}

#[test]
fn client_that_never_pauses_does_not_delay_the_end() {
    let server = Server::start(&[COMPAT_RULES, "--store", "memory"]);
    let (line, over) = (server.line, Arc::new(AtomicBool::new(false)));
    let writer = connect(line);
    let reader = writer.try_clone().unwrap();
    let flood =
        thread::spawn(move || while (&writer).write_all(&b"HIT method=GET path=/status\n".repeat(100)).is_ok() {});
    let (seen, drain) = (Arc::new(AtomicU64::new(0)), Arc::clone(&over));
    let counted = Arc::clone(&seen);
    let replies = thread::spawn(move || {
        let mut chunk = [0; 64 * 1024];
        while let Ok(length @ 1..) = (&reader).read(&mut chunk) {
            counted.fetch_add(length as u64, Relaxed);
        }
        drain.store(true, Relaxed);
    });
    until(|| seen.load(Relaxed) > 1_000_000);
    assert!(server.terminate().success());
    flood.join().unwrap();
    replies.join().unwrap();
    assert!(over.load(Relaxed));
}
