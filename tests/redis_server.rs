//! divvy servers with Redis, over sockets: several on one Redis, lost scripts, the denial cache, and the effects of an
//! outage on the log and on memory.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::redis::{SLACK, hit_in_time};
use crate::support::{RedisServer, RespClient, RulesFile, Server, connect, parse_verdict, until};

fn rules(credits: u64) -> String {
    let quota = format!("creditLimit = {credits}\nresetSeconds = 600\n");
    format!("[ip=*]\n{quota}actorField = ip\n\n[default]\n{quota}")
}

fn serve(rules: &str, urls: &str, flags: &[&str]) -> Server {
    Server::serving(rules, &[&["--redis-url", urls], flags].concat())
}

/// Counts of replies to hits.
#[derive(Debug, Default)]
struct ReplyCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    errors: AtomicU64,
}

impl ReplyCounts {
    fn note(&self, reply: &str) {
        match parse_verdict(reply) {
            Some((true, ..)) => &self.allowed,
            Some((false, ..)) => &self.denied,
            None if reply.starts_with("ERR ") => &self.errors,
            None => panic!("not a reply: {reply:?}"),
        }
        .fetch_add(1, Relaxed);
    }

    fn counts(&self) -> (u64, u64, u64) {
        (self.allowed.load(Relaxed), self.denied.load(Relaxed), self.errors.load(Relaxed))
    }
}

/// Sends `count` hits of `ip` at once, on a new connection.
fn hit_many(address: SocketAddr, ip: &str, count: usize, counts: &ReplyCounts) {
    let mut stream = connect(address);
    stream.write_all(format!("HIT ip={ip}\n").repeat(count).as_bytes()).unwrap();
    let replies = BufReader::new(stream).lines().take(count).map(|line| line.unwrap() + "\n");
    assert_eq!(replies.inspect(|reply| counts.note(reply)).count(), count);
}

/// Sends hits until one is allowed and `is_done` is true. Their replies must arrive in time.
fn hit_until_allowed(server: &Server, is_done: impl Fn() -> bool) {
    until(|| hit_in_time(&mut server.line(), "ip=a").starts_with("OK true") && is_done());
}

#[test]
fn two_servers_share_a_bucket_exactly() {
    let (redis, rules) = (RedisServer::start(), rules(10_000));
    // With few cores, 200 connections at once may take longer than the default timeout.
    let servers = [(); 2].map(|()| serve(&rules, &redis.url(), &["--redis-timeout", "20000"]));
    let counts = ReplyCounts::default();
    thread::scope(|scope| {
        for index in 0..200 {
            let (address, counts) = (servers[index % 2].line, &counts);
            scope.spawn(move || hit_many(address, "1.2.3.4", 60, counts));
        }
    });
    assert_eq!(counts.counts(), (10_000, 2_000, 0));
}

#[test]
fn outage_is_logged_once_at_its_start_and_once_at_its_end() {
    let (mut redis, rules) = (RedisServer::start(), rules(1_000_000));
    let rules = RulesFile::ini(&rules);
    let (server, log) = Server::logged(&[rules.path(), "--redis-url", &redis.url()]);
    hit_until_allowed(&server, || true);
    redis.kill();
    let counts = ReplyCounts::default();
    hit_many(server.line, "a", 2_000, &counts);
    assert_eq!(counts.counts(), (0, 0, 2_000));
    redis.restart();
    hit_until_allowed(&server, || log.count("working again: the store") > 0);
    assert_eq!((log.count("failing: the store"), log.count("working again: the store")), (1, 1));
}

#[test]
fn hung_redis_neither_blocks_accepts_nor_grows_memory() {
    check_accepts_and_memory_during_an_outage(|redis| redis.signal("-STOP"), |redis| redis.signal("-CONT"));
}

#[test]
fn dead_redis_neither_blocks_accepts_nor_grows_memory() {
    check_accepts_and_memory_during_an_outage(RedisServer::kill, RedisServer::restart);
}

fn check_accepts_and_memory_during_an_outage(end: fn(&mut RedisServer), begin: fn(&mut RedisServer)) {
    let (mut redis, rules) = (RedisServer::start(), rules(1_000_000));
    let server = serve(&rules, &redis.url(), &[]);
    hit_in_time(&mut server.line(), "ip=a");
    let before = server.peak_resident();
    end(&mut redis);
    let (counts, end) = (ReplyCounts::default(), Instant::now() + Duration::from_secs(3));
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                while Instant::now() < end {
                    hit_many(server.line, "a", 500, &counts);
                }
            });
        }
        while Instant::now() < end {
            let asked = Instant::now();
            assert_eq!(server.resp().command("PING"), "PONG");
            assert!(asked.elapsed() < SLACK, "a new connection waited {:?}", asked.elapsed());
            thread::sleep(Duration::from_millis(50));
        }
    });
    let (allowed, denied, errors) = counts.counts();
    assert!(allowed == 0 && denied == 0 && errors >= 10_000, "{counts:?}");
    let grown = server.peak_resident().saturating_sub(before);
    assert!(grown < 64 << 20, "the server grew by {grown} bytes");
    begin(&mut redis);
    hit_until_allowed(&server, || true);
}

/// Sends hits of one actor on 10 connections while `disturb` runs, and a little longer.
fn load_during(server: &Server, disturb: impl FnOnce()) -> ReplyCounts {
    let (counts, done) = (ReplyCounts::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut client = server.line();
                while !done.load(Relaxed) {
                    client.send(b"HIT ip=a\n");
                    counts.note(&client.read_line());
                }
            });
        }
        disturb();
        thread::sleep(Duration::from_millis(200));
        done.store(true, Relaxed);
    });
    counts
}

#[test]
fn scripts_flushed_under_load_are_reloaded_and_nothing_counts_twice() {
    let (redis, rules) = (RedisServer::start(), rules(1_000));
    let server = serve(&rules, &redis.url(), &["--denial-cache", "0", "--redis-timeout", "5000"]);
    let counts = load_during(&server, || {
        for _ in 0..50 {
            redis.cli(&["SCRIPT", "FLUSH"]);
        }
    });
    let (allowed, denied, errors) = counts.counts();
    assert_eq!((allowed, errors), (1_000, 0));
    assert!(denied > 0, "the load went past the limit");
}

/// Hits that exceed Redis's capacity must be refused. If they were allowed, a flood would bypass the limit.
#[test]
fn flood_of_hits_is_not_treated_as_an_outage_by_allow() {
    let (redis, rules) = (RedisServer::start(), rules(10));
    // The timeout is long enough for a Redis on a loaded machine to answer. A Redis that does not answer would be an
    // outage.
    let flags = ["--on-store-error", "allow", "--redis-timeout", "6000"];
    let server = serve(&rules, &redis.url(), &flags);
    let allowed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..60 {
            let (address, allowed) = (server.resp, &allowed);
            scope.spawn(move || {
                let mut client = RespClient::connect(address);
                client.send("CL.THROTTLE hot 99 1 3600\r\n".repeat(2_000).as_bytes());
                for _ in 0..2_000 {
                    let reply = client.read_reply();
                    let is_refused = reply.contains("is overloaded");
                    assert!(reply.starts_with("[0 ") || reply.starts_with("[1 ") || is_refused, "{reply}");
                    allowed.fetch_add(u64::from(reply.starts_with("[0 ")), Relaxed);
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 100);
}

/// Returns how often Redis has called the window's script.
fn script_calls(redis: &RedisServer) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
}

#[test]
fn denials_from_memory_save_round_trips_until_the_bucket_is_forgotten() {
    let (redis, rules) = (RedisServer::start(), rules(1));
    let calls_with = |flags: &[&str]| {
        redis.cli(&["FLUSHALL"]);
        redis.cli(&["CONFIG", "RESETSTAT"]);
        let server = serve(&rules, &redis.url(), flags);
        let mut client = server.resp();
        let mut hit = |ip: u64| client.command(&format!("DIVVY.HIT ip={ip}"));
        // One actor in ten is new. The others have no credit left.
        let allowed = (0..1_000).filter(|n| hit(if n % 10 == 0 { 1_000 + n } else { 7 }).starts_with("[1 ")).count();
        assert_eq!(allowed, 101);
        assert_eq!(client.command("DIVVY.RESET ip=7"), "1");
        assert!(client.command("DIVVY.HIT ip=7").starts_with("[1 "), "forgotten here as well as in Redis");
        script_calls(&redis)
    };
    let (with, without) = (calls_with(&[]), calls_with(&["--denial-cache", "0"]));
    assert!(without >= 1_000, "{without} calls without the memory");
    assert!(with <= 110, "{with} calls with the memory, {without} without");
}
