//! Other rate limiters, as far as they can be had, with the same load as divvy and in the same table.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;

use crate::divvy::{PLENTY, RESET_SECONDS};
use crate::process::{Process, ask, listener_on};
use crate::redis::{Fsync, Redis, free_port};
use crate::sample::{Protocol, Target};
use crate::table::Table;

const START_PATIENCE: Duration = Duration::from_secs(10);

/// The rate limiters to measure besides those in the PATH.
#[derive(Debug, Clone, Serialize)]
pub struct Choice {
    /// Another server of Redis's protocol.
    pub redis: Option<PathBuf>,
    /// The library of redis-cell.
    pub redis_cell: Option<PathBuf>,
    /// Names and addresses of servers of Envoy's rate limit service, which run already.
    pub grpc: Vec<(String, String)>,
}

/// Running rate limiters.
#[derive(Debug, Default)]
pub struct Peers {
    pub peers: Vec<Peer>,
    /// Dropping them ends them.
    servers: Vec<Box<dyn fmt::Debug>>,
}

#[derive(Debug)]
pub struct Peer {
    pub name: String,
    pub target: Target,
    /// A template of `divvy-bench`.
    pub command: String,
}

impl Peers {
    /// Starts those that can be had. Their limit is that of divvy's rules. Notes say how to get the others.
    pub fn start(
        choice: &Choice,
        directory: &Path,
        reference: &Redis,
        grpc_hit: &str,
        table: &mut Table,
    ) -> anyhow::Result<Self> {
        let mut peers = Self::default();
        let start =
            |program: &Path, options: &[&str]| Redis::start_with(directory, Fsync::EverySecond, program, options);
        let other = choice.redis.as_ref().map(|program| start(program, &[])).transpose()?;
        match [Some(reference), other.as_ref()].into_iter().flatten().find(|redis| redis.has_command("INCREX")) {
            Some(redis) => {
                let command = format!("INCREX hit:{{}} EX {RESET_SECONDS} ENX UBOUND {PLENTY}");
                peers.add("INCREX", redis.target(), command);
            }
            None => table.add_note("left out: INCREX. Redis has it from 8.8, Valkey from 9.2: --redis FILE".to_owned()),
        }
        if let Some((program, redis)) = choice.redis.as_ref().zip(other) {
            let name = program.file_name().unwrap_or_default().display();
            peers.add(&format!("{name} INCR"), redis.target(), "INCR hit:{}".to_owned());
            let script = redis.load_divvy_script(PLENTY, RESET_SECONDS)?;
            peers.add(&format!("{name}, Divvy's script"), redis.target(), script);
            peers.servers.push(Box::new(redis));
        }
        match &choice.redis_cell {
            Some(module) => {
                let redis = start(Path::new("redis-server"), &["--loadmodule", &module.to_string_lossy()])?;
                peers.add("redis-cell", redis.target(), throttle("CL.THROTTLE"));
                peers.servers.push(Box::new(redis));
            }
            None => table.add_note(
                "left out: redis-cell. `cargo build --release` in its repository, then --redis-cell \
                 target/release/libredis_cell.so"
                    .to_owned(),
            ),
        }
        if is_installed("throttlecrab-server") {
            peers.start_throttlecrab()?;
        } else {
            let note =
                "left out: throttlecrab. `apt-get install protobuf-compiler`, `cargo install throttlecrab-server`";
            table.add_note(note.to_owned());
        }
        for (name, addr) in &choice.grpc {
            let target = Target { addr: addr.clone(), pid: listener_on(addr)?, protocol: Protocol::Grpc };
            peers.add(&format!("{name} gRPC"), target, grpc_hit.to_owned());
        }
        if choice.grpc.is_empty() {
            table
                .add_note("left out: limitador, ratelimit. Start one, then --peer NAME=ADDRESS of its gRPC".to_owned());
        }
        Ok(peers)
    }

    fn add(&mut self, name: &str, target: Target, command: String) {
        self.peers.push(Peer { name: name.to_owned(), target, command });
    }

    /// Starts throttlecrab, which keeps its counters in memory only.
    fn start_throttlecrab(&mut self) -> anyhow::Result<()> {
        let port = free_port()?.to_string();
        let addr = format!("127.0.0.1:{port}");
        let process = Process::start(
            Command::new("throttlecrab-server")
                .args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port, "--log-level", "error"])
                .stdout(Stdio::null()),
        )?;
        let started = Instant::now();
        while !ask(&addr, "*1\r\n$4\r\nPING\r\n", 1).is_ok_and(|reply| reply.contains("PONG")) {
            ensure!(started.elapsed() < START_PATIENCE, "nothing answers on {addr}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let target = Target { addr, pid: process.id(), protocol: Protocol::Resp };
        self.add("throttlecrab", target, throttle("THROTTLE"));
        self.servers.push(Box::new(process));
        Ok(())
    }
}

/// Returns a hit of one actor with its burst, credits and period.
pub fn throttle(command: &str) -> String {
    format!("{command} hit:{{}} {PLENTY} {PLENTY} {RESET_SECONDS}")
}

fn is_installed(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    !asked.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}
