//! Reservations: credits are set aside, committed, renewed and released, over RESP and HTTP and on every store.

mod seals;

use base64_simd::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use siphasher::sip128::SipHasher13;

use crate::support::grpc::descriptor;
use crate::support::http::encode;
use crate::support::{Caller, RedisServer, RespClient, Response, Server, metrics, on_local_stores, words};

/// Returns rules with a hundred credits per user, without a counter, and a default that denies.
fn rules() -> String {
    "[by=fixed user=*] creditLimit=100 resetSeconds=2592000 actorField=user label=fixed
[by=year user=*] creditLimit=100 window=year timezone=Asia/Tokyo actorField=user
[by=tokens user=*] creditLimit=100 resetSeconds=2592000 algorithm=token-bucket actorField=user label=tokens
[by=log user=*] creditLimit=100 resetSeconds=60 algorithm=sliding-log actorField=user
[free=yes] creditLimit=7 resetSeconds=0
[default] creditLimit=0"
        .to_owned()
}

/// Commits a reservation. Returns the balance, and the result.
fn commit(client: &mut RespClient, id: &str, cost: u64) -> (i64, String) {
    let reply = client.command(&format!("DIVVY.COMMIT {id} COST {cost}"));
    let [balance, _, result] = words(&reply)[..] else { panic!("{reply}") };
    (balance.parse().unwrap(), result.to_owned())
}

fn commit_answer(balance: i64, word: &str) -> (i64, String) {
    (balance, word.to_owned())
}

/// An invalid command takes nothing, and is answered in its place.
#[test]
fn commands_pipeline_with_errors_in_order() {
    let server = Server::serving(&rules(), &[]);
    let mut client = server.resp();
    let (_, id) = client.reserve("by=tokens user=a AMOUNT 10 TTL 60");
    let bad_id = "unknown reservation id";
    let asked = [
        ("HIT by=tokens user=a COST 10".to_owned(), "[1 80 "),
        ("COMMIT nonsense COST 5".to_owned(), bad_id),
        (format!("COMMIT {id} COST 30"), "[60 "),
        (format!("RELEASE {id}x"), bad_id),
        (format!("RENEW {} TTL 5", id.to_lowercase()), bad_id),
        ("RESERVE by=tokens user=a AMOUNT 5 TTL 601".to_owned(), "TTL 601 is not from 1 s to the maximum of 600 s"),
        ("RESERVE by=tokens user=a AMOUNT 5".to_owned(), "needs a time (TTL)"),
        (format!("RESERVE by=tokens user=a AMOUNT 5 TTL 5 ID {}", "x".repeat(256)), "1 to 255 bytes"),
        (format!("RENEW {id} TTL 3600"), "TTL 3600 is not from 1 s to the maximum of 600 s (--max-reservation-ttl)"),
        (format!("RESERVE by=tokens user={} AMOUNT 5 TTL 5", "x".repeat(8000)), "more than 8208 characters"),
        ("RESERVE by=tokens user=a ID=x AMOUNT 5 TTL 5".to_owned(), "[1 55 "),
        ("HIT by=tokens user=a".to_owned(), "[1 54 "),
    ];
    let replies = client.pipeline(asked.iter().map(|(command, _)| format!("DIVVY.{command}")));
    for ((command, expected), reply) in asked.iter().zip(replies) {
        let is_error = !expected.starts_with('[');
        assert!(reply.contains(expected) && reply.starts_with("-ERR") == is_error, "{command}: {reply}");
    }
    let listed = client.command("DIVVY.COUNTERS tokens");
    assert!(listed.contains("[a 54 ") && listed.matches('[').count() == 3, "no other actor's: {listed}");
}

#[test]
fn metrics_count_outcomes_of_reservations() {
    let server = Server::serving(&rules(), &[]);
    let mut client = server.resp();
    let ids: Vec<_> = (0..4).map(|_| client.reserve("by=fixed user=a AMOUNT 20 TTL 60").1).collect();
    assert!(client.command("DIVVY.RESERVE by=fixed user=a AMOUNT 21 TTL 60").starts_with("[0 20 "));
    for id in [&ids[0], &ids[0], &ids[0], &ids[1]] {
        commit(&mut client, id, 1);
    }
    assert_eq!(client.command(&format!("DIVVY.RELEASE {}", ids[2])), "1");
    assert_eq!(client.command(&format!("DIVVY.RELEASE {}", ids[2])), "0");
    assert_eq!(commit(&mut client, &ids[2], 1), commit_answer(77, "late"));
    client.command(&format!("DIVVY.RENEW {} TTL 60", ids[3]));

    let scraped = metrics::scrape(server.http);
    let fixed = ("rule_label", "fixed");
    let commits = |status| scraped.value("divvy_commits_total", &[("status", status), fixed]);
    assert_eq!(["settled", "late", "repeated"].map(commits), [2.0, 1.0, 2.0]);
    assert_eq!(scraped.value("divvy_releases_total", &[fixed]), 1.0);
    let hits = |status| scraped.value("divvy_hits_total", &[("status", status), fixed]);
    assert_eq!(["accepted", "rejected"].map(hits), [4.0, 1.0], "a reservation is a hit, a commit is not");
    assert_eq!(scraped.value("divvy_reservations", &[]), 4.0, "three of them committed");
    assert_eq!(scraped.value("divvy_max_reservations", &[]), 100_000.0);
    assert_eq!(scraped.value("divvy_reservations_refused_total", &[]), 0.0);
    let requests = |kind| scraped.value("divvy_requests_total", &[("front", "resp"), ("command", kind)]);
    assert_eq!(["reserve", "commit", "release", "renew"].map(requests), [5.0, 5.0, 2.0, 1.0]);
}

fn new(operation: Value, amount: u64, ttl: u64) -> Value {
    json!({ "operation": operation, "amount": amount, "ttl": ttl })
}

fn user(name: &str) -> Value {
    json!({ "by": "fixed", "user": name })
}

/// Returns the path of a new reservation.
fn location(response: &Response) -> String {
    assert_eq!(response.status, 201, "{}", response.body);
    let location = response.header("location").unwrap().to_owned();
    assert_eq!(location, format!("/v1/reservations/{}", response.json()["id"].as_str().unwrap()));
    location
}

#[test]
fn reservation_is_made_committed_renewed_and_released() {
    on_local_stores(&rules(), |server| {
        let mut http = server.http();
        let made = http.post("/v1/reservations", new(user("a"), 60, 60));
        let path = location(&made);
        let body = made.json();
        let reported = ["allowed", "limit", "remaining", "balance", "retryAfter", "rule"].map(|key| body[key].clone());
        assert_eq!(json!(reported), json!([true, 100, 40, 40, null, "fixed"]));
        assert!((59..=61).contains(&body["expiresIn"].as_u64().unwrap()), "{body}");
        assert_eq!(made.header("ratelimit-policy"), Some("\"fixed\";q=100;w=2592000"));
        assert!(made.header("ratelimit").unwrap().starts_with("\"fixed\";r=40;t="));

        let denied = http.post("/v1/reservations", new(user("a"), 41, 60));
        let hit = http.post("/v1/hit", json!({ "operation": user("a"), "cost": 41 }));
        assert_eq!((denied.status, hit.status, denied.header("location")), (429, 429, None));
        let without_times = |response: &Response| {
            let mut json = response.json();
            let times = ["reset", "retryAfter"].map(|key| json[key].take().is_u64());
            (json, times)
        };
        assert_eq!(without_times(&denied), without_times(&hit));
        assert_eq!(denied.header("retry-after").is_some(), hit.header("retry-after").is_some());

        let renewed = http.post(&format!("{path}/renew"), r#"{"ttl": 60}"#);
        assert_eq!(renewed.status, 200, "{}", renewed.body);
        assert!((60..=62).contains(&renewed.json()["expiresIn"].as_u64().unwrap()), "{}", renewed.body);
        for status in ["settled", "repeated"] {
            let committed = http.post(&format!("{path}/commit"), r#"{"cost": 130}"#);
            let body = committed.json();
            assert_eq!(committed.status, 200, "{body}");
            assert_eq!(
                (&body["remaining"], &body["balance"], &body["status"]),
                (&json!(0), &json!(-30), &json!(status))
            );
            assert!(body["reset"].as_u64().unwrap() > 2_590_000, "{body}");
        }
        assert_eq!(http.delete(&path).body, "{\"released\":false}\n");
        assert_eq!(http.post(&format!("{path}/renew"), r#"{"ttl": 60}"#).status, 404);

        let path = location(&http.post("/v1/reservations", new(user("b"), 60, 60)));
        for released in [true, false] {
            let answer = http.delete(&path);
            assert_eq!((answer.status, answer.json()), (200, json!({ "released": released })));
        }
        let late = http.post(&format!("{path}/commit"), r#"{"cost": 10}"#).json();
        assert_eq!((&late["balance"], &late["status"]), (&json!(90), &json!("late")));
    });
}

#[test]
fn mistakes_are_reported_with_their_position() {
    let server = Server::serving(&rules(), &[]);
    let mut http = server.http();
    let path = location(&http.post("/v1/reservations", new(user("a"), 1, 60)));
    let (commit, renew) = (format!("{path}/commit"), format!("{path}/renew"));
    let good = new(user("a"), 1, 60);
    let with = |key: &str, value: Value| {
        let mut body = good.clone();
        body[key] = value;
        body
    };
    let many: serde_json::Map<_, _> = (0..257).map(|pair| (pair.to_string(), json!("x"))).collect();
    for (path, body, status, pointer) in [
        ("/v1/reservations", with("amount", json!(0)), 400, Some("#/amount")),
        ("/v1/reservations", with("amount", json!(-1)), 400, Some("#/amount")),
        ("/v1/reservations", with("ttl", json!(0)), 400, Some("#/ttl")),
        ("/v1/reservations", with("ttl", json!(601)), 400, Some("#/ttl")),
        ("/v1/reservations", with("ttl", json!(u64::MAX)), 400, Some("#/ttl")),
        ("/v1/reservations", with("id", json!("")), 400, Some("#/id")),
        ("/v1/reservations", with("id", json!("x".repeat(256))), 400, Some("#/id")),
        ("/v1/reservations", with("cost", json!(1)), 400, Some("#/cost")),
        ("/v1/reservations", with("operation", json!(many)), 400, Some("#/operation")),
        ("/v1/reservations", with("operation", user(&"x".repeat(8_000))), 400, None),
        ("/v1/reservations", json!({ "operation": {}, "ttl": 1 }), 400, Some("#")),
        ("/v1/reservations", json!({ "operation": user("a"), "amount": 1 }), 400, Some("#/ttl")),
        ("/v1/reservations", with("operation", json!({ "by": "log", "user": "a" })), 409, None),
        (&commit, json!({}), 400, Some("#")),
        (&commit, json!({ "cost": "1" }), 400, Some("#/cost")),
        (&renew, json!({ "ttl": 601 }), 400, Some("#/ttl")),
        (&renew, json!({ "ttl": 0 }), 400, Some("#/ttl")),
        ("/v1/reservations/nonsense/commit", json!({ "cost": 1 }), 404, None),
        ("/v1/reservations/%ff/renew", json!({ "ttl": 1 }), 404, None),
    ] {
        let refused = http.post(path, &body);
        let json = refused.json();
        assert_eq!((refused.status, json["pointer"].as_str()), (status, pointer), "{path} {body}: {json}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{path}");
    }
    assert_eq!(http.delete("/v1/reservations/nonsense").status, 404);
    http.send(&encode("POST", &commit, &[], b"{}"));
    assert_eq!(http.read_response().status, 415);
    assert_eq!(http.post(&renew, json!("x".repeat(70_000)).to_string()).status, 413);
    assert_eq!(server.resp().left("by=fixed user=a"), 99, "nothing was taken");
}

const CALENDAR: &str = "year 00:00 Asia/Tokyo";
/// Zone names as long as the one above, so that nothing else in an id changes.
const OTHER_ZONES: [&str; 4] = ["Asia/Dhaka", "Asia/Kabul", "Asia/Qatar", "Asia/Seoul"];

/// Returns ids derived from the id of a reservation with the calendar above: with other calendars, with a flipped bit,
/// truncated, and with a checksum in place of the seal.
fn forged(id: &str) -> Vec<String> {
    const SEAL: usize = 16;
    let sealed = URL_SAFE_NO_PAD.decode_to_vec(id).unwrap();
    let unsealed = &sealed[..sealed.len() - SEAL];
    let place = sealed.windows(CALENDAR.len()).position(|text| text == CALENDAR.as_bytes()).unwrap();
    let with_zone = |zone: &str| {
        let mut bytes = sealed.clone();
        bytes[place..place + CALENDAR.len()].copy_from_slice(format!("year 00:00 {zone}").as_bytes());
        bytes
    };
    let with_bit = |bit: usize| {
        let mut bytes = sealed.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    };
    let mut earlier = [&[1], &unsealed[1..]].concat();
    earlier.extend((SipHasher13::new_with_keys(0, 0).hash(&earlier).h1 as u32).to_le_bytes());
    let zones = OTHER_ZONES.map(with_zone);
    let flipped = (0..8 * sealed.len()).step_by(5).map(with_bit);
    let cut = (0..sealed.len()).step_by(7).map(|length| sealed[..length].to_vec());
    let forged = zones.into_iter().chain(flipped).chain(cut).chain([earlier, unsealed.to_vec()]);
    forged.map(|bytes| URL_SAFE_NO_PAD.encode_to_string(bytes)).filter(|text| !text.is_empty()).collect()
}

fn calendars(server: &Server) -> f64 {
    metrics::scrape(server.http).value("divvy_calendars", &[])
}

/// Ids that clients derive from a real one cause no request to the store, and load no calendars. A gateway's commit becomes a
/// charge instead.
#[test]
fn forged_ids_are_refused_without_a_question_to_redis() {
    let mut redis = RedisServer::start();
    let server = &Server::serving(&rules(), &["--redis-url", &redis.url()]);
    let known = server.resp().reserve("by=year user=a AMOUNT 30 TTL 60").1;
    let ids = forged(&known);
    let before = calendars(server);
    for (command, options) in [("COMMIT", " COST 1"), ("RELEASE", ""), ("RENEW", "")] {
        for id in ids.iter().step_by(7) {
            let reply = server.resp().command(&format!("DIVVY.{command} {id}{options}"));
            assert!(reply.contains("unknown reservation id"), "{command} {id}: {reply}");
        }
    }
    assert_eq!(server.resp().left("by=year user=a"), 70);
    redis.kill();
    let mut client = server.resp();
    let reply = client.command(&format!("DIVVY.RELEASE {known}"));
    assert!(!reply.contains("reservation id"), "this one is known: {reply}");
    for (command, options) in [("COMMIT", " COST 1"), ("RELEASE", ""), ("RENEW", "")] {
        let replies = client.pipeline(ids.iter().map(|id| format!("DIVVY.{command} {id}{options}")));
        for (id, reply) in ids.iter().zip(replies) {
            assert!(reply.contains("unknown reservation id"), "{command} {id}: {reply}");
        }
    }
    let mut http = server.http();
    let mut gateway = Caller::generated(server, "kuadrantrls.proto");
    for id in ids.iter().step_by(19) {
        assert_eq!(http.post(&format!("/v1/reservations/{id}/commit"), r#"{"cost": 1}"#).status, 404);
        let request = json!({"domain": "free", "descriptors": [descriptor("free=yes")], "reservation_id": id, "actual_amount": "1"});
        let reply = gateway.call("kuadrant.service.ratelimit.v1.RateLimitService/Commit", &request);
        assert_eq!(reply["reservation_released"], false);
    }
    assert_eq!(calendars(server), before);
}
