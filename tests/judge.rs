//! A judge from outside: clients of all fronts record histories of their operations, and each counter's history must be
//! explained by one order of the operations: each answer is what the documentation says at its place. Sums over a history must
//! keep within the limit, too. The judge uses none of divvy's code, and finds bugs that are planted into a small
//! limiter.
//!
//! `DIVVY_TEST_JUDGED` sets the number of histories of each kind (default 24), `DIVVY_TEST_SEED` the requests, and
//! `DIVVY_TEST_JUDGED_FLAGS` more flags of the servers whose Redis fails over, such as `--redis-min-replicas-ack 1`.

mod checker;
mod faults;
mod fronts;
mod history;
mod models;
mod planted;
mod promises;
mod properties;
mod report;
mod workload;

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus as Rng;

use self::faults::{Host, Link, Namespace, record_during};
use self::fronts::{Addresses, Client, Counter, Front, Known, Sent};
use self::history::{History, Operation, Request, now};
use self::models::{Loss, Model};
use self::report::judge;
use self::workload::{ALL_FRONTS, Course, Kind, Pace, Signals, TIMED, TIMELESS};
use crate::calendar::divvy_ahead;
use crate::support::sentinel::{MASTER, PASSWORD, SENTINEL_PASSWORD, Sentinels};
use crate::support::{RedisCluster, RedisServer, eventually, free_port, on_redis, seed, setting};

/// Without faults.
const FAST: Pace = Pace { group: 8, turns: 4, pause: Duration::ZERO };
/// Long enough for several kills or cuts.
const SLOW: Pace = Pace { group: 8, turns: 4, pause: Duration::from_millis(20) };
/// Long enough for several windows of the kinds in [`TIMED`].
const BRIEF: Pace = Pace { group: 8, turns: 8, pause: Duration::from_millis(40) };

/// Flags of a server that shares its Redis: a remembered denial may be a second old when another server gives credit back.
const SHARED: [&str; 2] = ["--denial-cache", "0"];

/// Servers whose histories are judged.
struct Court<'a> {
    name: &'a str,
    servers: Vec<Addresses>,
    kinds: &'a [Kind],
    pace: Pace,
    loss: Loss,
    seed: u64,
    signals: Signals,
}

impl<'a> Court<'a> {
    fn new(name: &'a str, hosts: &[Host], pace: Pace) -> Self {
        let servers = hosts.iter().map(|host| host.addresses).collect();
        Self { name, servers, kinds: &TIMELESS, pace, loss: Loss::Nothing, seed: seed(), signals: Signals::default() }
    }

    fn course(&self) -> Course<'_> {
        Course {
            servers: &self.servers,
            kinds: self.kinds,
            fronts: &ALL_FRONTS,
            pace: self.pace,
            loss: self.loss,
            seed: self.seed,
            signals: &self.signals,
        }
    }

    /// Judges histories without faults. No request may fail.
    fn judge_calm(&self) {
        let unknown = self.verdict(Instant::now(), &self.course().record(judged()));
        assert_eq!(unknown, 0, "{}: requests failed without a fault", self.name);
    }

    fn judge_during(&self, fault: impl FnMut(&mut Rng) + Send) {
        let begin = Instant::now();
        self.verdict(begin, &record_during(&self.course(), judged(), fault));
    }

    /// Judges histories, and prints what they are. Returns the number of unknown results.
    fn verdict(&self, begin: Instant, histories: &[(Model, History)]) -> usize {
        let operations: usize = histories.iter().map(|(_, history)| history.operations.len()).sum();
        let unknown = histories.iter().map(|(_, history)| history.unknown()).sum();
        let reports: Vec<_> = histories.iter().filter_map(|(model, history)| judge(model, history)).collect();
        println!(
            "judge: {}: {} histories, {operations} operations, {unknown} unknown, {} findings, {:.1} s",
            self.name,
            histories.len(),
            reports.len(),
            begin.elapsed().as_secs_f64(),
        );
        assert!(
            reports.is_empty(),
            "{}\n{}",
            self.name,
            reports.iter().take(5).cloned().collect::<Vec<_>>().join("\n")
        );
        unknown
    }
}

/// Returns the number of histories of each kind.
fn judged() -> usize {
    setting("DIVVY_TEST_JUDGED", 24)
}

/// Returns two servers that share a store.
fn two(flags: &[&str]) -> [Host; 2] {
    [(); 2].map(|()| Host::start(&[flags, &SHARED].concat()))
}

/// Kills any of the hosts.
fn kill_one(hosts: &[Host], rng: &mut Rng) {
    let host = &hosts[rng.random_range(0..hosts.len())];
    host.kill();
    host.restart();
}

#[test]
fn memory() {
    let hosts = [Host::start(&["--store", "memory"])];
    Court::new("memory", &hosts, FAST).judge_calm();
    let mut brief = Court::new("memory, short windows", &hosts, BRIEF);
    brief.kinds = &TIMED;
    brief.judge_calm();
}

/// A kill ends the histories, because the counters are lost.
#[test]
fn memory_with_kills() {
    let hosts = [Host::start(&["--store", "memory"])];
    let (begin, mut histories) = (Instant::now(), Vec::new());
    let mut court = Court::new("memory, kills", &hosts, SLOW);
    let mut rng = Rng::seed_from_u64(court.seed);
    while histories.len() < judged() {
        court.signals = Signals::default();
        let length = Duration::from_millis(rng.random_range(200..800));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(length);
                court.signals.stop.store(true, SeqCst);
                hosts[0].kill();
            });
            histories.extend(court.course().record(24));
        });
        hosts[0].restart();
    }
    court.verdict(begin, &histories);
}

#[test]
fn rocksdb() {
    let hosts = [Host::start(&["--data-dir", "DIR/data"])];
    Court::new("RocksDB", &hosts, FAST).judge_calm();
    let mut brief = Court::new("RocksDB, short windows", &hosts, BRIEF);
    brief.kinds = &TIMED;
    brief.judge_calm();
    Court::new("RocksDB, kills", &hosts, SLOW).judge_during(|rng| kill_one(&hosts, rng));
}

#[test]
fn redis() {
    let redis = RedisServer::start();
    let alone = [Host::start(&on_redis(&redis.url()))];
    Court::new("Redis, one server with a denial cache", &alone, FAST).judge_calm();
    let hosts = two(&on_redis(&redis.url()));
    Court::new("Redis", &hosts, FAST).judge_calm();
    let mut brief = Court::new("Redis, short windows", &hosts, BRIEF);
    brief.kinds = &TIMED;
    brief.judge_calm();
    Court::new("Redis, kills", &hosts, SLOW).judge_during(|rng| kill_one(&hosts, rng));
}

/// Redis keeps what it acknowledges.
#[test]
fn redis_that_is_killed() {
    let mut redis = RedisServer::durable();
    let hosts = two(&["--redis-url", &redis.url(), "--redis-timeout", "2000"]);
    Court::new("Redis, kills of Redis", &hosts, SLOW).judge_during(|_| {
        redis.kill();
        redis.restart();
    });
}

#[test]
fn redis_with_skewed_clocks() {
    let redis = RedisServer::start();
    let skewed: [fn() -> Command; 2] = [|| divvy_ahead(5), || divvy_ahead(-5)];
    let url = redis.url();
    let flags = [&on_redis(&url)[..], &SHARED].concat();
    let hosts = skewed.map(|command| Host::start_as(command, Ipv4Addr::LOCALHOST, &flags));
    Court::new("Redis, skewed clocks", &hosts, FAST).judge_calm();
    let mut brief = Court::new("Redis, skewed clocks, short windows", &hosts, BRIEF);
    brief.kinds = &TIMED;
    brief.judge_calm();
}

/// Each server has its own way to Redis. Bytes that are on that way when it fails may still arrive.
#[test]
fn redis_with_partitions() {
    let redis = RedisServer::start();
    let links = [(); 2].map(|()| Link::to(redis.port));
    let hosts = links.each_ref().map(|link| {
        let url = format!("redis://127.0.0.1:{}", link.port);
        Host::start(&[&["--redis-url", &url, "--redis-timeout", "150"], &SHARED[..]].concat())
    });
    Court::new("Redis, partitions", &hosts, SLOW).judge_during(|rng| {
        let length = Duration::from_millis(rng.random_range(1..300));
        links[rng.random_range(0..2)].fail(rng.random(), length);
    });
}

/// As with [`redis_with_partitions`], but packets are lost on their way between two network namespaces.
#[test]
fn redis_with_an_unplugged_cable() {
    let namespace = match Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return println!("judge: no network namespaces here: {error}"),
    };
    let outside = namespace.outside.to_string();
    let redis = RedisServer::start_with(free_port(), &["--bind", "127.0.0.1", &outside, "--protected-mode", "no"]);
    let [near, far] = ["127.0.0.1", &outside].map(|address| format!("redis://{address}:{}", redis.port));
    let flags = |url| [&["--redis-url", url, "--redis-timeout", "150"], &SHARED[..]].concat();
    let hosts = [Host::start(&flags(&near)), Host::start_as(Namespace::divvy, namespace.inside, &flags(&far))];
    Court::new("Redis, unplugged cable", &hosts, SLOW)
        .judge_during(|rng| namespace.unplug(Duration::from_millis(rng.random_range(1..400))));
}

/// Redis servers that fail over.
enum Masters {
    Sentinel(Box<Sentinels>),
    /// A cluster, with the ports of the master that was lost and of its replica.
    Cluster(RedisCluster, [u16; 2]),
}

impl Masters {
    /// Starts two divvys on these Redis servers.
    fn serve(&self) -> [Host; 2] {
        let by_sentinel = ["--redis-sentinel-master", MASTER, "--redis-sentinel-auth", SENTINEL_PASSWORD];
        let (urls, sentinel) = match self {
            Self::Sentinel(sentinels) => (sentinels.urls(), &by_sentinel[..]),
            Self::Cluster(cluster, _) => (cluster.urls().join(","), &[][..]),
        };
        let more = flags_for_failovers();
        let more: Vec<_> = more.split_whitespace().collect();
        two(&[&["--redis-url", &urls, "--redis-timeout", "300"], sentinel, &more].concat())
    }

    fn lose(&mut self, rng: &mut Rng) {
        match self {
            Self::Sentinel(sentinels) => sentinels.master.kill(),
            Self::Cluster(cluster, lost) => {
                let port = cluster.nodes[rng.random_range(0..3)].port;
                *lost = [port, cluster.replica_of(port).port];
                let master = cluster.node(port);
                if rng.random() { master.kill() } else { master.signal("-STOP") }
            }
        }
    }

    /// Sends a command to the replica of the lost master.
    fn ask_successor(&mut self, words: &[&str]) -> String {
        match self {
            Self::Sentinel(sentinels) => sentinels.ask_replica(words),
            Self::Cluster(cluster, [_, replica]) => cluster.node(*replica).cli(words),
        }
    }

    /// Makes the lost master a replica of its successor, without which no replica can confirm a change.
    fn bring_back(&mut self) {
        self.ask_successor(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        match self {
            Self::Sentinel(sentinels) => {
                sentinels.master.restart();
                let follow = format!("AUTH {PASSWORD}\nREPLICAOF 127.0.0.1 {}\n", sentinels.replica.port);
                sentinels.master.pipe(&follow);
            }
            Self::Cluster(cluster, [master, _]) => {
                let master = cluster.node(*master);
                master.kill();
                master.restart();
            }
        }
    }
}

#[test]
fn sentinels() {
    judge_failovers("Sentinel", || Masters::Sentinel(Box::new(Sentinels::start())));
}

#[test]
fn cluster() {
    judge_failovers("Cluster", || Masters::Cluster(RedisCluster::start(), [0; 2]));
}

/// Histories during one failover.
const FOR_A_FAILOVER: usize = 120;

/// Returns a pace at which histories last for seconds, however many there are.
fn long_pace() -> Pace {
    let group = judged().min(FOR_A_FAILOVER).div_ceil(3);
    Pace { group, turns: 4, pause: Duration::from_secs(4) / (4 * group as u32) }
}

fn flags_for_failovers() -> String {
    setting("DIVVY_TEST_JUDGED_FLAGS", String::new())
}

fn replicas_confirm() -> bool {
    flags_for_failovers().contains("--redis-min-replicas-ack")
}

/// Judges histories of new setups, without a fault, and during a failover of each. Redis replicates without waiting, so a
/// failover may undo the last changes.
fn judge_failovers(name: &str, setup: impl Fn() -> Masters) {
    let (begin, mut histories, mut court) = (Instant::now(), Vec::new(), None);
    let kind = format!("{name}, failovers");
    while histories.len() < judged() {
        let mut masters = setup();
        let hosts = masters.serve();
        if histories.is_empty() {
            let court = Court::new(name, &hosts, FAST);
            court.verdict(Instant::now(), &court.course().record(judged()));
        }
        let court = court.insert(Court::new(&kind, &hosts, long_pace()));
        court.loss = if replicas_confirm() { Loss::Unacknowledged } else { Loss::Latest };
        histories.extend(court.record_failover(&mut masters));
    }
    court.map(|court| court.verdict(begin, &histories));
}

impl Court<'_> {
    fn record_failover(&self, masters: &mut Masters) -> Vec<(Model, History)> {
        let mut rng = Rng::seed_from_u64(self.seed ^ now());
        let mut lost_at = 0;
        let mut histories = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(rng.random_range(100..1000)));
                self.signals.is_broken.store(true, SeqCst);
                lost_at = now();
                masters.lose(&mut rng);
                let mut is_well = eventually(|| masters.ask_successor(&["ROLE"]).starts_with("master"));
                if replicas_confirm() {
                    masters.bring_back();
                }
                is_well &= eventually(|| self.servers.iter().all(|server| answers(*server)));
                self.signals.is_broken.store(false, SeqCst);
                assert!(is_well, "{}: no recovery", self.name);
            });
            self.course().record(judged().min(FOR_A_FAILOVER))
        });
        let failover = Operation {
            client: 0,
            place: String::new(),
            request: Request::Failover,
            called: lost_at,
            returned: u64::MAX,
            reply: None,
            error: None,
        };
        for (_, history) in &mut histories {
            history.operations.push(failover.clone());
            history.operations.sort_by_key(|one| one.called);
        }
        histories
    }
}

/// Returns whether the server can count for actors on all shards of a cluster.
fn answers(server: Addresses) -> bool {
    let (mut client, known) = (Client::new(server), Known::default());
    (0..30).all(|actor| {
        let counter = Counter::probe(actor);
        matches!(client.send(Front::Resp, &counter, Request::Hit { cost: 1, key: None }, &known), Sent::Answered(_))
    })
}
