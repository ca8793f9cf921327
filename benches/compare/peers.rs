//! Other rate limiters, if they are installed, with the same load as divvy and in the same table.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use tempfile::TempDir;

use crate::divvy::{PLENTY, RESET_SECONDS};
use crate::process::{Process, ask};
use crate::redis::{Fsync, Redis, free_port};
use crate::sample::{Protocol, Target};

const START_PATIENCE: Duration = Duration::from_secs(10);

/// The rate limiters to measure.
#[derive(Debug, Clone, Serialize)]
pub struct Choice {
    /// Whether to measure the rate limiters found in the PATH.
    pub installed: bool,
    /// The library of redis-cell.
    pub redis_cell: Option<PathBuf>,
}

/// A rate limiter that speaks RESP.
#[derive(Debug)]
pub struct Peer {
    pub name: &'static str,
    pub target: Target,
    /// A template of `divvy-bench`.
    pub command: String,
    /// Dropping it ends the server.
    _server: Box<dyn fmt::Debug>,
}

/// Limitador, which supports Envoy's service and has an HTTP interface of its own.
#[derive(Debug)]
pub struct Limitador {
    process: Process,
    grpc: String,
    http: String,
    _limits: TempDir,
}

/// Starts those that speak RESP. Their limit is that of divvy's rules, as GCRA parameters.
pub fn start(choice: &Choice, directory: &Path) -> anyhow::Result<Vec<Peer>> {
    let mut peers = Vec::new();
    if let Some(module) = &choice.redis_cell {
        peers.push(redis_cell(module, directory)?);
    }
    if choice.installed && is_installed("throttlecrab-server") {
        peers.push(throttlecrab()?);
    }
    Ok(peers)
}

/// Starts redis-cell in a Redis with an append-only file, like the reference.
fn redis_cell(module: &Path, directory: &Path) -> anyhow::Result<Peer> {
    let redis = Redis::start_with(directory, Fsync::EverySecond, &["--loadmodule", &module.to_string_lossy()])?;
    Ok(Peer { name: "redis-cell", target: redis.target(), command: throttle("CL.THROTTLE"), _server: Box::new(redis) })
}

/// Starts throttlecrab, which keeps its counters in memory only.
fn throttlecrab() -> anyhow::Result<Peer> {
    let port = free_port()?.to_string();
    let addr = format!("127.0.0.1:{port}");
    let process = Process::start(
        Command::new("throttlecrab-server")
            .args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port, "--log-level", "error"])
            .stdout(Stdio::null()),
    )?;
    wait_until(|| ask(&addr, "*1\r\n$4\r\nPING\r\n", 1).is_ok_and(|reply| reply.contains("PONG")), &addr)?;
    Ok(Peer {
        name: "throttlecrab",
        target: Target { addr, pid: process.id(), protocol: Protocol::Resp },
        command: throttle("THROTTLE"),
        _server: Box::new(process),
    })
}

/// Returns a hit of one actor with its burst, credits and period.
pub fn throttle(command: &str) -> String {
    format!("{command} hit:{{}} {PLENTY} {PLENTY} {RESET_SECONDS}")
}

impl Limitador {
    /// Starts one that counts in memory, if it is chosen and installed.
    pub fn start(choice: &Choice, directory: &Path) -> anyhow::Result<Option<Self>> {
        if !choice.installed || !is_installed("limitador-server") {
            return Ok(None);
        }
        let limits = TempDir::with_prefix_in("divvy-compare-limitador-", directory)?;
        let file = limits.path().join("limits.yaml");
        std::fs::write(
            &file,
            format!(
                "- namespace: bench\n  max_value: {PLENTY}\n  seconds: {RESET_SECONDS}\n  conditions:\n  \
                 - \"descriptors[0].method == 'POST'\"\n  - \"descriptors[0].path.startsWith('/v1/search')\"\n  \
                 variables:\n  - \"descriptors[0].ip\"\n"
            ),
        )?;
        let (grpc, http) = (free_port()?.to_string(), free_port()?.to_string());
        let process = Process::start(
            Command::new("limitador-server")
                .args(["--rls-ip", "127.0.0.1", "--rls-port", &grpc, "--http-ip", "127.0.0.1", "--http-port", &http])
                .arg(&file)
                .arg("memory")
                .stdout(Stdio::null())
                .stderr(File::create(limits.path().join("log"))?),
        )?;
        let [grpc, http] = [grpc, http].map(|port| format!("127.0.0.1:{port}"));
        wait_until(|| TcpStream::connect(&grpc).is_ok() && TcpStream::connect(&http).is_ok(), &grpc)?;
        Ok(Some(Self { process, grpc, http, _limits: limits }))
    }

    pub fn grpc(&self) -> Target {
        Target { addr: self.grpc.clone(), pid: self.process.id(), protocol: Protocol::Http }
    }

    pub fn http(&self) -> Target {
        Target { addr: self.http.clone(), pid: self.process.id(), protocol: Protocol::Http }
    }
}

fn is_installed(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_missing = asked.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if is_missing {
        eprintln!("  {program} is not in the PATH: left out");
    }
    !is_missing
}

fn wait_until(mut is_ready: impl FnMut() -> bool, addr: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    while !is_ready() {
        ensure!(started.elapsed() < START_PATIENCE, "nothing answers on {addr}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
