//! Limits of single actors: on every store and for every algorithm; through reloads and outages, and on several servers that
//! share a Redis.

use serde_json::{Value, json};

use crate::support::{RedisServer, Server, Site, http, number, on_redis, resp, until};

/// Returns a rule for each of some algorithms, with ten credits per customer. No credit comes back during a test.
fn rules() -> String {
    ["fixed-window", "sliding-log", "token-bucket"]
        .map(|algorithm| {
            let label = algorithm.rsplit('-').next().unwrap();
            format!("[by={label} customer=*] creditLimit=10 resetSeconds=2592000 algorithm={algorithm} actorField=customer label={label}\n")
        })
        .concat()
        + "[default] creditLimit=0\n"
}

/// Returns whether a hit of the customer is allowed, and the credits left.
fn hit(server: &Server, algorithm: &str, customer: &str, cost: u64) -> (bool, u64) {
    let (allowed, left, _) = server.resp().hit(&format!("by={algorithm} customer={customer} COST {cost}"));
    (allowed, left)
}

fn set(server: &Server, rule: &str, actor: &str, credits: u64) {
    assert_eq!(resp(server, &format!("DIVVY.LIMIT SET {rule} {actor} {credits}")), "OK");
}

/// Returns all listed limits, sorted: rule, actor, credits, and whether the rule is gone.
fn listed(server: &Server) -> Vec<Value> {
    let limits = http::all_pages(server, "/v1/limits?count=2", "limits");
    let shown = |limit: &Value| json!([limit["rule"], limit["actor"], limit["credits"], limit["orphan"]]);
    let mut limits: Vec<_> = limits.iter().map(shown).collect();
    limits.sort_by_key(Value::to_string);
    limits
}

#[test]
fn limits_outlive_their_rule_and_apply_again_when_it_returns() {
    let site = Site::serving(&rules(), &["--store", "memory"]);
    let server = &site.server;
    set(server, "window", "a", 20);
    set(server, "log", "a", 900);
    let orphaned = |server: &Server| number(server, "divvy_actor_limits_orphaned");
    assert_eq!(listed(server), [json!(["log", "a", 900, false]), json!(["window", "a", 20, false])]);
    site.reload(&rules().replace("label=window", "label=other"));
    site.log.await_line(&["some limits of single actors are not in force", "orphaned=1"]);
    assert_eq!(listed(server), [json!(["log", "a", 900, false]), json!(["window", "a", 20, true])]);
    assert_eq!((orphaned(server), number(server, "divvy_actor_limits")), (1, 2));
    assert_eq!(hit(server, "window", "a", 0), (true, 10));
    assert_eq!(resp(server, "DIVVY.LIMIT GET window a"), "[20 -1]", "a limit without its rule is still returned");
    assert!(resp(server, "DIVVY.LIMIT SET window a 5").contains("no rule is called"));
    site.reload(&rules());
    assert_eq!(hit(server, "window", "a", 0), (true, 20));
    assert_eq!(orphaned(server), 0);
    // A listed limit can be removed as it is listed, even if hits now form other actors.
    set(server, "bucket", "a", 5);
    let by_two = rules().replace("actorField=customer label=bucket", "actorField=customer,by label=bucket");
    assert_ne!(by_two, rules());
    site.reload(&by_two);
    assert!(listed(server).contains(&json!(["bucket", "a", 5, true])));
    assert_eq!(resp(server, "DIVVY.LIMIT DEL bucket a"), "1");
    site.reload("[default]\ncreditLimit = 0\n");
    assert_eq!(resp(server, "DIVVY.LIMIT DEL window a"), "1", "an orphan can be removed");
}

#[test]
fn servers_that_share_a_redis_follow_each_others_limits() {
    let redis = RedisServer::start();
    let serve = || Server::serving(&rules(), &on_redis(&redis.url()));
    let (one, other) = (serve(), serve());
    assert_eq!(hit(&one, "window", "a", 10), (true, 0));
    assert_eq!((hit(&one, "window", "a", 1), hit(&other, "window", "a", 1)), ((false, 0), (false, 0)));
    set(&one, "window", "a", 20);
    // The denial cache still has the denial, which no longer applies.
    assert_eq!(hit(&one, "window", "a", 1), (true, 9));
    until(|| hit(&other, "window", "a", 0) == (true, 9));
    assert_eq!(resp(&other, "DIVVY.LIMIT DEL window a"), "1");
    // Redis reports whether a limit existed, even if the server has not read it yet.
    set(&one, "window", "new", 5);
    assert_eq!(resp(&other, "DIVVY.LIMIT DEL window new"), "1");
    assert_eq!(resp(&one, "DIVVY.LIMIT DEL window new"), "0");
    until(|| listed(&one).is_empty());
    assert_eq!(hit(&one, "window", "a", 1), (false, 0));
    let mut client = one.resp();
    for number in 0..2_500 {
        assert_eq!(client.command(&format!("DIVVY.LIMIT SET bucket {number} 7")), "OK");
    }
    let count = |server: &Server| number(server, "divvy_actor_limits");
    until(|| count(&one) == 2_500 && count(&other) == 2_500);
    let third = serve();
    assert_eq!(count(&third), 2_500, "known before the first hit");
    // Redis is flushed, and the actor whose limit was changed last gets another limit before the servers notice.
    set(&one, "log", "first", 7);
    set(&one, "log", "last", 7);
    until(|| count(&other) == 2_502 && count(&third) == 2_502);
    redis.cli(&["FLUSHALL"]);
    set(&one, "log", "last", 8);
    let last = [json!(["log", "last", 8, false])];
    until(|| listed(&one) == last && listed(&other) == last && listed(&third) == last);
    // Redis is flushed, so there are no limits.
    redis.cli(&["FLUSHALL"]);
    until(|| [&one, &other, &third].iter().all(|server| count(server) == 0));
    set(&third, "bucket", "a", 7);
    until(|| count(&one) == 1 && count(&other) == 1);
}

/// A limit that ended an hour ago is forgotten when another one changes. If it was the last to change, the server must
/// not read all limits again.
#[test]
fn server_long_without_a_change_reads_only_the_next_one() {
    const KEPT: u64 = 300;
    let redis = RedisServer::start();
    let seconds: u64 = redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let ago = |seconds_ago: u64| (seconds - seconds_ago) * 1_000_000;
    let [limits, changes, ends, born] =
        ["", ":changes", ":ends", ":born"].map(|end| format!("divvy.exceptions:{{exceptions}}{end}"));
    let mut commands = format!("SET {born} 7\n");
    let mut change = |actor: &str, seconds_ago: u64, ended: Option<u64>| {
        let ended_ms = ended.map(|seconds_ago| ago(seconds_ago) / 1000);
        let expires = ended_ms.map(|ended| ended.to_string()).unwrap_or_default();
        commands += &format!("HSET {limits} \"limit:window {actor}\" \"7 {expires}\"\n");
        commands += &format!("ZADD {changes} {} \"limit:window {actor}\"\n", ago(seconds_ago));
        if let Some(ended_ms) = ended_ms {
            commands += &format!("ZADD {ends} {ended_ms} \"limit:window {actor}\"\n");
        }
    };
    (0..KEPT).for_each(|number| change(&format!("kept-{number}"), 10_000, None));
    change("earlier", 9_000, Some(8_900));
    change("last", 8_000, Some(7_900));
    redis.pipe(&commands);

    let [server, other] = [(); 2].map(|()| Server::serving(&rules(), &on_redis(&redis.url())));
    let calls = |command: &str| {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<usize>().unwrap())
    };
    let known = |server: &Server| number(server, "divvy_actor_limits");
    until(|| known(&server) == KEPT && known(&other) == KEPT);
    let (read, asked) = (calls("hget"), calls("zrangebyscore"));
    set(&other, "window", "new", 5);
    until(|| known(&server) == KEPT + 1);
    // Both servers poll a few more times.
    until(|| calls("zrangebyscore") > asked + 12);
    assert!(calls("hget") - read < 10, "{} limits were read again", calls("hget") - read);
    assert_eq!(
        redis.cli(&["HEXISTS", &limits, "limit:window earlier"]),
        "0",
        "a limit that ended long ago is forgotten"
    );
    assert_eq!(hit(&server, "window", "kept-7", 7), (true, 0));
}

#[test]
fn last_known_limits_apply_while_redis_is_unavailable() {
    let mut redis = RedisServer::durable();
    let flags = ["--on-store-error", "local", "--redis-timeout", "300", "--redis-url", &redis.url()];
    let server = Server::serving(&rules(), &flags);
    set(&server, "window", "a", 20);
    assert_eq!(hit(&server, "window", "a", 15), (true, 5));
    redis.kill();
    until(|| resp(&server, "DIVVY.HIT by=window customer=a COST 0").starts_with("[1 20"));
    let refused = resp(&server, "DIVVY.LIMIT SET window a 30");
    assert!(refused.contains("cannot connect to Redis") || refused.contains("failing"), "{refused}");
    assert_eq!(resp(&server, "DIVVY.LIMIT GET window a"), "[20 -1]");
    let failures = || number(&server, "divvy_exceptions_failures_total");
    until(|| failures() > 0);
    redis.restart();
    until(|| hit(&server, "window", "a", 0) == (true, 5));
    // On a slow disk, Redis may need longer for its fsync than the server waits.
    until(|| resp(&server, "DIVVY.LIMIT SET window a 30") == "OK");
    until(|| hit(&server, "window", "a", 0) == (true, 15));
}
