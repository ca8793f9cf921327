//! Blocks that rules set, each longer than the one before: through crashes, backups and reloads, and on servers that share a
//! Redis. The servers' clocks start when the block before has ended.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::calendar::divvy_at_unix_time;
use crate::support::{
    Log, Place, RedisCluster, RedisServer, RulesFile, Server, expanded, http, metrics, on_redis, until, words,
};

const MINUTE: u64 = 60;
const RULES: &str = "
[path=/login user=*] creditLimit=1 resetSeconds=2592000 algorithm=token-bucket actorField=user blockAfter=3 blockSeconds=15m blockMax=1h label=login
[default] creditLimit=0
";

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn hit(server: &Server) -> String {
    server.resp().command("DIVVY.HIT path=/login user=eve")
}

/// Returns the seconds until the block ends, and its reason.
fn block(server: &Server) -> Option<(u64, String)> {
    let found = http::get(server.http, "/v1/blocks?rule=login&actor=eve");
    let block = (found.status == 200).then(|| found.json())?;
    Some((block["expiresIn"].as_u64().unwrap(), block["reason"].as_str().unwrap().to_owned()))
}

/// Sends three hits, which are denied, and checks that they lead to the block with this number. It may be a tenth shorter than
/// its full length in minutes, and a few seconds of it may have passed.
fn is_blocked(servers: [&Server; 2], number: u32, minutes: u64) {
    let [one, other] = servers;
    assert_eq!(block(one), None, "the block before has ended");
    for server in [one, other, one] {
        assert!(hit(server).starts_with("[0 "));
    }
    let length: RangeInclusive<u64> = minutes * MINUTE * 9 / 10 - 30..=minutes * MINUTE;
    for server in servers {
        until(|| block(server).is_some());
        let (seconds, reason) = block(server).unwrap();
        assert!(length.contains(&seconds), "block {number}: {seconds} s, expected {length:?}");
        assert_eq!(reason, format!("3 denials in 60 s, block {number}"));
        let denied = hit(server);
        let wait: u64 = words(&denied)[2].parse().unwrap();
        assert!(denied.starts_with("[0 0 ") && length.contains(&wait), "{denied}");
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn blocks_grow_through_sigkill_backup_restore_and_reload() {
    let place = Place::new(RULES);
    let serve_at = |time: u64| {
        let mut command = divvy_at_unix_time(time);
        let log = Log::of(&mut command);
        (place.on_disk_as(&mut command, &["--reload-interval", "0"]), log)
    };
    let start = now();
    let (server, _) = serve_at(start);
    assert!(hit(&server).starts_with("[1 "));
    is_blocked([&server; 2], 1, 15);
    server.kill();

    let (server, log) = serve_at(start + MINUTE);
    assert!(block(&server).is_some(), "still blocked");
    place.write("rules.ini", &(expanded(RULES) + "comment = nobody else\n"));
    server.signal("-HUP");
    log.await_count(1, "the new rules are in force");
    assert!(block(&server).is_some(), "after a reload, too");
    server.kill();

    let (server, _) = serve_at(start + 16 * MINUTE);
    is_blocked([&server; 2], 2, 30);
    assert!(server.resp().command("DIVVY.BACKUP second").contains("second"));
    server.kill();
    place.restore("second");

    let (server, _) = serve_at(start + 20 * MINUTE);
    assert!(block(&server).is_some(), "restored with its end");
    server.kill();
    let (server, _) = serve_at(start + 50 * MINUTE);
    is_blocked([&server; 2], 3, 60);
    server.kill();
    let (server, _) = serve_at(start + 2 * 24 * 60 * MINUTE + 60 * MINUTE);
    is_blocked([&server; 2], 1, 15);
}

/// Moves the ends of all blocks in Redis to this many minutes earlier, as if Redis's clock had gone on. Redis's clock decides
/// when a block ends, and servers read that when they start.
const AGE: &str = "for _, of in ipairs(redis.call('HKEYS', KEYS[1])) do \
    local text, ends = redis.call('HGET', KEYS[1], of):match('^(.*) (%d+)$') \
    redis.call('HSET', KEYS[1], of, text .. ' ' .. string.format('%.0f', ends - ARGV[1] * 60000)) end";
const EXCEPTIONS: &str = "divvy.exceptions:{exceptions}";

#[test]
fn two_servers_on_one_redis_count_and_block_together() {
    let redis = RedisServer::start();
    blocks_grow(2, &redis.url(), |words| redis.cli(words));
}

#[test]
fn blocks_grow_in_a_cluster() {
    let cluster = RedisCluster::start();
    blocks_grow(1, &cluster.urls().join(","), |words| cluster.cli(words));
}

/// Checks three blocks, each by new servers. `cli` sends Redis a command.
fn blocks_grow(servers: usize, urls: &str, cli: impl Fn(&[&str]) -> String) {
    for (number, minutes) in (1..).zip([15, 30, 60]) {
        let servers: Vec<_> = (0..servers).map(|_| Server::serving(RULES, &on_redis(urls))).collect();
        if number == 1 {
            assert!(hit(&servers[0]).starts_with("[1 "));
        }
        is_blocked([&servers[0], servers.last().unwrap()], number, minutes);
        cli(&["EVAL", AGE, "1", EXCEPTIONS, &minutes.to_string()]);
    }
}

/// The denial cache answers most of a flood. Its denials are counted together, once a second, so that even more of them than the
/// window has seconds lead to a block.
#[test]
fn flood_of_hits_on_a_cached_denial_is_blocked() {
    let redis = RedisServer::start();
    let rules = RULES.replace("algorithm=token-bucket ", "").replace("blockAfter=3", "blockAfter=500");
    let rules = rules.replace("blockSeconds", "blockWindow=20 blockSeconds");
    let server = Server::serving(&rules, &on_redis(&redis.url()));
    let mut client = server.resp();
    let mut hits = 0;
    until(|| {
        hits += 100;
        (0..100).for_each(|_| drop(client.command("DIVVY.HIT path=/login user=eve")));
        block(&server).is_some()
    });
    let metrics = metrics::scrape(server.http);
    assert_eq!(metrics.value("divvy_rule_blocks_total", &[]), 1.0);
    assert!(hits > 100 && metrics.value("divvy_denial_cache_answers_total", &[]) > 50.0, "{hits} hits");
}

/// The end of a block is kept by Redis's clock, and each server reads it by its own.
#[test]
fn servers_with_different_clocks_agree_about_a_block() {
    let redis = RedisServer::start();
    let rules = RulesFile::ini(RULES);
    let url = redis.url();
    let serve_at = |time: u64| {
        let args = [&[rules.path()], &on_redis(&url)[..]].concat();
        Server::start_as(&mut divvy_at_unix_time(time), &args)
    };
    let (right, ahead) = (serve_at(now()), serve_at(now() + 60 * MINUTE));
    assert!(hit(&ahead).starts_with("[1 "));
    is_blocked([&right, &ahead], 1, 15);
    assert_eq!(ahead.resp().command("DIVVY.BLOCK SET login ann EX 900"), "OK");
    until(|| {
        http::get(right.http, "/v1/blocks?rule=login&actor=ann").json()["expiresIn"].as_u64().is_some_and(|s| s > 800)
    });
    drop(ahead);
    let behind = serve_at(now() - 60 * MINUTE);
    assert!((700..=900).contains(&block(&behind).unwrap().0));
}

/// Blocks of addresses by a rule are for firewalls, too, and operators can list and remove them.
#[test]
fn operators_see_and_remove_blocks_by_rules() {
    let server = Server::serving(&RULES.replace("user", "ip"), &[]);
    let mut client = server.resp();
    for _ in 0..4 {
        client.command("DIVVY.HIT path=/login ip=192.0.2.7");
    }
    until(|| client.command("DIVVY.BLOCK LIST").contains("192.0.2.7"));
    let listed = http::get(server.http, "/v1/blocks").json();
    assert_eq!(listed["blocks"][0]["reason"], "3 denials in 60 s, block 1", "{listed}");
    let denied = server.http().post("/v1/hit", r#"{"operation":{"path":"/login","ip":"192.0.2.7"}}"#);
    assert_eq!(denied.json()["blocked"], json!({"reason": "3 denials in 60 s, block 1"}));
    let of_addresses = || http::get(server.http, "/v1/blocks?field=ip").json()["blocks"].clone();
    assert_eq!(of_addresses()[0]["actor"], "192.0.2.7");
    assert_eq!(client.command("DIVVY.BLOCK DEL login 192.0.2.7"), "1");
    assert_eq!(of_addresses(), json!([]));
    assert_eq!(client.command("DIVVY.BLOCK DEL login 192.0.2.7"), "0");
}
