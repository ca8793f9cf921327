//! Runs of a load generator.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::redis_benchmark;
use crate::sample::{CONNECTIONS, Protocol, Sample, Target};

/// A load for a server.
#[derive(Debug, Clone)]
pub struct Load {
    pub target: Target,
    /// A template of `divvy-bench`, with `{}` for the actor.
    pub command: String,
    pub pipeline: u32,
    pub actors: u64,
    /// The distribution of actors, as an option of `divvy-bench`.
    pub distribution: &'static str,
    /// Requests per second of an open loop.
    pub rate: Option<f64>,
    pub generator: Generator,
}

/// The program that generates a load.
#[derive(Debug, Clone, Copy)]
pub enum Generator {
    DivvyBench,
    RedisBenchmark,
}

impl Load {
    /// Loads the server for `seconds` with random actors, which differ in each round, after a warm-up that is the same
    /// for every case.
    pub fn run(&self, seconds: f64, round: u32) -> anyhow::Result<Sample> {
        match self.generator {
            Generator::DivvyBench => {}
            Generator::RedisBenchmark => {
                let requests = redis_benchmark::Requests {
                    addr: &self.target.addr,
                    command: &self.command,
                    pipeline: self.pipeline,
                    actors: self.actors,
                };
                return redis_benchmark::run(&requests, seconds);
            }
        }
        self.run_after(seconds, (seconds / 4.0).min(0.5), round)
    }

    /// Loads the server as [`Load::run`] does, after a warm-up of `warmup` seconds.
    pub fn run_after(&self, seconds: f64, warmup: f64, round: u32) -> anyhow::Result<Sample> {
        let (seconds, warmup, seed) = (seconds.to_string(), warmup.to_string(), (round + 1).to_string());
        let pace = ["--duration", &seconds, "--warmup", &warmup, "--seed", &seed];
        self.generate(&[&pace[..], &["--distribution", self.distribution]].concat())
    }

    /// Hits every actor once, so that each has a counter.
    pub fn fill(&self) -> anyhow::Result<Sample> {
        self.fill_part(0, 1)
    }

    /// Runs part number `part` of `parts` (from 0) of [`Load::fill`].
    pub fn fill_part(&self, part: u32, parts: u32) -> anyhow::Result<Sample> {
        let first = |part: u32| self.actors * u64::from(part) / u64::from(parts);
        self.fill_range(first(part), first(part + 1))
    }

    /// Hits the actors with the numbers from `first` to `end - 1` once.
    pub fn fill_range(&self, first: u64, end: u64) -> anyhow::Result<Sample> {
        let (from, count) = (first.to_string(), (end - first).to_string());
        self.generate(&["--requests", &count, "--distribution", "sequential", "--first-key", &from])
    }

    fn generate(&self, pace: &[&str]) -> anyhow::Result<Sample> {
        let protocol = match self.target.protocol {
            Protocol::Line => "line",
            Protocol::Resp => "resp",
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        };
        let mut generator = Command::new(Path::new(env!("CARGO_BIN_EXE_divvy")).with_file_name("divvy-bench"));
        generator
            .args(["--json", "--protocol", protocol, "--command", &self.command])
            .args(["--addr", &self.target.addr, "--pid", &self.target.pid.to_string()])
            .args(["--connections", &CONNECTIONS.to_string(), "--pipeline", &self.pipeline.to_string()])
            .args(["--keys", &self.actors.to_string()])
            .args(pace);
        if let Some(rate) = self.rate {
            generator.args(["--rate", &rate.to_string()]);
        }
        let output = generator.output().context("starting divvy-bench: `cargo build --release` builds it")?;
        let report = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "divvy-bench {}: {report}{complaint}", self.command);
        serde_json::from_str(&report).with_context(|| format!("the report of divvy-bench: {report}"))
    }
}
