//! The plan of a run, derived from the options before anything is sent.

use super::args::{BenchArgs, Protocol};
use super::reply::FirstNumber;
use super::template::{RequestTemplate, TemplateError};
use crate::clock::NANOS_PER_SECOND;

/// The plan of a run. Times are in nanoseconds since the run began.
#[derive(Debug)]
pub struct Plan {
    pub template: RequestTemplate,
    pub first_number: FirstNumber,
    /// Maximum number of requests in flight on a connection.
    pub pipeline: u64,
    /// Requests per second of an open loop; `None` for a closed loop.
    pub rate: Option<f64>,
    /// Requests that are due earlier are not measured.
    pub warmup_ns: u64,
    /// No request is due at this time or later. `u64::MAX` if only `requests` ends the run.
    pub end_ns: u64,
    /// Number of requests to measure in a closed loop.
    pub requests: Option<u64>,
    /// In an open loop, requests that become due within this time are sent together. If each request had its own system
    /// call, the generator would be too busy to send on time at high rates. The latency includes this wait.
    pub send_interval_ns: u64,
    /// The run is aborted if a connection waits longer for a reply, or if the run is not over this long after its
    /// planned end.
    pub patience_ns: u64,
}

const OPEN_LOOP_SEND_INTERVAL_NS: u64 = 100_000;

const PATIENCE_NS: u64 = 10 * NANOS_PER_SECOND;

impl Plan {
    /// Derives the plan from the options.
    ///
    /// # Errors
    /// The command is not a valid request of the protocol.
    pub fn new(args: &BenchArgs) -> Result<Self, TemplateError> {
        let template = match args.protocol {
            Protocol::Line => RequestTemplate::line(args.command())?,
            Protocol::Resp => RequestTemplate::resp(args.command())?,
        };
        let warmup_ns = nanos(args.warmup.0.as_secs_f64());
        let requests = args.requests.map(|requests| requests.get());
        let measured_ns = match (requests, args.rate) {
            (None, _) => nanos(args.duration.0.as_secs_f64()),
            // The time within which this number of requests is due.
            (Some(requests), Some(rate)) => nanos(requests as f64 / rate),
            (Some(_), None) => u64::MAX,
        };
        Ok(Self {
            template,
            first_number: FirstNumber::of(args.command()),
            pipeline: args.pipeline.get(),
            rate: args.rate,
            warmup_ns,
            end_ns: warmup_ns.saturating_add(measured_ns),
            requests: requests.filter(|_| args.rate.is_none()),
            send_interval_ns: args.rate.map_or(0, |_| OPEN_LOOP_SEND_INTERVAL_NS),
            patience_ns: PATIENCE_NS,
        })
    }

    /// Returns the number of closed-loop requests for thread number `thread` of `threads`.
    pub fn budget(&self, thread: u64, threads: u64) -> u64 {
        self.requests.map_or(u64::MAX, |all| all / threads + u64::from(thread < all % threads))
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * NANOS_PER_SECOND as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(options: &str) -> Plan {
        let words = std::iter::once("bench").chain(options.split_whitespace());
        Plan::new(&Command::try_parse_from(words).unwrap().bench).unwrap()
    }

    #[test]
    fn time_or_number_of_requests_ends_a_run() {
        assert_eq!(plan("--duration 2 --warmup 0.5").end_ns, 2_500_000_000);
        assert_eq!(plan("").end_ns, 10_000_000_000);
        assert_eq!(plan("--requests 100").end_ns, u64::MAX);
        assert_eq!(plan("--requests 100 --rate 50 --warmup 1").end_ns, 3_000_000_000);
    }

    #[test]
    fn threads_share_the_requests() {
        let plan = plan("--requests 10");
        assert_eq!([0, 1, 2].map(|thread| plan.budget(thread, 3)), [4, 3, 3]);
    }
}
