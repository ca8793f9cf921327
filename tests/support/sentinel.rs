//! A master and its replica with a password, and three sentinels with another one. They end when they are dropped.

use std::process::{Child, Command};

use tempfile::TempDir;

use super::redis::{REDIS, RedisServer, cli, free_port, guarded, start};
use super::until;

pub const MASTER: &str = "main";
pub const PASSWORD: &str = "secret";
pub const SENTINEL_PASSWORD: &str = "watchful";

pub struct Sentinels {
    pub master: RedisServer,
    pub replica: RedisServer,
    sentinels: Vec<Sentinel>,
}

pub struct Sentinel {
    guard: Child,
    pid: String,
    pub port: u16,
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
        let settings = [
            format!("sentinel auth-pass {MASTER} {PASSWORD}"),
            format!("sentinel down-after-milliseconds {MASTER} 1000"),
        ];
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(REDIS, &port, &settings)).collect();
        let setup = Self { master, replica, sentinels };
        until(|| setup.sentinels.iter().all(|sentinel| sentinel.knows(1)));
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
    /// Starts one of three sentinels of the master with this port.
    pub fn start(program: &str, master: &str, settings: &[String]) -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = dir.path().join("sentinel.conf");
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("requirepass {SENTINEL_PASSWORD}"),
            format!("sentinel sentinel-pass {SENTINEL_PASSWORD}"),
            format!("sentinel monitor {MASTER} 127.0.0.1 {master} 2"),
            settings.join("\n"),
            format!("sentinel failover-timeout {MASTER} 3000"),
        ];
        std::fs::write(&config, lines.join("\n")).unwrap();
        let mut command = guarded(program);
        let (guard, pid) = start(command.arg(&config).arg("--sentinel"));
        let sentinel = Self { guard, pid, port, _dir: dir };
        until(|| sentinel.ask(&["PING"]) == "PONG");
        sentinel
    }

    /// Returns whether the sentinel knows this number of replicas and the other two sentinels, so that it can take part in a
    /// failover.
    pub fn knows(&self, replicas: usize) -> bool {
        let known = self.ask(&["INFO", "sentinel"]);
        known.contains("status=ok") && known.contains(&format!("slaves={replicas},sentinels=3"))
    }

    pub fn ask(&self, words: &[&str]) -> String {
        ask(self.port, SENTINEL_PASSWORD, words)
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
