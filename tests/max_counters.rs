//! `--max-counters` limits existing counters. It does not count their windows, or their versions on disk. With RocksDB,
//! the number is approximate.

use std::path::Path;

use divvy::algorithm::{Ask, FixedWindow, Limit};
use divvy::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy::store::{Action, Batch, Bounds, MemoryStore, RocksOptions, RocksStore, Store};

use crate::conformance::wait;
use crate::support::log::Log;
use crate::support::redis::until;
use crate::support::{RespClient, RulesFile, Server, divvy, encode, http};

const QUARTER: u64 = NANOS_PER_SECOND / 4;
const RULES: &str = "
[api=long user=*]
creditLimit = 1000000
resetSeconds = 36000
actorField = user
label = long

[api=short user=*]
creditLimit = 1000000
resetSeconds = 1
actorField = user
label = short

[default]
creditLimit = 0
resetSeconds = 0
";

fn open(path: &Path, max_counters: u64) -> RocksStore {
    let bounds = Bounds { max_counters, ..Bounds::default() };
    RocksStore::open(path, RocksOptions { bounds, ..RocksOptions::default() }).unwrap()
}

/// Returns whether the store grants a hit of `key` at `now`, in a window of a quarter of a second.
async fn hit(store: &impl Store, key: &str, now: Timestamp) -> Result<bool, String> {
    let limit = Limit::FixedWindow(FixedWindow::new(5, QUARTER).unwrap());
    let mut batch = Batch::default();
    batch.begin(now);
    batch.push(limit, Action::Ask(Ask::Take { cost: 1 }), now, |out| out.extend_from_slice(key.as_bytes()));
    store.apply(&mut batch).await;
    batch.outcome(0).map(|outcome| outcome.allowed).map_err(|error| error.to_string())
}

async fn check_that_windows_share_one_counter(store: &impl Store) {
    let begin = Clock::system().now();
    for window in 0..100 {
        let now = begin.plus(window * QUARTER);
        assert_eq!(hit(store, "actor", now).await, Ok(true), "window {window}");
        assert_eq!(store.approximate_len().await.unwrap(), 1, "window {window}");
    }
}

#[test]
fn actor_with_a_hundred_windows_is_one_counter() {
    wait(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), 20);
        check_that_windows_share_one_counter(&store).await;
        store.close().await.unwrap();
        check_that_windows_share_one_counter(&MemoryStore::new(Bounds { max_counters: 20, ..Bounds::default() })).await;
    });
}

#[test]
fn expired_counter_starts_anew_in_a_full_store() {
    wait(async {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path(), 2);
        let now = Clock::system().now();
        // The server's clock never reaches that time, so the sweep does not run.
        let later = now.plus(3_600 * NANOS_PER_SECOND);
        for key in ["a", "b"] {
            assert_eq!(hit(&store, key, later).await, Ok(true));
        }
        assert!(hit(&store, "c", later).await.is_err());
        assert_eq!(hit(&store, "a", later.plus(10 * QUARTER)).await, Ok(true));
        store.close().await.unwrap();
    });
}

/// Hits every user once. Returns how many hits were refused.
fn hit_all(client: &mut RespClient, users: impl Iterator<Item = String>) -> usize {
    let users: Vec<_> = users.collect();
    let hits = users.iter().map(|user| encode(&[b"DIVVY.HIT", b"api=long", format!("user={user}").as_bytes()]));
    client.send(&hits.collect::<Vec<_>>().concat());
    users.iter().filter(|_| client.read_reply().starts_with("-ERR the store is full")).count()
}

fn metric(server: &Server, name: &str) -> Option<f64> {
    let text = http::get(server.http, "/metrics").body;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
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
        let mut client = RespClient::connect(server.resp);
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
    let mut client = RespClient::connect(server.resp);
    assert_eq!(hit_all(&mut client, (0..300).map(|user| format!("new-{user}"))), 0, "refused of 300 new ones");
    until(|| metric(&server, "divvy_counters_counted") == Some(1.0));
    assert!(metric(&server, "divvy_live_counters").is_some_and(|live| (850.0..=950.0).contains(&live)));
    let refused = hit_all(&mut client, (0..200).map(|user| format!("more-{user}")));
    assert!((50..=150).contains(&refused), "{refused} refused of 200 more");
}

#[test]
fn live_counters_are_shown_before_they_are_written_back() {
    let rules = RulesFile::ini(RULES);
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&[rules.path(), "--data-dir", data.to_str().unwrap()]);
    let mut client = RespClient::connect(server.resp);
    assert_eq!(hit_all(&mut client, (0..1_000).map(|user| user.to_string())), 0);
    until(|| metric(&server, "divvy_live_counters").is_some_and(|live| (950.0..=1_050.0).contains(&live)));
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
        let mut client = RespClient::connect(server.resp);
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
