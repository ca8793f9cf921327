//! The whole generator against a small line-protocol server that answers, fails and stalls on command.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::plan::PATIENCE_NS;
use super::*;

/// Patience with a server that never answers.
const SHORT_NS: u64 = 300_000_000;

/// Answers request number `n` of a connection, from 1.
type Answer = fn(n: u64) -> Option<&'static str>;

fn serve(answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            std::thread::spawn(move || serve_connection(socket.unwrap(), answer));
        }
    });
    address
}

/// Serves until the connection ends or the answer is `None`.
fn serve_connection(mut socket: TcpStream, answer: Answer) -> Option<()> {
    socket.set_nodelay(true).unwrap();
    let requests = BufReader::new(socket.try_clone().unwrap()).lines();
    for (n, request) in (1..).zip(requests) {
        assert_eq!(request.ok()?.len(), "HIT ip=000000000000".len());
        socket.write_all(answer(n)?.as_bytes()).ok()?;
    }
    Some(())
}

fn bench(answer: Answer, options: &str) -> anyhow::Result<Report> {
    bench_with_patience(answer, options, PATIENCE_NS)
}

fn bench_with_patience(answer: Answer, options: &str, patience_ns: u64) -> anyhow::Result<Report> {
    let words = std::iter::once("bench").chain(options.split_whitespace());
    let args = BenchArgs::try_parse_from(words).unwrap();
    let plan = Plan { patience_ns, ..Plan::new(&args).unwrap() };
    let sockets = connect_all(&serve(answer).to_string(), &args).unwrap();
    measure(&plan, &sockets)
}

#[test]
fn closed_loop_sends_exactly_the_requested_number() {
    let allowed = |_| Some("OK true 1 1\n");
    let report = bench(allowed, "--requests 10007 --connections 7 --pipeline 4 --threads 3").unwrap();
    assert_eq!((report.requests, report.unanswered), (10_007, 0));
    assert!(report.is_clean());
}

#[test]
fn open_loop_keeps_its_rate_and_excludes_the_warm_up() {
    let denied = |_| Some("OK false 0 1\n");
    let report = bench(denied, "--rate 2000 --requests 500 --warmup 0.1 --connections 3 --pipeline 8").unwrap();
    assert_eq!((report.requests, report.denied, report.unanswered), (500, 500, 0));
    assert!((0.2..10.0).contains(&report.seconds), "{}", report.seconds);
}

#[test]
fn errors_are_counted_and_the_first_is_reported() {
    let failing = |n| Some(if n % 10 == 0 { "ERR unknown \"No\"\n" } else { "OK true 1 1\n" });
    let report = bench(failing, "--requests 100 --connections 1").unwrap();
    assert_eq!((report.requests, report.errors), (100, 10));
    assert_eq!(report.first_error.as_deref(), Some("ERR unknown \"No\""));
    assert!(!report.is_clean());
}

#[test]
fn stall_shows_in_every_request_that_it_delays() {
    let stalling = |n| {
        if n == 100 {
            std::thread::sleep(Duration::from_millis(200));
        }
        Some("OK true 1 1\n")
    };
    let report = bench(stalling, "--rate 1000 --requests 400 --connections 1 --pipeline 1").unwrap();
    // 400 requests are due a millisecond apart, 200 of them during the stall. A quarter of all requests wait for at
    // least 100 ms.
    assert_eq!(report.requests, 400);
    assert!(report.latency_us.p90 >= 100_000.0, "{}", report.latency_us.p90);
    assert!(report.latency_us.max >= 195_000.0, "{}", report.latency_us.max);
}

#[test]
fn unanswered_requests_count_with_their_waiting_time() {
    let silent = |n| Some(if n <= 10 { "OK true 1 1\n" } else { "" });
    let report = bench_with_patience(silent, "--requests 100 --connections 1 --pipeline 5", SHORT_NS).unwrap();
    assert_eq!((report.requests, report.unanswered), (10, 5));
    assert!(report.latency_us.max >= 295_000.0, "{}", report.latency_us.max);
    assert!(!report.is_clean());

    let report =
        bench_with_patience(silent, "--rate 1000 --requests 100 --connections 1 --pipeline 5", SHORT_NS).unwrap();
    assert_eq!((report.requests, report.unanswered), (10, 90));
}

#[test]
fn lost_connection_and_unexpected_reply_end_the_run() {
    let closing = |n| (n < 10).then_some("OK true 1 1\n");
    let error = bench(closing, "--connections 2 --threads 2").unwrap_err();
    assert_eq!(format!("{error:#}"), "reading replies: the server closed the connection");
    let talkative = |_| Some("OK true 1 1\nOK true 1 1\n");
    let error = bench(talkative, "--connections 1").unwrap_err();
    assert_eq!(format!("{error:#}"), "reading replies: the server sent a reply without a request");
}
