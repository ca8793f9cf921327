//! Limits of single actors: on every store, for every algorithm and on every front; through reloads, restarts, backups
//! and outages, and on several servers that share a Redis.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::command_line::{restore, run_at};
use crate::support::http::{self, HttpClient};
use crate::support::redis::{RedisServer, lasting_port, until};
use crate::support::reloading::ReloadingServer;
use crate::support::stores::on_every_store;
use crate::support::{LineClient, RespClient, RulesFile, Server, metrics, resp};

/// The algorithms, configured so that no credit comes back during a test.
const ALGORITHMS: [(&str, &str); 6] = [
    ("fixed", "resetSeconds = 2592000"),
    ("year", "window = year"),
    ("sliding", "algorithm = sliding-window\nresetSeconds = 259200000"),
    ("log", "algorithm = sliding-log\nresetSeconds = 2592000"),
    ("tokens", "algorithm = token-bucket\nresetSeconds = 2592000"),
    ("leaky", "algorithm = leaky-bucket\nresetSeconds = 2592000"),
];

/// Returns a rule for each algorithm, with ten credits per customer.
fn rules() -> String {
    let rule = |(name, settings): (&str, &str)| {
        format!("[by={name} customer=*]\ncreditLimit = 10\n{settings}\nactorField = customer\nlabel = {name}\n\n")
    };
    ALGORITHMS.map(rule).concat() + "[default]\ncreditLimit = 0\n"
}

/// Returns whether a hit of the customer is allowed, and the credits left.
fn hit(server: &Server, algorithm: &str, customer: &str, cost: u64) -> (bool, u64) {
    let reply = resp(server, &format!("DIVVY.HIT by={algorithm} customer={customer} COST {cost}"));
    let numbers: Vec<u64> = reply.trim_matches(['[', ']']).split(' ').map(|word| word.parse().expect(&reply)).collect();
    (numbers[0] == 1, numbers[1])
}

fn set(server: &Server, rule: &str, actor: &str, credits: u64) {
    assert_eq!(resp(server, &format!("DIVVY.LIMIT SET {rule} {actor} {credits}")), "OK");
}

/// Returns all listed limits, sorted: rule, actor, credits, and whether the rule is gone.
fn listed(server: &Server) -> Vec<(String, String, u64, bool)> {
    let (mut limits, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = http::get(server.http, &format!("/v1/limits?count=2{cursor}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let page = page.json();
        for limit in page["limits"].as_array().unwrap() {
            let text = |key: &str| limit[key].as_str().unwrap().to_owned();
            limits.push((
                text("rule"),
                text("actor"),
                limit["credits"].as_u64().unwrap(),
                limit["orphan"].as_bool().unwrap(),
            ));
        }
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={}", next.replace(' ', "%20"));
    }
    limits.sort();
    limits
}

/// Checks that an actor's usage survives all changes of its limit.
fn usage_is_kept(server: &Server) {
    for (algorithm, _) in ALGORITHMS {
        let hit = |cost| hit(server, algorithm, "a", cost);
        let counter = || resp(server, &format!("DIVVY.COUNTERS {algorithm} ACTOR a"));
        assert_eq!(hit(9), (true, 1), "{algorithm}");
        set(server, algorithm, "a", 20);
        assert_eq!(hit(0), (true, 11), "{algorithm}");
        assert!(counter().contains("[a 11 "), "{algorithm}: {}", counter());
        assert_eq!(hit(11), (true, 0), "{algorithm}");
        assert_eq!(hit(1), (false, 0), "{algorithm}");
        assert_eq!(self::hit(server, algorithm, "b", 0), (true, 10), "no other actor is affected");
        let explained = resp(server, &format!("DIVVY.EXPLAIN by={algorithm} customer=a"));
        assert!(explained.contains("this actor has a limit of its own: allows 20"), "{explained}");
        // Back to the rule's limit. The actor has used twice as much.
        assert_eq!(resp(server, &format!("DIVVY.LIMIT DEL {algorithm} a")), "1");
        assert_eq!(resp(server, &format!("DIVVY.LIMIT DEL {algorithm} a")), "0");
        assert_eq!(hit(1), (false, 0), "{algorithm}");
        assert!(counter().contains("[a 0 "), "{algorithm}: {}", counter());
        set(server, algorithm, "a", 25);
        assert_eq!(hit(1), (true, 4), "{algorithm}");
        set(server, algorithm, "a", 0);
        assert_eq!(hit(1), (false, 0), "{algorithm}");
        assert_eq!(resp(server, &format!("DIVVY.RESET by={algorithm} customer=a")), "1");
        assert_eq!(hit(0), (false, 0), "{algorithm}");
        resp(server, &format!("DIVVY.LIMIT DEL {algorithm} a"));
        assert_eq!(hit(0), (true, 10), "{algorithm}");
    }
    assert_eq!(listed(server), []);
}

#[test]
fn usage_survives_changes_of_the_limit_on_every_store() {
    on_every_store(&rules(), &[], |_, server| usage_is_kept(server));
}

/// A server on disk, with its rules, data and backups in one directory.
struct DiskServer {
    dir: tempfile::TempDir,
}

impl DiskServer {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.ini"), rules()).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn serve(&self, data: &str) -> Server {
        let [rules, data, backups] = ["rules.ini", data, "backups"].map(|name| self.path(name));
        Server::start(&[&rules, "--data-dir", &data, "--backup-dir", &backups])
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn limits_survive_a_sigkill_and_a_restored_backup() {
    let place = DiskServer::new();
    let server = place.serve("data");
    set(&server, "fixed", "a", 20);
    set(&server, "tokens", "b", 30);
    set(&server, "tokens", "gone", 30);
    assert_eq!(resp(&server, "DIVVY.LIMIT SET log c 40 EX 1000"), "OK");
    assert_eq!(resp(&server, "DIVVY.LIMIT DEL tokens gone"), "1");
    assert_eq!(hit(&server, "fixed", "a", 15), (true, 5));
    assert!(resp(&server, "DIVVY.BACKUP first").contains("first"));
    set(&server, "leaky", "later", 50);
    server.kill();

    let limits = |later: bool| {
        let limit = |rule: &str, actor: &str, credits| (rule.to_owned(), actor.to_owned(), credits, false);
        let mut limits = vec![limit("fixed", "a", 20), limit("log", "c", 40), limit("tokens", "b", 30)];
        if later {
            limits.insert(1, limit("leaky", "later", 50));
        }
        limits
    };
    let server = place.serve("data");
    assert_eq!(listed(&server), limits(true));
    assert_eq!(hit(&server, "fixed", "a", 0), (true, 5));
    server.kill();

    let backup = Path::new(&place.path("backups")).join("first");
    let restored = place.path("restored");
    restore(backup, &restored);
    let server = place.serve("restored");
    assert_eq!(listed(&server), limits(false));
    assert_eq!(hit(&server, "fixed", "a", 0), (true, 5));
}

#[test]
fn limits_outlive_their_rule_and_apply_again_when_it_returns() {
    let reloading = ReloadingServer::serving(&rules(), &["--store", "memory"]);
    set(&reloading.server, "fixed", "a", 20);
    set(&reloading.server, "log", "a", 900);
    let orphans =
        |server: &Server| -> Vec<_> { listed(server).into_iter().map(|(rule, .., orphan)| (rule, orphan)).collect() };
    let orphaned = |server: &Server| metrics::scrape(server.http).value("divvy_actor_limits_orphaned", &[]);
    assert_eq!(orphans(&reloading.server), [("fixed".to_owned(), false), ("log".to_owned(), false)]);
    reloading.reload(&rules().replace("label = fixed\n", "label = other\n"));
    reloading.log.await_line(&["some limits of single actors are not in force", "orphaned=1"]);
    let server = &reloading.server;
    assert_eq!(orphans(server), [("fixed".to_owned(), true), ("log".to_owned(), false)]);
    assert_eq!((orphaned(server), metrics::scrape(server.http).value("divvy_actor_limits", &[])), (1.0, 2.0));
    assert_eq!(hit(server, "fixed", "a", 0), (true, 10));
    assert_eq!(resp(server, "DIVVY.LIMIT GET fixed a"), "[20 -1]", "a limit without its rule is still returned");
    assert!(resp(server, "DIVVY.LIMIT SET fixed a 5").contains("no rule is called"));
    reloading.reload(&rules());
    assert_eq!(hit(&reloading.server, "fixed", "a", 0), (true, 20));
    assert_eq!(orphaned(&reloading.server), 0.0);
    // A listed limit can be removed as it is listed, even if hits now form other actors.
    set(&reloading.server, "tokens", "a", 5);
    let by_two = rules().replace("actorField = customer\nlabel = tokens", "actorField = customer, by\nlabel = tokens");
    assert_ne!(by_two, rules());
    reloading.reload(&by_two);
    assert!(listed(&reloading.server).contains(&("tokens".to_owned(), "a".to_owned(), 5, true)));
    assert_eq!(resp(&reloading.server, "DIVVY.LIMIT DEL tokens a"), "1");
    reloading.reload("[default]\ncreditLimit = 0\n");
    assert_eq!(resp(&reloading.server, "DIVVY.LIMIT DEL fixed a"), "1", "an orphan can be removed");
}

#[test]
fn invalid_limits_are_rejected_without_a_trace() {
    let several = "[several=yes user=*]\ncreditLimit = 5\nper = 1h\nactorField = user, several\nlabel = several\n
        [none=yes]\ncreditLimit = 5\nper = 1h\nlabel = none\n[free=yes]\ncreditLimit = 5\nresetSeconds = 0\nlabel = free\n";
    let rules = RulesFile::ini(&format!("{several}{}", rules()));
    let server = Server::start(&[rules.path(), "--store", "memory", "--max-actor-limits", "2"]);
    let refused = |command: &str| resp(&server, &format!("DIVVY.LIMIT {command}"));
    for (command, reason) in [
        ("SET nobody a 5", "no rule is called 'nobody'"),
        ("GET nobody a", "no rule is called 'nobody'"),
        ("SET free a 5", "rule 'free' counts nothing"),
        ("SET log a 1001", "at most 1000"),
        ("SET fixed a 9007199254740992", "must be a whole number from 0 to 9007199254740991"),
        ("SET fixed a -5", "credits is '-5', but must be a whole number from 0 to"),
        ("SET fixed a 5 EX 0", "EX is '0', but must be a whole number of seconds from 1 to 3155760000"),
        ("SET several a 5", "rule 'several' counts by user and several: write the actor as 'user=… several=…'"),
        ("SET none a 5", "rule 'none' has one counter for all: the actor must be empty"),
        ("LIST CURSOR x", "unknown cursor: send the one from the previous page"),
        ("LIST RULE nobody", "no rule is called 'nobody'"),
        ("SET fixed a 5 PX 6", "the command is DIVVY.LIMIT SET rule actor credits [EX seconds]"),
    ] {
        assert!(refused(command).contains(reason), "{command}: {}", refused(command));
    }
    assert_eq!(listed(&server), []);
    // An actor of several fields is recognized in any notation.
    let mut client = RespClient::connect(server.resp);
    let of_several: [&[u8]; 5] = [b"DIVVY.LIMIT", b"SET", b"several", b"several=yes user=\"a\"", b"7"];
    assert_eq!(client.command_of(&of_several), "OK");
    assert_eq!(client.command("DIVVY.HIT several=yes user=a"), "[1 6 3600]");
    assert_eq!(client.command_of(&[b"DIVVY.LIMIT", b"SET", b"none", b"", b"9"]), "OK");
    assert_eq!(client.command("DIVVY.HIT none=yes"), "[1 8 3600]");
    // The maximum number is reached. Existing limits may change, and new ones are accepted when one is removed.
    assert!(
        refused("SET fixed a 5")
            .contains("there are 2 limits of actors, and the maximum is 2: remove some (--max-actor-limits)")
    );
    assert_eq!(client.command_of(&[b"DIVVY.LIMIT", b"SET", b"none", b"", b"1"]), "OK");
    assert_eq!(client.command_of(&[b"DIVVY.LIMIT", b"DEL", b"none", b""]), "1");
    set(&server, "fixed", "a", 5);
}

#[test]
fn limit_expires_and_makes_room() {
    let rules = RulesFile::ini(&rules());
    let data = tempfile::tempdir().unwrap();
    for server in Server::on_each_store(rules.path(), data.path()) {
        assert_eq!(resp(&server, "DIVVY.LIMIT SET fixed a 20 EX 1"), "OK");
        assert_eq!(resp(&server, "DIVVY.LIMIT GET fixed a"), "[20 1]");
        assert_eq!(hit(&server, "fixed", "a", 15), (true, 5));
        until(|| resp(&server, "DIVVY.LIMIT GET fixed a") == "nil");
        assert_eq!(hit(&server, "fixed", "a", 1), (false, 0));
        assert_eq!(listed(&server), []);
        until(|| metrics::scrape(server.http).value("divvy_actor_limits", &[]) == 0.0);
    }
}

#[test]
fn limit_of_0_denies_the_whole_stack_and_takes_nothing() {
    let rules = RulesFile::ini(
        "[key=*]\ncreditLimit = 5\nper = 1h\nactorField = key\nmatchPolicy = and\nlabel = burst
        [key=*]\ncreditLimit = 50\nper = 24h\nactorField = key\nlabel = daily\n[default]\ncreditLimit = 0\n",
    );
    let server = Server::in_memory(rules.path());
    let client = &mut HttpClient::connect(server.http);
    let hit = |client: &mut HttpClient| client.post("/v1/hit", r#"{"operation":{"key":"a"}}"#);
    assert_eq!(hit(client).json()["remaining"], 4);
    set(&server, "daily", "a", 0);
    let denied = hit(client);
    assert_eq!((denied.status, &denied.json()["violatedPolicies"]), (429, &json!(["daily"])), "{}", denied.body);
    assert!(denied.header("retry-after").is_none(), "waiting does not help");
    let together =
        client.post("/v1/hits", r#"{"hits":[{"operation":{"key":"a"}},{"operation":{"key":"b"}}],"atomic":true}"#);
    assert_eq!(together.json()["allowed"], false, "{}", together.body);
    resp(&server, "DIVVY.LIMIT DEL daily a");
    assert_eq!(hit(client).json()["remaining"], 3);
    // The answer comes from the actor's own limit, which has no credit left.
    set(&server, "daily", "a", 3);
    let hit = hit(client);
    assert_eq!(
        (hit.status, &hit.json()["remaining"], &hit.json()["limit"]),
        (200, &json!(0), &json!(3)),
        "{}",
        hit.body
    );
    assert!(hit.header("ratelimit-policy").unwrap().contains("q=3"), "{:?}", hit.header("ratelimit-policy"));
}

#[test]
fn http_api_sets_returns_lists_and_removes_limits() {
    let rules = RulesFile::ini(&rules());
    let server = Server::in_memory(rules.path());
    let client = &mut HttpClient::connect(server.http);
    let new = client.put("/v1/limits?rule=fixed&actor=a%20b", r#"{"credits":20,"expiresIn":60}"#);
    assert_eq!(new.status, 200, "{}", new.body);
    let limit = json!({"rule": "fixed", "actor": "a b", "credits": 20, "expiresIn": 60, "orphan": false});
    assert_eq!(new.json(), limit);
    assert_eq!(client.get("/v1/limits?rule=fixed&actor=a%20b", &[]).json(), limit);
    assert_eq!(client.get("/v1/limits?rule=fixed", &[]).json()["limits"], json!([limit]));
    assert_eq!(client.get("/v1/limits?rule=log", &[]).json()["limits"], json!([]));
    for (query, body, status) in [
        ("rule=nobody&actor=a", json!({"credits": 1}), 404),
        ("rule=fixed", json!({"credits": 1}), 400),
        ("rule=fixed&actor=a", json!({}), 400),
        ("rule=fixed&actor=a", json!({"credits": -1}), 400),
        ("rule=fixed&actor=a", json!({"credits": 1, "more": 1}), 400),
        ("rule=fixed&actor=a", json!({"credits": 1, "expiresIn": 0}), 400),
        ("rule=log&actor=a", json!({"credits": 1001}), 400),
    ] {
        let refused = client.put(&format!("/v1/limits?{query}"), &body.to_string());
        assert_eq!(refused.status, status, "{query} {body}: {}", refused.body);
    }
    assert_eq!(client.get("/v1/limits?rule=fixed&actor=other", &[]).status, 404);
    let remove = |client: &mut HttpClient| client.delete("/v1/limits?rule=fixed&actor=a%20b").json()["removed"].clone();
    assert_eq!([remove(client), remove(client)], [json!(true), json!(false)]);
}

/// If such requests were accepted, each would set a limit for another actor: U+FFFD.
#[test]
fn requests_with_a_query_that_is_not_utf_8_are_rejected_without_effect() {
    let rules = RulesFile::ini(&rules());
    let server = Server::in_memory(rules.path());
    let headers = [("content-type", "application/json"), ("connection", "close")];
    let ask = |method: &str, path: &str, body: &str| {
        http::request(server.http, http::encode(method, path, &headers, body.as_bytes()))
    };
    assert_eq!(hit(&server, "fixed", "\u{fffd}", 1), (true, 9));
    for (method, path, parameter) in [
        ("PUT", "/v1/limits?rule=fixed&actor=%ff", "actor"),
        ("GET", "/v1/limits?rule=fixed&actor=a%C3", "actor"),
        ("GET", "/v1/limits?cursor=%ff", "cursor"),
        ("DELETE", "/v1/limits?actor=%ff&rule=fixed", "actor"),
        ("GET", "/v1/counters?rule=fixed&actor=%ff", "actor"),
        ("DELETE", "/v1/counters?rule=fixed&actor=%ff", "actor"),
        ("GET", "/v1/check?by=fixed&customer=%ff", "customer"),
        ("POST", "/v1/check?by=fixed&%fe=x", "%fe"),
    ] {
        let response = ask(method, path, "{\"credits\":3}");
        let expected = format!("the query's parameter '{parameter}' is not valid UTF-8");
        assert_eq!((response.status, &response.json()["detail"]), (400, &json!(expected)), "{method} {path}");
    }
    assert_eq!(listed(&server), []);
    assert_eq!(hit(&server, "fixed", "\u{fffd}", 0), (true, 9));
}

#[test]
fn command_line_sets_returns_lists_and_removes_limits() {
    let rules = RulesFile::ini(&rules());
    let server = Server::in_memory(rules.path());
    let run = |args: &[&str]| {
        let (code, out, error) = run_at(&server, &[&["limit"], args].concat());
        (code, out.trim_end().to_owned(), error.trim_end().to_owned())
    };
    let done = |out: &str| (0, out.to_owned(), String::new());
    assert_eq!(run(&["set", "fixed", "a b", "20"]), done(""));
    assert_eq!(run(&["set", "log", "c", "30", "--expires", "7d"]), done(""));
    assert_eq!(run(&["get", "fixed", "a b"]), done("20"));
    assert_eq!(run(&["get", "log", "c"]), done("30, for another 604800 s"));
    let (_, list, _) = run(&["list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert_eq!(
        run(&["list", "--json", "--rule", "fixed"]),
        done(r#"{"rule":"fixed","actor":"a b","credits":20,"expiresIn":null,"orphan":false}"#)
    );
    assert_eq!(run(&["delete", "fixed", "a b"]), done(""));
    let none = (1, String::new(), "a b has no limit of its own".to_owned());
    assert_eq!([run(&["delete", "fixed", "a b"]), run(&["get", "fixed", "a b"])], [none.clone(), none]);
    let (status, _, error) = run(&["set", "nobody", "a", "5"]);
    assert!(status != 0 && error.contains("no rule is called 'nobody'"), "{error}");
}

/// Hits on every front use the limit at once.
#[test]
fn every_front_uses_the_limit() {
    let rules = RulesFile::ini(&rules());
    let server = Server::in_memory(rules.path());
    set(&server, "fixed", "a", 20);
    let (allowed, left, _) = LineClient::connect(server.line).hit("by=fixed customer=a");
    assert_eq!((allowed, left), (true, 19));
    let hit = HttpClient::connect(server.http).post("/v1/hit", r#"{"operation":{"by":"fixed","customer":"a"}}"#);
    assert_eq!((&hit.json()["remaining"], &hit.json()["limit"]), (&json!(18), &json!(20)));
    let explained =
        HttpClient::connect(server.http).post("/v1/explain", r#"{"operation":{"by":"fixed","customer":"a"}}"#);
    assert_eq!(explained.json()["rules"][0]["grants"]["actorLimit"], "allows 20 in 2592000 s", "{}", explained.body);
}

#[test]
fn servers_that_share_a_redis_follow_each_others_limits() {
    let redis = RedisServer::start();
    let rules = RulesFile::ini(&rules());
    let url = redis.url();
    let serve = || Server::start(&[rules.path(), "--store", "redis", "--redis-timeout", "20000", "--redis-url", &url]);
    let (one, other) = (serve(), serve());
    assert_eq!(hit(&one, "fixed", "a", 10), (true, 0));
    assert_eq!((hit(&one, "fixed", "a", 1), hit(&other, "fixed", "a", 1)), ((false, 0), (false, 0)));
    set(&one, "fixed", "a", 20);
    // The denial cache still has the denial, which no longer applies.
    assert_eq!(hit(&one, "fixed", "a", 1), (true, 9));
    until(|| hit(&other, "fixed", "a", 0) == (true, 9));
    assert_eq!(resp(&other, "DIVVY.LIMIT DEL fixed a"), "1");
    // Redis reports whether a limit existed, even if the server has not read it yet.
    set(&one, "fixed", "new", 5);
    assert_eq!(resp(&other, "DIVVY.LIMIT DEL fixed new"), "1");
    assert_eq!(resp(&one, "DIVVY.LIMIT DEL fixed new"), "0");
    until(|| listed(&one).is_empty());
    assert_eq!(hit(&one, "fixed", "a", 1), (false, 0));
    let mut client = RespClient::connect(one.resp);
    for number in 0..2_500 {
        assert_eq!(client.command(&format!("DIVVY.LIMIT SET tokens {number} 7")), "OK");
    }
    let count = |server: &Server| metrics::scrape(server.http).value("divvy_actor_limits", &[]);
    until(|| count(&one) == 2_500.0 && count(&other) == 2_500.0);
    let third = serve();
    assert_eq!(count(&third), 2_500.0, "known before the first hit");
    // Redis is flushed, and the actor whose limit was changed last gets another limit before the servers notice.
    set(&one, "log", "first", 7);
    set(&one, "log", "last", 7);
    until(|| count(&other) == 2_502.0 && count(&third) == 2_502.0);
    redis.cli(&["FLUSHALL"]);
    set(&one, "log", "last", 8);
    let last = [("log".to_owned(), "last".to_owned(), 8, false)];
    until(|| listed(&one) == last && listed(&other) == last && listed(&third) == last);
    // Redis is flushed, so there are no limits.
    redis.cli(&["FLUSHALL"]);
    until(|| count(&one) == 0.0 && count(&other) == 0.0 && count(&third) == 0.0);
    set(&third, "tokens", "a", 7);
    until(|| count(&one) == 1.0 && count(&other) == 1.0);
}

/// A limit that ended an hour ago is forgotten when another one changes. If it was the last to change, the server must
/// not read all limits again.
#[test]
fn server_long_without_a_change_reads_only_the_next_one() {
    const KEPT: usize = 300;
    let redis = RedisServer::start();
    let seconds: u64 = redis.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let ago = |seconds_ago: u64| (seconds - seconds_ago) * 1_000_000;
    let [limits, changes, ends, born] =
        ["", ":changes", ":ends", ":born"].map(|end| format!("divvy.exceptions:{{exceptions}}{end}"));
    let mut commands = format!("SET {born} 7\n");
    let mut change = |actor: &str, seconds_ago: u64, ended: Option<u64>| {
        let ended_ms = ended.map(|seconds_ago| ago(seconds_ago) / 1000);
        let expires = ended_ms.map(|ended| ended.to_string()).unwrap_or_default();
        commands += &format!("HSET {limits} \"limit:fixed {actor}\" \"7 {expires}\"\n");
        commands += &format!("ZADD {changes} {} \"limit:fixed {actor}\"\n", ago(seconds_ago));
        if let Some(ended_ms) = ended_ms {
            commands += &format!("ZADD {ends} {ended_ms} \"limit:fixed {actor}\"\n");
        }
    };
    (0..KEPT).for_each(|number| change(&format!("kept-{number}"), 10_000, None));
    change("earlier", 9_000, Some(8_900));
    change("last", 8_000, Some(7_900));
    redis.pipe(&commands);

    let rules = RulesFile::ini(&rules());
    let url = redis.url();
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-timeout", "20000", "--redis-url", &url]);
    let other = Server::start(&[rules.path(), "--store", "redis", "--redis-timeout", "20000", "--redis-url", &url]);
    let calls = |command: &str| {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<usize>().unwrap())
    };
    let known = |server: &Server| metrics::scrape(server.http).value("divvy_actor_limits", &[]);
    until(|| known(&server) == KEPT as f64 && known(&other) == KEPT as f64);
    let (read, asked) = (calls("hget"), calls("zrangebyscore"));
    set(&other, "fixed", "new", 5);
    until(|| known(&server) == KEPT as f64 + 1.0);
    // Both servers poll a few more times.
    until(|| calls("zrangebyscore") > asked + 12);
    assert!(calls("hget") - read < 10, "{} limits were read again", calls("hget") - read);
    assert_eq!(
        redis.cli(&["HEXISTS", &limits, "limit:fixed earlier"]),
        "0",
        "a limit that ended long ago is forgotten"
    );
    assert_eq!(hit(&server, "fixed", "kept-7", 7), (true, 0));
}

#[test]
fn last_known_limits_apply_while_redis_is_unavailable() {
    let mut redis = RedisServer::start_with(lasting_port(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let rules = RulesFile::ini(&rules());
    let url = redis.url();
    let store = ["--store", "redis", "--on-store-error", "local", "--redis-timeout", "300", "--redis-url", &url];
    let server = Server::start(&[&[rules.path()], &store[..]].concat());
    set(&server, "fixed", "a", 20);
    assert_eq!(hit(&server, "fixed", "a", 15), (true, 5));
    redis.kill();
    until(|| resp(&server, "DIVVY.HIT by=fixed customer=a COST 0").starts_with("[1 20"));
    let refused = resp(&server, "DIVVY.LIMIT SET fixed a 30");
    assert!(refused.contains("cannot connect to Redis") || refused.contains("failing"), "{refused}");
    assert_eq!(resp(&server, "DIVVY.LIMIT GET fixed a"), "[20 -1]");
    let failures = || metrics::scrape(server.http).value("divvy_exceptions_failures_total", &[]);
    until(|| failures() > 0.0);
    redis.restart();
    until(|| hit(&server, "fixed", "a", 0) == (true, 5));
    // On a slow disk, Redis may need longer for its fsync than the server waits.
    until(|| resp(&server, "DIVVY.LIMIT SET fixed a 30") == "OK");
    until(|| hit(&server, "fixed", "a", 0) == (true, 15));
}

/// The server starts, and reads the limits once Redis is available.
#[test]
fn server_that_starts_before_redis_reads_the_limits_later() {
    let mut redis = RedisServer::start_with(lasting_port(), &["--appendonly", "yes", "--appendfsync", "always"]);
    let rules = RulesFile::ini(&rules());
    let url = redis.url();
    let store = [rules.path(), "--store", "redis", "--redis-timeout", "300", "--redis-url", &url];
    let first = Server::start(&store);
    set(&first, "fixed", "a", 20);
    drop(first);
    redis.kill();
    let server = Server::start(&store);
    assert_eq!(listed(&server), []);
    redis.restart();
    until(|| listed(&server).len() == 1);
    until(|| resp(&server, "DIVVY.HIT by=fixed customer=a").starts_with("[1 19"));
}

/// An ACL written for an earlier version lacks the commands that limits of actors need.
#[test]
fn redis_user_without_the_rights_for_limits_serves_hits() {
    let redis = RedisServer::start();
    let rights = "+evalsha +eval +get +set +del +decrby +pttl +pexpire +time +scan +dbsize +info +ping";
    let user = format!("ACL SETUSER divvy on >secret ~divvy:* ~divvy.* {rights}");
    assert_eq!(redis.cli(&user.split(' ').collect::<Vec<_>>()), "OK");
    let rules = RulesFile::ini(&rules());
    let url = format!("redis://divvy:secret@127.0.0.1:{}", redis.port);
    let server = Server::start(&[rules.path(), "--store", "redis", "--redis-timeout", "20000", "--redis-url", &url]);
    let failures = || metrics::scrape(server.http).value("divvy_exceptions_failures_total", &[]);
    until(|| failures() > 1.0);
    for left in (5..10).rev() {
        assert_eq!(hit(&server, "fixed", "a", 1), (true, left));
    }
    assert_eq!(metrics::scrape(server.http).value("divvy_redis_outage", &[]), 0.0);
    let refused = resp(&server, "DIVVY.LIMIT SET fixed a 30");
    assert!(refused.starts_with("-ERR") && refused.contains("can't run this command"), "{refused}");
    let more: Vec<_> =
        "ACL SETUSER divvy +hget +hset +hdel +zadd +zrem +zscore +zrangebyscore +zrevrange".split(' ').collect();
    redis.cli(&more);
    set(&server, "fixed", "a", 30);
    assert_eq!(hit(&server, "fixed", "a", 0), (true, 25));
}
