//! Web pages of other origins: preflight requests, and the headers that let a page read an answer.

use serde_json::Value;

use super::Guarded;
use crate::support::application;
use crate::support::browser::browse;

const PAGE: &str = "https://app.example";
const STATUS: &str = "/v1/status?user=ann";
const ALLOWED: &str = "access-control-allow-origin";

#[test]
fn pages_of_listed_origins_read_the_status() {
    let guarded = Guarded::start(&["--cors-origin", PAGE, "--cors-origin", "http://localhost:3000"]);
    let token = format!("Bearer {}", guarded.token(&[("user", "ann")]));
    for origin in [PAGE, "http://localhost:3000"] {
        let preflight = [
            ("origin", origin),
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "authorization"),
        ];
        let answer = guarded.send("OPTIONS", STATUS, &preflight);
        assert_eq!((answer.status, answer.header(ALLOWED)), (200, Some(origin)), "{answer:?}");
        assert_eq!(answer.header("access-control-allow-methods"), Some("GET"));
        assert_eq!(answer.header("access-control-allow-headers"), Some("authorization"));
        assert_eq!(answer.header("access-control-max-age"), Some("3600"));
        assert!(answer.head.to_lowercase().contains("vary: origin"), "{answer:?}");

        let answer = guarded.send("GET", STATUS, &[("origin", origin), ("authorization", &token)]);
        assert_eq!((answer.status, answer.header(ALLOWED)), (200, Some(origin)), "{answer:?}");
        assert!(answer.head.to_lowercase().contains("vary: origin"), "{answer:?}");
        assert_eq!(answer.header("access-control-allow-credentials"), None);
        assert_eq!(answer.header("cache-control"), Some("no-store"));

        // The page learns why it gets no status.
        for (target, authorization, status) in
            [(STATUS, "Bearer v4.local.x", 401), ("/v1/status?user=bob", &token, 403), ("/v1/status", &token, 400)]
        {
            let answer = guarded.send("GET", target, &[("origin", origin), ("authorization", authorization)]);
            assert_eq!((answer.status, answer.header(ALLOWED)), (status, Some(origin)), "{answer:?}");
        }
    }
    assert_eq!(guarded.send("GET", STATUS, &[("origin", PAGE)]).status, 401, "an origin is no permission");
}

#[test]
fn other_pages_and_other_routes_get_no_headers() {
    let guarded = Guarded::start(&["--cors-origin", PAGE]);
    let token = format!("Bearer {}", guarded.token(&[("user", "ann")]));
    let ask = |method: &str, target: &str, origin: &str| {
        let preflight = [("access-control-request-method", "GET"), ("access-control-request-headers", "authorization")];
        let headers = [&[("origin", origin), ("authorization", &token)][..], &preflight].concat();
        guarded.send(method, target, &headers)
    };
    for origin in
        ["https://other.example", "http://app.example", "https://app.example:8443", "https://a.app.example", "null", ""]
    {
        for method in ["OPTIONS", "GET"] {
            let answer = ask(method, STATUS, origin);
            assert_eq!((answer.status, answer.header(ALLOWED)), (200, None), "{method} {origin}: {answer:?}");
        }
    }
    for target in
        ["/v1/hit", "/v1/rules", "/v1/counters", "/v1/limits", "/v1/check/x", "/metrics", "/healthz", "/nothing"]
    {
        let answer = ask("OPTIONS", target, PAGE);
        assert!(![200, 204].contains(&answer.status) && answer.header(ALLOWED).is_none(), "{target}: {answer:?}");
    }
    assert_eq!(ask("POST", STATUS, PAGE).status, 405);
    let without = Guarded::start(&[]);
    for (method, status) in [("OPTIONS", 405), ("GET", 200)] {
        let token = format!("Bearer {}", without.token(&[("user", "ann")]));
        let answer = without.send(method, STATUS, &[("origin", PAGE), ("authorization", &token)]);
        assert_eq!((answer.status, answer.header(ALLOWED)), (status, None), "{answer:?}");
    }
}

/// Chromium decides by the headers, after a preflight request, because the page sends a token.
#[test]
fn chromium_shows_the_status_to_pages_of_listed_origins_only() {
    let pages = [(); 2].map(|()| format!("http://{}", application()));
    let guarded = Guarded::start(&["--cors-origin", &pages[0]]);
    guarded.hit(&["api=1 user=ann"]);
    let token = format!("Bearer {}", guarded.token(&[("user", "ann")]));
    let fetch = |target: &str, authorization: &str| {
        let url = format!("http://{}{target}", guarded.server.http);
        let output = browse("fetch_across_origins.py", &[&url, authorization, &pages[0], &pages[1]]);
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let [listed, other] = &fetch(STATUS, &token)[..] else { panic!("two pages") };
    assert_eq!(listed["status"], 200, "{listed}");
    let body: Value = serde_json::from_str(listed["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["rules"][0]["used"], 1, "{body}");
    assert_eq!(other, &Value::Null, "the browser hides the answer");

    let refused = fetch("/v1/status?user=bob", &token);
    assert_eq!((&refused[0]["status"], &refused[1]), (&403.into(), &Value::Null), "a listed page learns why");
    let routes = ["/v1/rules", "/v1/counters?rule=api-calls", "/metrics", "/healthz"];
    for target in routes {
        let password = format!("Bearer {}", super::PASSWORD);
        assert_eq!(fetch(target, &password), [Value::Null, Value::Null], "{target}");
    }
}
