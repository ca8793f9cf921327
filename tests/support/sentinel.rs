//! A master and its replica with a password, and three sentinels with another one. They end when they are dropped.

use std::process::{Child, Command};

use tempfile::TempDir;

use super::redis::{RedisServer, cli, free_port, guarded, start};
use super::until;

pub const MASTER: &str = "main";
pub const PASSWORD: &str = "secret";
pub const SENTINEL_PASSWORD: &str = "watchful";

pub struct Sentinels {
    pub master: RedisServer,
    pub replica: RedisServer,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    guard: Child,
    pid: String,
    port: u16,
    _dir: TempDir,
}

impl Sentinels {
    pub fn start() -> Self {
        let passwords = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
        let master = RedisServer::start_with(free_port(), &passwords);
        let port = master.port.to_string();
        let replica_of = [&passwords[..], &["--replicaof", "127.0.0.1", &port]].concat();
        let replica = RedisServer::start_with(free_port(), &replica_of);
        until(|| ask(replica.port, PASSWORD, &["INFO", "replication"]).contains("master_link_status:up"));
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(&port)).collect();
        let setup = Self { master, replica, sentinels };
        until(|| setup.sentinels.iter().all(Sentinel::knows_all));
        setup
    }

    pub fn urls(&self) -> String {
        let urls = self.sentinels.iter().map(|sentinel| format!("redis://:{PASSWORD}@127.0.0.1:{}", sentinel.port));
        urls.collect::<Vec<_>>().join(",")
    }

    /// Returns the output of redis-cli for the replica.
    pub fn ask_replica(&self, words: &[&str]) -> String {
        ask(self.replica.port, PASSWORD, words)
    }

    /// Makes the first sentinel hang.
    pub fn hang_first_sentinel(&self) {
        let pid = &self.sentinels.first().unwrap().pid;
        assert!(Command::new("kill").args(["-STOP", pid]).status().unwrap().success());
    }
}

impl Sentinel {
    fn start(master: &str) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = dir.path().join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("requirepass {SENTINEL_PASSWORD}"),
            format!("sentinel sentinel-pass {SENTINEL_PASSWORD}"),
            format!("sentinel monitor {MASTER} 127.0.0.1 {master} 2"),
            format!("sentinel auth-pass {MASTER} {PASSWORD}"),
            format!("sentinel down-after-milliseconds {MASTER} 1000"),
            format!("sentinel failover-timeout {MASTER} 3000"),
        ];
        std::fs::write(&config, lines.join("\n")).unwrap();
        let mut command = guarded();
        let (guard, pid) = start(command.arg(&config).arg("--sentinel"));
        let sentinel = Self { guard, pid, port, _dir: dir };
        until(|| ask(port, SENTINEL_PASSWORD, &["PING"]) == "PONG");
        sentinel
    }

    /// Returns whether the sentinel knows the replica and the other two sentinels, so that it can take part in a
    /// failover.
    fn knows_all(&self) -> bool {
        let known = ask(self.port, SENTINEL_PASSWORD, &["INFO", "sentinel"]);
        known.contains("status=ok") && known.contains("slaves=1,sentinels=3")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn ask(port: u16, password: &str, words: &[&str]) -> String {
    cli(port, &[&["-a", password, "--no-auth-warning"], words].concat())
}
