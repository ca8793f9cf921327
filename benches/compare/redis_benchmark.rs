//! Runs of redis-benchmark, Redis's own load generator, as a second opinion.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::process::ask;
use crate::sample::{CONNECTIONS, Latency, Sample, Server};

/// Requests of the calibration, which determines how many requests fill the time.
const CALIBRATION: u64 = 20_000;
/// Placeholder that redis-benchmark replaces with a number of twelve digits.
const RANDOM: &str = "__rand_int__";

/// The load for a Redis.
pub struct Requests<'a> {
    pub addr: &'a str,
    /// The command, with words as in a shell. `{}` stands for an actor.
    pub command: &'a str,
    pub pipeline: u32,
    pub actors: u64,
}

/// Loads a Redis for about this many seconds, after a shorter run that warms it up.
pub fn run(load: &Requests<'_>, seconds: f64) -> anyhow::Result<Sample> {
    let (rate, _) = generate(load, CALIBRATION)?;
    let requests = (rate * seconds) as u64 + 1;
    let before = cpu_seconds(load.addr)?;
    let (requests_per_second, latency_us) = generate(load, requests)?;
    let cpu = cpu_seconds(load.addr)? - before;
    let server = Server { cpu_us_per_request: cpu * 1e6 / requests as f64, resident_bytes: 0 };
    Ok(Sample { requests, requests_per_second, denied: 0, latency_us, server })
}

/// Returns requests per second, and latencies.
fn generate(load: &Requests<'_>, requests: u64) -> anyhow::Result<(f64, Latency)> {
    let (host, port) = load.addr.rsplit_once(':').context("an address has a port")?;
    let output = Command::new("redis-benchmark")
        .args(["--csv", "-h", host, "-p", port, "-c", &CONNECTIONS.to_string(), "-n", &requests.to_string()])
        .args(["-P", &load.pipeline.to_string(), "-r", &load.actors.to_string()])
        .args(shlex::split(&load.command.replace("{}", RANDOM)).context("a quote is missing in the command")?)
        .output()
        .context("starting redis-benchmark; it comes with redis-tools")?;
    let report = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "redis-benchmark: {report}{}", String::from_utf8_lossy(&output.stderr));
    let row = report.lines().last().and_then(numbers).with_context(|| format!("its report: {report}"))?;
    // The columns are "rps", "avg", "min", "p50", "p95", "p99", "max"; latencies are in milliseconds. There is no
    // p99.9.
    let [rate, _, _, p50, _, p99, _] = row;
    Ok((rate, Latency { p50: p50 * 1e3, p99: p99 * 1e3, p99_9: f64::NAN }))
}

/// Returns the numbers after the test's name. The name is the command, and may contain any character.
fn numbers(row: &str) -> Option<[f64; 7]> {
    let mut fields = row.rsplit(',').map(|field| field.trim_matches('"').parse().ok());
    let mut row = [0.0; 7];
    for place in row.iter_mut().rev() {
        *place = fields.next()??;
    }
    Some(row)
}

/// Returns the CPU time that the server reports.
fn cpu_seconds(addr: &str) -> anyhow::Result<f64> {
    let info = ask(addr, "INFO cpu\r\n", 4)?;
    let of = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
    let both = of("used_cpu_user:").zip(of("used_cpu_sys:"));
    both.map(|(user, system)| user + system).with_context(|| format!("INFO cpu: {info}"))
}
