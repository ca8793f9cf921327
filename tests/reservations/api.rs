//! Reservations over HTTP.

use serde_json::{Value, json};

use super::*;
use crate::support::http::{HttpClient, Response, encode};

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
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    for server in Server::on_each_store(rules.path(), data.path()) {
        let mut http = HttpClient::connect(server.http);
        let made = http.post("/v1/reservations", &new(user("a"), 60, 60).to_string());
        let path = location(&made);
        let body = made.json();
        let reported = ["allowed", "limit", "remaining", "balance", "retryAfter", "rule"].map(|key| body[key].clone());
        assert_eq!(json!(reported), json!([true, 100, 40, 40, null, "fixed"]));
        assert!((59..=61).contains(&body["expiresIn"].as_u64().unwrap()), "{body}");
        assert_eq!(made.header("ratelimit-policy"), Some("\"fixed\";q=100;w=2592000"));
        assert!(made.header("ratelimit").unwrap().starts_with("\"fixed\";r=40;t="));

        let denied = http.post("/v1/reservations", &new(user("a"), 41, 60).to_string());
        let hit = http.post("/v1/hit", &json!({ "operation": user("a"), "cost": 41 }).to_string());
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

        let path = location(&http.post("/v1/reservations", &new(user("b"), 60, 60).to_string()));
        for released in [true, false] {
            let answer = http.delete(&path);
            assert_eq!((answer.status, answer.json()), (200, json!({ "released": released })));
        }
        let late = http.post(&format!("{path}/commit"), r#"{"cost": 10}"#).json();
        assert_eq!((&late["balance"], &late["status"]), (&json!(90), &json!("late")));
    }
}

#[test]
fn mistakes_are_reported_with_their_position() {
    let rules = rules();
    let server = Server::in_memory(rules.path());
    let mut http = HttpClient::connect(server.http);
    let path = location(&http.post("/v1/reservations", &new(user("a"), 1, 60).to_string()));
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
        let refused = http.post(path, &body.to_string());
        let json = refused.json();
        assert_eq!((refused.status, json["pointer"].as_str()), (status, pointer), "{path} {body}: {json}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"), "{path}");
    }
    assert_eq!(http.delete("/v1/reservations/nonsense").status, 404);
    http.send(&encode("POST", &commit, &[], b"{}"));
    assert_eq!(http.read_response().status, 415);
    assert_eq!(http.post(&renew, &json!("x".repeat(70_000)).to_string()).status, 413);
    assert_eq!(Client::of(&server).left("by=fixed user=a"), 99, "nothing was taken");
}
