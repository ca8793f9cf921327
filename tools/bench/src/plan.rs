//! The plan of a run, derived from the options before anything is sent: the requests, which are encoded
//! before the run. Sending a request means copying it and filling in the key.

use anyhow::{Context, ensure};

use crate::args::{BenchArgs, Protocol};
use crate::connection::number_of_a_denial;
use crate::keys::{KEY_DIGITS, decimal};
use divvy_core::clock::NANOS_PER_SECOND;

/// The plan of a run. Times are in nanoseconds since the run began.
#[derive(Debug)]
pub struct Plan {
    pub template: RequestTemplate,
    /// The first number of a RESP reply that denies.
    pub denial: &'static [u8],
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

pub const PATIENCE_NS: u64 = 10 * NANOS_PER_SECOND;

impl Plan {
    /// Derives the plan from the options.
    ///
    /// # Errors
    /// The command is not a valid request of the protocol.
    pub fn new(args: &BenchArgs) -> anyhow::Result<Self> {
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
            denial: number_of_a_denial(args.command()),
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

const PLACEHOLDER: &str = "{}";
const EMPTY: &str = "the command is empty";

/// An encoded request with gaps for the key.
#[derive(Debug, Default)]
pub struct RequestTemplate {
    /// Text before each key.
    before: Vec<Vec<u8>>,
    /// Text after the last key, or the whole request if it has no key.
    end: Vec<u8>,
}

impl RequestTemplate {
    /// Encodes a line of Divvy's protocol. `{}` stands for the key.
    pub fn line(command: &str) -> anyhow::Result<Self> {
        ensure!(!command.contains(['\n', '\r']), "a command of the line protocol is one line");
        ensure!(!command.trim().is_empty(), EMPTY);
        let mut template = Self::default();
        template.push(command);
        template.end.push(b'\n');
        Ok(template)
    }

    /// Encodes the command as a RESP array of its words, split and quoted as in a shell. `{}` in a word stands for the
    /// key.
    pub fn resp(command: &str) -> anyhow::Result<Self> {
        let words = shlex::split(command).context("the command has an unclosed quote or ends with a backslash")?;
        ensure!(!words.is_empty(), EMPTY);
        let mut template = Self::default();
        template.push(&format!("*{}\r\n", words.len()));
        for word in &words {
            let keys = word.matches(PLACEHOLDER).count();
            let length = word.len() - keys * PLACEHOLDER.len() + keys * KEY_DIGITS;
            template.push(&format!("${length}\r\n"));
            template.push(word);
            template.push("\r\n");
        }
        Ok(template)
    }

    fn push(&mut self, text: &str) {
        let mut parts = text.split(PLACEHOLDER);
        self.end.extend(parts.next().unwrap_or_default().bytes());
        for after_key in parts {
            self.before.push(std::mem::replace(&mut self.end, after_key.into()));
        }
    }

    /// Appends the request for `key` to `output`. Keys with more than [`KEY_DIGITS`] digits keep only their last
    /// digits.
    pub fn append(&self, key: u64, output: &mut Vec<u8>) {
        let digits = decimal(key);
        for before in &self.before {
            output.extend_from_slice(before);
            output.extend_from_slice(&digits);
        }
        output.extend_from_slice(&self.end);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(options: &str) -> Plan {
        let words = std::iter::once("bench").chain(options.split_whitespace());
        Plan::new(&BenchArgs::try_parse_from(words).unwrap()).unwrap()
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

    fn encoded(template: &RequestTemplate, key: u64) -> String {
        let mut output = Vec::new();
        template.append(key, &mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn line_is_sent_as_written() {
        let template = RequestTemplate::line("HIT path=/a ip={}").unwrap();
        assert_eq!(encoded(&template, 42), "HIT path=/a ip=000000000042\n");
        assert_eq!(encoded(&RequestTemplate::line("HIT").unwrap(), 42), "HIT\n");
    }

    #[test]
    fn resp_lengths_include_the_keys() {
        let template = RequestTemplate::resp("SET '{} or {}' x{}").unwrap();
        let key = "000000000007";
        assert_eq!(encoded(&template, 7), format!("*3\r\n$3\r\nSET\r\n$28\r\n{key} or {key}\r\n$13\r\nx{key}\r\n"));
        assert_eq!(encoded(&RequestTemplate::resp("PING").unwrap(), 7), "*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    fn invalid_commands_are_rejected() {
        for (template, expected) in [
            (RequestTemplate::line("HIT\nHIT"), "a command of the line protocol is one line"),
            (RequestTemplate::line(" "), EMPTY),
            (RequestTemplate::resp(""), EMPTY),
            (RequestTemplate::resp("GET 'x"), "the command has an unclosed quote or ends with a backslash"),
        ] {
            assert_eq!(template.unwrap_err().to_string(), expected);
        }
    }
}
