//! Commands that carry their own limits, `RL.*` and `CL.THROTTLE`, over real sockets: recorded replies, errors,
//! extremes, and connections shared with other commands.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Instant;

use proptest::prelude::*;
use serde_json::Value;

use crate::buckets::{requests, throttles};
use crate::support::redis::RedisServer;
use crate::support::{COMPAT_RULES, RespClient, Server, encode};

const RECORDED: &str = include_str!("compat/token-bucket.jsonl");

/// Starts a server without rules, which these commands do not need.
fn in_memory() -> Server {
    Server::start(&["--store", "memory"])
}

fn on_disk(dir: &Path) -> Server {
    Server::start(&["--store", "rocksdb", "--data-dir", dir.to_str().unwrap()])
}

fn on_every_store(check: impl Fn(&Server)) {
    check(&in_memory());
    let dir = tempfile::tempdir().unwrap();
    check(&on_disk(dir.path()));
    let redis = RedisServer::start();
    check(&Server::start(&["--store", "redis", "--redis-url", &redis.url()]));
}

/// Returns how a client shows the reply of a recorded row.
fn shown(reply: &Value) -> String {
    reply.to_string().replace(',', " ")
}

#[test]
fn replies_match_the_recorded_ones() {
    let rows: Vec<Value> = RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 34);
    on_every_store(|server| {
        let mut client = RespClient::connect(server.resp);
        for row in &rows {
            let line = row["send"].as_str().unwrap();
            assert_eq!(client.command(line), shown(&row["reply"]), "{line}");
        }
    });
}

#[test]
fn pipelined_replies_match_the_recorded_ones() {
    let rows: Vec<Value> = RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    on_every_store(|server| {
        let mut client = RespClient::connect(server.resp);
        let lines: String = rows.iter().map(|row| format!("{}\r\n", row["send"].as_str().unwrap())).collect();
        client.send(lines.as_bytes());
        for row in &rows {
            assert_eq!(client.read_reply(), shown(&row["reply"]), "{}", row["send"]);
        }
    });
}

#[test]
fn buckets_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = on_disk(dir.path());
    let mut client = RespClient::connect(server.resp);
    assert_eq!(client.command("RL.REDUCE k 5 3600 TAKE 2"), "5");
    assert_eq!(client.command("RL.SESSIONIZE visit 1 3600 AT 1456790400"), "[1 1456790400000]");
    assert_eq!(client.command("CL.THROTTLE k 4 1 3600 2"), "[0 5 3 -1 7200]");
    server.kill();
    let server = on_disk(dir.path());
    let mut client = RespClient::connect(server.resp);
    assert_eq!(client.command("RL.GET k 5 3600"), "3");
    assert_eq!(client.command("RL.SESSIONIZE visit 1 3600 AT 1456790460"), "[0 1456790400000]");
    assert!(client.command("CL.THROTTLE k 4 1 3600 0").starts_with("[0 5 3 -1 "));
}

#[test]
fn session_can_begin_in_a_bucket_that_was_only_reduced() {
    let server = in_memory();
    let mut client = RespClient::connect(server.resp);
    assert_eq!(client.command("RL.REDUCE k 2 60 AT 100"), "2");
    assert_eq!(client.command("RL.SESSIONIZE k 2 60 AT 110"), "[1 110000]");
    assert_eq!(client.command("RL.SESSIONIZE k 2 60 AT 120"), "[0 110000]");
}

#[test]
fn parameters_are_part_of_the_bucket() {
    let server = in_memory();
    let mut client = RespClient::connect(server.resp);
    for command in ["RL.REDUCE k 5 60", "RL.REDUCE k 5 61", "RL.REDUCE k 5 60 REFILL 2", "RL.REDUCE k2 5 60"] {
        assert_eq!(client.command(&format!("{command} AT 9")), "5", "{command}");
    }
    assert_eq!(client.command("RL.PGET k 5 60000 AT 9000"), "4", "the unit is not");
}

#[test]
fn keys_are_any_bytes() {
    let server = in_memory();
    let mut client = RespClient::connect(server.resp);
    let keys: [&[u8]; 5] = [b"", b"\0", b"\xff\xfe\r\n", b"a b", b"a"];
    for key in keys {
        assert_eq!(client.command_of(&[b"RL.REDUCE", key, b"5", b"60"]), "5", "{key:?}");
        assert_eq!(client.command_of(&[b"CL.THROTTLE", key, b"0", b"1", b"60"]), "[0 1 0 -1 60]", "{key:?}");
    }
    for key in keys {
        assert_eq!(client.command_of(&[b"RL.GET", key, b"5", b"60"]), "4", "{key:?}");
    }
}

#[test]
fn bucket_commands_share_a_pipeline_with_hits() {
    let server = Server::in_memory(COMPAT_RULES);
    let mut client = RespClient::connect(server.resp);
    let hit: &[&[u8]] = &[b"DIVVY.HIT", b"method=GET", b"path=/status"];
    let pipeline = [
        encode(hit),
        encode(&[b"RL.REDUCE", b"k", b"3", b"60", b"AT", b"100"]),
        encode(&[b"CL.THROTTLE", b"k", b"1", b"1", b"60"]),
        encode(&[b"RL.REDUCE", b"k", b"3", b"60", b"AT", b"soon"]),
        encode(hit),
        encode(&[b"RL.SESSIONIZE", b"k", b"3", b"60", b"AT", b"101"]),
        encode(&[b"DIVVY.RESET", b"method=GET", b"path=/status"]),
        encode(&[b"PING"]),
        encode(&[b"RL.GET", b"k", b"3", b"60", b"AT", b"101"]),
    ];
    client.send(&pipeline.concat());
    for expected in [
        "[1 999 60]",
        "3",
        "[0 2 1 -1 60]",
        "-ERR value is not an integer or out of range",
        "[1 998 60]",
        "[2 101000]",
        "1",
        "PONG",
        "1",
    ] {
        assert_eq!(client.read_reply(), expected);
    }
}

#[test]
fn errors_leave_the_connection_and_the_bucket_unchanged() {
    let server = in_memory();
    let mut client = RespClient::connect(server.resp);
    for (command, error) in [
        ("RL.REDUCE k 5", "-ERR wrong number of arguments for 'rl.reduce' command"),
        ("RL.GET k 5 60 TAKE 1", "-ERR syntax error"),
        ("RL.REDUCE k 5 60 STRICT strict", "-ERR syntax error"),
        ("RL.REDUCE k 0 60", "-ERR value is not an integer or out of range"),
        ("RL.REDUCE k 5 60 TAKE -1", "-ERR value is not an integer or out of range"),
        ("CL.THROTTLE k 5 1", "-ERR wrong number of arguments for 'cl.throttle' command"),
        ("CL.THROTTLE k -1 1 60", "-ERR value is not an integer or out of range"),
        ("RL.GET k 5 60", "5"),
    ] {
        assert_eq!(client.command(command), error, "{command}");
    }
    assert_eq!(client.command("DBSIZE"), "0");
}

#[test]
fn command_info_has_the_positions_of_keys() {
    let server = in_memory();
    let mut client = RespClient::connect(server.resp);
    for (name, arity, flags) in [
        ("rl.reduce", -4, "write denyoom fast"),
        ("rl.pget", -4, "readonly fast"),
        ("rl.sessionize", -4, "write denyoom fast"),
        ("cl.throttle", -5, "write denyoom fast"),
    ] {
        let described = client.command(&format!("COMMAND INFO {name}"));
        assert!(described.starts_with(&format!("[[{name} {arity} [{flags}] 1 1 1 ")), "{described}");
    }
}

#[test]
fn extremes_are_answered() {
    on_every_store(|server| {
        let mut client = RespClient::connect(server.resp);
        for (command, reply) in [
            ("RL.REDUCE a MAX MAX", "9223372036854775807"),
            ("RL.GET a MAX MAX", "9223372036854775806"),
            ("RL.REDUCE b MAX 1 TAKE MAX AT 0", "9223372036854775807"),
            ("RL.GET b MAX 1 AT 0", "0"),
            ("RL.GET b MAX 1 AT 18446744073", "9223372036854775807"),
            ("RL.REDUCE c MAX 1 REFILL 1 TAKE MAX AT 0", "9223372036854775807"),
            ("RL.GET c MAX 1 REFILL 1 AT 18446744073", "18446744073"),
            ("RL.PSESSIONIZE d 1 MAX TAKE MAX AT 18446744073709", "[1 18446744073709]"),
            ("RL.PSESSIONIZE d 1 MAX AT 0", "[0 18446744073709]"),
            ("CL.THROTTLE e MAX MAX MAX MAX", "[0 9223372036854775807 1 -1 18446744074]"),
            ("CL.THROTTLE f 0 1 MAX", "[0 1 0 -1 18446744074]"),
            ("CL.THROTTLE f 0 1 MAX", "[1 1 0 18446744074 18446744074]"),
            ("CL.THROTTLE g 0 1 1 MAX", "[1 1 1 -1 0]"),
            ("CL.THROTTLE h MAX 1 1 0", "[0 9223372036854775807 9223372036854775807 -1 0]"),
        ] {
            assert_eq!(client.command(&command.replace("MAX", "9223372036854775807")), reply, "{command}");
        }
    });
}

fn replies_agree_with_the_reference(server: &Server) {
    let client = RefCell::new(RespClient::connect(server.resp));
    let case = Cell::new(0);
    proptest!(ProptestConfig::with_cases(100), |(requests in requests())| {
        case.set(case.get() + 1);
        let mut client = client.borrow_mut();
        let expected = requests.expected();
        let commands = requests.commands(case.get());
        client.send(commands.join("\r\n").as_bytes());
        client.send(b"\r\n");
        for (command, expected) in commands.iter().zip(expected) {
            prop_assert_eq!(client.read_reply(), expected, "{}", command);
        }
    });
    // Credits take at least ten minutes to come back, so the time that passes only changes the waits.
    proptest!(ProptestConfig::with_cases(100), |(throttles in throttles(6_000..1_000_000))| {
        case.set(case.get() + 1);
        let mut client = client.borrow_mut();
        let begun = Instant::now();
        for (command, expected) in throttles.commands(case.get()).iter().zip(throttles.expected_at_once()) {
            let reply = client.command(command);
            let numbers: Vec<i128> =
                reply.trim_matches(['[', ']']).split(' ').map(|number| number.parse().unwrap()).collect();
            let passed = i128::from(begun.elapsed().as_secs()) + 1;
            prop_assert_eq!(&numbers[..3], &expected[..3], "{}", command);
            for (seconds, expected) in numbers[3..].iter().zip(&expected[3..]) {
                prop_assert!((expected - passed..=*expected).contains(seconds), "{command}: {reply}, {expected}");
            }
        }
    });
}

#[test]
fn replies_from_memory_agree_with_the_reference() {
    replies_agree_with_the_reference(&in_memory());
}

#[test]
fn replies_from_disk_agree_with_the_reference() {
    let dir = tempfile::tempdir().unwrap();
    replies_agree_with_the_reference(&on_disk(dir.path()));
}
