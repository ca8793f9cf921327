//! The results of a run, as text for people and as JSON for programs, and the use of resources, as the kernel reports it in `/proc`.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::Protocol;
use crate::plan::Plan;
use crate::worker::Measurements;
use divvy_core::clock::NANOS_PER_SECOND;

/// Commands whose replies show denials.
const HITS: [&str; 4] = ["HIT", "DIVVY.HIT", "DIVVY.PEEK", "CL.THROTTLE"];

/// The JSON of `divvy-bench --json`. Latencies and CPU times are in microseconds.
#[derive(Debug, Serialize)]
pub struct Report {
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

impl Report {
    /// Creates the report on a load.
    pub fn new(plan: &Plan, measured: Measurements, Usage { generator_cpu, server }: Usage) -> Self {
        let requests = measured.latencies.len() - measured.unanswered;
        let seconds = measured.last_reply_ns.saturating_sub(plan.warmup_ns) as f64 / NANOS_PER_SECOND as f64;
        let per_request = |cpu: Duration| ratio(cpu.as_secs_f64() * 1e6, requests as f64);
        Self {
            seconds,
            requests,
            requests_per_second: ratio(requests as f64, seconds),
            denied: measured.denied,
            errors: measured.errors,
            first_error: measured.first_error,
            unanswered: measured.unanswered,
            warning: warning((plan.args.protocol, plan.args.command()), requests, measured.denied),
            latency_us: Latency::new(&measured.latencies),
            server: server.map(|ProcessUsage { cpu, resident_bytes }| Server {
                cpu_us_per_request: per_request(cpu),
                cores: ratio(cpu.as_secs_f64(), seconds),
                resident_bytes,
            }),
            generator_cpu_us_per_request: per_request(generator_cpu),
        }
    }

    /// Returns whether every request got a reply that is not an error.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.unanswered == 0
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
fn warning((protocol, command): (Protocol, &str), requests: u64, denied: u64) -> Option<&'static str> {
    let name = command.split_whitespace().next().unwrap_or_default();
    let has_verb = matches!(protocol, Protocol::Line | Protocol::Resp);
    match denied {
        _ if requests == 0 || has_verb && !HITS.iter().any(|hit| hit.eq_ignore_ascii_case(name)) => None,
        _ if denied == requests => Some(
            "every hit was denied: perhaps no rule allows this operation. Choose an allowed one with --command, and \
             enough --keys; `divvy explain` shows which rule answers",
        ),
        0 => Some(
            "no hit was denied: perhaps nothing is counted for this operation, or the limit was not reached. `divvy \
             explain` shows which rule answers; fewer --keys, or --distribution zipf, reach its limit sooner",
        ),
        _ => None,
    }
}

/// Returns `part / whole`, or 0 if `whole` is 0, because JSON has no NaN.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

/// The CPU time of the generator, and the resources that the server uses, if its process is known.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    generator_cpu: Duration,
    server: Option<ProcessUsage>,
}

/// The CPU time of all threads of a process, including those that have ended, and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessUsage {
    cpu: Duration,
    resident_bytes: u64,
}

impl Usage {
    /// Reads the usage of this process, and of the server's.
    pub fn now(server: Option<u32>) -> anyhow::Result<Self> {
        let generator_cpu = ProcessUsage::of(std::process::id()).map(|usage| usage.cpu).unwrap_or_default();
        Ok(Self { generator_cpu, server: server.map(ProcessUsage::of).transpose()? })
    }

    /// Returns the CPU times since `start`, and the server's memory.
    pub fn since(mut self, start: Self) -> Self {
        self.generator_cpu = self.generator_cpu.saturating_sub(start.generator_cpu);
        if let (Some(server), Some(start)) = (&mut self.server, start.server) {
            server.cpu = server.cpu.saturating_sub(start.cpu);
        }
        self
    }
}

impl ProcessUsage {
    /// Reads the usage of a process. The kernel reports CPU time in clock ticks (10 ms), so measure over at least a second.
    fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/stat");
        let stat =
            std::fs::read_to_string(&path).with_context(|| format!("reading {path} for the server's CPU time"))?;
        Self::parse(&stat).with_context(|| format!("{path} is not of the form that proc(5) documents"))
    }

    /// Parses the line. Its second field is the program's name in parentheses, which may contain any character.
    fn parse(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let fields: Vec<_> = after_name.split_whitespace().collect();
        // proc(5) counts from 1, and the third field is the first after the name.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks_per_second = u32::try_from(rustix::param::clock_ticks_per_second()).ok()?.max(1);
        Some(Self {
            cpu: Duration::from_secs(field(14)? + field(15)?) / ticks_per_second,
            resident_bytes: field(24)? * rustix::param::page_size() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_with_equal_answers_causes_a_warning() {
        for (protocol, command, requests, denied, expected) in [
            (Protocol::Line, "HIT ip={}", 10, 10, Some("every hit was denied")),
            (Protocol::Resp, "divvy.hit ip={}", 10, 10, Some("every hit was denied")),
            (Protocol::Http, "ip={}", 10, 10, Some("every hit was denied")),
            (Protocol::Grpc, "divvy ip={}", 10, 0, Some("no hit was denied")),
            (Protocol::Line, "HIT ip={}", 10, 0, Some("no hit was denied")),
            (Protocol::Line, "HIT ip={}", 10, 1, None),
            (Protocol::Line, "HIT ip={}", 0, 0, None),
            (Protocol::Resp, "INCR hits:{}", 10, 0, None),
        ] {
            let warning = warning((protocol, command), requests, denied);
            assert_eq!(warning.and_then(|warning| warning.split(':').next()), expected, "{command} {denied}");
        }
    }

    #[test]
    fn usage_is_found_after_any_program_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 5 6 7 8 120 30 9 9 20 0 3 0 100 4096 2 99";
        let usage = ProcessUsage::parse(stat).unwrap();
        assert_eq!(
            usage.cpu * u32::try_from(rustix::param::clock_ticks_per_second()).unwrap(),
            Duration::from_secs(150)
        );
        assert_eq!(usage.resident_bytes, 2 * rustix::param::page_size() as u64);
        assert_eq!((ProcessUsage::parse("42 (x"), ProcessUsage::parse("42 (x) S 1")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_memory() {
        assert!(ProcessUsage::of(std::process::id()).unwrap().resident_bytes > 100_000);
    }
}
