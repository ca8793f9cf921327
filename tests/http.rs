//! The HTTP API over real sockets: answers, exact headers, and errors for bad requests.

use serde_json::{Map, json};

use crate::support::http::encode;
use crate::support::{HttpClient, Response, Server, http};

const RULES: &str = "
[api=status] creditLimit=3 resetSeconds=3599.5 label=status
[api=drip user=*] creditLimit=10 resetSeconds=60 algorithm=leaky-bucket burst=5 actorField=user costField=bytes label=drip
[api=steps] creditLimit=10 resetSeconds=60 algorithm=token-bucket refillCredits=4 refillSeconds=7200 label=steps
[api=open] creditLimit=9007199254740991 resetSeconds=0 comment=uncounted
[api=trial] creditLimit=1 resetSeconds=60 matchPolicy=canary label=on-trial
[default] creditLimit=0 resetSeconds=0
";

fn served(args: &[&str]) -> (Server, HttpClient) {
    http::served(RULES, args)
}

/// Returns the rate limit headers, in order.
fn limits(response: &Response) -> Vec<String> {
    let reported = |name: &str| name.contains("ratelimit") || name == "retry-after";
    let headers = response.head.lines().filter(|line| line.split_once(':').is_some_and(|(name, _)| reported(name)));
    headers.map(str::to_owned).collect()
}

#[test]
fn hit_is_answered_with_numbers_and_headers() {
    let (_server, mut client) = served(&[]);
    let hit = r#"{"operation":{"api":"status"}}"#;
    let first = client.post("/v1/hit", hit);
    assert_eq!(first.status, 200);
    assert_eq!(first.header("content-type"), Some("application/json"));
    let expected = r#"{"allowed":true,"limit":3,"remaining":2,"balance":2,"reset":3600,"retryAfter":null,"rule":"status"}
"#;
    assert_eq!(first.body, expected);
    assert_eq!(limits(&first), ["ratelimit-policy: \"status\";q=3;w=3600", "ratelimit: \"status\";r=2;t=3600"]);
    client.post("/v1/hit", hit);
    client.post("/v1/hit", hit);
    let denied = client.post("/v1/hit", hit);
    assert_eq!(denied.status, 429);
    // Time passes. All values are rounded up, so they agree.
    let reset = denied.json()["reset"].as_u64().unwrap();
    assert!((3000..=3600).contains(&reset));
    let expected = format!(
        r#"{{"allowed":false,"limit":3,"remaining":0,"balance":0,"reset":{reset},"retryAfter":{reset},"rule":"status"}}
"#
    );
    assert_eq!(denied.body, expected);
    let (policy, current) = ("ratelimit-policy: \"status\";q=3;w=3600", format!("ratelimit: \"status\";r=0;t={reset}"));
    assert_eq!(limits(&denied), [policy, &current, &format!("retry-after: {reset}")]);
}

#[test]
fn many_hits_are_answered_in_order() {
    let (_server, mut client) = served(&[]);
    let hits = r#"{"hits":[
        {"operation":{"api":"status"},"cost":2},
        {"operation":{"api":"drip","user":"a","bytes":"x"}},
        {"operation":{"api":"status"},"cost":2},
        {"operation":{"api":"status"}},
        {"operation":{"api":"open"}}
    ]}"#;
    let response = client.post("/v1/hits", hits);
    assert_eq!(response.status, 200);
    let results = response.json();
    let results = results["results"].as_array().unwrap();
    assert_eq!(results.len(), 5);
    let answer = |index: usize| (results[index]["allowed"].as_bool(), results[index]["remaining"].as_u64());
    assert_eq!(
        [answer(0), answer(2), answer(3)],
        [(Some(true), Some(1)), (Some(false), Some(1)), (Some(true), Some(0))]
    );
    assert_eq!(results[1]["status"], 400);
    assert_eq!(answer(4), (Some(true), Some(9_007_199_254_740_991)));
    assert_eq!(client.post("/v1/hits", r#"{"hits":[]}"#).body, "{\"results\":[]}\n");

    let many = vec![json!({"operation": {"api": "steps"}}); 1_001];
    let refused = client.post("/v1/hits", json!({ "hits": many }).to_string());
    assert_eq!((refused.status, &refused.json()["pointer"]), (400, &json!("#/hits")));
    let malformed = json!({ "hits": [many[0], {"operation": {"api": []}}] });
    let refused = client.post("/v1/hits", malformed.to_string());
    assert_eq!((refused.status, &refused.json()["pointer"]), (400, &json!("#/hits/1/operation/api")));
    let untouched = client.post("/v1/peek", r#"{"operation":{"api":"steps"}}"#);
    assert_eq!(untouched.json()["remaining"], 10, "a request that is refused takes nothing");
}

#[test]
fn every_mistake_has_its_own_problem() {
    let (_server, mut client) = served(&["--max-body", "4000"]);
    let long = format!(r#"{{"operation":{{"a":"{}"}}}}"#, "x".repeat(4_000));
    let pairs: Map<_, _> = (0..257).map(|pair| (pair.to_string(), json!(""))).collect();
    let crowded = json!({ "operation": pairs }).to_string();
    let json = "application/json";
    let hit = r#"{"operation":{}}"#;
    for (method, path, kind, body, status, pointer, detail) in [
        ("POST", "/v1/hit", json, "{", 400, Some("#"), "the text ends within an object at line 1 column 1"),
        ("POST", "/v1/hit", json, "{}", 400, Some("#"), "missing field `operation`"),
        ("POST", "/v1/hit", json, r#"{"operation":{},"c":1}"#, 400, Some("#/c"), "unknown field `c`"),
        ("POST", "/v1/hit", json, r#"{"operation":{"a":null}}"#, 400, Some("#/operation/a"), "expected a string"),
        ("POST", "/v1/hit", json, r#"{"operation":{},"cost":1.5}"#, 400, Some("#/cost"), "expected a whole number"),
        ("POST", "/v1/hit", json, &crowded, 400, Some("#/operation"), "256 pairs"),
        ("POST", "/v1/explain", json, r#"{"operation":{},"cost":1}"#, 400, Some("#/cost"), "unknown field"),
        ("POST", "/v1/hit", json, &long, 413, None, "--max-body"),
        ("POST", "/v1/hit", "text/plain", hit, 415, None, "Content-Type"),
        ("GET", "/v1/hit", json, "", 405, None, "does not accept GET"),
        ("POST", "/v2/hit", json, hit, 404, None, "/v2/hit does not exist"),
    ] {
        client.send(&encode(method, path, &[("content-type", kind)], body.as_bytes()));
        let response = client.read_response();
        let problem = response.json();
        let name = format!("{method} {path} {body}: {problem}");
        assert_eq!(response.status, status, "{name}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"), "{name}");
        assert_eq!(problem["status"], status, "{name}");
        assert_eq!(problem["type"], "about:blank", "{name}");
        assert!(problem["title"].is_string(), "{name}");
        assert_eq!(problem.get("pointer").and_then(|pointer| pointer.as_str()), pointer, "{name}");
        assert!(problem["detail"].as_str().unwrap().contains(detail), "{name}");
        // The rest of an overlong body is not read.
        if status == 413 {
            client = _server.http();
        }
    }
    client.send(&encode("PUT", "/v1/check", &[], b""));
    assert_eq!(client.read_response().header("allow"), Some("GET,HEAD,POST"));
}

#[test]
fn oversized_body_is_rejected_without_being_read() {
    let (server, mut client) = served(&[]);
    client.send(b"POST /v1/hit HTTP/1.1\r\nhost: divvy\r\ncontent-type: application/json\r\n");
    client.send(b"content-length: 1000000000\r\n\r\n{\"operation\":");
    assert_eq!(client.read_response().status, 413);
    assert!(client.is_closed(), "other input is not mistaken for a request");
    assert!(server.terminate().success());
}

#[test]
fn missing_rules_are_an_operator_error_and_a_missing_store_is_unavailable() {
    let server = Server::start(&["--store", "memory"]);
    let mut client = server.http();
    for (path, body) in [("/v1/hit", r#"{"operation":{}}"#), ("/v1/explain", r#"{"operation":{}}"#)] {
        let response = client.post(path, body);
        assert_eq!((response.status, response.header("retry-after")), (500, None));
        assert!(response.json()["detail"].as_str().unwrap().contains("no rules are loaded"), "{}", response.body);
    }
    assert_eq!(client.get("/v1/rules", &[]).status, 500);

    // Nothing listens on this port.
    let server = Server::serving(RULES, &["--redis-url", "redis://127.0.0.1:1"]);
    let mut client = server.http();
    let response = client.post("/v1/hit", r#"{"operation":{"api":"status"}}"#);
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    let response = client.post("/v1/hits", r#"{"hits":[{"operation":{"api":"status"}},{"operation":{"api":"open"}}]}"#);
    assert_eq!(response.status, 200);
    assert_eq!(response.json()["results"][0]["status"], 503);
    assert_eq!(response.json()["results"][1]["allowed"], true, "a rule without a counter needs no store");
}

/// The rights of users are in `users::rights`.
#[test]
fn with_a_password_only_open_routes_answer_without_it() {
    let (_server, mut client) = served(&["--requirepass", "secret", "--open", "hit"]);
    let mut status = |path: &str, authorization: &str| {
        let headers = [("content-type", "application/json"), ("authorization", authorization)];
        client.send(&encode("POST", path, &headers, br#"{"operation":{"api":"open"}}"#));
        client.read_response().status
    };
    for authorization in ["", "Bearer wrong", "Basic secret", "Bearer secret"] {
        let expected = if authorization == "Bearer secret" { 200 } else { 401 };
        assert_eq!([status("/v1/hit", authorization), status("/v1/peek", authorization)], [200, expected]);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let (_server, mut client) = served(&[]);
    let hit = |body: &str| encode("POST", "/v1/hit", &[("content-type", "application/json")], body.as_bytes());
    let status = hit(r#"{"operation":{"api":"status"}}"#);
    let pipeline = [&status[..], &encode("GET", "/nothing", &[], b""), &status, &hit("{"), &status].concat();
    client.send(&pipeline);
    let responses: Vec<_> = (0..5).map(|_| client.read_response()).collect();
    assert_eq!(responses.iter().map(|response| response.status).collect::<Vec<_>>(), [200, 404, 200, 400, 200]);
    let remaining: Vec<_> =
        [0, 2, 4].iter().map(|&index: &usize| responses[index].json()["remaining"].clone()).collect();
    assert_eq!(remaining, [2, 1, 0]);
}

/// The last of a field's values used to win without a word, so a description that a client can extend chose the rule.
#[test]
fn field_that_is_given_twice_is_an_error() {
    let server = Server::serving(
        "[plan=free]\ncreditLimit = 2\nper = 1h\nlabel = free\n[plan=pro]\ncreditLimit = 1000\nper = 1h\nlabel = pro\n[default]\ncreditLimit = 0\n",
        &[],
    );
    let mut client = server.http();
    let twice = r#"{"plan":"free","plan":"pro"}"#;
    for (path, body) in [
        ("/v1/hit", format!(r#"{{"operation":{twice}}}"#)),
        ("/v1/peek", format!(r#"{{"operation":{twice}}}"#)),
        ("/v1/charge", format!(r#"{{"operation":{twice}}}"#)),
        ("/v1/explain", format!(r#"{{"operation":{twice}}}"#)),
        ("/v1/hits", format!(r#"{{"hits":[{{"operation":{twice}}}]}}"#)),
        ("/v1/reservations", format!(r#"{{"operation":{twice},"amount":1,"ttl":9}}"#)),
    ] {
        let refused = client.post(path, &body);
        assert!(refused.status == 400 && refused.body.contains("is given twice"), "{path}: {}", refused.body);
    }
    let mut resp = server.resp();
    for (command, more) in [("HIT", ""), ("PEEK", ""), ("CHARGE", ""), ("EXPLAIN", ""), ("RESERVE", " AMOUNT 1 TTL 9")]
    {
        let refused = resp.command(&format!("DIVVY.{command} plan=free plan=pro{more}"));
        assert!(refused.contains("the field 'plan' is given twice"), "{command}: {refused}");
    }
    // Button's Divvy takes the last one.
    assert_eq!(server.line().hit("plan=free plan=pro").1, 999);
}
