//! Hits with cost 0, which gateways send before they know the cost of a request: on every front and every store.

use crate::support::http::HttpClient;
use crate::support::redis::RedisServer;
use crate::support::{LineClient, RespClient, RulesFile, Server, metrics};

const RULES: &str = "
[api=tokens user=*]
creditLimit = 3
resetSeconds = 3600
actorField = user
costField = tokens
label = tokens

[default]
creditLimit = 0
resetSeconds = 0
";

/// Checks that a hit with cost 0 is allowed while there is credit, and denied otherwise, regardless of how often it is
/// sent.
fn is_denied_when_used_up(server: &Server) {
    let mut line = LineClient::connect(server.line);
    assert!(line.hit("api=tokens user=ann tokens=0").0);
    assert_eq!(line.hit("api=tokens user=ann tokens=0").1, 3, "nothing is taken");
    assert!(line.hit("api=tokens user=ann tokens=3").0);
    for _ in 0..3 {
        assert!(!line.hit("api=tokens user=ann tokens=0").0);
    }
    let mut resp = RespClient::connect(server.resp);
    let reply = resp.command("DIVVY.HIT api=tokens user=ann tokens=0");
    assert!(reply.starts_with("[0 "), "{reply}");
    let mut http = HttpClient::connect(server.http);
    let denied = http.post("/v1/hit", r#"{"operation": {"api": "tokens", "user": "ann"}, "cost": 0}"#);
    assert_eq!(denied.status, 429, "{}", denied.body);
    assert!(denied.json()["retryAfter"].is_u64(), "{}", denied.body);
    let peeked = http.post("/v1/peek", r#"{"operation": {"api": "tokens", "user": "ann"}, "cost": 0}"#);
    assert_eq!(peeked.json()["allowed"], false, "{}", peeked.body);
    let other = http.post("/v1/hit", r#"{"operation": {"api": "tokens", "user": "bob"}, "cost": 0}"#);
    assert_eq!(other.status, 200, "{}", other.body);
    let hits = |status| {
        metrics::scrape(server.http).value("divvy_hits_total", &[("status", status), ("rule_label", "tokens")])
    };
    assert_eq!((hits("accepted"), hits("rejected")), (4.0, 5.0), "counted as any other hit");
}

#[test]
fn hit_of_cost_0_is_denied_when_the_limit_is_used_up() {
    let rules = RulesFile::ini(RULES);
    is_denied_when_used_up(&Server::in_memory(rules.path()));
    let dir = tempfile::tempdir().unwrap();
    is_denied_when_used_up(&Server::on_disk(rules.path(), dir.path(), "wal"));
    let redis = RedisServer::start();
    for denial_cache in ["0", "1000"] {
        redis.cli(&["FLUSHALL"]);
        let url = redis.url();
        let args = [rules.path(), "--store", "redis", "--redis-url", &url, "--denial-cache", denial_cache];
        is_denied_when_used_up(&Server::start(&args));
    }
}

#[test]
fn local_count_during_an_outage_denies_a_hit_of_cost_0() {
    let rules = RulesFile::ini(RULES);
    let nowhere = format!("redis://{}", crate::support::gateway::free_address());
    let args = [rules.path(), "--store", "redis", "--redis-url", &nowhere, "--on-store-error", "local"];
    is_denied_when_used_up(&Server::start(&args));
}

#[test]
fn commands_with_their_own_limit_keep_their_meaning_of_0() {
    let server = Server::start(&["--store", "memory"]);
    let mut resp = RespClient::connect(server.resp);
    assert_eq!(resp.command("CL.THROTTLE k 0 1 3600 1"), "[0 1 0 -1 3600]");
    assert_eq!(resp.command("CL.THROTTLE k 0 1 3600 0").chars().nth(1), Some('0'), "redis-cell grants 0");
}
