//! Servers of different versions on one Redis, as during a rolling upgrade: values of the last version remain valid,
//! values of this version are valid for the last one, and values of a later version are rejected and kept.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::formats::{FORMATS, Record};
use crate::support::{RedisServer, Server, http};

const CENTURY: u64 = 3_153_600_000;
const THIRTY_YEARS: u64 = 946_080_000;
/// Number of users in the recording of the last version.
const USERS: u64 = 20;

fn format() -> PathBuf {
    Path::new(FORMATS).join("2-0.2.0")
}

/// Starts a server without a denial cache, so that all its answers come from Redis.
fn serve(redis: &RedisServer) -> Server {
    let rules = format().join("rules.ini");
    Server::start(&[rules.to_str().unwrap(), "--redis-url", &redis.url(), "--denial-cache", "0"])
}

/// Returns the values that the last version wrote, as commands that write them.
fn recorded() -> String {
    fs::read_to_string(format().join("redis.commands")).unwrap()
}

fn restored() -> RedisServer {
    let redis = RedisServer::start();
    let replies = redis.pipe(&recorded());
    assert!(replies.lines().all(|reply| reply == "OK") && !replies.is_empty(), "{replies}");
    redis
}

/// Returns the hits of the script `make`, in its order.
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

/// Returns every key in Redis except the one for reservation ids, with its value, both quoted by redis-cli.
fn held(redis: &RedisServer) -> BTreeMap<String, String> {
    let keys = redis.quoted("KEYS divvy*\n");
    let keys = keys.lines().filter_map(|line| line.split_once(") ")).map(|(_, key)| key.to_owned());
    let keys: Vec<_> = keys.filter(|key| key != "\"divvy.seal\"").collect();
    let asked: String = keys.iter().map(|key| format!("GET {key}\n")).collect();
    let values = redis.quoted(&asked);
    assert_eq!(keys.len(), values.lines().count());
    keys.into_iter().zip(values.lines().map(str::to_owned)).collect()
}

/// Returns a value with each time replaced by its number of digits.
fn shape(value: &str) -> String {
    let words = value.trim_matches('"').split(' ');
    words
        .map(|word| if word.len() < 18 { word.to_owned() } else { format!("{} digits", word.len()) })
        .collect::<Vec<_>>()
        .join(" ")
}

fn reply(server: &Server, command: &str) -> String {
    server.resp().command(command)
}

#[test]
fn values_of_the_last_version_continue_to_count() {
    let redis = restored();
    let server = serve(&redis);
    Record::read(&format(), "redis").check(&server);
    for algorithm in ["fixed", "sliding", "log", "token", "leaky"] {
        let (mut client, pairs) = (server.resp(), format!("api={algorithm} user=u3"));
        let before = client.left(&pairs);
        assert_eq!(client.hit(&pairs).1, before - 1, "{algorithm}");
    }
}

#[test]
fn this_version_writes_the_values_of_the_last_one() {
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
fn values_of_a_later_version_are_rejected_and_kept() {
    let redis = restored();
    let server = serve(&redis);
    // The layout of these values does not matter. One of them is as long as a log of two credits.
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
    // A rule's window has Button's Divvy's format without a version, and a deliberate reset deletes it.
    assert!(reply(&server, "DIVVY.HIT api=fixed user=u1").starts_with("[1 997 "));
    assert_eq!(reply(&server, "DIVVY.RESET api=log user=u1"), "1");
    assert!(reply(&server, "DIVVY.HIT api=log user=u1").starts_with("[1 19 "));
}
