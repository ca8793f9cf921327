//! Runs of h2load, nghttp2's load generator, for HTTP and gRPC, which `divvy-bench` does not support.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::process::cpu_seconds;
use crate::sample::{CONNECTIONS, Latency, Sample, Server, Target};

/// A request over HTTP.
#[derive(Debug, Clone)]
pub struct Ask {
    pub version: Version,
    pub path: &'static str,
    pub content_type: &'static str,
    /// The body of every request. h2load sends the same one each time.
    pub body: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

/// Loads the server for `seconds`, after a warm-up, with one request in flight on each connection.
pub fn run(target: &Target, ask: &Ask, seconds: f64) -> anyhow::Result<Sample> {
    let directory = tempfile::tempdir()?;
    let (body, log) = (directory.path().join("body"), directory.path().join("log"));
    std::fs::write(&body, &ask.body)?;
    generate(target, ask, &body, &log, (seconds / 4.0).min(0.5))?;
    let before = cpu_seconds(target.pid)?;
    let requests_per_second = generate(target, ask, &body, &log, seconds)?;
    let cpu = cpu_seconds(target.pid)? - before;
    let mut latencies = latencies(&std::fs::read_to_string(&log)?)?;
    let requests = latencies.len() as u64;
    latencies.sort_unstable();
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).map_or(f64::NAN, |us| *us as f64);
    let latency_us = Latency { p50: at(0.5), p99: at(0.99), p99_9: at(0.999) };
    let server = Server { cpu_us_per_request: cpu * 1e6 / requests as f64, resident_bytes: 0 };
    Ok(Sample { requests, requests_per_second, denied: 0, latency_us, server })
}

/// Runs h2load. Returns requests per second.
fn generate(target: &Target, ask: &Ask, body: &Path, log: &Path, seconds: f64) -> anyhow::Result<f64> {
    let _ = std::fs::remove_file(log);
    let mut h2load = Command::new("h2load");
    h2load.args(["--clients", &CONNECTIONS.to_string(), "--threads", "1", "--max-concurrent-streams", "1"]);
    h2load.args(["--duration", &format!("{}ms", (seconds * 1e3) as u64), "--warm-up-time", "0ms"]);
    h2load.args(["--header", &format!("content-type: {}", ask.content_type), "--header", "te: trailers"]);
    h2load.arg("--data").arg(body).arg("--log-file").arg(log);
    if ask.version == Version::Http1 {
        h2load.arg("--h1");
    }
    h2load.arg(format!("http://{}{}", target.addr, ask.path));
    let output = h2load.output().context("starting h2load; it comes with nghttp2-client")?;
    let report = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "h2load: {report}{}", String::from_utf8_lossy(&output.stderr));
    rate(&report).with_context(|| format!("its report: {report}"))
}

/// Parses the line `finished in 3.00s, 12345.67 req/s, 1.23MB/s`.
fn rate(report: &str) -> Option<f64> {
    let line = report.lines().find(|line| line.starts_with("finished in "))?;
    line.split(", ").find_map(|part| part.strip_suffix(" req/s"))?.parse().ok()
}

/// Returns the microseconds of each request. Every request must have been answered with 200.
fn latencies(log: &str) -> anyhow::Result<Vec<u64>> {
    let mut latencies = Vec::new();
    for line in log.lines() {
        let mut columns = line.split('\t').skip(1);
        let (status, micros) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        ensure!(status == "200", "a request was answered with {status}");
        latencies.push(micros.parse().with_context(|| format!("a line of h2load's log: {line}"))?);
    }
    ensure!(!latencies.is_empty(), "h2load logged no request");
    Ok(latencies)
}
