//! Servers of different versions on one Redis, as during a rolling upgrade: what the last version wrote is counted on,
//! what this one writes is what the last one reads, and what a later one wrote is refused and left alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::formats::{FORMATS, Record};
use crate::support::redis::RedisServer;
use crate::support::{RespClient, Server, http};

const CENTURY: u64 = 3_153_600_000;
const THIRTY_YEARS: u64 = 946_080_000;
/// What the last version recorded was asked by as many users.
const USERS: u64 = 20;

fn format() -> PathBuf {
    Path::new(FORMATS).join("1")
}

/// A server without a memory of denials: all that it says is what Redis holds.
fn serve(redis: &RedisServer) -> Server {
    let rules = format().join("rules.ini");
    Server::start(&[rules.to_str().unwrap(), "--redis-url", &redis.url(), "--denial-cache", "0"])
}

/// What the last version wrote, as the commands that write it.
fn recorded() -> String {
    fs::read_to_string(format().join("redis.commands")).unwrap()
}

fn restored() -> RedisServer {
    let redis = RedisServer::start();
    let replies = redis.pipe(&recorded());
    assert!(replies.lines().all(|reply| reply == "OK") && !replies.is_empty(), "{replies}");
    redis
}

/// The hits of `make`, in its order.
fn hits() -> Vec<String> {
    let mut hits = Vec::new();
    for user in 1..=USERS {
        let cost = user % 7 + 1;
        for algorithm in ["fixed", "sliding", "log", "token", "leaky"] {
            hits.push(format!("DIVVY.HIT api={algorithm} user=u{user} COST {cost}"));
        }
        hits.push(format!("RL.REDUCE mail:{user} 100 {CENTURY} TAKE {cost}"));
        hits.push(format!("RL.SESSIONIZE visit:{user} 100 {CENTURY} TAKE {cost}"));
        hits.push(format!("RL.REDUCE replay:{user} 100 {CENTURY} TAKE {cost} AT 1456790400"));
        hits.push(format!("CL.THROTTLE login:{user} 99 1 {THIRTY_YEARS} {cost}"));
        hits.push(format!("DIVVY.HIT api=shared user=u{user}"));
    }
    hits
}

/// Every key of Redis but the one for reservation ids, and what it holds, both as redis-cli quotes them.
fn held(redis: &RedisServer) -> BTreeMap<String, String> {
    let keys = redis.quoted("KEYS divvy*\n");
    let keys = keys.lines().filter_map(|line| line.split_once(") ")).map(|(_, key)| key.to_owned());
    let keys: Vec<_> = keys.filter(|key| key != "\"divvy.seal\"").collect();
    let asked: String = keys.iter().map(|key| format!("GET {key}\n")).collect();
    let values = redis.quoted(&asked);
    assert_eq!(keys.len(), values.lines().count());
    keys.into_iter().zip(values.lines().map(str::to_owned)).collect()
}

/// A value without the times in it, of which only the number of digits is left.
fn shape(value: &str) -> String {
    let words = value.trim_matches('"').split(' ');
    words
        .map(|word| if word.len() < 18 { word.to_owned() } else { format!("{} digits", word.len()) })
        .collect::<Vec<_>>()
        .join(" ")
}

fn reply(server: &Server, command: &str) -> String {
    RespClient::connect(server.resp).command(command)
}

#[test]
fn what_the_last_version_wrote_is_counted_on() {
    let redis = restored();
    let server = serve(&redis);
    Record::read(&format(), "redis").check(&server);
    for algorithm in ["fixed", "sliding", "log", "token", "leaky"] {
        let left = |command: &str| {
            let reply = reply(&server, &format!("{command} api={algorithm} user=u3"));
            reply.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or_else(|| panic!("{reply}"))
        };
        let before = left("DIVVY.PEEK");
        assert_eq!(left("DIVVY.HIT"), before - 1, "{algorithm}");
    }
}

#[test]
fn what_this_version_writes_is_what_the_last_one_wrote() {
    let (redis, before) = (RedisServer::start(), restored());
    let server = serve(&redis);
    for hit in hits() {
        let reply = reply(&server, &hit);
        assert!(!reply.starts_with('-'), "{hit}: {reply}");
    }
    let (written, before) = (held(&redis), held(&before));
    assert!(written.keys().eq(before.keys()), "{written:?}");
    for (key, value) in &written {
        assert_eq!(shape(value), shape(&before[key]), "{key}: {value}");
    }
}

#[test]
fn what_a_later_version_wrote_is_refused_and_left_alone() {
    let redis = restored();
    let server = serve(&redis);
    // Of any layout: one of them is as long as a log of two credits.
    for state in ["2026 5 7 v2", " v3", "123456789012345678901234567890123456 v97"] {
        let (_, version) = state.rsplit_once('v').unwrap();
        let later: Vec<_> = held(&redis).into_keys().filter(|key| key.starts_with("\"divvy.")).collect();
        redis.pipe(&later.iter().map(|key| format!("SET {key} \"{state}\"\n")).collect::<String>());
        let refused = [
            "DIVVY.HIT api=sliding user=u1",
            "DIVVY.HIT api=log user=u1",
            "DIVVY.HIT api=token user=u1",
            "DIVVY.PEEK api=leaky user=u1",
            &format!("RL.REDUCE mail:1 100 {CENTURY}"),
            &format!("RL.SESSIONIZE visit:1 100 {CENTURY}"),
            &format!("CL.THROTTLE login:1 99 1 {THIRTY_YEARS}"),
        ];
        for command in refused {
            let reply = reply(&server, command);
            let says_so = reply.contains(&format!("in version {version};")) && reply.contains("upgrade this server");
            assert!(reply.starts_with('-') && says_so, "{command}: {reply}");
        }
        for (key, value) in held(&redis).iter().filter(|(key, _)| later.contains(key)) {
            assert_eq!(*value, format!("\"{state}\""), "{key}");
        }
    }
    let metrics = http::get(server.http, "/metrics").body;
    assert!(metrics.contains("divvy_redis_failures_total 21\n"), "{metrics}");
    assert!(metrics.contains("divvy_redis_outage 0\n"), "{metrics}");
    // A rule's window is the original's own and has no versions, and what is reset on purpose is gone.
    assert!(reply(&server, "DIVVY.HIT api=fixed user=u1").starts_with("[1 997 "));
    assert_eq!(reply(&server, "DIVVY.RESET api=log user=u1"), "1");
    assert!(reply(&server, "DIVVY.HIT api=log user=u1").starts_with("[1 19 "));
}

/// Builds of this version that knew of no clock of a bucket's own wrote, and read, what is reserved without its last word.
#[test]
fn what_an_earlier_build_has_reserved_is_known() {
    let redis = RedisServer::start();
    let server = serve(&redis);
    let id = |name: &str| {
        let reply = reply(&server, &format!("DIVVY.RESERVE api=token user=u1 AMOUNT 5 TTL 60 ID {name}"));
        assert!(reply.starts_with("[1 "), "{reply}");
        reply.trim_end_matches(']').rsplit_once(' ').unwrap().1.to_owned()
    };
    let (one, other) = (id("one"), id("other"));
    let left = reply(&server, "DIVVY.PEEK api=token user=u1");
    let (key, value) = held(&redis).into_iter().find(|(key, _)| key.starts_with("\"divvy.reserved:")).unwrap();
    let (groups, last) = value.trim_matches('"').rsplit_once(' ').unwrap();
    assert!(last.starts_with(':') && last.ends_with(":0"), "{value}");
    // Whatever has other characters was refused.
    assert!(value.trim_matches('"').bytes().all(|byte| byte.is_ascii_digit() || b": ".contains(&byte)), "{value}");
    redis.pipe(&format!("SET {key} \"{groups}\" KEEPTTL\n"));
    assert_eq!(reply(&server, "DIVVY.PEEK api=token user=u1"), left);
    for id in [one, other] {
        assert_eq!(reply(&server, &format!("DIVVY.RELEASE {id}")), "1");
    }
    assert!(!held(&redis).keys().any(|key| key.starts_with("\"divvy.reserved:")));
}
