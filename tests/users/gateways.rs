//! The real Envoy, and gRPC clients in Python, with bearer tokens of users.

use std::path::Path;

use serde_json::{Value, json};

use super::{Guarded, line, password};
use crate::envoy::{EXAMPLE, start};
use crate::support::gateway::{Gateway, application};
use crate::support::grpc::{Caller, descriptors_request};
use crate::support::redis::until;

/// Credits of the example's rule for logins.
const LOGINS: usize = 3;
const LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const RATE_LIMITS: &str = "envoy/service/ratelimit/v3/rls.proto";

fn users() -> String {
    [
        ("gateway", "-@all +@hit ~*"),
        ("logins", "-@all +@hit ~label:login"),
        ("edges", "-@all +@hit ~label:edge"),
        ("reader", "+@all -@hit ~*"),
        ("all", "+@all ~*"),
    ]
    .map(|(name, words)| line(name, words))
    .concat()
        + &line("gone", "+@all ~*").replace(" on ", " off ")
}

fn guarded() -> Guarded {
    let rules = Path::new(EXAMPLE).join("rules.ini");
    Guarded::with_rules(rules.to_str().unwrap(), &users(), &["--open", "none"])
}

fn bearer(name: &str) -> String {
    format!("Bearer {}", password(name))
}

/// Starts Envoy, which sends this authorization to divvy.
fn envoy(guarded: &Guarded, authorization: Option<&str>, failure_mode_deny: bool) -> Gateway {
    let service = "envoy_grpc: { cluster_name: divvy } }";
    let metadata = authorization.map_or_else(String::new, |value| {
        format!(", initial_metadata: [{{ key: authorization, value: \"{value}\" }}]")
    });
    let changes = [
        (service, format!("envoy_grpc: {{ cluster_name: divvy }}{metadata} }}")),
        ("failure_mode_deny: false", format!("failure_mode_deny: {failure_mode_deny}")),
    ];
    start("envoy.yaml", ("8323", guarded.server.grpc), application(), &changes)
}

/// Returns the number of logins that are left to this machine.
fn left(guarded: &Guarded) -> String {
    guarded.resp("all").command("DIVVY.PEEK domain=edge method=POST path=/login remote_address=127.0.0.1")
}

#[test]
fn envoy_with_a_bearer_token_has_the_rights_of_its_user() {
    for user in ["gateway", "logins"] {
        let guarded = guarded();
        let gateway = envoy(&guarded, Some(&bearer(user)), true);
        for left in (0..LOGINS).rev() {
            let response = gateway.post("/login");
            assert_eq!((response.status, response.body.as_str()), (200, "app"), "{user}");
            assert_eq!(response.header("x-ratelimit-remaining"), Some(left.to_string().as_str()), "{}", response.head);
        }
        assert_eq!(gateway.post("/login").status, 429, "{user}");
        // Another rule, which is in scope of only one of them.
        assert_eq!(gateway.post("/elsewhere").status, if user == "gateway" { 200 } else { 500 });

        guarded.reload(&line("all", "+@all ~*"), "the new users are in force", 1);
        assert_eq!(gateway.post("/login").status, 500, "the user is gone");
        guarded.reload(&users(), "the new users are in force", 2);
        assert_eq!(gateway.post("/login").status, 429, "the user is back");
    }
}

/// Envoy treats a refusal like a server that does not answer: it fails open or closed, as its configuration says.
#[test]
fn envoy_without_the_right_fails_open_or_closed() {
    let guarded = guarded();
    let refused = [
        None,
        Some("Bearer wrong".to_owned()),
        Some(password("gateway")),
        Some(format!("Basic {}", password("gateway"))),
        Some(bearer("gone")),
        Some(bearer("reader")),
        Some(bearer("edges")),
    ];
    for authorization in &refused {
        for failure_mode_deny in [true, false] {
            let gateway = envoy(&guarded, authorization.as_deref(), failure_mode_deny);
            for _ in 0..=LOGINS {
                let response = gateway.post("/login");
                assert_eq!(response.status, if failure_mode_deny { 500 } else { 200 }, "{authorization:?}");
                assert_eq!(response.header("x-ratelimit-remaining"), None, "{authorization:?}");
            }
            let errors = || gateway.stat("cluster.application.ratelimit.error");
            until(|| errors() > LOGINS as u64);
        }
    }
    assert_eq!(left(&guarded), format!("[1 {LOGINS} 0]"), "nothing was taken");
}

#[test]
fn python_clients_send_a_bearer_token_as_metadata() {
    let guarded = guarded();
    let login = descriptors_request(&["method=POST path=/login remote_address=192.0.2.7"]);
    let elsewhere = descriptors_request(&["method=POST path=/x remote_address=192.0.2.7"]);
    for (kind, user) in [("by reflection", "logins"), ("generated", "gateway")] {
        let mut caller = match kind {
            "generated" => Caller::generated_authorized(&guarded.server, RATE_LIMITS, &bearer(user)),
            _ => Caller::authorized(&guarded.server, &bearer(user)),
        };
        assert_eq!(caller.should_rate_limit(&login)["overall_code"], "OK", "{kind}");
        if user == "logins" {
            assert!(caller.refused(&elsewhere).starts_with("PERMISSION_DENIED this is outside the scope"), "{kind}");
        }
    }
    let mut reader = Caller::authorized(&guarded.server, &bearer("reader"));
    assert!(reader.refused(&login).starts_with("PERMISSION_DENIED "));
    let reserve = json!({"domain": "edge", "descriptors": login["descriptors"], "amount": "1"});
    let kuadrant = "kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
    assert!(reader.refused_call(kuadrant, &reserve).starts_with("PERMISSION_DENIED "));

    let refused = |authorization: &str, request: &Value| {
        let mut caller = Caller::generated_authorized(&guarded.server, RATE_LIMITS, authorization);
        caller.refused_call(LIMIT_SERVICE, request)
    };
    for authorization in ["Bearer wrong", &bearer("gone"), &password("gateway")] {
        assert!(refused(authorization, &login).starts_with("UNAUTHENTICATED "), "{authorization}");
    }
    let mut unknown = Caller::generated(&guarded.server, RATE_LIMITS);
    assert!(unknown.refused_call(LIMIT_SERVICE, &login).starts_with("UNAUTHENTICATED "));
    let taken = guarded.resp("all").command("DIVVY.PEEK domain=edge method=POST path=/login remote_address=192.0.2.7");
    assert!(taken.starts_with(&format!("[1 {} ", LOGINS - 2)), "{taken}");
}
