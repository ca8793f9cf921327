//! Hits, charges and refunds repeated with the same idempotency key: over RESP and HTTP, on every store, after
//! restarts, at the bound, and while the store fails.

use std::thread;

use serde_json::{Value, json};

use crate::support::http::encode;
use crate::support::{HttpClient, Place, RedisServer, Response, Server, number, on_each_store, resp, until};

const RULES: &str = "
[by=fixed user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=fixed
[by=tokens user=*] creditLimit=100 resetSeconds=2592000 algorithm=token-bucket actorField=user label=tokens
[api=chat user=*] creditLimit=3 resetSeconds=2592000 actorField=user costField=none matchPolicy=and label=requests
[api=chat user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=chat
[free=yes] creditLimit=7 resetSeconds=0
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

const KEY: (&str, &str) = ("idempotency-key", "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"");
const REPLAYS: &str = "divvy_idempotent_replays_total{rule_label=\"fixed\"}";
const REPLAYED: &str = "idempotent-replayed";

struct Api(HttpClient);

impl Api {
    fn of(server: &Server) -> Self {
        Self(server.http())
    }

    fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        self.0.send(&request(path, headers, body));
        self.0.read_response()
    }

    fn left(&mut self, operation: Value) -> u64 {
        let reported = self.post("/v1/peek", &[], &json!({ "operation": operation }));
        reported.json()["remaining"].as_u64().unwrap()
    }
}

fn request(path: &str, headers: &[(&str, &str)], body: &Value) -> Vec<u8> {
    let headers = [&[("content-type", "application/json")], headers].concat();
    encode("POST", path, &headers, body.to_string().as_bytes())
}

fn user(name: &str) -> Value {
    json!({ "by": "fixed", "user": name })
}

/// Returns the parts of an answer that a replay repeats.
fn replayed_parts(response: &Response) -> (u16, String, Vec<String>) {
    let kept = |line: &&str| {
        !line.to_ascii_lowercase().starts_with(REPLAYED) && !line.to_ascii_lowercase().starts_with("date")
    };
    (response.status, response.body.clone(), response.head.lines().filter(kept).map(str::to_owned).collect())
}

#[test]
fn request_with_a_key_is_taken_once_and_a_replay_says_so() {
    on_each_store(RULES, |server| {
        let mut api = Api::of(server);
        for (path, remaining) in [("/v1/hit", 90), ("/v1/charge", 80), ("/v1/refund", 90)] {
            let asked = json!({ "operation": user("a"), "cost": 10 });
            let first = api.post(path, &[KEY], &asked);
            assert_eq!((first.status, first.header(REPLAYED)), (200, None), "{path}: {}", first.body);
            assert_eq!(first.json()["remaining"], remaining, "{path}");
            // Quotes and parameters do not change the key.
            for key in [KEY.1.to_owned(), KEY.1.trim_matches('"').to_owned(), format!("{};a=1", KEY.1)] {
                let again = api.post(path, &[(KEY.0, &key)], &asked);
                assert_eq!(
                    (replayed_parts(&again), again.header(REPLAYED)),
                    (replayed_parts(&first), Some("true")),
                    "{path}"
                );
            }
            let other = api.post(path, &[KEY], &json!({ "operation": user("a"), "cost": 11 }));
            let problem = other.json();
            assert_eq!((other.status, &problem["status"], other.header(REPLAYED)), (422, &json!(422), None), "{path}");
            assert_eq!(other.header("content-type"), Some("application/problem+json"), "{path}");
            assert!(problem["detail"].as_str().unwrap().contains("used for another request"), "{path}: {problem}");
            assert_eq!(api.left(user("a")), remaining, "{path}");
        }
        let denied = json!({ "operation": user("b"), "cost": 101 });
        let first = api.post("/v1/hit", &[KEY], &denied);
        let again = api.post("/v1/hit", &[KEY], &denied);
        assert_eq!(
            (replayed_parts(&again), again.status, again.header(REPLAYED)),
            (replayed_parts(&first), 429, Some("true"))
        );
        // The order of pairs does not matter.
        let asked = [r#"{"operation":{"by":"fixed","user":"c"}}"#, r#"{"operation":{"user":"c","by":"fixed"}}"#];
        let [first, again] = asked.map(|asked| api.post("/v1/hit", &[KEY], &serde_json::from_str(asked).unwrap()));
        assert_eq!((first.header(REPLAYED), again.header(REPLAYED)), (None, Some("true")));
        // RESP uses the same keys.
        let key = KEY.1.trim_matches('"');
        assert!(server.resp().command(&format!("DIVVY.HIT by=fixed user=c ID {key}")).starts_with("[1 99 "));
        assert_eq!(api.left(user("c")), 99);
        assert_eq!(number(server, REPLAYS), 3 * 3 + 3, "repeated answers are counted apart");
        // Nothing is counted, and nothing is remembered.
        for _ in 0..2 {
            let free = api.post("/v1/hit", &[KEY], &json!({ "operation": { "free": "yes" } }));
            assert_eq!((free.status, free.header(REPLAYED)), (200, None));
        }
    });
}

#[test]
fn hits_of_one_request_share_its_key() {
    on_each_store(RULES, |server| {
        let mut api = Api::of(server);
        let hit = |user: Value, cost: u64| json!({ "operation": user, "cost": cost });
        // The first and the last hit have the same counter.
        let hits = json!({ "hits": [hit(user("a"), 10), hit(user("b"), 20), hit(user("a"), 30), hit(json!({ "free": "yes" }), 1)] });
        let first = api.post("/v1/hits", &[KEY], &hits);
        let remaining = |reported: &Response| {
            reported.json()["results"]
                .as_array()
                .unwrap()
                .iter()
                .map(|each| each["remaining"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (first.status, first.header(REPLAYED), remaining(&first)),
            (200, None, vec![json!(90), json!(80), json!(60), json!(7)])
        );
        let again = api.post("/v1/hits", &[KEY], &hits);
        assert_eq!((replayed_parts(&again), again.header(REPLAYED)), (replayed_parts(&first), Some("true")));
        for other in [json!([hit(user("b"), 20), hit(user("a"), 10)]), json!([hit(user("a"), 10)])] {
            let reported = api.post("/v1/hits", &[KEY], &json!({ "hits": other }));
            assert_eq!((reported.status, &reported.json()["pointer"]), (422, &json!("#/hits/0")), "{}", reported.body);
        }
        assert_eq!(api.post("/v1/hits", &[KEY], &json!({ "hits": [hit(user("a"), 10)], "atomic": true })).status, 422);
        assert_eq!((api.left(user("a")), api.left(user("b"))), (60, 80));

        let hits = json!({ "hits": [hit(user("c"), 10), hit(user("d"), 101)], "atomic": true });
        let key = [(KEY.0, "denied")];
        let first = api.post("/v1/hits", &key, &hits);
        assert_eq!(first.json()["allowed"], false);
        api.post("/v1/refund", &[], &hit(user("d"), 20));
        let again = api.post("/v1/hits", &key, &hits);
        assert_eq!((replayed_parts(&again), again.header(REPLAYED)), (replayed_parts(&first), Some("true")));
        assert_eq!((api.left(user("c")), api.left(user("d"))), (100, 100));
    });
}

/// Gateways forward headers of clients that they do not control.
#[test]
fn gateways_forward_no_keys() {
    let server = Server::serving("[path=*]\ncreditLimit = 5\nresetSeconds = 600\n\n[default]\ncreditLimit = 0\n", &[]);
    let mut http = server.http();
    let headers = [KEY, ("x-original-uri", "/a"), ("x-original-method", "GET")];
    let mut left = |_| http.get("/v1/check", &headers).header("ratelimit").unwrap().to_owned();
    let reported = [(); 2].map(&mut left);
    assert_ne!(reported[0], reported[1]);
}

#[test]
fn equal_request_is_a_conflict_while_the_first_is_in_flight() {
    let redis = RedisServer::start();
    let server = Server::serving(RULES, &["--redis-url", &redis.url(), "--redis-timeout", "30s"]);
    let asked = json!({ "operation": user("a"), "cost": 10 });
    assert_eq!(Api::of(&server).left(user("a")), 100);
    redis.signal("-STOP");
    let mut first = server.http();
    first.send(&request("/v1/hit", &[KEY], &asked));
    // One of the waiting requests may have arrived first, and be blocked as well.
    let mut waiting = Vec::new();
    let conflict = loop {
        let address = server.http;
        let asked = asked.clone();
        let (tell, reported) = std::sync::mpsc::channel();
        waiting.push(thread::spawn(move || {
            let mut http = HttpClient::connect(address);
            http.send(&request("/v1/hit", &[KEY], &asked));
            let _ = tell.send(http.read_response());
        }));
        if let Ok(reported) = reported.recv_timeout(std::time::Duration::from_secs(1)) {
            break reported;
        }
    };
    assert_eq!((conflict.status, conflict.header("retry-after")), (409, Some("1")), "{}", conflict.body);
    assert_eq!(conflict.header("content-type"), Some("application/problem+json"));
    // Another user or another key causes no conflict. The client of the first request disconnects, but its hit is
    // counted.
    drop(first);
    redis.signal("-CONT");
    let mut api = Api::of(&server);
    let mut again = None;
    until(|| {
        let reported = api.post("/v1/hit", &[KEY], &asked);
        let is_replayed = reported.header(REPLAYED) == Some("true");
        again = Some(reported);
        is_replayed
    });
    assert_eq!((again.unwrap().json()["remaining"].clone(), api.left(user("a"))), (json!(90), 90));
    waiting.into_iter().for_each(|client| client.join().unwrap());
}
