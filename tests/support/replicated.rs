//! A Redis master with two replicas, and what replaces it if it fails: sentinels, or a cluster. A failover takes about a
//! second, and the servers can fail over again and again.

use std::process::Command;
use std::time::{Duration, Instant};

use super::redis::{RedisServer, cli, lasting_port};
use super::sentinel::{MASTER, SENTINEL_PASSWORD, Sentinel};
use super::until;

/// Number of replicas.
pub const REPLICAS: usize = 2;
/// Time without an answer after which a server is down (ms).
const DOWN_AFTER: &str = "400";
/// Time between two elections of a cluster. A replica that was elected, was replaced, and loses its master again within four
/// seconds takes its old votes for new ones, and then the old master, with older data, is the master once more.
const BETWEEN_ELECTIONS: Duration = Duration::from_millis(4_500);

/// The master and the replicas, in any order.
pub struct Replicated {
    pub nodes: Vec<RedisServer>,
    manager: Manager,
    /// Time when the last killed master was replaced.
    elected: Instant,
}

/// The programs that replace the master.
enum Manager {
    Sentinels(Vec<Sentinel>),
    /// The other servers of the cluster, and a hash tag of the slots that the nodes have.
    Cluster(Vec<RedisServer>, String),
}

impl Replicated {
    /// Starts sentinels of the master. No server takes writes with fewer than `min_replicas` replicas.
    pub fn by_sentinels(program: &str, min_replicas: usize) -> Self {
        let nodes = start(program, 1 + REPLICAS, min_replicas, &[]);
        let master = nodes[0].port.to_string();
        nodes[1..].iter().for_each(|node| assert_eq!(node.cli(&["REPLICAOF", "127.0.0.1", &master]), "OK"));
        let settings = [format!("sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}")];
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(program, &master, &settings)).collect();
        // During a failover, replicas send their INFO every second. One is promoted if it is not older than five pings, and
        // demoted again if the others have not been told within four publications.
        let intervals = "info-period 100 ping-period 300 ask-period 100 publish-period 500 election-timeout 500 \
                         tilt-period 500 min-link-reconnect-period 1000";
        let debug: Vec<_> = ["SENTINEL", "DEBUG"].into_iter().chain(intervals.split(' ')).collect();
        sentinels.iter().for_each(|sentinel| assert_eq!(sentinel.ask(&debug), "OK"));
        let group = Self { nodes, manager: Manager::Sentinels(sentinels), elected: Instant::now() };
        group.await_replicas();
        group
    }

    /// Starts a cluster of three masters with their replicas. Only the first of them fails over.
    pub fn in_cluster(program: &str, min_replicas: usize) -> Self {
        let config = ["--cluster-enabled", "yes", "--cluster-node-timeout", DOWN_AFTER];
        // A replica that changes its master would leave the nodes.
        let config = [&config[..], &["--cluster-allow-replica-migration", "no"]].concat();
        let mut all = start(program, 3 * (1 + REPLICAS), min_replicas, &config);
        let addresses = all.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(addresses);
        let created = create.args(["--cluster-replicas", &REPLICAS.to_string(), "--cluster-yes"]).output().unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let is_settled = |node: &RedisServer| {
            node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                && node.cli(&["CLUSTER", "NODES"]).matches("slave ").count() == 3 * REPLICAS
        };
        until(|| all.iter().all(is_settled));
        let master = all[0].port.to_string();
        let belongs = |node: &mut RedisServer| {
            node.port.to_string() == master || node.cli(&["ROLE"]).lines().any(|line| line == master)
        };
        let nodes: Vec<_> = all.extract_if(.., belongs).collect();
        assert_eq!(nodes.len(), 1 + REPLICAS);
        let slot = |tag: &String| nodes[0].cli(&["CLUSTER", "KEYSLOT", tag]).parse::<u32>().unwrap();
        let tag = (0..).map(|number: u32| number.to_string()).find(|tag| slot(tag) < 5_000).unwrap();
        let group = Self { nodes, manager: Manager::Cluster(all, tag), elected: Instant::now() };
        group.await_replicas();
        group
    }

    /// Returns the flags of a divvy that counts here.
    pub fn flags(&self) -> Vec<String> {
        let url = |port: u16| format!("redis://127.0.0.1:{port}");
        match &self.manager {
            Manager::Sentinels(sentinels) => {
                let urls = sentinels.iter().map(|sentinel| url(sentinel.port)).collect::<Vec<_>>().join(",");
                let by_sentinel = ["--redis-sentinel-master", MASTER, "--redis-sentinel-auth", SENTINEL_PASSWORD];
                ["--redis-url", &urls].into_iter().chain(by_sentinel).map(str::to_owned).collect()
            }
            Manager::Cluster(others, _) => {
                let urls = self.nodes.iter().chain(others).map(|node| url(node.port)).collect::<Vec<_>>().join(",");
                vec!["--redis-url".to_owned(), urls]
            }
        }
    }

    /// Returns the name of an actor whose counters are on these servers.
    pub fn actor(&self, name: &str) -> String {
        match &self.manager {
            Manager::Sentinels(_) => name.to_owned(),
            Manager::Cluster(_, tag) => format!("{{{tag}}}{name}"),
        }
    }

    /// Returns the server that the others take for the master.
    pub fn master(&self) -> usize {
        let has_replicas =
            |node: &RedisServer| is_master(node) && node.cli(&["INFO", "replication"]).contains("slave0:");
        let masters: Vec<_> = (0..self.nodes.len()).filter(|index| has_replicas(&self.nodes[*index])).collect();
        assert_eq!(masters.len(), 1);
        masters[0]
    }

    /// Kills the master, waits until another one has been promoted, and starts it again as its replica.
    pub fn kill_master(&mut self) {
        let old = self.master();
        if let Manager::Cluster(..) = self.manager {
            until(|| self.elected.elapsed() > BETWEEN_ELECTIONS);
        }
        self.nodes[old].kill();
        let new = self.await_promotion(old, || ());
        self.elected = Instant::now();
        self.nodes[old].restart();
        if let Manager::Sentinels(_) = self.manager {
            let port = self.nodes[new].port.to_string();
            assert_eq!(self.nodes[old].cli(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        }
        self.await_replicas();
    }

    /// Promotes a replica while the master still takes writes, as if the network kept those who decide from reaching it.
    /// Waits until the old master has become a replica.
    pub fn depose_master(&mut self) {
        let old = self.master();
        let replica = &self.nodes[(old + 1) % self.nodes.len()];
        let promote = || match &self.manager {
            // Refused while it is on its way, which may fail.
            Manager::Sentinels(sentinels) => sentinels[0].ask(&["SENTINEL", "FAILOVER", MASTER]),
            Manager::Cluster(..) => replica.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]),
        };
        self.await_promotion(old, || drop(promote()));
        self.await_replicas();
        assert_ne!(self.master(), old);
    }

    /// Waits until another server than the old master is one, and calls `promote` until then.
    fn await_promotion(&self, old: usize, promote: impl Fn()) -> usize {
        let mut new = None;
        until(|| {
            promote();
            new = (0..self.nodes.len()).find(|index| *index != old && is_master(&self.nodes[*index]));
            new.is_some()
        });
        new.unwrap()
    }

    /// Waits until one server is the master of all others, and those who decide know it.
    fn await_replicas(&self) {
        until(|| {
            let masters: Vec<_> = self.nodes.iter().filter(|node| is_master(node)).collect();
            let [master] = masters[..] else { return false };
            master.cli(&["INFO", "replication"]).matches(",state=online").count() == REPLICAS
        });
        if let Manager::Sentinels(sentinels) = &self.manager {
            let port = self.nodes[self.master()].port.to_string();
            let names_it = |sentinel: &Sentinel| {
                sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).ends_with(&port)
                    && sentinel.knows(REPLICAS)
            };
            until(|| sentinels.iter().all(names_it));
        }
    }
}

fn is_master(node: &RedisServer) -> bool {
    cli(node.port, &["ROLE"]).starts_with("master")
}

fn start(program: &str, count: usize, min_replicas: usize, extra: &[&str]) -> Vec<RedisServer> {
    let min_replicas = min_replicas.to_string();
    let settings = ["--min-replicas-to-write", &min_replicas, "--repl-diskless-sync-delay", "0"];
    let settings = [&settings[..], extra].concat();
    // Below the ports that the system assigns, and so is its bus in a cluster.
    let port = || std::iter::repeat_with(lasting_port).find(|port| *port < 22_000).unwrap();
    (0..count).map(|_| RedisServer::start_program(program, port(), &settings)).collect()
}
