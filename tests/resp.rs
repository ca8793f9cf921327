//! The RESP front: arguments of any bytes, answers that differ from run to run, and bounds of transactions. The other commands
//! are in tests/wire/.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::robustness::MIB;
use crate::support::{COMPAT_RULES, RespClient, Server, encode, number, until};

const HIT: &str = "DIVVY.HIT method=GET path=/status";
const ABORTED: &str = "-EXECABORT Transaction discarded because of previous errors.";

fn served() -> (Server, RespClient) {
    let server = Server::in_memory(COMPAT_RULES);
    let client = server.resp();
    (server, client)
}

/// Returns the commands inline.
fn pipeline(commands: &[&str]) -> String {
    commands.iter().map(|command| format!("{command}\r\n")).collect()
}

/// Sends the commands one by one. Each must get the reply given with it.
fn talk(client: &mut RespClient, lines: &[(&str, &str)]) {
    for (command, reply) in lines {
        assert_eq!(client.command(command), *reply, "{command}");
    }
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
fn answers_that_differ_from_run_to_run_have_their_parts() {
    let (_server, mut client) = served();
    assert!(client.command("COMMAND COUNT").parse::<u32>().unwrap() > 10);
    for (command, part) in
        [("HELLO 3", "proto 3"), ("CLIENT INFO", "id="), ("INFO", "redis_version:"), ("TIME", "["), ("QUIT", "OK")]
    {
        assert!(client.command(command).contains(part), "{command}");
    }
    assert_eq!(client.read_reply(), "", "closed after QUIT");
}

#[test]
fn request_with_too_many_pairs_aborts_the_transaction() {
    let (_server, mut client) = served();
    let many: String = (0..300).map(|number| format!(" k{number}=v")).collect();
    for command in ["DIVVY.HIT", "DIVVY.RESET"] {
        talk(
            &mut client,
            &[("MULTI", "OK"), (&format!("{command}{many}"), "-ERR more than 256 pairs"), ("EXEC", ABORTED)],
        );
    }
}

#[test]
fn client_that_leaves_before_exec_leaves_no_trace() {
    let (server, mut client) = served();
    for _ in 0..20 {
        let mut leaving = server.resp();
        talk(&mut leaving, &[("MULTI", "OK"), (HIT, "QUEUED")]);
    }
    assert_eq!(client.command("DIVVY.PEEK method=GET path=/status"), "[1 1000 0]");
    // No memory is held for transactions that are gone.
    until(|| number(&server, "divvy_buffer_memory_bytes") == 0);
}

#[test]
fn queued_commands_are_bounded_by_the_memory_for_buffers() {
    const BOUND: u64 = 4 * MIB;
    let flags = ["--max-buffer-memory", &BOUND.to_string()];
    let server = Server::start(&[&[COMPAT_RULES, "--store", "memory"], &flags[..]].concat());
    let before = server.peak_resident();
    let mut client = server.resp();
    assert_eq!(client.command("MULTI"), "OK");
    let hit = encode(&[b"DIVVY.HIT", b"method=GET", b"path=/status"]);
    let mut queued = 0;
    let refused = loop {
        client.send(&hit.repeat(1000));
        let replies: Vec<_> = (0..1000).map(|_| client.read_reply()).collect();
        let accepted = replies.iter().take_while(|reply| *reply == "QUEUED").count();
        queued += accepted;
        if let Some(refused) = replies.get(accepted) {
            break refused.clone();
        }
        assert!(queued < 100_000, "there is no bound");
    };
    assert!(refused.starts_with("-ERR the server has no memory left to queue this"), "{refused}");
    assert!(queued > 1000, "{queued}");
    assert_eq!(client.command("EXEC"), ABORTED);
    assert_eq!(client.command(HIT), "[1 999 60]", "no credit was taken");
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < BOUND + 32 * MIB, "{grown} bytes");
}

#[test]
fn unwanted_replies_are_not_sent() {
    let (_server, mut client) = served();
    client.send(pipeline(&["CLIENT REPLY SKIP", HIT, HIT, "CLIENT REPLY SKIP", "NONSENSE", "PING"]).as_bytes());
    let muted = [HIT, "PING", "NONSENSE", "INFO", "CLIENT REPLY SKIP", "MULTI", HIT, "EXEC", "CLIENT REPLY ON"];
    client.send(
        pipeline(&[&["CLIENT REPLY OFF"], &muted[..], &[HIT, "CLIENT REPLY OFF", "RESET", "PING"]].concat()).as_bytes(),
    );
    for expected in ["[1 998 60]", "PONG", "OK", "[1 995 60]", "RESET", "PONG"] {
        assert_eq!(client.read_reply(), expected);
    }
    client.send(&[encode(&[b"CLIENT", b"REPLY", b"OFF"]), b"*1\r\n:1\r\n".to_vec()].concat());
    assert_eq!(client.read_reply(), "", "not even the final error is sent");
}

/// Counts the PINGs that another connection of the same thread is answered while a transaction of these commands, whose
/// replies are muted, is executed.
fn pings_during(command: &[&[u8]], count: usize) -> usize {
    let rules: String = (0..300).map(|number| format!("[a={number}]\ncreditLimit = 1\nper = 1m\n")).collect();
    let server = Server::serving(
        &format!("{rules}[default]\ncreditLimit = 1\nper = 1m\nactorField = actor\n"),
        &["--threads", "1"],
    );
    let (mut client, mut other) = (server.resp(), server.resp());
    client.send(&[&b"CLIENT REPLY OFF\r\nMULTI\r\n"[..], &encode(command).repeat(count)].concat());
    while !other.command("CLIENT LIST").contains(&format!("multi={count} ")) {}
    client.send(b"EXEC\r\nCLIENT REPLY ON\r\n");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(client.read_reply(), "OK");
            is_over.store(true, Relaxed);
        });
        (0..).take_while(|_| !is_over.load(Relaxed)).map(|_| assert_eq!(other.command("PING"), "PONG")).count()
    })
}

/// Muted replies took no room in the output, so nothing made the transaction yield.
#[test]
fn other_connections_have_turns_during_a_transaction_of_muted_commands() {
    let (listed, explained) = (pings_during(&[b"DIVVY.RULES"], 500), pings_during(&[b"DIVVY.EXPLAIN", b"a=300"], 500));
    assert!(listed > 20 && explained > 20, "{listed} and {explained} turns");
}

#[test]
fn other_connections_have_turns_during_a_transaction_of_large_requests() {
    let actor = format!("actor={}", "x".repeat(60_000));
    let turns = pings_during(&[b"DIVVY.HIT", actor.as_bytes()], 1000);
    assert!(turns > 7, "{turns} turns");
}
