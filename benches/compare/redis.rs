//! The reference: redis-server with its append-only file on.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use divvy::store::redis_window_script;
use tempfile::TempDir;

use crate::disk::bytes_below;
use crate::process::{Process, ask};
use crate::sample::{Protocol, Target};

const START_PATIENCE: Duration = Duration::from_secs(10);

/// The algorithm of Button's Divvy's script, rewritten. The first hit of a window creates the counter, which expires
/// with the window. Later hits take one credit each while there is one. Replies `[allowed, credit, reset]`.
const DIVVY_SCRIPT: &str = "\
local left = redis.call('GET', KEYS[1]) \
if not left then \
  redis.call('SETEX', KEYS[1], ARGV[2], ARGV[1] - 1) \
  return {1, ARGV[1] - 1, tonumber(ARGV[2])} \
end \
local reset = redis.call('TTL', KEYS[1]) \
if tonumber(left) > 0 then \
  return {1, redis.call('DECR', KEYS[1]), reset} \
end \
return {0, 0, reset}";

#[derive(Debug)]
pub struct Redis {
    process: Process,
    addr: String,
    // Removed after the process has ended, because fields are dropped in order.
    data: TempDir,
}

/// When Redis calls fsync for its append-only file.
#[derive(Debug, Clone, Copy)]
pub enum Fsync {
    EverySecond,
    Always,
}

impl Redis {
    pub fn start(directory: &Path, fsync: Fsync) -> anyhow::Result<Self> {
        Self::start_with(directory, fsync, Path::new("redis-server"), &[])
    }

    /// Starts `program` with more options, such as a module.
    pub fn start_with(directory: &Path, fsync: Fsync, program: &Path, options: &[&str]) -> anyhow::Result<Self> {
        let data = TempDir::with_prefix_in("divvy-compare-redis-", directory)?;
        let port = free_port()?.to_string();
        let fsync = match fsync {
            Fsync::EverySecond => "everysec",
            Fsync::Always => "always",
        };
        let process = Process::start(
            Command::new(program)
                .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
                .args(["--appendonly", "yes", "--appendfsync", fsync, "--dir"])
                .arg(data.path())
                .args(options)
                .stdout(Stdio::null()),
        )?;
        let mut redis = Self { process, addr: format!("127.0.0.1:{port}"), data };
        redis.wait_until_ready()?;
        Ok(redis)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while !ask(&self.addr, "PING\r\n", 1).is_ok_and(|reply| reply == "+PONG\r\n") {
            ensure!(!self.process.has_ended(), "redis-server ended; another program may have taken its port");
            ensure!(started.elapsed() < START_PATIENCE, "redis-server does not answer on {}", self.addr);
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn disk_bytes(&self) -> anyhow::Result<u64> {
        bytes_below(self.data.path()).context("sizes of Redis's files")
    }

    pub fn has_command(&self, name: &str) -> bool {
        ask(&self.addr, &format!("COMMAND INFO {name}\r\n"), 2)
            .is_ok_and(|reply| reply.contains("\n*") && !reply.contains("*-1"))
    }

    pub fn target(&self) -> Target {
        Target { addr: self.addr.clone(), pid: self.process.id(), protocol: Protocol::Resp }
    }

    /// Loads Divvy's script. Returns the command that runs it for one key.
    pub fn load_divvy_script(&self, credit_limit: u64, reset_seconds: u64) -> anyhow::Result<String> {
        let digest = self.load_script(DIVVY_SCRIPT)?;
        Ok(format!("EVALSHA {digest} 1 hit:{{}} {credit_limit} {reset_seconds}"))
    }

    /// Loads the script of divvy's Redis store. Returns the command for one hit with three fields.
    pub fn load_store_script(&self, credit_limit: u64, reset_seconds: u64) -> anyhow::Result<String> {
        let digest = self.load_script(&redis_window_script())?;
        let key = format!("'divvy:ip=* method=POST path=/v1/search*:{{}}:{credit_limit}:{reset_seconds}'");
        let limit = format!("'{credit_limit} {reset_seconds}000'");
        Ok(format!("EVALSHA {digest} 1 {key} {limit} 'take 1 now'"))
    }

    fn load_script(&self, script: &str) -> anyhow::Result<String> {
        let request = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${}\r\n{script}\r\n", script.len());
        let reply = ask(&self.addr, &request, 2)?;
        Ok(reply.lines().nth(1).with_context(|| format!("SCRIPT LOAD: {reply}"))?.to_owned())
    }
}

/// Returns a port that was free a moment ago, because redis-server cannot report one that it picks.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
