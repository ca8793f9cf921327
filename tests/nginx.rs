//! The real nginx with auth_request in front of a small application: config/examples/nginx, with different ports.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::support::gateway::changed;
use crate::support::{Gateway, PATIENCE, RulesFile, Server, application, free_address};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/nginx");

/// Starts nginx with the example and some changes.
pub fn nginx(application: SocketAddr, divvy: SocketAddr, changes: &[(&str, String)]) -> Gateway {
    let address = free_address();
    let ports = [
        ("127.0.0.1:10080", address.to_string()),
        ("127.0.0.1:8080", application.to_string()),
        ("127.0.0.1:8322", divvy.to_string()),
        // A busy machine may take longer than a gateway should wait.
        ("250ms", format!("{}s", PATIENCE.as_secs())),
    ];
    let config = std::fs::read_to_string(Path::new(EXAMPLE).join("nginx.conf")).unwrap();
    let config = changed(changed(config, &ports), changes);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("nginx.conf"), config).unwrap();
    let child = Command::new("nginx")
        .arg("-p")
        .arg(directory.path())
        .args(["-e", "stderr", "-c", "nginx.conf"])
        .args(["-g", "daemon off; master_process off; pid nginx.pid; error_log stderr crit;"])
        .spawn()
        .unwrap_or_else(|error| panic!("nginx: {error}; run `make test-setup` first"));
    Gateway::new(child, address, directory)
}

/// Starts nginx with the lines uncommented that let requests pass while divvy is unavailable.
fn lenient_nginx(application: SocketAddr, divvy: SocketAddr) -> Gateway {
    let [intercept, errors] = ["proxy_intercept_errors on", "error_page 500"].map(str::to_owned);
    nginx(application, divvy, &[("# proxy_intercept_errors on", intercept), ("# error_page 500", errors)])
}

fn divvy() -> Server {
    divvy_with(&rules(), &[])
}

/// Starts divvy as the example says.
fn divvy_with(rules: &str, more: &[&str]) -> Server {
    let flags =
        ["--store", "memory", "--deny-status", "403", "--check-from", "original", "--check-final-slash", "drop"];
    Server::start(&[&[rules], &flags[..], more].concat())
}

#[test]
fn login_has_one_limit_however_it_is_spelled() {
    let server = divvy_with(&rules(), &["--check-id", "header:X-Request-Id"]);
    let gateway = nginx(application(), server.http, &[]);
    gateway.admit_no_login_beyond(3);
    // nginx passes a fragment on, and many applications drop it.
    assert_eq!(gateway.post("/login#top").status, 429);
    let directory = tempfile::tempdir().unwrap();
    let template = directory.path().join("rules.ini");
    let output = crate::support::divvy().args(["init", "--template", "gateway"]).arg(&template).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let server = divvy_with(template.to_str().unwrap(), &[]);
    nginx(application(), server.http, &[]).admit_no_login_beyond(5);
}

/// nginx asks again after an internal redirect.
#[test]
fn internal_redirects_count_once_with_an_id() {
    let rules = RulesFile::ini(
        "[ip=*]\ncreditLimit = 100\nper = 1h\nactorField = ip\nlabel = by-ip\n[default]\ncreditLimit = 0\n",
    );
    let redirects = "location /try/ { auth_request /divvy; error_page 404 = /found; try_files /none =404; }\n        location /divvy-once {";
    for (flags, taken) in [(&["--check-id", "header:X-Request-Id"][..], 1), (&[], 2)] {
        let server = divvy_with(rules.path(), flags);
        let gateway = nginx(
            application(),
            server.http,
            &[("location = /divvy {", format!("{redirects} return 404; }}\n        location = /divvy {{"))],
        );
        assert_eq!(gateway.get("/try/x").status, 200);
        let left = server.line().hit("ip=127.0.0.1").1;
        assert_eq!(left, 99 - taken, "{flags:?}");
    }
}

fn rules() -> String {
    format!("{EXAMPLE}/rules.ini")
}

#[test]
fn traffic_over_the_limit_gets_429_with_headers_and_other_paths_continue() {
    let server = divvy();
    let gateway = nginx(application(), server.http, &[]);
    for left in (0..3).rev() {
        let response = gateway.post("/login?next=/");
        assert_eq!((response.status, response.body.as_str()), (200, "app"));
        let standing = response.header("ratelimit").unwrap();
        assert!(standing.starts_with(&format!("\"login\";r={left};t=")), "{}", response.head);
        assert_eq!(response.header("ratelimit-policy"), Some("\"login\";q=3;w=60"));
    }
    let denied = gateway.post_lying("/login?next=/");
    assert_eq!(denied.status, 429);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="), "{}", denied.head);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    assert_eq!(gateway.post("/elsewhere").status, 200);
    let seen_by_the_line = server.line().hit("method=POST path=/elsewhere ip=127.0.0.1");
    assert_eq!(seen_by_the_line.1, 998, "one hit through nginx, one here");
}

#[test]
fn operators_choice_applies_while_divvy_is_down() {
    let server = divvy();
    let application = application();
    let strict = nginx(application, server.http, &[]);
    let lenient = lenient_nginx(application, server.http);
    for gateway in [&strict, &lenient] {
        assert_eq!(gateway.post("/").status, 200);
    }
    server.kill();
    assert_eq!(strict.post("/").status, 500);
    assert_eq!(lenient.post("/").status, 200);
}
