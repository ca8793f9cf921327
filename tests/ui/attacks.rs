//! Requests that other sites cause in the browser of a user, and requests with a part of the credentials.

use serde_json::json;

use super::{RULES, Site, line, open_site, password};
use crate::support::{LineClient, audit, http};

const LIMIT: &str = "/v1/limits?rule=search&actor=bob";

#[test]
fn api_accepts_the_session_with_its_token_only() {
    let site = Site::start(&(line("ann", "+@all ~*") + &line("eve", "+@all ~*")), &[]);
    let (ann, eve, nobody) = (site.logged_in("ann"), site.logged_in("eve"), site.browser());
    let token = ann.token.clone().unwrap();
    let cookie = ann.cookie.clone().unwrap();
    let json_type = ("content-type", "application/json");
    for (browser, headers, expected) in [
        (&ann, vec![("x-divvy-token", token.as_str())], 200),
        (&ann, vec![], 401),
        (&ann, vec![("x-divvy-token", "x")], 401),
        (&ann, vec![("x-divvy-token", &token[1..])], 401),
        (&ann, vec![("x-divvy-token", eve.token.as_deref().unwrap())], 401),
        (&ann, vec![("x-divvy-token", token.as_str()), ("x-divvy-token", token.as_str())], 401),
        (&ann, vec![("x-divvy-token", token.as_str()), ("authorization", "Bearer wrong")], 401),
        (&ann, vec![("x-divvy-token", token.as_str()), ("cookie", cookie.as_str())], 401),
        (&nobody, vec![("x-divvy-token", token.as_str())], 401),
    ] {
        for (method, path, body) in [
            ("GET", "/v1/rules", ""),
            ("PUT", LIMIT, r#"{"credits":7}"#),
            ("GET", "/v1/status?user=bob", ""),
            ("GET", "/v1/users", ""),
            ("POST", "/v1/reload", ""),
        ] {
            let headers = [&[json_type], &headers[..]].concat();
            let response = browser.send(method, path, &headers, body);
            assert_eq!(response.status, expected, "{method} {path} {headers:?}");
            assert_eq!(response.header("cache-control"), Some("no-store"), "{method} {path}");
            let challenge = response.header("www-authenticate").unwrap_or_default();
            assert!(!challenge.contains("Basic"), "a browser would ask for a password itself: {challenge}");
        }
    }
    // Hits and checks are for programs.
    assert_eq!(ann.api("POST", "/v1/hit", r#"{"operation":{"api":"search"}}"#).status, 401);
    assert_eq!(http::get(site.server.http, "/v1/rules").header("cache-control"), None);
}

#[test]
fn other_sites_reach_no_data() {
    let site = Site::start(&line("ann", "+@all ~*"), &[]);
    let ann = site.logged_in("ann");
    let body = json!({"user": "ann", "password": password("ann")}).to_string();
    for headers in [
        &[("origin", "http://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:1")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ] {
        let with_type = [headers, &[("content-type", "application/json")]].concat();
        let login = site.browser().send("POST", "/ui/api/login", &with_type, &body);
        assert_eq!((login.status, login.header("set-cookie")), (403, None), "{headers:?}");
        for path in ["/ui/api/session", "/ui/api/feed"] {
            assert_eq!(ann.send("GET", path, headers, "").status, 403, "{path} {headers:?}");
        }
        assert_eq!(ann.send("POST", "/ui/api/logout", headers, "").status, 403, "{headers:?}");
        let with_token = [headers, &[("x-divvy-token", ann.token.as_deref().unwrap())]].concat();
        for (method, path) in [("GET", "/v1/users"), ("POST", "/v1/reload")] {
            assert_eq!(ann.send(method, path, &with_token, "").status, 403, "{path} {headers:?}");
        }
    }
    assert_eq!(ann.session()["user"], "ann", "no site could log her out");
    // A form of another site can send these types without asking.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let login = site.browser().send("POST", "/ui/api/login", &[("content-type", kind)], &body);
        assert_eq!(login.status, 415, "{kind}");
    }
    let own = format!("http://{}", site.server.http);
    let headers = [("content-type", "application/json"), ("origin", own.as_str()), ("sec-fetch-site", "same-origin")];
    assert_eq!(site.browser().send("POST", "/ui/api/login", &headers, &body).status, 200);
    // A link may lead to the page itself.
    let cross_site = [("sec-fetch-site", "cross-site")];
    assert_eq!(ann.send("GET", "/ui/", &cross_site, "").status, 200);
    let (open, _rules) = open_site(RULES, &[]);
    assert_eq!(super::Browser::new(open.http).send("GET", "/ui/api/feed", &cross_site, "").status, 403);
}

#[test]
fn action_takes_effect_and_the_audit_log_names_the_user() {
    let site = Site::start(&(line("ann", "+@all ~*") + &line("bob", "+@read ~*")), &[]);
    let (ann, bob) = (site.logged_in("ann"), site.logged_in("bob"));
    assert_eq!(bob.api("PUT", LIMIT, r#"{"credits":9}"#).status, 403);
    assert_eq!(ann.api("PUT", LIMIT, r#"{"credits":0}"#).status, 200);
    assert!(!LineClient::connect(site.server.line).hit("api=search user=bob").0, "the limit is in force");
    assert_eq!(ann.send("DELETE", LIMIT, &[], "").status, 401);
    assert_eq!(ann.api("DELETE", "/v1/counters?rule=search&actor=bob", "").status, 200);
    let of = |line: serde_json::Value| json!([line["user"], line["front"], line["what"], line["status"]]);
    let lines: Vec<_> = audit::lines(site.path("audit.log"), 4).into_iter().map(of).collect();
    let expected = [
        json!(["bob", "http", "limit.set", "refused"]),
        json!(["ann", "http", "limit.set", "done"]),
        json!(["-", "http", "limit.delete", "refused"]),
        json!(["ann", "http", "counters.forget", "done"]),
    ];
    assert_eq!(lines, expected);
}
