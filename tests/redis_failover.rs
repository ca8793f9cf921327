//! A master is killed under load, and its replica is promoted, by sentinels and in a cluster. Replies arrive in time,
//! the server finds the new master automatically, and grants exceed the limit only by what Redis itself lost.
//!
//! The bound: replication is asynchronous, so the replica may lack the last grants of the old master. Each master
//! grants each credit once, and the new one begins at V, the replica's value. A credit of V or more is therefore
//! granted once, and one below V at most twice. The total is at most the limit plus the credits below V that were
//! granted before the kill, which are the ones that Redis lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::redis::hit_in_time;
use crate::support::sentinel::{MASTER, SENTINEL_PASSWORD, Sentinels};
use crate::support::{LineClient, PATIENCE, RedisCluster, RedisServer, Server, parse_verdict};

const LIMIT: u64 = 4_000;
const CLIENTS: usize = 8;
/// Number of grants before the master is killed.
const BEFORE: usize = 500;

const KEY: &str = "divvy:ip=*:a:4000:600";

fn serve(flags: &[&str]) -> Server {
    let quota = format!("creditLimit = {LIMIT}\nresetSeconds = 600\n");
    let rules = format!("[ip=*]\n{quota}actorField = ip\n\n[default]\n{quota}");
    Server::serving(&rules, &[&["--denial-cache", "0"], flags].concat())
}

#[derive(Debug)]
enum Reply {
    Granted { credit: u64 },
    Denied,
    Error(String),
}

/// Sends a hit. Its reply must arrive in time.
fn hit(client: &mut LineClient, ip: &str) -> Reply {
    let line = hit_in_time(client, &format!("ip={ip}"));
    match parse_verdict(&line) {
        Some((true, credit, _)) => Reply::Granted { credit },
        Some((false, ..)) => Reply::Denied,
        None if line.starts_with("ERR ") => Reply::Error(line),
        None => panic!("not a reply: {line:?}"),
    }
}

/// Sends hits on several connections at once. Each continues until `is_last` returns true for a reply. Returns the
/// granted credits.
fn load(server: &Server, granted: &AtomicUsize, is_last: impl Fn(&Reply) -> bool + Sync) -> Vec<u64> {
    let hits = || {
        let (mut client, mut credits, begin) = (server.line(), Vec::new(), Instant::now());
        loop {
            let reply = hit(&mut client, "a");
            if let Reply::Granted { credit } = reply {
                credits.push(credit);
                granted.fetch_add(1, Relaxed);
            }
            if is_last(&reply) {
                return credits;
            }
            if let Reply::Error(error) = &reply {
                assert!(begin.elapsed() < PATIENCE, "no recovery: {error}");
                thread::sleep(Duration::from_millis(5));
            }
        }
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(hits)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// Kills the master under load. Returns the grants before the kill. Every connection must notice the failure.
fn load_until_killed(server: &Server, kill: impl FnOnce()) -> Vec<u64> {
    let granted = AtomicUsize::new(0);
    thread::scope(|scope| {
        let load = scope.spawn(|| load(server, &granted, |reply| matches!(reply, Reply::Error(_))));
        while granted.load(Relaxed) < BEFORE {
            thread::sleep(Duration::from_millis(1));
        }
        kill();
        load.join().unwrap()
    })
}

/// Sends hits until the new master has no credit left, and compares all grants with the bound.
fn assert_nothing_over_admitted(server: &Server, before: &[u64], replica_held: u64) {
    let after = load(server, &AtomicUsize::new(0), |reply| matches!(reply, Reply::Denied));
    for grants in [before, &after] {
        let mut times = HashMap::new();
        grants.iter().for_each(|credit| *times.entry(credit).or_insert(0) += 1);
        assert!(times.values().all(|times| *times == 1), "a master granted a credit twice");
    }
    assert!(
        after.iter().all(|credit| *credit < replica_held),
        "the new master granted a credit that the replica did not have"
    );
    let lost = before.iter().filter(|credit| **credit < replica_held).count();
    let total = before.len() + after.len();
    assert!(total <= LIMIT as usize + lost, "{total} of {LIMIT} granted, and Redis lost {lost}");
    assert!(!after.is_empty(), "the new master was found");
}

#[test]
fn sentinels_promote_a_replica() {
    let mut setup = Sentinels::start();
    let urls = setup.urls();
    let sentinels = ["--redis-sentinel-master", MASTER, "--redis-sentinel-auth", SENTINEL_PASSWORD];
    let server = serve(&[&["--redis-url", &urls], &sentinels[..]].concat());
    let before = load_until_killed(&server, || setup.master.kill());
    let held = setup.ask_replica(&["GET", KEY]).parse().unwrap();
    assert_nothing_over_admitted(&server, &before, held);
    assert_eq!(setup.ask_replica(&["GET", KEY]), "0", "the promoted replica counts");
    assert!(setup.ask_replica(&["ROLE"]).starts_with("master"));
}

#[test]
fn hung_sentinel_does_not_hide_the_master() {
    let setup = Sentinels::start();
    setup.hang_first_sentinel();
    let urls = setup.urls();
    let server =
        serve(&["--redis-url", &urls, "--redis-sentinel-master", MASTER, "--redis-sentinel-auth", SENTINEL_PASSWORD]);
    let granted = load(&server, &AtomicUsize::new(0), |reply| matches!(reply, Reply::Granted { .. }));
    assert_eq!(granted.len(), CLIENTS);
}

#[test]
fn cluster_replaces_a_killed_master_without_affecting_other_shards() {
    run_cluster_without_a_master(RedisServer::kill);
}

#[test]
fn cluster_replaces_a_hung_master_without_affecting_other_shards() {
    run_cluster_without_a_master(|master| master.signal("-STOP"));
}

fn run_cluster_without_a_master(lose: impl FnOnce(&mut RedisServer)) {
    let mut cluster = RedisCluster::start();
    let server = serve(&["--redis-url", &cluster.urls().join(",")]);
    let master = cluster.port_of(KEY);
    let replica = cluster.replica_of(master).port;
    let others: Vec<_> = (0..50).map(|number| format!("other{number}")).collect();
    let is_elsewhere = |ip: &&String| cluster.port_of(&format!("divvy:ip=*:{ip}:4000:600")) != master;
    let others: Vec<_> = others.iter().filter(is_elsewhere).take(10).collect();
    let mut bystander = server.line();
    let mut all_answered = |hits: usize| {
        for ip in others.iter().cycle().take(hits) {
            let reply = hit(&mut bystander, ip);
            assert!(matches!(reply, Reply::Granted { .. }), "{ip} is at a master that is well: {reply:?}");
        }
    };
    all_answered(others.len());
    let before = load_until_killed(&server, || lose(cluster.node(master)));
    all_answered(50 * others.len());
    // A replica answers requests for its master's keys only after READONLY.
    let held = cluster.node(replica).pipe("READONLY\nGET \"divvy:ip=*:a:4000:600\"\n");
    let held = held.lines().last().unwrap().parse().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| all_answered(100 * others.len()));
        assert_nothing_over_admitted(&server, &before, held);
    });
    assert_eq!(cluster.node(replica).cli(&["GET", KEY]), "0", "the promoted replica counts");
}
