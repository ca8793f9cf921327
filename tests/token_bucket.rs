//! Commands that carry their own limits, `RL.*`, `CL.THROTTLE` and `INCREX`, over real sockets: recorded replies, errors,
//! extremes, and connections shared with other commands.

use serde_json::Value;

use crate::support::{RedisCluster, RedisServer, Server, until};

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

/// Requests and replies, which agree with the documentation and the tests of Valkey 9.2. `MAX` and `MIN` stand for the
/// largest and the smallest number. A time in the past shows whether a counter has an expiry: with ENX, only one without is ended.
const INCREMENTS: &[(&str, &str)] = &[
    ("INCREX a", "[1 1]"),
    ("INCREX a BYINT 5", "[6 5]"),
    ("INCREX a BYINT -10", "[-4 -10]"),
    ("INCREX a BYINT 0", "[-4 0]"),
    ("INCREX b BYINT 5 UBOUND 4", "[0 0]"),
    ("INCREX b UBOUND 0 SATURATE", "[0 0]"),
    ("INCREX b LBOUND 5", "[0 0]"),
    ("INCREX b LBOUND 5 SATURATE", "[5 5]"),
    ("INCREX c BYINT 10", "[10 10]"),
    ("INCREX c BYINT 5 UBOUND 15", "[15 5]"),
    ("INCREX c BYINT 5 UBOUND 18", "[15 0]"),
    ("INCREX c BYINT 5 UBOUND 18 SATURATE", "[18 3]"),
    ("INCREX c UBOUND 18 SATURATE", "[18 0]"),
    ("INCREX c BYINT -8 UBOUND 10", "[10 -8]"),
    ("INCREX c BYINT 5 UBOUND 5", "[10 0]"),
    ("INCREX c BYINT 5 UBOUND 5 SATURATE", "[5 -5]"),
    ("INCREX c BYINT -5 LBOUND 20 SATURATE", "[20 15]"),
    ("INCREX c BYINT 1 LBOUND 20 UBOUND 20", "[20 0]"),
    ("INCREX c BYINT MAX", "[20 0]"),
    ("INCREX c BYINT MAX UBOUND 100", "[20 0]"),
    ("INCREX c BYINT MAX UBOUND 100 SATURATE", "[100 80]"),
    ("INCREX c BYINT MAX SATURATE", "[MAX 9223372036854775707]"),
    ("INCREX c", "[MAX 0]"),
    ("INCREX c SATURATE", "[MAX 0]"),
    ("INCREX c BYINT -5 UBOUND MIN SATURATE", "-ERR applied increment would overflow"),
    ("INCREX c BYINT 0", "[MAX 0]"),
    ("INCREX c BYINT MIN", "[-1 MIN]"),
    ("INCREX c BYINT MIN SATURATE", "[MIN -9223372036854775807]"),
    ("INCREX c LBOUND 0 SATURATE", "-ERR applied increment would overflow"),
    ("INCREX c BYINT -1", "[MIN 0]"),
    // Without an expiry, a time in the past ends the counter.
    ("INCREX d EXAT 1", "[1 1]"),
    ("INCREX d", "[1 1]"),
    ("INCREX d PXAT 1 ENX", "[2 1]"),
    ("INCREX d EX 1000", "[1 1]"),
    ("INCREX d EXAT 1 ENX", "[2 1]"),
    ("INCREX d UBOUND 2 PERSIST", "[2 0]"),
    ("INCREX d EXAT 1 ENX", "[3 1]"),
    ("INCREX d PERSIST", "[4 1]"),
    ("INCREX d EXAT 1 ENX", "[5 1]"),
    ("INCREX d PX 1000000 ENX", "[1 1]"),
    ("INCREX d BYINT -1", "[0 -1]"),
    ("INCREX d EXAT 1 ENX", "[1 1]"),
    ("INCREX d UBOUND 1 EXAT 1", "[1 0]"),
    ("INCREX d UBOUND 1 SATURATE EXAT 1", "[1 0]"),
    ("INCREX d EXAT 9000000000", "[1 1]"),
    ("INCREX d EX 9223372036854775", "[2 1]"),
    ("INCREX d ENX", "-ERR ENX flag requires an expiration"),
    ("INCREX d BYFLOAT 1.5", "-ERR syntax error"),
    ("INCREX d", "[3 1]"),
];

fn of_64_bits(text: &str) -> String {
    text.replace("MAX", "9223372036854775807").replace("MIN", "-9223372036854775808")
}

fn assert_increments(server: &Server) {
    let mut client = server.resp();
    for (command, reply) in INCREMENTS {
        assert_eq!(client.command(&of_64_bits(command)), of_64_bits(reply), "{command}");
    }
    assert_eq!(client.command("INCREX short PX 1 ENX"), "[1 1]");
    until(|| client.command("INCREX short PX 1 ENX") == "[1 1]");
}

#[test]
fn counters_are_answered_as_by_valkey() {
    on_every_store(assert_increments);
    let cluster = RedisCluster::start();
    let urls = cluster.urls();
    let flags: Vec<_> = urls.iter().flat_map(|url| ["--redis-url", url]).collect();
    assert_increments(&Server::start(&flags));
}

#[test]
fn counters_are_exact_over_pipelines_and_transactions() {
    on_every_store(|server| {
        let mut client = server.resp();
        let commands: Vec<_> = INCREMENTS.iter().map(|(command, _)| of_64_bits(command)).collect();
        let replies: Vec<_> = INCREMENTS.iter().map(|(_, reply)| of_64_bits(reply)).collect();
        assert_eq!(client.pipeline(&commands), replies);
        assert_eq!(client.command("MULTI"), "OK");
        for command in &commands {
            assert_eq!(client.command(&command.replacen(' ', " queued-", 1)), "QUEUED", "{command}");
        }
        assert_eq!(client.command("EXEC"), format!("[{}]", replies.join(" ")));
    });
}

#[test]
fn counter_survives_a_stop_and_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let increments = ["INCREX a BYINT 5 EX 1000 ENX", "INCREX b BYINT -5"];
    for number in 1..=3 {
        let server = Server::start(&["--data-dir", dir.path().to_str().unwrap()]);
        let value = 5 * number;
        assert_eq!(server.resp().pipeline(increments), [format!("[{value} 5]"), format!("[-{value} -5]")]);
        if number == 2 {
            server.terminate();
        } else {
            server.kill();
        }
    }
}
