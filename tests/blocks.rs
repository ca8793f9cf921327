//! Blocks and allows of single actors: on every store and on every front; through restarts, backups and reloads, and on
//! several servers that share a Redis.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::command_line::{restore, run_at};
use crate::support::http::{self, HttpClient};
use crate::support::redis::{RedisServer, until};
use crate::support::reloading::ReloadingServer;
use crate::support::stores::on_every_store;
use crate::support::{LineClient, RespClient, RulesFile, Server, metrics, resp};

const RULES: &str = "
[api=* ip=*]
creditLimit = 5
resetSeconds = 2592000
actorField = ip
label = by-ip

[api=* user=*]
creditLimit = 5
algorithm = token-bucket
resetSeconds = 2592000
actorField = user
label = by-user

[default]
creditLimit = 0
";

/// Returns all listed entries, sorted: rule, actor, reason, and whether it ends.
fn listed(server: &Server, list: &str) -> Vec<(String, String, Option<String>, bool)> {
    let (mut entries, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = http::get(server.http, &format!("/v1/{list}?count=1{cursor}"));
        assert_eq!(page.status, 200, "{}", page.body);
        let page = page.json();
        for entry in page[list].as_array().unwrap() {
            let text = |key: &str| entry[key].as_str().map(str::to_owned);
            entries.push((
                text("rule").unwrap(),
                text("actor").unwrap(),
                text("reason"),
                entry["expiresIn"].as_u64().is_some(),
            ));
        }
        let Some(next) = page["next"].as_str() else { break };
        let next: String = url_encoded(next);
        cursor = format!("&cursor={next}");
    }
    entries.sort();
    entries
}

fn url_encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn entry(rule: &str, actor: &str, reason: Option<&str>, ends: bool) -> (String, String, Option<String>, bool) {
    (rule.to_owned(), actor.to_owned(), reason.map(str::to_owned), ends)
}

/// Checks that blocks and allows decide, and that counters stay as they are.
fn blocks_and_allows_decide(server: &Server) {
    let command = |command: &str| resp(server, command);
    assert!(command("DIVVY.HIT api=a user=ann").starts_with("[1 4 "));
    assert_eq!(command("DIVVY.BLOCK SET by-user ann EX 900 REASON scraping"), "OK");
    for _ in 0..3 {
        assert_eq!(command("DIVVY.HIT api=a user=ann"), "[0 0 900]");
    }
    assert_eq!(command("DIVVY.BLOCK GET by-user ann"), "[900 scraping]");
    assert_eq!(command("DIVVY.ALLOW SET by-user ann"), "OK");
    assert_eq!(command("DIVVY.ALLOW GET by-user ann"), "[-1 nil]");
    assert!(
        command("DIVVY.HIT api=a user=ann").starts_with("[1 3 "),
        "an allow wins, and the blocked hits took nothing"
    );
    assert!(command("DIVVY.HIT api=a user=ann COST 100").starts_with("[1 0 "), "counted up to the limit");
    assert!(command("DIVVY.HIT api=a user=ann").starts_with("[1 0 "));
    assert_eq!(command("DIVVY.ALLOW DEL by-user ann"), "1");
    assert_eq!(command("DIVVY.ALLOW DEL by-user ann"), "0");
    assert_eq!(command("DIVVY.BLOCK DEL by-user ann"), "1");
    assert!(command("DIVVY.HIT api=a user=ann").starts_with("[0 0 "), "all credits are used");
    assert!(command("DIVVY.REFUND api=a user=ann COST 2").starts_with("[2 "), "and nothing is owed");
    assert_eq!(command("DIVVY.BLOCK SET * ip=2001:db8::/32"), "OK");
    assert_eq!(command("DIVVY.HIT api=a ip=2001:db8:1::9"), "[0 0 0]", "permanently");
    assert!(command("DIVVY.HIT api=a ip=2001:db9::9").starts_with("[1 4 "));
    assert_eq!(command("DIVVY.BLOCK DEL * ip=2001:db8::/32"), "1");
    assert!(command("DIVVY.HIT api=a ip=2001:db8:1::9").starts_with("[1 4 "));
    assert_eq!((listed(server, "blocks"), listed(server, "allows")), (vec![], vec![]));
}

#[test]
fn blocks_and_allows_decide_on_every_store() {
    on_every_store(RULES, &[], |_, server| blocks_and_allows_decide(server));
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn blocks_survive_a_sigkill_and_a_restored_backup() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("rules.ini"), RULES).unwrap();
    let serve =
        |data: &str| Server::start(&[&path("rules.ini"), "--data-dir", &path(data), "--backup-dir", &path("backups")]);
    let server = serve("data");
    for command in [
        "DIVVY.BLOCK SET by-user ann REASON first",
        "DIVVY.BLOCK SET * ip=10.0.0.0/8 EX 1000",
        "DIVVY.BLOCK SET * user=gone",
        "DIVVY.ALLOW SET * ip=10.1.2.3",
    ] {
        assert_eq!(resp(&server, command), "OK", "{command}");
    }
    assert_eq!(resp(&server, "DIVVY.BLOCK DEL * user=gone"), "1");
    assert!(resp(&server, "DIVVY.HIT api=a user=bob").starts_with("[1 4 "));
    assert!(resp(&server, "DIVVY.BACKUP first").contains("first"));
    assert_eq!(resp(&server, "DIVVY.BLOCK SET by-ip 10.9.9.9"), "OK");
    server.kill();

    let blocks = [entry("*", "ip=10.0.0.0/8", None, true), entry("by-user", "ann", Some("first"), false)];
    let server = serve("data");
    assert_eq!(
        listed(&server, "blocks"),
        [&blocks[..1], &[entry("by-ip", "10.9.9.9", None, false)], &blocks[1..]].concat()
    );
    assert_eq!(listed(&server, "allows"), [entry("*", "ip=10.1.2.3", None, false)]);
    assert!(resp(&server, "DIVVY.HIT api=a ip=10.9.9.8").starts_with("[0 0 "));
    assert!(resp(&server, "DIVVY.HIT api=a ip=10.1.2.3").starts_with("[1 4 "));
    server.kill();

    let restored = path("restored");
    let backup = Path::new(&path("backups")).join("first");
    restore(backup, &restored);
    let server = serve("restored");
    assert_eq!(listed(&server, "blocks"), blocks);
    until(|| metrics::scrape(server.http).value("divvy_counters_counted", &[]) == 1.0);
    let counters = metrics::scrape(server.http).value("divvy_live_counters", &[]);
    assert!(counters <= 2.0, "blocks are no counters: {counters}");
}

#[test]
fn blocks_outlive_their_rule_and_a_reload() {
    let reloading = ReloadingServer::serving(RULES, &["--store", "memory"]);
    let server = &reloading.server;
    assert_eq!(resp(server, "DIVVY.BLOCK SET by-user ann"), "OK");
    assert_eq!(resp(server, "DIVVY.BLOCK SET * user=bob"), "OK");
    let hits = || ["ann", "bob"].map(|user| resp(server, &format!("DIVVY.HIT api=a user={user} COST 0")));
    let orphaned = || metrics::scrape(server.http).value("divvy_blocks_orphaned", &[]);
    assert_eq!(hits(), ["[0 0 0]", "[0 0 0]"]);
    reloading.reload(&RULES.replace("by-user", "other"));
    assert_eq!(hits(), ["[1 5 0]", "[0 0 0]"]);
    assert_eq!((orphaned(), metrics::scrape(server.http).value("divvy_blocks", &[])), (1.0, 2.0));
    assert!(resp(server, "DIVVY.BLOCK SET by-user ann").contains("no rule is called"));
    reloading.reload(RULES);
    assert_eq!((hits(), orphaned()), (["[0 0 0]".to_owned(), "[0 0 0]".to_owned()], 0.0));
    reloading.reload(&RULES.replace("by-user", "other"));
    assert_eq!(resp(server, "DIVVY.BLOCK DEL by-user ann"), "1", "an orphan can be removed");
}

#[test]
fn block_ends_by_itself() {
    let rules = RulesFile::ini(RULES);
    let data = tempfile::tempdir().unwrap();
    for server in Server::on_each_store(rules.path(), data.path()) {
        assert_eq!(resp(&server, "DIVVY.BLOCK SET by-user ann EX 1"), "OK");
        assert_eq!(resp(&server, "DIVVY.HIT api=a user=ann"), "[0 0 1]");
        until(|| resp(&server, "DIVVY.HIT api=a user=ann").starts_with("[1 4 "));
        assert_eq!(resp(&server, "DIVVY.BLOCK GET by-user ann"), "nil");
        until(|| metrics::scrape(server.http).value("divvy_blocks", &[]) == 0.0);
    }
}

#[test]
fn servers_that_share_a_redis_follow_each_others_blocks() {
    let redis = RedisServer::start();
    let rules = RulesFile::ini(RULES);
    let url = redis.url();
    let serve = || Server::start(&[rules.path(), "--store", "redis", "--redis-timeout", "20000", "--redis-url", &url]);
    let (one, other) = (serve(), serve());
    assert_eq!(resp(&one, "DIVVY.BLOCK SET by-user ann EX 900 REASON two words 7").split(' ').next(), Some("-ERR"));
    let mut client = RespClient::connect(one.resp);
    let words: [&[u8]; 8] = [b"DIVVY.BLOCK", b"SET", b"by-user", b"ann", b"EX", b"900", b"REASON", b"two words 7"];
    assert_eq!(client.command_of(&words), "OK");
    assert_eq!(resp(&one, "DIVVY.BLOCK SET * ip=10.0.0.0/8"), "OK");
    until(|| resp(&other, "DIVVY.HIT api=a user=ann COST 0").starts_with("[0 0 "));
    until(|| resp(&other, "DIVVY.HIT api=a ip=10.1.1.1 COST 0") == "[0 0 0]");
    let blocks = [entry("*", "ip=10.0.0.0/8", None, false), entry("by-user", "ann", Some("two words 7"), true)];
    assert_eq!(listed(&other, "blocks"), blocks);
    assert_eq!(resp(&other, "DIVVY.BLOCK DEL by-user ann"), "1");
    until(|| resp(&one, "DIVVY.HIT api=a user=ann COST 0") == "[1 5 0]");
    let third = serve();
    assert_eq!(listed(&third, "blocks"), blocks[..1], "known before the first hit");
    redis.cli(&["FLUSHALL"]);
    until(|| listed(&one, "blocks").is_empty() && listed(&third, "blocks").is_empty());
}

#[test]
fn http_api_sets_returns_lists_and_removes_blocks() {
    let rules = RulesFile::ini(RULES);
    let server = Server::in_memory(rules.path());
    let client = &mut HttpClient::connect(server.http);
    let new = client.put("/v1/blocks?rule=by-user&actor=ann", r#"{"reason":"scraping","expiresIn":60}"#);
    assert_eq!(new.status, 200, "{}", new.body);
    let block = json!({"rule": "by-user", "actor": "ann", "reason": "scraping", "expiresIn": 60, "orphan": false});
    assert_eq!(new.json(), block);
    assert_eq!(client.get("/v1/blocks?rule=by-user&actor=ann", &[]).json(), block);
    assert_eq!(client.get("/v1/blocks?rule=by-user", &[]).json()["blocks"], json!([block]));
    assert_eq!(client.get("/v1/allows", &[]).json()["allows"], json!([]));
    let denied = client.post("/v1/hit", r#"{"operation":{"api":"a","user":"ann"}}"#);
    assert_eq!((denied.status, &denied.json()["blocked"]), (429, &json!({"reason": "scraping"})), "{}", denied.body);
    assert_eq!((&denied.json()["retryAfter"], denied.header("retry-after")), (&json!(60), Some("60")));
    let allowed = client.post("/v1/hit", r#"{"operation":{"api":"a","user":"bob"}}"#);
    assert_eq!((allowed.status, &allowed.json()["blocked"]), (200, &Value::Null));
    let explained = client.post("/v1/explain", r#"{"operation":{"api":"a","user":"ann"}}"#).json();
    let decides = json!({"kind": "block", "endsIn": 60, "reason": "scraping", "entry": null});
    assert_eq!(explained["rules"][1]["grants"]["override"], decides, "{explained}");
    for (path, body, status) in [
        ("/v1/blocks?rule=nobody&actor=a", json!({}), 404),
        ("/v1/blocks?rule=by-user", json!({}), 400),
        ("/v1/blocks?rule=*&actor=a", json!({}), 400),
        ("/v1/blocks?rule=*&actor=ip=10.0.0.1/8", json!({}), 400),
        ("/v1/allows?rule=by-user&actor=a", json!({"expiresIn": 0}), 400),
        ("/v1/allows?rule=by-user&actor=a", json!({"reason": "a\nb"}), 400),
        ("/v1/allows?rule=by-user&actor=a", json!({"more": 1}), 400),
    ] {
        let refused = client.put(path, &body.to_string());
        assert_eq!(refused.status, status, "{path} {body}: {}", refused.body);
    }
    assert_eq!(client.get("/v1/allows?rule=by-user&actor=ann", &[]).status, 404);
    let remove = |client: &mut HttpClient| client.delete("/v1/blocks?rule=by-user&actor=ann").json()["removed"].clone();
    assert_eq!([remove(client), remove(client)], [json!(true), json!(false)]);
}

#[test]
fn command_line_sets_returns_lists_and_removes_blocks() {
    let rules = RulesFile::ini(RULES);
    let server = Server::in_memory(rules.path());
    let run = |args: &[&str]| {
        let (code, out, error) = run_at(&server, args);
        (code, out.trim_end().to_owned(), error.trim_end().to_owned())
    };
    let done = |out: &str| (0, out.to_owned(), String::new());
    assert_eq!(run(&["block", "set", "by-user", "ann", "--reason", "too fast"]), done(""));
    assert_eq!(run(&["allow", "set", "*", "ip=10.0.0.0/8", "--expires", "7d"]), done(""));
    assert_eq!(run(&["block", "get", "by-user", "ann"]), done("until it is deleted: too fast"));
    assert_eq!(run(&["allow", "get", "*", "ip=10.0.0.0/8"]), done("for another 604800 s"));
    let (_, list, _) = run(&["block", "list"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    assert_eq!(
        run(&["block", "list", "--json", "--rule", "by-user"]),
        done(r#"{"rule":"by-user","actor":"ann","reason":"too fast","expiresIn":null,"orphan":false}"#)
    );
    assert_eq!(run(&["block", "delete", "by-user", "ann"]), done(""));
    let missing = "there is no block of ann for the rule by-user; `divvy block list` prints them all";
    let none = (1, String::new(), missing.to_owned());
    assert_eq!(
        [run(&["block", "delete", "by-user", "ann"]), run(&["block", "get", "by-user", "ann"])],
        [none.clone(), none]
    );
    let (status, _, error) = run(&["block", "set", "nobody", "a"]);
    assert!(status != 0 && error.contains("no rule is called 'nobody'"), "{error}");
    let (status, _, error) = run(&["block", "set", "by-user", "user=ann"]);
    let told = "the rule 'by-user' counts by user: write the actor as 'ann', without 'user='";
    assert!(status != 0 && error.contains(told), "{error}");
}

/// Hits on every front are denied at once.
#[test]
fn every_front_uses_the_block() {
    let rules = RulesFile::ini(RULES);
    let flags = ["--store", "memory", "--check-operation", "api=query:api user=query:user"];
    let server = Server::start(&[&[rules.path()], &flags[..]].concat());
    assert_eq!(resp(&server, "DIVVY.BLOCK SET by-user ann EX 60"), "OK");
    assert_eq!(LineClient::connect(server.line).hit("api=a user=ann"), (false, 0, 60));
    let check = http::get(server.http, "/v1/check?api=a&user=ann");
    assert_eq!((check.status, check.header("retry-after")), (429, Some("60")), "{}", check.body);
    let both = HttpClient::connect(server.http).post(
        "/v1/hits",
        r#"{"hits":[{"operation":{"api":"a","user":"ann"}},{"operation":{"api":"a","user":"bob"}}],"atomic":true}"#,
    );
    assert_eq!(both.json()["allowed"], false, "{}", both.body);
    let free = HttpClient::connect(server.http).post("/v1/peek", r#"{"operation":{"api":"a","user":"bob"}}"#);
    assert_eq!(free.json()["remaining"], 5, "the group took nothing");
    let reserved = resp(&server, "DIVVY.RESERVE api=a user=ann AMOUNT 2 TTL 30");
    assert!(reserved.starts_with("[0 "), "{reserved}");
}

/// A block or a limit of an actor that no hit has would be listed, and never apply.
#[test]
fn exception_that_can_never_apply_is_an_error_on_every_front() {
    let rules = RulesFile::ini(
        "[path=/login ip=*]\ncreditLimit = 5\nper = 1m\nactorField = ip\nlabel = login\n
        [user=premium-* city=*]\ncreditLimit = 5\nper = 1m\nactorField = user\nlabel = premium\n
        [ip=* net=*]\nnetworks = ip: 10.0.0.0/8\ncreditLimit = 5\nper = 1m\nactorField = ip\nlabel = office\n
        [user=premium-* tenant=*]\ncreditLimit = 5\nper = 1m\nactorField = user, tenant\nlabel = both\n
        [masked_remote_address=*]\ncreditLimit = 5\nper = 1m\nactorField = masked_remote_address\nlabel = masked\n
        [default]\ncreditLimit = 0\n",
    );
    let server = Server::in_memory(rules.path());
    let (mut client, mut resp) = (HttpClient::connect(server.http), RespClient::connect(server.resp));
    for (rule, actor, told) in [
        ("login", "203.0.113.0/24", "name all rules: '*' ip=203.0.113.0/24"),
        ("login", "203.0.113.7/24", "name all rules: '*' ip=203.0.113.0/24"),
        ("login", "2001:db8::/32", "name all rules: '*' ip=2001:db8::/32"),
        ("login", "ip=203.0.113.7", "write the actor as '203.0.113.7', without 'ip='"),
        ("premium", "ann", "only counts requests whose user matches premium-*, which 'ann' does not"),
        ("premium", "user=premium-1", "write the actor as 'premium-1', without 'user='"),
        ("office", "192.0.2.1", "only counts requests whose ip matches ip: 10.0.0.0/8, which '192.0.2.1' does not"),
        ("both", "user=ann tenant=t", "only counts requests whose user matches premium-*, which 'ann' does not"),
    ] {
        let target = format!("rule={rule}&actor={}", actor.replace('/', "%2F").replace('=', "%3D").replace(' ', "%20"));
        for (path, body) in [("blocks", "{}"), ("allows", "{}"), ("limits", "{\"credits\":9}")] {
            let refused = client.put(&format!("/v1/{path}?{target}"), body);
            assert!(refused.status == 400 && refused.body.contains(told), "{path} {rule} {actor}: {}", refused.body);
        }
        // The command line sends the same commands over RESP.
        for (list, credits) in [(&b"DIVVY.BLOCK"[..], None), (b"DIVVY.ALLOW", None), (b"DIVVY.LIMIT", Some(&b"9"[..]))]
        {
            let words = [list, b"SET", rule.as_bytes(), actor.as_bytes()].into_iter().chain(credits);
            let refused = resp.command_of(&words.collect::<Vec<_>>());
            assert!(refused.starts_with("-ERR") && refused.contains(told), "{rule} {actor}: {refused}");
        }
    }
    for (rule, actor) in
        [("login", "203.0.113.7"), ("office", "10.1.2.3"), ("masked", "10.1.2.0/24"), ("premium", "premium-7")]
    {
        assert_eq!(resp.command(&format!("DIVVY.BLOCK SET {rule} {actor} EX 60")), "OK", "{rule} {actor}");
        assert_eq!(resp.command(&format!("DIVVY.LIMIT SET {rule} {actor} 9 EX 60")), "OK", "{rule} {actor}");
    }
    for value in ["203.0.113.7x", "203.0.113.300", "2001:db8:::1", "203.0.113.7,"] {
        let refused = resp.command(&format!("DIVVY.BLOCK SET * ip={value}"));
        assert!(refused.contains("is not a network in its usual form"), "{value}: {refused}");
    }
}
