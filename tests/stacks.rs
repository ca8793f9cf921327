//! Stacks of rules over real sockets, on every store: a granted request is taken once from each counter, and a denied
//! hit changes nothing, even if servers and Redis are killed.
//!
//! `DIVVY_TEST_STACK_KILLS` sets how often each is killed (default 4).

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::support::http::{self, HttpClient, served};
use crate::support::redis::{RedisCluster, RedisServer, lasting_port};
use crate::support::seed::{seed, setting};
use crate::support::{LineClient, RespClient, RulesFile, Server, divvy, metrics, parse_verdict};

/// A request whose counters are in different slots of a cluster is a client error, under every policy.
#[test]
fn stacks_in_different_slots_of_a_cluster_are_rejected_under_every_policy() {
    let cluster = RedisCluster::start();
    let rules = RulesFile::ini(MINUTE_AND_DAY);
    let urls = cluster.urls().join(",");
    for policy in ["allow", "deny", "error", "local"] {
        let store = ["--redis-url", &urls, "--redis-timeout", "20000", "--on-store-error", policy];
        let server = Server::start(&[&[rules.path()], &store[..]].concat());
        let client = &mut HttpClient::connect(server.http);
        let together = hits_together(client, &[("a", 1), ("b", 1)]);
        assert_eq!((together.status, together.header("retry-after")), (400, None), "{policy}: {}", together.body);
        assert!(together.body.contains("in different slots"), "{}", together.body);
        let same = hits_together(client, &[(policy, 0), (policy, 0)]);
        assert_eq!(same.json()["allowed"], true, "{policy}: {}", same.body);
    }
}

/// Returns the limits of a key for every algorithm, and the limit of its tenant, without the sliding log if its limit
/// is 0. Nothing comes back during a test.
fn rules(limits: [u64; 6]) -> String {
    let [bucket, log, sliding, leaky, year, tenant] = limits;
    let without_log = if log == 0 { "# " } else { "" };
    format!(
        "
[tenant=* key=*]
creditLimit = {bucket}
resetSeconds = 900000
algorithm = token-bucket
actorField = tenant, key
costField = cost
matchPolicy = and
label = token-bucket

{without_log}[tenant=* key=*]
{without_log}creditLimit = {log}
{without_log}resetSeconds = 900000
{without_log}algorithm = sliding-log
{without_log}actorField = tenant, key
{without_log}costField = cost
{without_log}matchPolicy = and
{without_log}label = sliding-log

[tenant=* key=*]
creditLimit = {sliding}
resetSeconds = 900000000
algorithm = sliding-window
actorField = tenant, key
costField = cost
matchPolicy = and
label = sliding-window

[tenant=* key=*]
creditLimit = 1
resetSeconds = 900000
algorithm = leaky-bucket
burst = {leaky}
actorField = tenant, key
costField = cost
matchPolicy = and
label = leaky-bucket

[tenant=* key=*]
creditLimit = {year}
window = year
actorField = tenant, key
costField = cost
matchPolicy = and
label = year

[tenant=*]
creditLimit = {tenant}
resetSeconds = 900000
actorField = tenant
costField = cost
label = tenant

[default]
creditLimit = 0
"
    )
}

const OF_KEYS: [&str; 5] = ["token-bucket", "sliding-log", "sliding-window", "leaky-bucket", "year"];

/// Returns the credits taken from the counter of this actor.
fn taken(server: &Server, rule: &str, limit: u64, actor: &str) -> u64 {
    let actor = actor.replace(' ', "%20");
    let page = http::get(server.http, &format!("/v1/counters?rule={rule}&actor={actor}"));
    assert_eq!(page.status, 200, "{}", page.body);
    let counters = page.json();
    counters["counters"].as_array().unwrap().first().map_or(0, |counter| limit - counter["remaining"].as_u64().unwrap())
}

/// Uses 64 connections for two tenants with ten keys each. The limits of each key and of both tenants stop some hits.
fn grants_exactly_what_is_taken(server: &Server) {
    const LIMITS: [u64; 6] = [40, 42, 44, 46, 48, 300];
    let clients: Vec<_> = (0..64)
        .map(|number| {
            let mut client = LineClient::connect(server.line);
            thread::spawn(move || {
                let mut granted: HashMap<(u64, u64), u64> = HashMap::new();
                let mut rng = Rng::seed_from_u64(number);
                for _ in 0..20 {
                    // Several are sent at once, so that groups of one connection are in the same batch.
                    let asked: Vec<_> =
                        (0..3).map(|_| (rng.random_range(0..2u64), rng.random_range(0..10u64))).collect();
                    let lines = asked.iter().map(|(tenant, key)| format!("HIT tenant=t{tenant} key=k{key}\n"));
                    client.send(lines.collect::<String>().as_bytes());
                    for key in asked {
                        let line = client.read_line();
                        let (allowed, ..) = parse_verdict(&line).unwrap_or_else(|| panic!("{line}"));
                        *granted.entry(key).or_default() += u64::from(allowed);
                    }
                }
                granted
            })
        })
        .collect();
    let mut granted: HashMap<(u64, u64), u64> = HashMap::new();
    for client in clients {
        client.join().unwrap().into_iter().for_each(|(key, hits)| *granted.entry(key).or_default() += hits);
    }
    for tenant in 0..2 {
        for key in 0..10 {
            let granted = granted.get(&(tenant, key)).copied().unwrap_or_default();
            for (rule, limit) in OF_KEYS.into_iter().zip(LIMITS) {
                let taken = taken(server, rule, limit, &format!("tenant=t{tenant} key=k{key}"));
                assert_eq!(taken, granted, "{rule} of tenant {tenant}, key {key}");
            }
        }
        let of_tenant: u64 = granted.iter().filter(|((of, _), _)| *of == tenant).map(|(_, hits)| hits).sum();
        assert_eq!(taken(server, "tenant", LIMITS[5], &format!("t{tenant}")), of_tenant);
        assert_eq!(of_tenant, LIMITS[5], "as much as there is");
    }
}

#[test]
fn grants_of_64_connections_are_taken_from_every_counter_of_the_stack() {
    let rules = RulesFile::ini(&rules([40, 42, 44, 46, 48, 300]));
    let data = tempfile::tempdir().unwrap();
    for server in Server::on_each_store(rules.path(), data.path()) {
        grants_exactly_what_is_taken(&server);
    }
    let redis = RedisServer::start();
    let cluster = RedisCluster::start();
    for urls in [vec![redis.url()], cluster.urls()] {
        let urls = urls.join(",");
        for denial_cache in ["0", "1000"] {
            redis.cli(&["FLUSHALL"]);
            cluster.nodes.iter().for_each(|node| drop(node.cli(&["FLUSHALL"])));
            let store =
                ["--store", "redis", "--redis-url", &urls, "--redis-timeout", "20000", "--denial-cache", denial_cache];
            grants_exactly_what_is_taken(&Server::start(&[&[rules.path()], &store[..]].concat()));
        }
    }
}

const PLENTY: u64 = 1_000_000_000;

/// Answers to a client's hits for one key.
#[derive(Debug, Clone, Copy, Default)]
struct KeyAnswers {
    granted: u64,
    /// Hits that were not answered, or answered with an error. Each was taken either completely or not at all.
    unanswered: u64,
}

type AnswersByKey = HashMap<u64, KeyAnswers>;

/// Sends hits to stacks until it is stopped, or the server is gone. One hit in four costs more than the limit.
fn hit_until(stop: &Arc<AtomicBool>, server: &Server, seed: u64) -> thread::JoinHandle<AnswersByKey> {
    let (stop, mut client) = (Arc::clone(stop), LineClient::connect(server.line));
    let mut rng = Rng::seed_from_u64(seed);
    thread::spawn(move || {
        let mut answers = AnswersByKey::new();
        let mut is_there = true;
        while is_there && !stop.load(Relaxed) {
            let asked: Vec<_> = (0..8).map(|_| (rng.random_range(0..5u64), rng.random_bool(0.25))).collect();
            let line = |(key, is_dear): &(u64, bool)| {
                let cost = if *is_dear { PLENTY + 1 } else { 1 };
                format!("HIT tenant=t key=k{key} cost={cost}\n")
            };
            client.try_send(asked.iter().map(line).collect::<String>().as_bytes());
            for (key, is_dear) in asked {
                let answer = client.try_read_line();
                is_there = answer.is_some();
                let answers = answers.entry(key).or_default();
                match answer.as_deref().map(|line| (line.starts_with("OK true"), line.starts_with("OK false"))) {
                    Some((true, _)) => answers.granted += 1,
                    Some((_, true)) => assert!(is_dear, "key {key} was denied"),
                    // There was an error or no answer. A hit that costs more than the limit is never taken.
                    Some(_) | None => answers.unanswered += u64::from(!is_dear),
                }
            }
        }
        answers
    })
}

/// Answers to all clients of all rounds.
#[derive(Default)]
struct Campaign {
    answers: AnswersByKey,
    grants: u64,
}

impl Campaign {
    const LIMITS: [u64; 6] = [PLENTY, 0, PLENTY, PLENTY, PLENTY, PLENTY];

    fn learn(&mut self, clients: Vec<thread::JoinHandle<AnswersByKey>>) {
        for client in clients {
            for (key, KeyAnswers { granted, unanswered }) in client.join().unwrap() {
                let answers = self.answers.entry(key).or_default();
                answers.granted += granted;
                answers.unanswered += unanswered;
                self.grants += granted;
            }
        }
    }

    /// Checks that all counters of a key have taken the same, as much as the contract says, and that the tenant's
    /// counter has taken the sum.
    fn verify(&mut self, server: &Server) {
        let mut of_tenant = 0;
        for (key, answers) in &mut self.answers {
            let actor = format!("tenant=t key=k{key}");
            let rules = OF_KEYS.into_iter().zip(Self::LIMITS).filter(|(_, limit)| *limit > 0);
            let taken: Vec<_> = rules.map(|(rule, limit)| taken(server, rule, limit, &actor)).collect();
            assert!(taken.iter().all(|of_rule| *of_rule == taken[0]), "a part of a group: {taken:?} of key {key}");
            let most = answers.granted + answers.unanswered;
            assert!((answers.granted..=most).contains(&taken[0]), "{} taken of key {key}, {answers:?}", taken[0]);
            // The usage is certain from now on.
            *answers = KeyAnswers { granted: taken[0], unanswered: 0 };
            of_tenant += taken[0];
        }
        let tenant = taken(server, "tenant", PLENTY, "t");
        let again = || {
            let keys = self
                .answers
                .keys()
                .map(|key| taken(server, "year", PLENTY, &format!("tenant=t key=k{key}")))
                .sum::<u64>();
            (taken(server, "tenant", PLENTY, "t"), keys)
        };
        assert_eq!(tenant, of_tenant, "the tenant and its keys disagree; read again: {:?}", again());
    }
}

#[test]
fn sigkill_of_divvy_never_splits_a_stack() {
    let rules = RulesFile::ini(&rules(Campaign::LIMITS));
    let data = tempfile::tempdir().unwrap();
    let mut rng = Rng::seed_from_u64(seed());
    let (never, mut campaign) = (Arc::new(AtomicBool::new(false)), Campaign::default());
    for round in 0..setting("DIVVY_TEST_STACK_KILLS", 4) {
        // The table is small, so counters are evicted and read back.
        let durability = ["wal", "sync"][round % 2];
        let args = ["--durability", durability, "--cache-memory", "1Mi", "--data-dir", data.path().to_str().unwrap()];
        let server = Server::start(&[&[rules.path()], &args[..]].concat());
        campaign.verify(&server);
        let clients: Vec<_> = (0..4).map(|_| hit_until(&never, &server, rng.random())).collect();
        thread::sleep(Duration::from_millis(rng.random_range(20..250)));
        if rng.random_bool(0.3) {
            // Writes counters back during the load.
            RespClient::connect(server.resp).try_send(b"DIVVY.COUNTERS year\r\n");
        }
        server.kill();
        campaign.learn(clients);
    }
    campaign.verify(&Server::on_disk(rules.path(), data.path(), "wal"));
    assert!(campaign.grants > 0);
    println!("{} stacks granted", campaign.grants);
}

#[test]
fn sigkill_of_redis_never_splits_a_stack() {
    let rules = RulesFile::ini(&rules(Campaign::LIMITS));
    let mut redis = RedisServer::start_with(lasting_port(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let (url, mut rng) = (redis.url(), Rng::seed_from_u64(seed()));
    // A busy machine may take longer than the default to answer.
    let store = ["--store", "redis", "--redis-url", &url, "--redis-timeout", "5000", "--denial-cache", "0"];
    let server = Server::start(&[&[rules.path()], &store[..]].concat());
    let mut campaign = Campaign::default();
    for _ in 0..setting("DIVVY_TEST_STACK_KILLS", 4) {
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..4).map(|_| hit_until(&stop, &server, rng.random())).collect();
        thread::sleep(Duration::from_millis(rng.random_range(20..250)));
        redis.kill();
        thread::sleep(Duration::from_millis(20));
        stop.store(true, Relaxed);
        campaign.learn(clients);
        redis.restart();
        crate::support::redis::until(|| LineClient::connect(server.line).try_hit("tenant=other key=k").is_some());
        campaign.verify(&server);
    }
    assert!(campaign.grants > 0);
    println!("{} stacks granted", campaign.grants);
}

const MINUTE_AND_DAY: &str = "
[api=chat key=*]
creditLimit = 3
per = 1m
actorField = key
matchPolicy = and
label = burst

[api=chat key=*]
creditLimit = 5000
window = day
actorField = key
costField = tokens
label = daily

[default]
creditLimit = 0
";

fn operation(key: &str, tokens: u64) -> String {
    json!({"operation": {"api": "chat", "key": key, "tokens": tokens.to_string()}}).to_string()
}

#[test]
fn http_lists_every_limit_and_names_those_that_deny() {
    let (_server, mut client, _rules) = served(MINUTE_AND_DAY, &["--rate-limit-headers", "draft,x"]);
    let allowed = client.post("/v1/hit", &operation("a", 10));
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    assert_eq!(allowed.json()["rule"], "burst");
    assert_eq!(allowed.json().get("violatedPolicies"), None);
    let policy = allowed.header("ratelimit-policy").unwrap();
    assert_eq!(policy, "\"burst\";q=3;w=60, \"daily\";q=5000;w=86400");
    let current = allowed.header("ratelimit").unwrap();
    assert!(current.starts_with("\"burst\";r=2;t=60, \"daily\";r=4990;t="), "{current}");
    assert_eq!(allowed.header("x-ratelimit-limit"), Some("3"), "these headers belong to the rule that answers");
    // The day is longer than the minute, and both deny.
    (0..2).for_each(|_| assert_eq!(client.post("/v1/hit", &operation("a", 1)).status, 200));
    let denied = client.post("/v1/hit", &operation("a", 4989));
    assert_eq!(denied.status, 429, "{}", denied.body);
    assert_eq!(denied.json()["rule"], "daily");
    assert_eq!(denied.json()["violatedPolicies"], json!(["burst", "daily"]));
    assert_eq!(denied.header("x-ratelimit-limit"), Some("5000"));
    // A request that never fits takes precedence, because waiting does not help.
    let never = client.post("/v1/hit", &operation("b", 5001));
    assert_eq!((never.status, &never.json()["retryAfter"]), (429, &Value::Null));
    assert_eq!(never.header("retry-after"), None);
    let peeked = client.post("/v1/peek", &operation("b", 5001));
    assert_eq!((peeked.status, &peeked.json()["violatedPolicies"]), (200, &json!(["daily"])));
    let explained = client.post("/v1/explain", &operation("b", 1)).json();
    let findings: Vec<_> = explained["rules"].as_array().unwrap().iter().map(|rule| rule["finding"].clone()).collect();
    assert_eq!(findings, ["must-allow", "answers"]);
}

#[test]
fn every_front_returns_the_answer_of_the_stack() {
    let rules = RulesFile::ini(MINUTE_AND_DAY);
    let server = Server::in_memory(rules.path());
    let mut line = LineClient::connect(server.line);
    assert_eq!(line.hit("api=chat key=a tokens=4000"), (true, 1000, line.hit("api=chat key=z tokens=4000").2));
    assert!(line.hit("api=chat key=a tokens=1").0);
    assert!(!line.hit("api=chat key=a tokens=1000").0);
    let mut resp = RespClient::connect(server.resp);
    assert!(resp.command("DIVVY.PEEK api=chat key=a tokens=999").starts_with("[1 999 "));
    assert!(resp.command("DIVVY.HIT api=chat key=a tokens=1000").starts_with("[0 999 "));
    let explained = resp.command("DIVVY.EXPLAIN api=chat key=a tokens=1");
    assert!(explained.contains("matches and must allow") && explained.contains("matches and answers"), "{explained}");
    assert_eq!(resp.command("DIVVY.RESET api=chat key=a"), "2");
    assert!(resp.command("DIVVY.HIT api=chat key=a tokens=5000").starts_with("[1 0 "));
    let scraped = metrics::scrape(server.http);
    assert_eq!(scraped.value("divvy_stacks_denied_total", &[]), 2.0);
    let hits = |status, rule| scraped.value("divvy_hits_total", &[("status", status), ("rule_label", rule)]);
    assert_eq!([hits("accepted", "burst"), hits("accepted", "daily")], [4.0, 4.0]);
    assert_eq!(hits("rejected", "daily"), 2.0, "the minute had credit");
}

fn hits_together(client: &mut HttpClient, hits: &[(&str, u64)]) -> http::Response {
    let hits: Vec<Value> =
        hits.iter().map(|(key, tokens)| serde_json::from_str(&operation(key, *tokens)).unwrap()).collect();
    client.post("/v1/hits", &json!({"atomic": true, "hits": hits}).to_string())
}

#[test]
fn hits_are_taken_together_or_not_at_all_on_every_store() {
    let rules = RulesFile::ini(MINUTE_AND_DAY);
    let data = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let mut servers = Server::on_each_store(rules.path(), data.path());
    servers.push(Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]));
    for server in servers {
        let client = &mut HttpClient::connect(server.http);
        let both = hits_together(client, &[("a", 100), ("b", 200), ("a", 50)]);
        assert_eq!((both.status, &both.json()["allowed"]), (200, &json!(true)), "{}", both.body);
        assert_eq!(both.json()["results"][0]["remaining"], 1, "two hits on one counter");
        let denied = hits_together(client, &[("a", 1), ("b", 4801)]);
        assert_eq!(denied.json()["allowed"], false, "{}", denied.body);
        let verdicts: Vec<_> = (0..2).map(|index| denied.json()["results"][index]["allowed"].clone()).collect();
        assert_eq!(verdicts, [true, false]);
        let left = |client: &mut HttpClient, key: &str| {
            client.post("/v1/peek", &operation(key, 1)).json()["remaining"].clone()
        };
        assert_eq!([left(client, "a"), left(client, "b")], [1, 2], "nothing was taken");
        let many = hits_together(client, &[("c", 1); 17]);
        assert_eq!(many.status, 400, "{}", many.body);
        let invalid = r#"{"atomic": true, "hits": [{"operation": {"api": "chat", "key": "a"}},
                          {"operation": {"api": "chat", "key": "b", "tokens": "x"}}]}"#;
        let invalid = client.post("/v1/hits", invalid);
        assert_eq!((invalid.status, &invalid.json()["pointer"]), (400, &json!("#/hits/1")), "{}", invalid.body);
        assert_eq!(left(client, "a"), 1);
    }
}

#[test]
fn unreadable_counter_fails_its_stacks_without_taking_from_others() {
    let rules = RulesFile::ini(MINUTE_AND_DAY);
    let redis = RedisServer::start();
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]);
    let mut line = LineClient::connect(server.line);
    line.hit("api=chat key=a tokens=10");
    assert_eq!(redis.cli(&["SET", "divvy:api=chat key=*:a:3:60", "not ours", "KEEPTTL"]), "OK");
    line.send(b"HIT api=chat key=a\nHIT api=chat key=b\nHIT api=chat key=a\n");
    let answers: Vec<_> = (0..3).map(|_| line.read_line()).collect();
    assert!(answers[0].starts_with("ERR") && answers[0].contains("not hold a number of credits"), "{answers:?}");
    assert!(answers[1].starts_with("OK true") && answers[2].starts_with("ERR"), "{answers:?}");
    redis.cli(&["SET", "divvy:api=chat key=*:a:3:60", "2", "KEEPTTL"]);
    assert_eq!(taken(&server, "daily", 5_000, "a"), 10);
    // Redis could not decrease these after it had changed the other counter.
    let rules = RulesFile::ini(&MINUTE_AND_DAY.replace("window = day", "per = 1d"));
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-url", &redis.url()]);
    let mut line = LineClient::connect(server.line);
    line.hit("api=chat key=c");
    for odd in ["007", "99999999999999999999999", "9223372036854775807", "9007199254740993"] {
        assert_eq!(redis.cli(&["SET", "divvy:api=chat key=*:c:5000:86400", odd, "KEEPTTL"]), "OK");
        line.send(b"HIT api=chat key=c\nHIT api=chat key=d\n");
        assert!(line.read_line().contains("not hold a number of credits"), "{odd}");
        assert!(line.read_line().starts_with("OK"), "{odd}: of another key");
    }
    assert_eq!(taken(&server, "burst", 3, "c"), 1, "nothing but the first hit");
}

/// Returns the output of `divvy check`, on standard output and standard error.
fn check(rules: &RulesFile, args: &[&str]) -> (bool, String) {
    let output = divvy().arg("check").arg(rules.path()).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn check_describes_stacks_and_reports_cluster_conflicts() {
    let good = RulesFile::ini(MINUTE_AND_DAY);
    let (is_good, text) = check(&good, &["--redis-cluster"]);
    assert!(is_good, "{text}");
    assert!(
        text.contains("lines 2 and 9 together: 3 in 60 s for each key; 5,000 a day from 00:00 UTC at the cost in tokens for each key"),
        "{text}"
    );
    let torn = RulesFile::ini(&MINUTE_AND_DAY.replacen("actorField = key", "actorField = api", 1));
    assert!(check(&torn, &[]).0);
    let (is_good, text) = check(&torn, &["--redis-cluster"]);
    assert!(!is_good && text.contains("in different slots"), "{text}");
    let urls = "redis://127.0.0.1:1,redis://127.0.0.1:2";
    let serve = |rules: &RulesFile| {
        let args = [rules.path(), "--store", "redis", "--redis-url", urls];
        Server::try_start_as(divvy().stderr(std::process::Stdio::null()), &args).map(drop)
    };
    assert!(serve(&torn).is_err() && serve(&good).is_ok());
}

#[test]
fn reload_that_a_cluster_cannot_serve_keeps_the_old_rules() {
    let cluster = RedisCluster::start();
    let rules = RulesFile::ini(MINUTE_AND_DAY);
    let urls = cluster.urls().join(",");
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-url", &urls, "--redis-timeout", "20000"]);
    let mut line = LineClient::connect(server.line);
    assert_eq!(line.hit("api=chat key={a}x").1, 2);
    write(rules.path(), &MINUTE_AND_DAY.replacen("actorField = key", "actorField = api", 1));
    server.signal("-HUP");
    let bad = || metrics::scrape(server.http).value("divvy_config_failures_total", &[]) == 1.0;
    crate::support::redis::until(bad);
    assert_eq!(line.hit("api=chat key={a}x").1, 1, "the old rules' counter");
    let listed = RespClient::connect(server.resp).command("DIVVY.COUNTERS burst ACTOR {a}x");
    assert!(listed.contains("{a}x 1 "), "{listed}");
    let mut all = String::new();
    let mut cursor = "0".to_owned();
    loop {
        let page = RespClient::connect(server.resp).command(&format!("DIVVY.COUNTERS burst CURSOR {cursor}"));
        all.push_str(&page);
        cursor = page.trim_start_matches('[').split(' ').next().unwrap().to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert!(all.contains("{a}x 1 "), "{all}");
}

fn write(path: impl AsRef<Path>, text: &str) {
    fs::write(path, text).unwrap();
}
