//! `--max-counters` limits existing counters. It does not count their windows, or their versions on disk. With RocksDB,
//! the number is approximate.

use crate::support::{Log, RespClient, RulesFile, Server, divvy, encode, number, until};

const RULES: &str = "
[api=long user=*] creditLimit=1000000 resetSeconds=36000 actorField=user label=long
[api=short user=*] creditLimit=1000000 resetSeconds=1 actorField=user label=short
[default] creditLimit=0 resetSeconds=0
";

/// Hits every user once. Returns how many hits were refused.
fn hit_all(client: &mut RespClient, users: impl Iterator<Item = String>) -> usize {
    let users: Vec<_> = users.collect();
    let hits = users.iter().map(|user| encode(&[b"DIVVY.HIT", b"api=long", format!("user={user}").as_bytes()]));
    client.send(&hits.collect::<Vec<_>>().concat());
    users.iter().filter(|_| client.read_reply().starts_with("-ERR the store is full")).count()
}

#[test]
fn restarts_and_kills_do_not_fill_the_store() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let args = [rules.path(), "--data-dir", data.to_str().unwrap(), "--max-counters", "1000"];
    let known = || (0..600).map(|user| format!("known-{user}"));
    for kill in [false, true, false, true] {
        let server = Server::start(&args);
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
    let server = Server::start(&args);
    let mut client = server.resp();
    assert_eq!(hit_all(&mut client, (0..300).map(|user| format!("new-{user}"))), 0, "refused of 300 new ones");
    until(|| number(&server, "divvy_counters_counted") == 1);
    assert!((850..=950).contains(&number(&server, "divvy_live_counters")));
    let refused = hit_all(&mut client, (0..200).map(|user| format!("more-{user}")));
    assert!((50..=150).contains(&refused), "{refused} refused of 200 more");
}

#[test]
fn log_reports_a_full_store_and_free_room() {
    let rules = RulesFile::ini(RULES);
    for store in ["memory", "rocksdb"] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mut args = vec![rules.path(), "--store", store, "--max-counters", "3"];
        if store == "rocksdb" {
            args.extend(["--data-dir", data.to_str().unwrap()]);
        }
        let mut command = divvy();
        let log = Log::of(&mut command);
        let server = Server::start_as(&mut command, &args);
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
        assert_eq!(outages, 1, "{store}: {}", log.text());
    }
}
