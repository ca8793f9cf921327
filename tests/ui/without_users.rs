//! The page without users: read-only, and for browsers on this machine alone.

use super::browser::of_each;
use super::{Browser, RULES, Site, line, open_site};
use crate::support::{RulesFile, divvy, http};

#[test]
fn page_without_users_is_read_only() {
    let (server, _rules) = open_site(RULES, &[]);
    let browser = Browser::new(server.http);
    let session = browser.session();
    assert_eq!(session["user"], serde_json::Value::Null);
    assert_eq!((&session["login"], &session["readOnly"]), (&false.into(), &true.into()));
    let can: Vec<_> = session["can"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(["read", "status", "metrics"].iter().all(|name| can.contains(name)), "{can:?}");
    assert!(!["limits", "forget", "backup"].iter().any(|name| can.contains(name)), "{can:?}");
    assert_eq!(session["server"]["store"], "memory");
    assert_eq!(browser.send("POST", "/ui/api/login", &[("content-type", "application/json")], "{}").status, 409);
    assert_eq!(of_each(&browser.feed("").next_named("rules"), "name"), ["search", "rule-2", "try", "default"]);
}

#[test]
fn other_hosts_and_proxies_do_not_reach_a_page_without_users() {
    let (server, _rules) = open_site(RULES, &[]);
    let browser = Browser::new(server.http);
    let port = server.http.port();
    for path in ["/ui", "/ui/", "/ui/api/session", "/ui/api/feed"] {
        let evil = format!("evil.example:{port}");
        for header in [("host", evil.as_str()), ("host", "localhost.evil.example"), ("X-Forwarded-For", "127.0.0.1")] {
            let response = browser.send("GET", path, &[header], "");
            assert_eq!(response.status, 403, "{path} with {header:?}");
            assert!(response.body.contains("set --requirepass or --access-file"), "{}", response.body);
        }
        // By default, nginx forwards requests in this form.
        for headers in ["", "Host: 127.0.0.1:8322\r\nConnection: close\r\n"] {
            let old = format!("GET {path} HTTP/1.0\r\n{headers}\r\n");
            assert_eq!(http::request(server.http, old).status, 403, "{path} {headers:?}");
        }
    }
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:8322"] {
        assert_eq!(browser.send("GET", "/ui/api/session", &[("host", host)], "").status, 200, "{host}");
    }
}

#[test]
fn page_that_others_could_see_does_not_start() {
    let rules = RulesFile::ini(RULES);
    for (args, reason) in [
        (&["--ui", "--http-listen", "0.0.0.0:0"][..], "needs users, because other machines can reach it"),
        (&["--ui", "--http-listen", "127.0.0.1:0,0.0.0.0:0"], "--ui on 0.0.0.0"),
        (&["--ui", "--http-listen", "none"], "--ui needs the HTTP listener"),
        (&["--ui-streams", "2", "--http-listen=127.0.0.1:0"], "has no effect without --ui"),
        (&["--ui", "--metrics-path", "/ui/metrics", "--http-listen=127.0.0.1:0"], "the live page has this path"),
    ] {
        let mut command = divvy();
        command.args(["serve", rules.path(), "--store", "memory", "--listen=127.0.0.1:0"]);
        command.args(["--resp-listen=none", "--grpc-listen=none"]);
        let output = command.args(args).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && log.contains(reason), "{args:?}: {log}");
    }
}

#[test]
fn page_with_users_may_be_reached_by_any_name() {
    let site = Site::start(&line("ann", "+@all ~*"), &[]);
    for headers in [&[("host", "divvy.example")][..], &[("host", "divvy.example"), ("x-forwarded-for", "192.0.2.1")]] {
        let session = site.browser().send("GET", "/ui/api/session", headers, "").json();
        assert_eq!((&session["login"], &session["can"]), (&true.into(), &serde_json::json!([])));
    }
}
