//! Requests repeated with the same idempotency key after restarts, while the store fails, and while the first is in flight. The
//! answers on every front are in tests/wire/idempotency.txt.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::http::encode;
use crate::support::{HttpClient, Place, RedisServer, Server, number, resp, until};

const RULES: &str = "
[by=fixed user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=fixed
[by=tokens user=*] creditLimit=100 resetSeconds=2592000 algorithm=token-bucket actorField=user label=tokens
[api=chat user=*] creditLimit=3 resetSeconds=2592000 actorField=user costField=none matchPolicy=and label=requests
[api=chat user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=chat
[default] creditLimit=0
";

/// An answer is on disk as durably as its hit. It is repeated after a kill, a stop, and from a restored backup.
#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn answers_outlive_restarts_kills_and_backups() {
    let place = Place::new(RULES);
    let hit = "DIVVY.HIT api=chat user=a COST 40 ID x";
    let server = place.on_disk(&[]);
    let first = resp(&server, hit);
    assert!(first.starts_with("[1 60 "), "{first}");
    let check = |server: &Server| {
        assert_eq!(resp(server, hit), first);
        assert_eq!(server.resp().balance("api=chat user=a"), 60);
        // Each rule's record is found again and counted.
        assert_eq!(number(server, "divvy_idempotency_keys"), 2);
    };
    server.kill();
    let server = place.on_disk(&[]);
    check(&server);
    assert!(server.terminate().success());
    let server = place.on_disk(&[]);
    check(&server);
    assert!(resp(&server, "DIVVY.BACKUP one").ends_with("/one"));
    drop(server);
    place.restore("one");
    check(&place.on_disk(&[]));
}

#[test]
fn answer_of_a_failure_policy_is_not_remembered() {
    for (policy, expected) in [("allow", "[1 99 "), ("deny", "[0 0 "), ("error", "-ERR")] {
        let mut redis = RedisServer::start();
        let server = Server::serving(RULES, &["--redis-url", &redis.url(), "--on-store-error", policy]);
        let mut client = server.resp();
        redis.kill();
        for _ in 0..2 {
            let reported = client.command("DIVVY.HIT by=fixed user=a ID x");
            assert!(reported.starts_with(expected) || reported.starts_with(&expected[1..]), "{policy}: {reported}");
            assert!(client.command("DIVVY.CHARGE by=fixed user=a COST 5 ID x").contains("ERR"), "{policy}");
        }
        assert_eq!(number(&server, REPLAYS), 0);
        redis.restart();
        until(|| server.resp().command("DIVVY.CHARGE by=tokens user=other COST 0").starts_with('['));
        assert!(client.command("DIVVY.HIT by=fixed user=a ID x").starts_with("[1 99 "), "{policy}");
        assert_eq!(client.left("by=fixed user=a"), 99, "{policy}");
    }
}

const REPLAYS: &str = "divvy_idempotent_replays_total{rule_label=\"fixed\"}";

#[test]
fn equal_request_is_a_conflict_while_the_first_is_in_flight() {
    let redis = RedisServer::start();
    let server = Server::serving(RULES, &["--redis-url", &redis.url(), "--redis-timeout", "30s"]);
    let headers = [("content-type", "application/json"), ("idempotency-key", "x")];
    let asked = encode("POST", "/v1/hit", &headers, br#"{"operation":{"by":"fixed","user":"a"},"cost":10}"#);
    assert_eq!(server.resp().left("by=fixed user=a"), 100);
    redis.signal("-STOP");
    let mut first = server.http();
    first.send(&asked);
    // One of the waiting requests may have arrived first, and be blocked as well.
    let mut waiting = Vec::new();
    let conflict = loop {
        let (address, asked) = (server.http, asked.clone());
        let (tell, reported) = mpsc::channel();
        waiting.push(thread::spawn(move || {
            let mut http = HttpClient::connect(address);
            http.send(&asked);
            let _ = tell.send(http.read_response());
        }));
        if let Ok(reported) = reported.recv_timeout(Duration::from_secs(1)) {
            break reported;
        }
    };
    assert_eq!((conflict.status, conflict.header("retry-after")), (409, Some("1")), "{}", conflict.body);
    assert_eq!(conflict.header("content-type"), Some("application/problem+json"));
    // Another user or another key causes no conflict. The client of the first request disconnects, but its hit is
    // counted.
    drop(first);
    redis.signal("-CONT");
    let mut http = server.http();
    until(|| {
        http.send(&asked);
        let again = http.read_response();
        let is_replayed = again.header("idempotent-replayed") == Some("true");
        is_replayed && again.json()["remaining"] == 90
    });
    assert_eq!(server.resp().left("by=fixed user=a"), 90);
    waiting.into_iter().for_each(|client| client.join().unwrap());
}
