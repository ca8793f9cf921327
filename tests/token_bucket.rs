//! Commands that carry their own limits, `RL.*` and `CL.THROTTLE`, over real sockets: recorded replies, errors,
//! extremes, and connections shared with other commands.

use serde_json::Value;

use crate::support::{RedisServer, Server};

const RECORDED: &str = include_str!("compat/token-bucket.jsonl");

/// Runs the test on servers without rules, which these commands do not need.
fn on_every_store(check: impl Fn(&Server)) {
    let (dir, redis) = (tempfile::tempdir().unwrap(), RedisServer::start());
    let url = redis.url();
    for store in [&["--store", "memory"][..], &["--data-dir", dir.path().to_str().unwrap()], &["--redis-url", &url]] {
        check(&Server::start(store));
    }
}

#[test]
fn replies_match_the_recorded_ones() {
    let rows: Vec<Value> = RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 34);
    on_every_store(|server| {
        let mut client = server.resp();
        for row in &rows {
            let line = row["send"].as_str().unwrap();
            assert_eq!(client.command(line), row["reply"].to_string().replace(',', " "), "{line}");
        }
    });
}

#[test]
fn keys_are_any_bytes() {
    let server = Server::start(&["--store", "memory"]);
    let mut client = server.resp();
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
fn extremes_are_answered() {
    on_every_store(|server| {
        let mut client = server.resp();
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
