//! The results of a run, as text for people and as JSON for programs.

use std::fmt;
use std::time::Duration;

use divvy_core::clock::NANOS_PER_SECOND;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::{BenchArgs, Protocol};
use crate::lane::Measurements;
use crate::plan::Plan;

/// Commands whose replies show denials.
const HITS: [&str; 4] = ["HIT", "DIVVY.HIT", "DIVVY.PEEK", "CL.THROTTLE"];

/// The JSON of `divvy-bench --json`. Latencies and CPU times are in microseconds.
#[derive(Debug, Serialize)]
pub struct Report {
    pub load: Load,
    pub seconds: f64,
    pub requests: u64,
    pub requests_per_second: f64,
    pub denied: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub unanswered: u64,
    /// A reason why the figures may be misleading.
    pub warning: Option<&'static str>,
    pub latency_us: Latency,
    pub server: Option<Server>,
    /// CPU time per request of the generator itself. If it is near 1,000,000 / requests_per_second per thread, the
    /// generator was the bottleneck.
    pub generator_cpu_us_per_request: f64,
}

/// The load that was sent.
#[derive(Debug, Serialize)]
pub struct Load {
    pub protocol: Protocol,
    pub command: String,
    pub connections: usize,
    pub pipeline: u64,
    pub keys: u64,
    pub distribution: String,
    pub rate: Option<f64>,
    pub seed: u64,
    pub threads: usize,
}

#[derive(Debug, Serialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
}

#[derive(Debug, Serialize)]
pub struct Server {
    pub cpu_us_per_request: f64,
    /// CPU time divided by elapsed time: 1.0 is one busy core.
    pub cores: f64,
    pub resident_bytes: u64,
}

/// Resource usage while the requests were measured.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    pub generator_cpu: Duration,
    pub server: Option<ServerUsage>,
}

#[derive(Debug, Clone, Copy)]
pub struct ServerUsage {
    pub cpu: Duration,
    pub resident_bytes: u64,
}

impl Report {
    pub fn new(
        args: &BenchArgs,
        plan: &Plan,
        measured: &Measurements,
        first_error: Option<String>,
        usage: Usage,
    ) -> Self {
        let requests = measured.latencies.len() - measured.unanswered;
        let seconds = measured.last_reply_ns.saturating_sub(plan.warmup_ns) as f64 / NANOS_PER_SECOND as f64;
        let per_request = |cpu: Duration| ratio(cpu.as_secs_f64() * 1e6, requests as f64);
        Self {
            load: Load::new(args),
            seconds,
            requests,
            requests_per_second: ratio(requests as f64, seconds),
            denied: measured.denied,
            errors: measured.errors,
            first_error,
            unanswered: measured.unanswered,
            warning: warning(args.command(), requests, measured.denied),
            latency_us: Latency::new(&measured.latencies),
            server: usage.server.map(|server| Server {
                cpu_us_per_request: per_request(server.cpu),
                cores: ratio(server.cpu.as_secs_f64(), seconds),
                resident_bytes: server.resident_bytes,
            }),
            generator_cpu_us_per_request: per_request(usage.generator_cpu),
        }
    }

    /// Returns whether every request got a reply that is not an error.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.unanswered == 0
    }
}

impl Load {
    fn new(args: &BenchArgs) -> Self {
        Self {
            protocol: args.protocol,
            command: args.command().to_owned(),
            connections: args.connections.get(),
            pipeline: args.pipeline.get(),
            keys: args.keys,
            distribution: args.distribution.to_string(),
            rate: args.rate,
            seed: args.seed,
            threads: args.threads.get(),
        }
    }
}

impl Latency {
    fn new(latencies: &Histogram<u64>) -> Self {
        let microseconds = |nanos: u64| nanos as f64 / 1e3;
        let at = |quantile| microseconds(latencies.value_at_quantile(quantile));
        Self {
            mean: latencies.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: microseconds(latencies.max()),
        }
    }
}

/// Returns a warning if all hits had the same answer, because such a load only exercises part of the server.
fn warning(command: &str, requests: u64, denied: u64) -> Option<&'static str> {
    let name = command.split_whitespace().next().unwrap_or_default();
    if requests == 0 || !HITS.iter().any(|hit| hit.eq_ignore_ascii_case(name)) {
        return None;
    }
    if denied == requests {
        Some(
            "every hit was denied: perhaps no rule allows this operation. Choose an allowed one with --command, and \
             enough --keys; `divvy explain` shows which rule answers",
        )
    } else if denied == 0 {
        Some(
            "no hit was denied: perhaps nothing is counted for this operation, or the limit was not reached. `divvy \
             explain` shows which rule answers; fewer --keys, or --distribution zipf, reach its limit sooner",
        )
    } else {
        None
    }
}

/// Returns `part / whole`, or 0 if `whole` is 0, because JSON has no NaN.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { command, connections, pipeline, keys, distribution, .. } = &self.load;
        let pace = self.load.rate.map_or("as fast as replied".to_owned(), |rate| format!("{rate} due a second"));
        writeln!(f, "{command}: {connections} connections, pipeline {pipeline}, {keys} keys {distribution}, {pace}")?;
        writeln!(f, "requests   {} in {:.2} s, {:.0} a second", self.requests, self.seconds, self.requests_per_second)?;
        writeln!(f, "replies    {} denied, {} errors, {} missing", self.denied, self.errors, self.unanswered)?;
        if let Some(error) = &self.first_error {
            writeln!(f, "           first error: {error}")?;
        }
        if let Some(warning) = self.warning {
            writeln!(f, "warning    {warning}")?;
        }
        let Latency { mean, p50, p90, p99, p99_9, p99_99, max } = self.latency_us;
        writeln!(
            f,
            "latency    mean {mean:.0} µs, p50 {p50:.0}, p90 {p90:.0}, p99 {p99:.0}, p99.9 {p99_9:.0}, p99.99 {p99_99:.0}, max {max:.0}"
        )?;
        if let Some(Server { cpu_us_per_request, cores, resident_bytes }) = self.server {
            let mib = resident_bytes as f64 / f64::from(1 << 20);
            writeln!(
                f,
                "server     {cpu_us_per_request:.2} µs CPU a request, {cores:.2} cores, {mib:.1} MiB resident"
            )?;
        }
        write!(f, "generator  {:.2} µs CPU a request", self.generator_cpu_us_per_request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_with_equal_answers_causes_a_warning() {
        for (command, requests, denied, expected) in [
            ("HIT ip={}", 10, 10, Some("every hit was denied")),
            ("divvy.hit ip={}", 10, 10, Some("every hit was denied")),
            ("HIT ip={}", 10, 0, Some("no hit was denied")),
            ("HIT ip={}", 10, 1, None),
            ("HIT ip={}", 0, 0, None),
            ("INCR hits:{}", 10, 0, None),
        ] {
            let warning = warning(command, requests, denied);
            assert_eq!(warning.and_then(|warning| warning.split(':').next()), expected, "{command} {denied}");
        }
    }
}
