//! The RESP front: divvy's own commands, other commands that clients send, and the order of batches.

use crate::support::{COMPAT_RULES, RespClient, Server, encode};

fn served() -> (Server, RespClient) {
    let server = Server::in_memory(COMPAT_RULES);
    let client = server.resp();
    (server, client)
}

#[test]
fn hits_peeks_and_resets_are_answered() {
    let (_server, mut client) = served();
    let hit = "DIVVY.HIT method=GET path=/pantry/cookies/x ip=1";
    assert_eq!(client.command("DIVVY.PEEK method=GET path=/pantry/cookies/x ip=1"), "[1 3 0]");
    assert_eq!(client.command(hit), "[1 2 3600]");
    assert_eq!(client.command("divvy.hit method=GET path=/pantry/cookies/y ip=1"), "[1 1 3600]");
    assert_eq!(client.command("DIVVY.PEEK method=GET path=/pantry/cookies/x ip=1"), "[1 1 3600]");
    assert_eq!(client.command("DIVVY.RESET method=GET path=/pantry/cookies/x ip=1"), "1");
    assert_eq!(client.command("DIVVY.RESET method=GET path=/pantry/cookies/x ip=1"), "0");
    assert_eq!(client.command(hit), "[1 2 3600]");
    assert_eq!(client.command("DIVVY.HIT a=b"), "[0 0 0]");
    assert_eq!(client.command_of(&[b"DIVVY.HIT"]), "[0 0 0]", "the empty operation is the default rule's");
}

#[test]
fn hit_may_cost_more_or_nothing() {
    let (_server, mut client) = served();
    for (command, reply) in [
        ("DIVVY.HIT method=GET path=/status COST 10", "[1 990 60]"),
        ("DIVVY.PEEK method=GET path=/status cost 990", "[1 990 60]"),
        ("DIVVY.PEEK method=GET path=/status COST 991", "[0 990 60]"),
        ("DIVVY.HIT method=GET path=/status COST 991", "[0 990 60]"),
        ("DIVVY.HIT method=GET path=/status COST 0", "[1 990 60]"),
        ("DIVVY.HIT method=GET path=/status COST=5", "[1 989 60]"),
    ] {
        assert_eq!(client.command(command), reply, "{command}");
    }
    for words in ["a=b COST", "a=b COST 1 COST 2", "COST 1 a=b", "a=b COST -1", "a=b COST x"] {
        let reply = client.command(&format!("DIVVY.HIT {words}"));
        assert!(reply.starts_with("-ERR ") && reply.contains("COST"), "{words}: {reply}");
    }
    assert!(client.command("COMMAND DOCS divvy.hit").contains("COST n"));
}

#[test]
fn each_argument_is_one_pair() {
    let server = Server::serving(
        "[\"a b\"=*]\ncreditLimit=9\nresetSeconds=60\nactorField=a b\n[default]\ncreditLimit=0\nresetSeconds=0\n",
        &[],
    );
    let mut client = server.resp();
    assert_eq!(client.command_of(&[b"DIVVY.HIT", "a b=ü = \"quoted\"\r\n".as_bytes()]), "[1 8 60]");
    assert_eq!(client.command_of(&[b"DIVVY.HIT", b"a b"]), "-ERR expected key=value, got 'a b'");
    assert!(client.command_of(&[b"DIVVY.HIT", b"a=\xff"]).starts_with("-ERR"));
    assert_eq!(client.command("PING"), "PONG", "the connection goes on");
}

#[test]
fn mixed_pipeline_is_answered_in_order() {
    let (_server, mut client) = served();
    let hit: &[&[u8]] = &[b"DIVVY.HIT", b"method=GET", b"path=/status"];
    let mut pipeline = Vec::new();
    pipeline.extend(encode(hit));
    pipeline.extend(encode(&[b"PING"]));
    pipeline.extend(encode(hit));
    pipeline.extend(encode(&[b"NONSENSE", b"x"]));
    pipeline.extend_from_slice(b"DIVVY.HIT method=GET path=/status\r\n");
    pipeline.extend(encode(&[b"DIVVY.HIT", b"nopair"]));
    pipeline.extend(encode(hit));
    client.send(&pipeline);
    let replies: Vec<_> = (0..7).map(|_| client.read_reply()).collect();
    assert_eq!(
        replies,
        [
            "[1 999 60]",
            "PONG",
            "[1 998 60]",
            "-ERR unknown command 'NONSENSE', with args beginning with: 'x' ",
            "[1 997 60]",
            "-ERR expected key=value, got 'nopair'",
            "[1 996 60]",
        ]
    );
}

#[test]
fn other_client_commands_are_answered() {
    let (_server, mut client) = served();
    for (words, reply) in [
        ("PING hello", "hello"),
        ("ECHO hello", "hello"),
        ("SELECT 0", "OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("CLIENT GETNAME", "nil"),
        ("CLIENT SETNAME me", "OK"),
        ("CLIENT GETNAME", "me"),
        ("CLIENT SETINFO LIB-NAME test", "OK"),
        ("CLIENT NONSENSE", "-ERR unknown subcommand 'NONSENSE'. Try CLIENT HELP."),
        ("DIVVY.RULES extra", "-ERR wrong number of arguments for 'divvy.rules' command"),
        ("RESET", "RESET"),
        ("CLIENT GETNAME", "nil"),
        ("CONFIG GET appendonly", "[appendonly no]"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
    ] {
        assert_eq!(client.command(words), reply, "{words}");
    }
    assert!(client.command("AUTH secret").starts_with("-ERR AUTH <password> called without any password"));
    assert!(client.command("HELLO 3 AUTH default secret").starts_with("-ERR AUTH"));
    assert!(client.command("HELLO 3").contains("proto 3"));
    assert_eq!(client.command("GETRANGE"), "-ERR unknown command 'GETRANGE', with args beginning with: ");
    assert!(client.command("COMMAND COUNT").parse::<u32>().unwrap() > 10);
    assert!(client.command("COMMAND INFO divvy.hit").contains("divvy.hit"));
    assert!(client.command("CLIENT INFO").contains("id="));
    assert!(client.command("INFO").contains("redis_version:"));
    assert!(client.command("TIME").starts_with('['));
    assert_eq!(client.command("QUIT"), "OK");
    assert_eq!(client.read_reply(), "", "closed after QUIT");
}

#[test]
fn dbsize_counts_buckets() {
    let (_server, mut client) = served();
    assert_eq!(client.command("DBSIZE"), "0");
    for ip in 0..3 {
        client.command(&format!("DIVVY.HIT method=GET path=/pantry/cookies/x ip={ip}"));
    }
    assert_eq!(client.command("DBSIZE"), "3");
}
