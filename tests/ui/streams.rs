//! Streams are bounded, and other clients do not notice browsers that open many of them or never read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use socket2::{Domain, Socket, Type};

use super::{Browser, RULES, open_site};
use crate::support::{LineClient, PATIENCE};

/// Waits until a stream can be opened. Returns whether it could in time.
fn can_open(browser: &Browser) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if browser.try_feed("").0 == 200 {
            return true;
        }
    }
    false
}

#[test]
fn streams_beyond_the_bound_are_refused_until_one_ends() {
    let (server, _rules) = open_site(RULES, &["--ui-streams", "2"]);
    let browser = Browser::new(server.http);
    let (_first, second) = (browser.feed(""), browser.feed(""));
    let refused = browser.get("/ui/api/feed");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
    assert!(refused.body.contains("2 streams are open, which is the maximum (--ui-streams)"), "{}", refused.body);
    drop(second);
    assert!(can_open(&browser), "a stream that was closed makes room");
}

#[test]
fn hundreds_of_pages_at_once_leave_the_server_working() {
    let (server, _rules) = open_site(RULES, &["--threads", "1"]);
    let browser = Browser::new(server.http);
    let pages: Vec<_> = (0..400).map(|_| browser.try_feed("")).collect();
    assert_eq!(pages.iter().filter(|(status, _)| *status == 200).count(), 64);
    assert!(LineClient::connect(server.line).hit("api=search").0);
    let (_, mut events) = pages.into_iter().next().unwrap();
    events.rules_until(|event| event["sum"]["hits"] == 1);
}

#[test]
fn browser_that_never_reads_is_dropped() {
    // Each event has all facts about 100 rules, so the kernel's buffers are soon full.
    let rules = (0..100)
        .map(|rule| format!("[api=a{rule}]\ncreditLimit = 1\nresetSeconds = 60\ncomment = {}\n\n", "x".repeat(1_500)));
    let rules = rules.collect::<String>() + "[default]\ncreditLimit = 0\nresetSeconds = 0\n";
    let (server, _rules) = open_site(&rules, &["--ui-streams", "1", "--write-timeout", "1"]);
    let browser = Browser::new(server.http);
    let stream = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    stream.set_recv_buffer_size(1).unwrap();
    stream.connect(&server.http.into()).unwrap();
    let mut stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /ui/api/feed?count=100 HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    // The head has arrived, so this browser has the only stream.
    stream.read_exact(&mut [0]).unwrap();
    assert!(can_open(&browser), "the stream that nobody reads ends");
    let mut rest = Vec::new();
    // The connection was closed or reset.
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it had no orderly end");
}

#[test]
fn streams_end_with_the_server() {
    let (server, _rules) = open_site(RULES, &[]);
    let mut events = Browser::new(server.http).feed("");
    events.next_named("rules");
    let status = server.terminate();
    assert!(status.success());
    while events.next().is_some() {}
}
