//! The real Envoy in front of a small application, with its rate limit filter and with ext_authz:
//! config/examples/envoy, with different ports.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::support::gateway::{application_with, changed};
use crate::support::{Gateway, PATIENCE, Server, application, free_address, until};

pub const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/envoy");

/// Starts Envoy with envoy.yaml.
fn envoy(application: SocketAddr, divvy: SocketAddr, failure_mode_deny: bool) -> Gateway {
    let deny = ("failure_mode_deny: false", format!("failure_mode_deny: {failure_mode_deny}"));
    start("envoy.yaml", ("8323", divvy), application, &[deny])
}

/// Starts Envoy with one of the examples and some changes, asking divvy on that port.
pub fn start(
    example: &str,
    (port, divvy): (&str, SocketAddr),
    application: SocketAddr,
    changes: &[(&str, String)],
) -> Gateway {
    let (address, admin) = (free_address(), free_address());
    let ports = [
        ("port_value: 9901", format!("port_value: {}", admin.port())),
        ("port_value: 10000", format!("port_value: {}", address.port())),
        ("port_value: 8080", format!("port_value: {}", application.port())),
        (&*format!("port_value: {port}"), format!("port_value: {}", divvy.port())),
        // A busy machine may take longer than a gateway should wait.
        ("timeout: 0.25s", format!("timeout: {}s", PATIENCE.as_secs())),
    ];
    let config = std::fs::read_to_string(Path::new(EXAMPLE).join(example)).unwrap();
    let config = changed(changed(config, &ports), changes);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("envoy.yaml");
    std::fs::write(&path, config).unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python/.venv/bin/envoy");
    assert!(program.exists(), "{} is missing; run `make test-setup` first", program.display());
    let child = Command::new(program)
        .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "--config-path"])
        .arg(&path)
        .spawn()
        .unwrap();
    Gateway::new(child, address, directory).with_admin(admin)
}

fn divvy() -> Server {
    Server::in_memory(Path::new(EXAMPLE).join("rules.ini").to_str().unwrap())
}

#[test]
fn traffic_over_the_limit_gets_429_with_headers_and_other_paths_continue() {
    let server = divvy();
    let gateway = envoy(application(), server.grpc, false);
    for left in (0..3).rev() {
        let response = gateway.post("/login?next=/");
        assert_eq!((response.status, response.body.as_str()), (200, "app"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(left.to_string().as_str()), "{}", response.head);
    }
    let denied = gateway.post("/login?next=/");
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    assert!(denied.header("x-ratelimit-limit").unwrap().starts_with("3, 3;w=60"), "{}", denied.head);
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let reset: u64 = denied.header("x-ratelimit-reset").unwrap().parse().unwrap();
    assert!((1..=60).contains(&reset));
    assert!(denied.header("x-envoy-ratelimited").is_some());
    assert_eq!(gateway.post("/elsewhere").status, 200);
}

/// A budget of 5,000 tokens, and responses of 1,200 each. Envoy learns their cost when they end.
#[test]
fn tokens_are_checked_before_a_stream_and_charged_after_it() {
    let rules = Path::new(EXAMPLE).join("tokens.ini");
    let server = Server::in_memory(rules.to_str().unwrap());
    let streaming = start("tokens.yaml", ("8323", server.grpc), application_with("x-tokens: 1200\r\n"), &[]);
    let mut divvy = server.http();
    let mut balance = || {
        let listed = divvy.get("/v1/counters?rule=tokens&actor=ann", &[]).json();
        listed["counters"][0]["balance"].as_i64().unwrap_or(5000)
    };
    for left in [3800, 2600, 1400, 200, -1000] {
        assert_eq!(streaming.post_as("ann", "/chat").status, 200, "before {left} are left");
        until(|| balance() == left);
    }
    for _ in 0..5 {
        assert_eq!(streaming.post_as("ann", "/chat").status, 429);
    }
    assert_eq!(streaming.post_as("bob", "/chat").status, 200, "another user's");
    // At the end of a denied request Envoy reports its cost, too, which is zero.
    let silent = start("tokens.yaml", ("8323", server.grpc), application(), &[]);
    (0..5).for_each(|_| assert_eq!(silent.post_as("eve", "/chat").status, 200));
    assert_eq!(balance(), -1000, "the counter shows every token, and no more");
}

/// Envoy sends five descriptors with each request. The fifth has the smallest limit.
#[test]
fn five_descriptors_are_taken_together_or_separately() {
    let limit = |number: usize| if number == 5 { 3 } else { 100 };
    let rule = |number: usize| {
        let and = if number == 1 { "matchPolicy = and\n" } else { "" };
        format!(
            "[domain=edge generic_key=d{number}]\ncreditLimit = {}\nper = 1h\nlabel = d{number}\n{and}",
            limit(number)
        )
    };
    // The first descriptor matches a stack.
    let total = "[domain=edge generic_key=d1]\ncreditLimit = 50\nper = 1d\nlabel = total\n";
    let rules = (1..=5).map(rule).collect::<String>() + total + "[default]\ncreditLimit = 0\n";
    let descriptor = |number| format!("- actions: [{{ generic_key: {{ descriptor_value: d{number} }} }}]");
    let descriptors = (1..=5).map(descriptor).collect::<Vec<_>>().join("\n                        ");
    let actions = "- actions:
                            - request_headers: { header_name: \":method\", descriptor_key: method }
                            - request_headers: { header_name: \":path\", descriptor_key: path }
                            - remote_address: {}";
    for (is_atomic, left) in [(true, 97), (false, 93)] {
        let flags: &[&str] = if is_atomic { &["--grpc-atomic"] } else { &[] };
        let server = Server::serving(&rules, flags);
        let gateway = start("envoy.yaml", ("8323", server.grpc), application(), &[(actions, descriptors.clone())]);
        let statuses: Vec<_> = (0..7).map(|_| gateway.post("/").status).collect();
        assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429]);
        let mut line = server.line();
        for number in 2..5 {
            let hit = line.hit(&format!("domain=edge generic_key=d{number}"));
            assert_eq!(hit.1, left - 1, "atomic {is_atomic}, descriptor {number}, one hit here");
        }
        // The day's limit answers for the stack, because it has the least left in proportion.
        assert_eq!(line.hit("domain=edge generic_key=d1").1, if is_atomic { 46 } else { 42 });
    }
}

#[test]
fn header_that_is_not_utf_8_does_not_evade_the_limit() {
    let server = divvy();
    let of_user = "- request_headers: { header_name: x-user, descriptor_key: user, skip_if_absent: true }";
    let actions = format!("- remote_address: {{}}\n                            {of_user}");
    let gateway = start("envoy.yaml", ("8323", server.grpc), application(), &[("- remote_address: {}", actions)]);
    for _ in 0..3 {
        assert_eq!(gateway.post_garbled("/login").status, 200);
    }
    assert_eq!(gateway.post_garbled("/login").status, 429);
}

#[test]
fn failure_mode_deny_applies_while_divvy_is_down() {
    let server = divvy();
    let application = application();
    let (lenient, strict) = (envoy(application, server.grpc, false), envoy(application, server.grpc, true));
    for gateway in [&lenient, &strict] {
        assert_eq!(gateway.post("/").status, 200);
    }
    server.kill();
    assert_eq!(lenient.post("/").status, 200);
    assert_eq!(strict.post("/").status, 500);
}

#[test]
fn ext_authz_works_over_http() {
    let rules = Path::new(EXAMPLE).join("ext-authz.ini");
    let flags = ["--store", "memory", "--check-from", "envoy", "--check-final-slash", "drop"];
    let server = Server::start(&[&[rules.to_str().unwrap()], &flags[..]].concat());
    let gateway = start("ext-authz.yaml", ("8322", server.http), application(), &[]);
    for left in (0..3).rev() {
        let response = gateway.post_lying("/login?service=none");
        assert_eq!((response.status, response.body.as_str()), (200, "app"), "{}", response.head);
        assert!(response.header("ratelimit").unwrap().starts_with(&format!("\"login\";r={left};t=")));
    }
    let denied = gateway.post("/login");
    assert_eq!((denied.status, denied.body.as_str()), (429, ""), "{}", denied.head);
    assert!(denied.header("ratelimit").unwrap().starts_with("\"login\";r=0;t="));
    assert!((1..=60).contains(&denied.header("retry-after").unwrap().parse().unwrap()));
    assert_eq!(gateway.post("/elsewhere").status, 200);
}

#[test]
fn ext_authz_has_one_limit_for_every_spelling() {
    let rules = Path::new(EXAMPLE).join("ext-authz.ini");
    let flags = ["--store", "memory", "--check-from", "envoy", "--check-final-slash", "drop"];
    let server = Server::start(&[&[rules.to_str().unwrap()], &flags[..]].concat());
    start("ext-authz.yaml", ("8322", server.http), application(), &[]).admit_no_login_beyond(3);
}
