//! Tokens for one actor: what they allow over every front, and what makes one invalid.

mod browsers;
mod command_line;
mod rotation;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use divvy::access::{TokenGrant, TokenKeys};
use divvy::clock::Timestamp;
use divvy::server::grpc::Rpc;
use serde_json::Value;

use crate::support::http::{encode, get};
use crate::support::http2::{Http2Client, call};
use crate::support::{Place, Response, Site, http};

const PASSWORD: &str = "correct horse";
const HOUR: Duration = Duration::from_hours(1);
const RULES: &str = "
[api=* user=*] creditLimit=10 resetSeconds=3600 actorField=user label=api-calls
[export=* user=*] creditLimit=5 resetSeconds=86400 actorField=user label=exports
[upload=* tenant=* user=*] creditLimit=100 resetSeconds=3600 actorField=tenant,user label=uploads
[page=*] creditLimit=7 resetSeconds=3600 actorField=page label=pages
[default] creditLimit=0
";

/// A server that accepts tokens of the keys in its file `keys`.
struct Guarded {
    site: Site,
    keys: TokenKeys,
}

impl Deref for Guarded {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Guarded {
    fn start(args: &[&str]) -> Self {
        let text = TokenKeys::generate().unwrap();
        let place = Place::with(RULES, &[("keys", &text)]);
        std::fs::set_permissions(place.path("keys"), Permissions::from_mode(0o600)).unwrap();
        let own = ["--store", "memory", "--requirepass", PASSWORD, "--token-key-file", "DIR/keys", "--open", "none"];
        let site = Site::start(place, &[&own, args].concat());
        Self { site, keys: TokenKeys::parse(&text, "keys").unwrap() }
    }

    /// Returns a token of this server for an actor.
    fn token(&self, actor: &[(&str, &str)]) -> String {
        self.keys.seal(&grant(actor, &[])).unwrap()
    }

    fn request(&self, method: &str, target: &str, token: &str) -> Response {
        self.send(method, target, &[("authorization", &format!("Bearer {token}"))])
    }

    fn send(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Response {
        let headers = [headers, &[("connection", "close")]].concat();
        http::request(self.server.http, encode(method, target, &headers, b""))
    }

    /// Asks for a status. Returns the HTTP status, and the labels and the used credits.
    fn status(&self, query: &str, token: &str) -> (u16, Vec<(String, u64)>) {
        let response = self.request("GET", &format!("/v1/status?{query}"), token);
        let rules = match response.status {
            200 => response.json()["rules"].as_array().unwrap().clone(),
            _ => Vec::new(),
        };
        let used = |rule: &Value| (rule["rule"].as_str().unwrap().to_owned(), rule["used"].as_u64().unwrap());
        (response.status, rules.iter().map(used).collect())
    }

    /// Takes hits with the password.
    fn hit(&self, pairs: &[&str]) {
        let mut client = self.server.resp();
        assert_eq!(client.command_of(&[b"AUTH", PASSWORD.as_bytes()]), "OK");
        for pairs in pairs {
            assert!(client.command(&format!("DIVVY.HIT {pairs}")).starts_with("[1 "), "{pairs}");
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_nanos(u64::try_from(since.as_nanos()).unwrap())
}

fn grant(actor: &[(&str, &str)], labels: &[&str]) -> TokenGrant {
    grant_at(now(), actor, labels, HOUR)
}

fn grant_at(time: Timestamp, actor: &[(&str, &str)], labels: &[&str], ttl: Duration) -> TokenGrant {
    let actor: BTreeMap<_, _> = actor.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
    TokenGrant::new(actor, labels.iter().map(|label| (*label).to_owned()).collect(), time, ttl).unwrap()
}

/// Returns the values, sorted.
fn used(rules: &[(&str, u64)]) -> Vec<(String, u64)> {
    rules.iter().map(|(label, used)| ((*label).to_owned(), *used)).collect()
}

#[test]
fn token_reads_the_status_of_its_actor_only() {
    let guarded = Guarded::start(&[]);
    guarded.hit(&["api=1 user=ann", "export=1 user=ann", "api=1 user=bob", "upload=1 tenant=acme user=ann", "page=x"]);
    let ann = guarded.token(&[("user", "ann")]);
    assert_eq!(guarded.status("user=ann", &ann), (200, used(&[("api-calls", 1), ("exports", 1)])));
    assert_eq!(guarded.status("count=1&user=ann", &ann), (200, used(&[("api-calls", 1)])));
    let both = guarded.token(&[("tenant", "acme"), ("user", "ann")]);
    assert_eq!(guarded.status("user=ann&tenant=acme", &both), (200, used(&[("uploads", 1)])));

    for (query, token) in [
        ("user=bob", &ann),
        ("user=Ann", &ann),
        ("tenant=acme&user=ann", &ann),
        ("page=x", &ann),
        ("user=ann&page=x", &ann),
        ("user=ann", &both),
        ("tenant=acme", &both),
    ] {
        let refused = guarded.request("GET", &format!("/v1/status?{query}"), token);
        assert_eq!(refused.status, 403, "{query}: {refused:?}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    }
    for (labels, expected) in [("exp*", (200, used(&[("exports", 1)]))), ("nothing", (403, Vec::new()))] {
        let token = guarded.keys.seal(&grant(&[("user", "ann")], &[labels])).unwrap();
        assert_eq!(guarded.status("user=ann", &token), expected, "{labels}");
    }
    // An actor that is unknown to divvy has a token all the same.
    assert_eq!(guarded.status("user=new", &guarded.token(&[("user", "new")])), (200, Vec::new()));
}

#[test]
fn every_other_route_and_call_refuses_a_token() {
    let guarded = Guarded::start(&[]);
    let token = guarded.token(&[("user", "ann")]);
    let described = get(guarded.server.http, "/openapi.json").json();
    let mut refused = 0;
    for (path, methods) in described["paths"].as_object().unwrap() {
        let target = path.replace("{id}", "x").replace("{path}", "x") + "?user=ann";
        for method in methods.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            let status = guarded.request(&method.to_uppercase(), &target, &token).status;
            let expected = match path.as_str() {
                "/v1/status" => 200,
                "/healthz" | "/readyz" | "/openapi.json" => 200,
                _ => 403,
            };
            assert_eq!(status, expected, "{method} {path}");
            refused += u32::from(status == 403);
        }
    }
    assert!(refused > 25, "{refused}");
    assert_eq!(guarded.request("GET", "/metrics", &token).status, 403);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        assert_eq!(guarded.request(method, "/v1/status?user=ann", &token).status, 405, "{method}");
    }
    assert_eq!(guarded.request("HEAD", "/v1/status?user=ann", &token).status, 200);

    let client = Http2Client::connect(guarded.server.grpc);
    let reflection = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for path in Rpc::ALL.iter().map(|rpc| rpc.name()).chain([reflection]) {
        let refused = client.send(call(path, &format!("Bearer {token}"), &()));
        assert_eq!(refused.grpc_status.as_deref(), Some("7"), "{path}");
        assert_eq!(client.send(call(path, &format!("Bearer {token}A"), &())).status, 401, "{path}");
    }
}

#[test]
fn all_invalid_tokens_get_the_same_answer() {
    let guarded = Guarded::start(&[]);
    let token = guarded.token(&[("user", "ann")]);
    let ago = |duration: Duration| now().minus(u64::try_from(duration.as_nanos()).unwrap());
    let seal = |grant: &TokenGrant| guarded.keys.seal(grant).unwrap();
    let foreign = TokenKeys::parse(&TokenKeys::generate().unwrap(), "keys").unwrap();
    let invalid = [
        seal(&grant_at(ago(2 * HOUR), &[("user", "ann")], &[], HOUR)),
        seal(&grant_at(now().plus(120_000_000_000), &[("user", "ann")], &[], HOUR)),
        foreign.seal(&grant(&[("user", "ann")], &[])).unwrap(),
        token.clone() + "A",
        token[..token.len() - 1].to_owned(),
        token.split('.').take(3).collect::<Vec<_>>().join("."),
        "v4.local.".to_owned(),
        "v4.local.".to_owned() + &"A".repeat(8000),
    ];
    let (challenge, mut answers) = ("Bearer realm=\"divvy\", error=\"invalid_token\"", Vec::new());
    for token in &invalid {
        let refused = guarded.request("GET", "/v1/status?user=ann", token);
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some(challenge)), "{refused:?}");
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        answers.push(refused.body);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(guarded.request("GET", "/v1/rules", &invalid[0]).status, 401, "on any route");

    let bearer = format!("Bearer {token}");
    let other = format!("Bearer {}", invalid[0]);
    for both in [[&*bearer, &bearer], [&bearer, &other], [&other, &bearer], [&bearer, ""]] {
        let headers = both.map(|value| ("authorization", value));
        assert_eq!(guarded.send("GET", "/v1/status?user=ann", &headers).status, 401, "two headers");
    }
    let metrics = guarded.request("GET", "/metrics", PASSWORD).body;
    let line = format!("\ndivvy_invalid_tokens_total{{front=\"http\"}} {}\n", invalid.len() + 1);
    assert!(metrics.contains(&line), "{metrics}");
    // Only the log has the reason, and no token.
    guarded.log.await_line(&["invalid token", "it has expired"]);
    assert!(invalid.iter().chain([&token]).all(|token| token.len() < 20 || guarded.log.count(token) == 0));
    assert_eq!(guarded.request("GET", "/v1/status?user=ann", &token).status, 200);
}
