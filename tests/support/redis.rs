//! Real Redis servers on free ports: a single one, or a cluster of three masters and three replicas. They end when they
//! are dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use divvy::store::DEFAULT_REDIS_TIMEOUT;
use tempfile::TempDir;

use super::{LineClient, until};

/// The default timeout of servers for Redis.
pub const TIMEOUT: Duration = DEFAULT_REDIS_TIMEOUT;
/// Delay that a busy machine may add to a reply.
pub const SLACK: Duration = Duration::from_millis(1500);

/// Sends a hit to a server on Redis, and returns its reply, which must arrive in time.
pub fn hit_in_time(client: &mut LineClient, pairs: &str) -> String {
    let sent = Instant::now();
    client.send(format!("HIT {pairs}\n").as_bytes());
    let reply = client.read_line();
    assert!(sent.elapsed() < TIMEOUT + SLACK, "{reply:?} took {:?}", sent.elapsed());
    reply
}

/// The program that tests use, unless they name another one.
pub const REDIS: &str = "redis-server";

/// Ends the program in its arguments when its standard input ends, which happens when the test process ends for any reason. A server
/// that all tests share is never dropped. The script waits for the end, because a restarted server needs the port.
const GUARDED: &str = r#""$@" > /dev/null & echo $!; read -r _; kill -9 $! 2> /dev/null; wait $! 2> /dev/null"#;

/// A `redis-server` process without persistence, or one of another program like it.
pub struct RedisServer {
    program: String,
    guard: Child,
    pid: String,
    pub port: u16,
    extra: Vec<String>,
    dir: TempDir,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(free_port(), &[])
    }

    /// Starts a server that keeps everything that it acknowledges. It finds its port free when it starts again.
    pub fn durable() -> Self {
        Self::start_with(lasting_port(), &["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub fn start_with(port: u16, extra: &[&str]) -> Self {
        Self::start_program(REDIS, port, extra)
    }

    pub fn start_program(program: &str, port: u16, extra: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let extra: Vec<String> = extra.iter().map(|word| word.to_string()).collect();
        let (guard, pid) = spawn(program, port, &extra, &dir);
        let server = Self { program: program.to_owned(), guard, pid, port, extra, dir };
        server.wait_until_ready();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the output of redis-cli.
    pub fn cli(&self, words: &[&str]) -> String {
        cli(self.port, words)
    }

    /// Returns a number in a section of `INFO`.
    pub fn info(&self, section: &str, name: &str) -> u64 {
        let info = self.cli(&["INFO", section]);
        let number = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        number.unwrap().trim().parse().unwrap()
    }

    /// Returns the output of redis-cli for commands on its standard input, one per line, on one connection.
    pub fn pipe(&self, commands: &str) -> String {
        self.pipe_as("--raw", commands)
    }

    /// Returns the output as `pipe` does, with texts in quotes and unprintable bytes escaped.
    pub fn quoted(&self, commands: &str) -> String {
        self.pipe_as("--no-raw", commands)
    }

    fn pipe_as(&self, form: &str, commands: &str) -> String {
        let mut cli = Command::new("redis-cli");
        let cli = cli.args([form, "-p", &self.port.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = cli.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // It stops reading commands while its replies are not read.
        let output = thread::scope(|scope| {
            scope.spawn(move || input.write_all(commands.as_bytes()).unwrap());
            child.wait_with_output().unwrap()
        });
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Sends SIGKILL. [`RedisServer::restart`] starts it again, empty unless it has an append-only file.
    pub fn kill(&mut self) {
        drop(self.guard.stdin.take());
        self.guard.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.repair_append_only_file();
        (self.guard, self.pid) = spawn(&self.program, self.port, &self.extra, &self.dir);
        self.wait_until_ready();
    }

    /// Removes a transaction whose end is missing from the append-only file, as docs/redis.md recommends after a crash.
    /// Redis may leave its beginning in the file, and apply it at the start after the next.
    fn repair_append_only_file(&self) {
        let manifest = self.dir.path().join("appendonlydir/appendonly.aof.manifest");
        if manifest.exists() {
            let mut check = Command::new("redis-check-aof");
            let check = check.arg("--fix").arg(manifest).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = check.spawn().unwrap();
            // It only asks if there is something to remove.
            let _ = child.stdin.take().unwrap().write_all(b"y\n");
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid]).status().unwrap();
        assert!(status.success());
    }

    fn wait_until_ready(&self) {
        until(|| {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
                && ["PONG", "NOAUTH Authentication required."].contains(&self.cli(&["PING"]).as_str())
        });
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn spawn(program: &str, port: u16, extra: &[String], dir: &TempDir) -> (Child, String) {
    let port = port.to_string();
    let mut command = guarded(program);
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
    start(command.arg(dir.path()).args(extra))
}

/// Returns a command for [`start`]. The program's arguments must be added.
pub fn guarded(program: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GUARDED, "sh", program]);
    command
}

/// Starts the command. Returns the guard, and redis-server's process id.
pub fn start(command: &mut Command) -> (Child, String) {
    let mut guard = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(guard.stdout.take().unwrap()).read_line(&mut pid).unwrap();
    (guard, pid.trim_end().to_owned())
}

/// A cluster of three masters, which are the first nodes, each with a replica.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        // Full coverage is not required, so that the effect of one shard's failure on the others is visible.
        let config = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let config = [&config[..], &["--cluster-require-full-coverage", "no"]].concat();
        let nodes: Vec<_> = (0..6).map(|_| RedisServer::start_with(free_cluster_port(), &config)).collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port));
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .unwrap();
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let cluster = Self { nodes };
        until(|| {
            let is_settled = |node: &RedisServer| {
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && node.cli(&["CLUSTER", "NODES"]).matches("slave ").count() == 3
                    && !node.cli(&["INFO", "replication"]).contains("master_link_status:down")
            };
            cluster.nodes.iter().all(is_settled)
        });
        cluster
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the output of redis-cli, which follows redirections.
    pub fn cli(&self, words: &[&str]) -> String {
        let port = self.nodes.last().unwrap().port;
        cli(port, &[&["-c"], words].concat())
    }

    /// Returns the replica of the master with that port.
    pub fn replica_of(&self, master: u16) -> &RedisServer {
        let follows = format!("master_port:{master}\r");
        self.nodes.iter().find(|node| node.cli(&["INFO", "replication"]).contains(&follows)).unwrap()
    }

    /// Returns the master that has `key`'s slot.
    pub fn master_of(&mut self, key: &str) -> &mut RedisServer {
        let port = self.port_of(key);
        self.node(port)
    }

    pub fn node(&mut self, port: u16) -> &mut RedisServer {
        self.nodes.iter_mut().find(|node| node.port == port).unwrap()
    }

    /// Returns the port of the master that has `key`'s slot.
    pub fn port_of(&self, key: &str) -> u16 {
        let slot: u32 = self.cli(&["CLUSTER", "KEYSLOT", key]).parse().unwrap();
        let nodes = self.cli(&["CLUSTER", "NODES"]);
        let has_slot = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse().is_ok_and(|first: u32| first <= slot) && last.parse().is_ok_and(|last: u32| slot <= last)
        };
        let line = nodes.lines().find(|line| line.split(' ').skip(8).any(has_slot)).unwrap();
        line.split(' ').nth(1).unwrap().split(['@', ':']).nth(1).unwrap().parse().unwrap()
    }
}

/// A proxy between a client and a Redis. It counts how often the client sends something after an answer. It ends with
/// the test process.
pub struct Proxy {
    port: u16,
    round_trips: Arc<AtomicUsize>,
    loses_answer: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(redis: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let round_trips = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&round_trips);
        let loses_answer = Arc::new(AtomicBool::new(false));
        let loses = Arc::clone(&loses_answer);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", redis)).unwrap();
                let has_answered = Arc::new(AtomicBool::new(true));
                let (counted, answered) = (Arc::clone(&counted), Arc::clone(&has_answered));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || {
                    pass_on(from, to, || {
                        counted.fetch_add(usize::from(answered.swap(false, SeqCst)), SeqCst);
                        true
                    });
                });
                let loses = Arc::clone(&loses);
                thread::spawn(move || {
                    pass_on(server, client, || {
                        has_answered.store(true, SeqCst);
                        !loses.swap(false, SeqCst)
                    });
                });
            }
        });
        Self { port, round_trips, loses_answer }
    }

    /// Closes the connection in place of the next answer, which Redis has then given.
    pub fn lose_next_answer(&self) {
        self.loses_answer.store(true, SeqCst);
    }

    /// Returns whether the next answer is still to be lost.
    pub fn will_lose_answer(&self) -> bool {
        self.loses_answer.load(SeqCst)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn round_trips(&self) -> usize {
        self.round_trips.load(SeqCst)
    }
}

/// Passes bytes on while `may_pass` is true, and then closes both connections.
pub fn pass_on(mut from: TcpStream, mut to: TcpStream, mut may_pass: impl FnMut() -> bool) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if !may_pass() {
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return;
        }
        if to.write_all(&bytes[..length]).is_err() {
            return;
        }
    }
}

pub fn cli(port: u16, words: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns a port that the system never assigns automatically, so a killed server finds it free when it starts again.
pub fn lasting_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % u32::from(COUNT)) as u16;
    loop {
        let port = FIRST + begin.wrapping_add(NEXT.fetch_add(1, SeqCst)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Returns a free port for a cluster node, which also listens on its port plus 10,000.
fn free_cluster_port() -> u16 {
    loop {
        let port = free_port();
        if let Some(bus) = port.checked_add(10_000)
            && TcpListener::bind(("127.0.0.1", bus)).is_ok()
        {
            return port;
        }
    }
}

/// Returns the flags of a server that counts in this Redis, and waits for it as long as a busy machine needs.
pub fn on_redis(url: &str) -> [&str; 6] {
    ["--store", "redis", "--redis-timeout", "20000", "--redis-url", url]
}
