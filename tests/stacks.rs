//! Stacks of rules over real sockets, on every store: a granted request is taken once from each counter, and a denied
//! hit changes nothing. `kills` kills servers and Redis meanwhile.

use std::collections::HashMap;
use std::process::Stdio;
use std::thread;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::support::{
    HttpClient, RedisCluster, RedisServer, RulesFile, Server, Site, divvy, http, number, on_redis, run,
};

/// A request whose counters are in different slots of a cluster is a client error, under every policy.
#[test]
fn stacks_in_different_slots_of_a_cluster_are_rejected_under_every_policy() {
    let cluster = RedisCluster::start();
    for policy in ["allow", "deny", "error", "local"] {
        let urls = cluster.urls().join(",");
        let server = Server::serving(MINUTE_AND_DAY, &[&on_redis(&urls)[..], &["--on-store-error", policy]].concat());
        let client = &mut server.http();
        let together = hits_together(client, &[("a", 1), ("b", 1)]);
        assert_eq!((together.status, together.header("retry-after")), (400, None), "{policy}: {}", together.body);
        assert!(together.body.contains("in different slots"), "{}", together.body);
        let same = hits_together(client, &[(policy, 0), (policy, 0)]);
        assert_eq!(same.json()["allowed"], true, "{policy}: {}", same.body);
    }
}

/// Returns the credits taken from the counter of this actor.
fn taken(server: &Server, rule: &str, limit: u64, actor: &str) -> u64 {
    let actor = actor.replace(' ', "%20");
    let page = http::get(server.http, &format!("/v1/counters?rule={rule}&actor={actor}"));
    assert_eq!(page.status, 200, "{}", page.body);
    let counters = page.json();
    counters["counters"].as_array().unwrap().first().map_or(0, |counter| limit - counter["remaining"].as_u64().unwrap())
}

/// Uses 64 connections for two tenants with ten keys each. The limits of each key and of both tenants stop some hits, which the
/// denial cache then answers.
#[test]
fn grants_of_64_connections_are_taken_from_every_counter_of_the_stack() {
    let redis = RedisServer::start();
    let rules = "
[tenant=* key=*] creditLimit=40 resetSeconds=900000 algorithm=token-bucket actorField=tenant,key matchPolicy=and label=bucket
[tenant=* key=*] creditLimit=42 window=year actorField=tenant,key matchPolicy=and label=year
[tenant=*] creditLimit=300 resetSeconds=900000 actorField=tenant label=tenant
[default] creditLimit=0
";
    let timeout = ["--redis-timeout", "20000", "--denial-cache", "1000"];
    let server = Server::serving(rules, &[&on_redis(&redis.url())[..], &timeout].concat());
    let clients: Vec<_> = (0..64)
        .map(|number| {
            let mut client = server.line();
            thread::spawn(move || {
                let (mut granted, mut rng) = (Vec::new(), Rng::seed_from_u64(number));
                for _ in 0..20 {
                    // Several are sent at once, so that groups of one connection are in the same batch.
                    let asked: [_; 3] =
                        std::array::from_fn(|_| (rng.random_range(0..2usize), rng.random_range(0..10usize)));
                    let lines = asked.map(|(tenant, key)| format!("HIT tenant=t{tenant} key=k{key}\n"));
                    client.send(lines.concat().as_bytes());
                    let replies = asked.map(|key| (key, client.read_line()));
                    granted.extend(
                        replies.into_iter().filter(|(_, line)| line.starts_with("OK true")).map(|(key, _)| key),
                    );
                }
                granted
            })
        })
        .collect();
    let mut granted: HashMap<(usize, usize), u64> = HashMap::new();
    for key in clients.into_iter().flat_map(|client| client.join().unwrap()) {
        *granted.entry(key).or_default() += 1;
    }
    for tenant in 0..2 {
        for key in 0..10 {
            let (actor, granted) = (format!("tenant=t{tenant} key=k{key}"), granted[&(tenant, key)]);
            assert_eq!(taken(&server, "bucket", 40, &actor), granted, "{actor}");
            assert_eq!(taken(&server, "year", 42, &actor), granted, "{actor}");
        }
        assert_eq!(taken(&server, "tenant", 300, &format!("t{tenant}")), 300, "as much as there is");
        assert_eq!(granted.iter().filter(|((of, _), _)| *of == tenant).map(|(_, hits)| hits).sum::<u64>(), 300);
    }
}

const MINUTE_AND_DAY: &str = "
[api=chat key=*] creditLimit=3 per=1m actorField=key matchPolicy=and label=burst
[api=chat key=*] creditLimit=5000 window=day actorField=key costField=tokens label=daily
[default] creditLimit=0
";

fn operation(key: &str, tokens: u64) -> String {
    json!({"operation": {"api": "chat", "key": key, "tokens": tokens.to_string()}}).to_string()
}

fn hits_together(client: &mut HttpClient, hits: &[(&str, u64)]) -> http::Response {
    let hits: Vec<Value> =
        hits.iter().map(|(key, tokens)| serde_json::from_str(&operation(key, *tokens)).unwrap()).collect();
    client.post("/v1/hits", json!({"atomic": true, "hits": hits}).to_string())
}

#[test]
fn unreadable_counter_fails_its_stacks_without_taking_from_others() {
    let redis = RedisServer::start();
    let server = Server::serving(MINUTE_AND_DAY, &["--redis-url", &redis.url()]);
    let mut line = server.line();
    line.hit("api=chat key=a tokens=10");
    assert_eq!(redis.cli(&["SET", "divvy:api=chat key=*:a:3:60", "not ours", "KEEPTTL"]), "OK");
    line.send(b"HIT api=chat key=a\nHIT api=chat key=b\nHIT api=chat key=a\n");
    let answers: Vec<_> = (0..3).map(|_| line.read_line()).collect();
    assert!(answers[0].starts_with("ERR") && answers[0].contains("not hold a number of credits"), "{answers:?}");
    assert!(answers[1].starts_with("OK true") && answers[2].starts_with("ERR"), "{answers:?}");
    redis.cli(&["SET", "divvy:api=chat key=*:a:3:60", "2", "KEEPTTL"]);
    assert_eq!(taken(&server, "daily", 5_000, "a"), 10);
    // Redis could not decrease these after it had changed the other counter.
    let server = Server::serving(&MINUTE_AND_DAY.replace("window=day", "per=1d"), &["--redis-url", &redis.url()]);
    let mut line = server.line();
    line.hit("api=chat key=c");
    for odd in ["007", "99999999999999999999999", "9223372036854775807", "9007199254740993"] {
        assert_eq!(redis.cli(&["SET", "divvy:api=chat key=*:c:5000:86400", odd, "KEEPTTL"]), "OK");
        line.send(b"HIT api=chat key=c\nHIT api=chat key=d\n");
        assert!(line.read_line().contains("not hold a number of credits"), "{odd}");
        assert!(line.read_line().starts_with("OK"), "{odd}: of another key");
    }
    assert_eq!(taken(&server, "burst", 3, "c"), 1, "nothing but the first hit");
}

#[test]
fn check_and_start_report_conflicts_with_a_cluster() {
    let good = RulesFile::ini(MINUTE_AND_DAY);
    let torn = RulesFile::ini(&MINUTE_AND_DAY.replacen("actorField=key", "actorField=api", 1));
    let check = |rules: &RulesFile, flags: &str| run(&format!("check {} {flags}", rules.path()));
    let (code, out, error) = check(&good, "--redis-cluster");
    let stack =
        "lines 2 and 8 together: 3 in 60 s for each key; 5000 a day from 00:00 UTC at the cost in tokens for each key";
    assert!(code == 0 && out.contains(stack), "{out}{error}");
    assert_eq!(check(&torn, "").0, 0);
    let (code, _, error) = check(&torn, "--redis-cluster");
    assert!(code != 0 && error.contains("in different slots"), "{error}");
    let urls = "redis://127.0.0.1:1,redis://127.0.0.1:2";
    let serve = |rules: &RulesFile| {
        Server::try_start_as(divvy().stderr(Stdio::null()), &[rules.path(), "--redis-url", urls]).map(drop)
    };
    assert!(serve(&torn).is_err() && serve(&good).is_ok());
}

#[test]
fn reload_that_a_cluster_cannot_serve_keeps_the_old_rules() {
    let cluster = RedisCluster::start();
    let urls = cluster.urls().join(",");
    let site = Site::serving(MINUTE_AND_DAY, &on_redis(&urls));
    let server = &site.server;
    let mut line = server.line();
    assert_eq!(line.hit("api=chat key={a}x").1, 2);
    let torn = MINUTE_AND_DAY.replacen("actorField=key", "actorField=api", 1);
    site.replace("rules.ini", &torn, "not loaded; the previous rules stay in force");
    assert_eq!(number(server, "divvy_config_failures_total"), 1);
    assert_eq!(line.hit("api=chat key={a}x").1, 1, "the old rules' counter");
    let listed = server.resp().command("DIVVY.COUNTERS burst ACTOR {a}x");
    assert!(listed.contains("{a}x 1 "), "{listed}");
}
