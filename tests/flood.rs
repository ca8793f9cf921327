//! Bounds: clients that invent actors fill neither the memory nor the disk, `--max-counters` limits existing counters (not
//! their windows, or their versions on disk; with RocksDB, the number is approximate), and many long replies at once use
//! bounded memory and a bounded number of threads.

use std::io::Write;
use std::net::TcpStream;

use crate::robustness::MIB;
use crate::support::{Place, RespClient, Server, Site, connect, disk_usage, encode, http, number, until};

const BOUND: usize = 50_000;
const RULES: &str = "
[api=long user=*] creditLimit=1000000 resetSeconds=36000 actorField=user label=long
[default] creditLimit=0 resetSeconds=0
";

/// Returns how many replies to hits of `users` are grants, and how many begin with `refused`.
fn flood(client: &mut RespClient, users: std::ops::Range<usize>, refused: &str) -> (usize, usize) {
    let (mut granted, mut denied) = (0, 0);
    let users: Vec<_> = users.collect();
    for chunk in users.chunks(1_000) {
        for reply in client.pipeline(chunk.iter().map(|user| format!("DIVVY.HIT api=long user=invented-{user}"))) {
            let is_granted = reply.starts_with("[1 999999 ");
            assert!(is_granted || reply.starts_with(refused), "{reply}");
            *(if is_granted { &mut granted } else { &mut denied }) += 1;
        }
    }
    (granted, denied)
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
    let place = Place::new(RULES);
    send_a_million_invented_actors(&place.on_disk(&["--max-counters", &BOUND.to_string()]));
    let used = disk_usage(place.path("data"));
    assert!(used < 128 * MIB, "{} MiB on disk", used / MIB);
}

#[test]
fn million_invented_actors_do_not_fill_the_memory() {
    send_a_million_invented_actors(&Server::serving(RULES, &["--max-counters", &BOUND.to_string()]));
}

/// Regression test: freed memory used to take as much again as the table while counters were created and dropped. Only
/// the journal bounded counters that were not written back.
#[test]
fn counters_that_occur_once_stay_within_the_stated_memory() {
    const CACHE_MIB: u64 = 32;
    const ACTORS: usize = 2_500_000;
    let place = Place::new(&RULES.replace("label=long", "label=long algorithm=token-bucket"));
    let server = place.on_disk(&["--cache-memory", &format!("{CACHE_MIB}Mi")]);
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

/// Hits every user once. Returns how many hits were refused.
fn hit_all(client: &mut RespClient, users: impl Iterator<Item = String>) -> usize {
    let replies = client.pipeline(users.map(|user| format!("DIVVY.HIT api=long user={user}")));
    replies.iter().filter(|reply| reply.starts_with("-ERR the store is full")).count()
}

#[test]
fn restarts_and_kills_do_not_fill_the_store() {
    let place = Place::new(RULES);
    let serve = || place.on_disk(&["--max-counters", "1000"]);
    let known = || (0..600).map(|user| format!("known-{user}"));
    for kill in [false, true, false, true] {
        let server = serve();
        let mut client = server.resp();
        for _ in 0..3 {
            assert_eq!(hit_all(&mut client, known()), 0);
        }
        if kill {
            server.kill();
        } else {
            assert!(server.terminate().success());
        }
    }
    let server = serve();
    let mut client = server.resp();
    assert_eq!(hit_all(&mut client, (0..300).map(|user| format!("new-{user}"))), 0, "refused of 300 new ones");
    until(|| number(&server, "divvy_counters_counted") == 1);
    assert!((850..=950).contains(&number(&server, "divvy_live_counters")));
    let refused = hit_all(&mut client, (0..200).map(|user| format!("more-{user}")));
    assert!((50..=150).contains(&refused), "{refused} refused of 200 more");
}

#[test]
fn log_reports_a_full_store_and_free_room() {
    for store in [&["--store", "memory"][..], &["--data-dir", "DIR/data"]] {
        let site = Site::serving(RULES, &[store, &["--max-counters", "3"]].concat());
        let Site { server, log, .. } = &site;
        let mut client = server.resp();
        assert_eq!(hit_all(&mut client, ["a", "b", "c", "d"].map(String::from).into_iter()), 1);
        log.await_line(&["ERROR", "the store is full", "--max-counters"]);
        for user in ["a", "b", "c"] {
            assert_eq!(client.command(&format!("DIVVY.FORGET long ACTOR {user}")), "[0 1]");
        }
        until(|| {
            assert!(client.command("DIVVY.HIT api=long user=a").starts_with("[1 "));
            log.text().contains("working again: capacity for new counters")
        });
        let outages =
            log.text().lines().filter(|line| line.contains("ERROR") && line.contains("the store is full")).count();
        assert_eq!(outages, 1, "{store:?}: {}", log.text());
    }
}

#[test]
fn info_for_many_at_once_takes_little_memory_and_frees_it() {
    let place = Place::compat();
    // RocksDB needs system calls for INFO.
    let server = place.on_disk(&[]);
    server.resp().command("INFO");
    let (before, threads) = (server.resident(), server.threads());
    let mut clients: Vec<_> = (0..600).map(|_| server.resp()).collect();
    for _ in 0..3 {
        clients.iter_mut().for_each(|client| client.send(&encode(&[b"INFO"])));
        let most = server.threads();
        assert!(most < threads + 40, "{most} threads, and {threads} before");
        for client in &mut clients {
            assert!(client.read_reply().contains("divvy_version:"));
        }
    }
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < 64 * MIB, "{grown} bytes more at the peak");
    drop(clients);
    until(|| server.resident() < before + 24 * MIB);
}

#[test]
fn unread_pages_of_counters_over_http_1_have_one_bound() {
    const BOUND: u64 = MIB;
    /// All their pages together are many times the bound.
    const CLIENTS: usize = 16;
    let flags = ["--max-buffer-memory", &BOUND.to_string()];
    let server = Server::serving(
        "[user=*]\ncreditLimit=9\nresetSeconds=3600\nactorField=user\nlabel=users\n[default]\ncreditLimit=0\nresetSeconds=0\n",
        &flags,
    );
    let mut client = server.resp();
    let long = "x".repeat(900);
    for number in 0..1000 {
        assert!(client.command(&format!("DIVVY.HIT user={number}-{long}")).starts_with("[1 8 "));
    }
    let page = "/v1/counters?rule=users&count=1000";
    assert!(http::get(server.http, page).body.len() > 900_000);
    // More than the kernel's buffers hold.
    let requests = http::encode("GET", page, &[], b"").repeat(8);
    let silent: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut stream = connect(server.http);
            stream.write_all(&requests).unwrap();
            stream
        })
        .collect();
    until(|| {
        let metrics = http::get(server.http, "/metrics").body;
        !metrics.contains("divvy_limits_reached_total{limit=\"max-buffer-memory\"} 0\n")
    });
    drop(silent);
    until(|| http::get(server.http, "/metrics").body.contains("divvy_buffer_memory_bytes 0\n"));
}
