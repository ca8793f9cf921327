//! Clients that invent actors fill neither the memory nor the disk, and other clients are served.

use std::path::Path;

use crate::support::{RespClient, RulesFile, Server, encode};

const MIB: u64 = 1 << 20;
const BOUND: usize = 50_000;
const RULES: &str = "
[api=long user=*] creditLimit=1000000 resetSeconds=36000 actorField=user label=long
[api=short user=*] creditLimit=5 resetSeconds=1 actorField=user label=short
[default] creditLimit=0 resetSeconds=0
";

fn hit(api: &str, user: &str) -> Vec<u8> {
    encode(&[b"DIVVY.HIT", format!("api={api}").as_bytes(), format!("user={user}").as_bytes()])
}

/// Returns how many replies to hits of `users` are grants, and how many begin with `refused`.
fn flood(client: &mut RespClient, users: std::ops::Range<usize>, refused: &str) -> (usize, usize) {
    let (mut granted, mut denied) = (0, 0);
    let users: Vec<_> = users.collect();
    for chunk in users.chunks(1_000) {
        let requests: Vec<u8> = chunk.iter().flat_map(|user| hit("long", &format!("invented-{user}"))).collect();
        client.send(&requests);
        for _ in chunk {
            let reply = client.read_reply();
            if reply.starts_with("[1 999999 ") {
                granted += 1;
            } else {
                assert!(reply.starts_with(refused), "{reply}");
                denied += 1;
            }
        }
    }
    (granted, denied)
}

fn disk_usage(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().map_or(0, |metadata| metadata.len())).sum()
}

fn bounded(rules: &RulesFile, more: &[&str]) -> Server {
    let bound = BOUND.to_string();
    Server::start(&[&[rules.path(), "--max-counters", &bound], more].concat())
}

fn send_a_million_invented_actors(server: &Server) {
    let mut guest = server.resp();
    assert!(guest.command("DIVVY.HIT api=long user=guest").starts_with("[1 999999 "));
    let mut attacker = server.resp();
    let before = server.peak_resident();
    let (mut granted, mut denied) = (0, 0);
    for part in 0..10 {
        let (more_granted, more_denied) =
            flood(&mut attacker, part * 100_000..(part + 1) * 100_000, "-ERR the store is full");
        granted += more_granted;
        denied += more_denied;
        // An existing counter continues to count exactly.
        assert!(guest.command("DIVVY.HIT api=long user=guest").starts_with(&format!("[1 {} ", 999_998 - part)));
    }
    assert_eq!((granted, denied), (BOUND - 1, 1_000_000 - (BOUND - 1)));
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < 192 * MIB, "memory grew by {} MiB", grown / MIB);
    // Room that an operator frees is used at once.
    assert_eq!(guest.command("DIVVY.FORGET long ACTOR invented-7"), "[0 1]");
    assert_eq!(flood(&mut attacker, 2_000_000..2_000_002, "-ERR the store is full"), (1, 1));
}

#[test]
fn million_invented_actors_do_not_fill_the_disk() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = bounded(&rules, &["--data-dir", data.to_str().unwrap()]);
    send_a_million_invented_actors(&server);
    let used = disk_usage(&data);
    assert!(used < 128 * MIB, "{} MiB on disk", used / MIB);
}

#[test]
fn million_invented_actors_do_not_fill_the_memory() {
    let rules = RulesFile::ini(RULES);
    send_a_million_invented_actors(&bounded(&rules, &["--store", "memory"]));
}

/// Regression test: freed memory used to take as much again as the table while counters were created and dropped. Only
/// the journal bounded counters that were not written back.
#[test]
fn counters_that_occur_once_stay_within_the_stated_memory() {
    const CACHE_MIB: u64 = 32;
    const ACTORS: usize = 2_500_000;
    let rules = RulesFile::ini(&RULES.replace("label=long", "label=long algorithm=token-bucket"));
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let cache = format!("{CACHE_MIB}Mi");
    let bounds = ["--cache-memory", &cache];
    let server = Server::start(&[&[rules.path(), "--data-dir", data.to_str().unwrap()], &bounds[..]].concat());
    let mut client = server.line();
    for first in (0..ACTORS).step_by(1_000) {
        let hits = (first..first + 1_000).map(|user| format!("HIT api=long user={user:012}\n"));
        client.send(hits.collect::<String>().as_bytes());
        for _ in 0..1_000 {
            assert!(client.read_line().starts_with("OK true 999999 "));
        }
    }
    let peak = server.peak_resident() / MIB;
    assert!(peak < CACHE_MIB + 160, "{peak} MiB");
}
