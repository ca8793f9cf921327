//! The plan of a run, derived from the options before anything is sent: the requests, which are encoded
//! before the run. Sending a request means copying it and filling in the key. Also the keys: which one is next, and how it is
//! written.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::{Context, ensure};
use memchr::memmem;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;

use crate::args::{BenchArgs, Protocol};
use crate::http2::{CallHeads, rate_limit_body};
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_server::protocol::resp;

/// The plan of a run. Times are in nanoseconds since the run began.
pub struct Plan<'a> {
    pub args: &'a BenchArgs,
    pub template: RequestTemplate,
    /// Requests that are due earlier are not measured.
    pub warmup_ns: u64,
    /// No request is due at this time or later. `u64::MAX` if only the number of requests ends the run.
    pub end_ns: u64,
    /// The run is aborted if a connection waits longer for a reply, or if the run is not over this long after its
    /// planned end.
    pub patience_ns: u64,
}

/// In an open loop, requests that become due within this time are sent together. If each request had its own system call, the
/// generator would be too busy to send on time at high rates. The latency includes this wait.
const OPEN_LOOP_SEND_INTERVAL_NS: u64 = 100_000;

pub const PATIENCE_NS: u64 = 10 * NANOS_PER_SECOND;

impl<'a> Plan<'a> {
    /// Derives the plan from the options.
    ///
    /// # Errors
    /// The command is not a valid request of the protocol.
    pub fn new(args: &'a BenchArgs) -> anyhow::Result<Self> {
        let warmup_ns = nanos(args.warmup.0.as_secs_f64());
        let measured_ns = match (args.requests, args.rate) {
            (None, _) => nanos(args.duration.0.as_secs_f64()),
            // The time within which this number of requests is due.
            (Some(requests), Some(rate)) => nanos(requests.get() as f64 / rate),
            (Some(_), None) => u64::MAX,
        };
        let template = RequestTemplate::new(args.protocol, args.command(), args.addr())?;
        let end_ns = warmup_ns.saturating_add(measured_ns);
        Ok(Self { args, template, warmup_ns, end_ns, patience_ns: PATIENCE_NS })
    }

    /// Returns the number of closed-loop requests for thread number `thread` of `threads`.
    pub fn budget(&self, thread: u64, threads: u64) -> u64 {
        let all = self.args.requests.filter(|_| self.args.rate.is_none());
        all.map_or(u64::MAX, |all| all.get() / threads + u64::from(thread < all.get() % threads))
    }

    /// Returns the time between two looks for requests that are due.
    pub fn send_interval_ns(&self) -> u64 {
        self.args.rate.map_or(0, |_| OPEN_LOOP_SEND_INTERVAL_NS)
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * NANOS_PER_SECOND as f64) as u64
}

const PLACEHOLDER: &str = "{}";
const EMPTY: &str = "the command is empty";
/// Text that stands for a key while a request is encoded. It is as long as a key.
const GAP: &str = "{}{}{}{}{}{}";

/// An encoded request with gaps for the key.
#[derive(Debug, Default)]
pub struct RequestTemplate {
    /// Text before each key.
    before: Vec<Vec<u8>>,
    /// Text after the last key, or the whole request if it has no key.
    end: Vec<u8>,
    /// The beginning of a gRPC call, whose body is the template.
    heads: Option<CallHeads>,
}

impl RequestTemplate {
    /// Encodes a command for the server at `addr`. `{}` stands for the key.
    pub fn new(protocol: Protocol, command: &str, addr: &str) -> anyhow::Result<Self> {
        ensure!(!command.trim().is_empty(), EMPTY);
        if protocol == Protocol::Line {
            ensure!(!command.contains(['\n', '\r']), "a command of the line protocol is one line");
            return Ok(Self::with_gaps(format!("{command}\n").replace(PLACEHOLDER, GAP).as_bytes()));
        }
        let words = shlex::split(command).context("the command has an unclosed quote or ends with a backslash")?;
        let words: Vec<String> = words.iter().map(|word| word.replace(PLACEHOLDER, GAP)).collect();
        let (first, others) = words.split_first().context(EMPTY)?;
        match protocol {
            Protocol::Line | Protocol::Resp => {
                let mut request = Vec::new();
                resp::write_request(&mut request, &words);
                Ok(Self::with_gaps(&request))
            }
            Protocol::Http => {
                let pairs = words.iter().map(|word| pair(word)).collect::<anyhow::Result<BTreeMap<_, _>>>()?;
                let body = serde_json::json!({ "operation": pairs }).to_string();
                let head = format!("POST /v1/hit HTTP/1.1\r\nhost: {addr}\r\ncontent-type: application/json\r\n");
                let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                Ok(Self::with_gaps(request.as_bytes()))
            }
            Protocol::Grpc => {
                let body = rate_limit_body(first, others)?;
                Ok(Self { heads: Some(CallHeads::new(addr, body.len())?), ..Self::with_gaps(&body) })
            }
        }
    }

    fn with_gaps(request: &[u8]) -> Self {
        let mut template = Self::default();
        let mut rest = request;
        while let Some((before, after)) = memmem::find(rest, GAP.as_bytes()).and_then(|at| rest.split_at_checked(at)) {
            template.before.push(before.into());
            rest = after.get(GAP.len()..).unwrap_or_default();
        }
        template.end = rest.into();
        template
    }

    /// Appends a connection's request number `index`, with `key`, to `output`. Keys with more than [`KEY_DIGITS`] digits keep
    /// only their last digits.
    pub fn append(&self, key: u64, index: u64, output: &mut Vec<u8>) {
        if let Some(heads) = &self.heads {
            heads.append(index, output);
        }
        let digits = decimal(key);
        for before in &self.before {
            output.extend_from_slice(before);
            output.extend_from_slice(&digits);
        }
        output.extend_from_slice(&self.end);
    }
}

/// Splits `KEY=VALUE`.
pub fn pair(word: &str) -> anyhow::Result<(&str, &str)> {
    word.split_once('=').with_context(|| format!("{word} is not KEY=VALUE"))
}

/// Decimal digits of a key, as in redis-benchmark's `__rand_int__`: every request has the same length.
pub const KEY_DIGITS: usize = 12;

/// Returns the last digits of a key.
pub fn decimal(mut key: u64) -> [u8; KEY_DIGITS] {
    let mut digits = [b'0'; KEY_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += (key % 10) as u8;
        key /= 10;
    }
    digits
}

/// Largest power of two that [`KEY_DIGITS`] decimal digits can hold.
pub const MAX_KEYS: u64 = 1 << 39;

/// Odd, and near the golden section of [`MAX_KEYS`], so its multiples modulo that number are spread evenly.
const SPREAD: u64 = 339_767_778_497;

/// Returns the actor for `key`. Different keys below [`MAX_KEYS`] have different actors, spread over that whole range.
///
/// Consecutive numbers would compress well in memory and on disk, unlike real addresses or account numbers.
pub fn actor(key: u64) -> u64 {
    key.wrapping_mul(SPREAD) % MAX_KEYS
}

/// Returns the next key.
pub type KeySequence = Box<dyn FnMut() -> u64 + Send>;

/// Creates the sequence of thread number `thread` of `threads`. The same arguments give the same keys. A sequential
/// one begins with `--first-key`.
///
/// # Errors
/// There are no keys, or the exponent of Zipf's law is negative.
pub fn key_sequence(args: &BenchArgs, thread: u64, threads: u64) -> Result<KeySequence, rand_distr::ZipfError> {
    let keys = args.keys;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(args.seed);
    for _ in 0..thread {
        random = random.fork();
    }
    Ok(match args.distribution {
        Distribution::Uniform => Box::new(move || random.random_range(0..keys)),
        Distribution::Zipf { exponent } => {
            let ranks = Zipf::new(keys as f64, exponent)?;
            // Ranks start at 1, and are floating-point numbers: the last one may be rounded past the end.
            Box::new(move || (random.sample(ranks) as u64).clamp(1, keys) - 1)
        }
        // Threads take turns. Together they request each key once before they request any key twice.
        Distribution::Sequential => {
            let mut next = args.first_key.wrapping_add(thread);
            Box::new(move || {
                let key = next % keys;
                next = next.wrapping_add(threads);
                key
            })
        }
    })
}

/// The distribution of keys over requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    Uniform,
    /// The k-th key is requested in proportion to `1 / k^exponent`.
    Zipf {
        exponent: f64,
    },
    Sequential,
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "sequential" => Ok(Self::Sequential),
            "zipf" => Ok(Self::Zipf { exponent: 0.99 }),
            _ => match text.strip_prefix("zipf:").map(str::parse) {
                Some(Ok(exponent)) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf { exponent }),
                Some(_) => Err("the exponent must be a number from 0 to 10".to_owned()),
                None => Err("expected uniform, zipf, zipf:EXPONENT or sequential".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn args(options: &str) -> BenchArgs {
        BenchArgs::try_parse_from(std::iter::once("bench").chain(options.split_whitespace())).unwrap()
    }

    #[test]
    fn time_or_number_of_requests_ends_a_run() {
        let end_ns = |options| Plan::new(&args(options)).unwrap().end_ns;
        assert_eq!(end_ns("--duration 2 --warmup 0.5"), 2_500_000_000);
        assert_eq!(end_ns(""), 10_000_000_000);
        assert_eq!(end_ns("--requests 100"), u64::MAX);
        assert_eq!(end_ns("--requests 100 --rate 50 --warmup 1"), 3_000_000_000);
    }

    #[test]
    fn threads_share_the_requests() {
        let args = args("--requests 10");
        let plan = Plan::new(&args).unwrap();
        assert_eq!([0, 1, 2].map(|thread| plan.budget(thread, 3)), [4, 3, 3]);
    }

    fn encode(protocol: Protocol, command: &str) -> anyhow::Result<RequestTemplate> {
        RequestTemplate::new(protocol, command, "divvy:8322")
    }

    fn encoded(template: &RequestTemplate, key: u64) -> String {
        let mut output = Vec::new();
        template.append(key, 0, &mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn line_is_sent_as_written() {
        let template = encode(Protocol::Line, "HIT path=/a ip={}").unwrap();
        assert_eq!(encoded(&template, 42), "HIT path=/a ip=000000000042\n");
        assert_eq!(encoded(&encode(Protocol::Line, "HIT").unwrap(), 42), "HIT\n");
    }

    #[test]
    fn resp_lengths_include_the_keys() {
        let template = encode(Protocol::Resp, "SET '{} or {}' x{}").unwrap();
        let key = "000000000007";
        assert_eq!(encoded(&template, 7), format!("*3\r\n$3\r\nSET\r\n$28\r\n{key} or {key}\r\n$13\r\nx{key}\r\n"));
        assert_eq!(encoded(&encode(Protocol::Resp, "PING").unwrap(), 7), "*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    fn http_request_is_a_hit_with_its_length() {
        let request = encoded(&encode(Protocol::Http, "ip={} path='/a b'").unwrap(), 7);
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, r#"{"operation":{"ip":"000000000007","path":"/a b"}}"#);
        assert!(head.starts_with("POST /v1/hit HTTP/1.1\r\nhost: divvy:8322\r\n"), "{head}");
        assert!(head.ends_with(&format!("\r\ncontent-length: {}", body.len())), "{head}");
    }

    #[test]
    fn invalid_commands_are_rejected() {
        for (template, expected) in [
            (encode(Protocol::Line, "HIT\nHIT"), "a command of the line protocol is one line"),
            (encode(Protocol::Line, " "), EMPTY),
            (encode(Protocol::Resp, ""), EMPTY),
            (encode(Protocol::Http, "ip"), "ip is not KEY=VALUE"),
            (encode(Protocol::Grpc, "divvy ip"), "ip is not KEY=VALUE"),
            (encode(Protocol::Resp, "GET 'x"), "the command has an unclosed quote or ends with a backslash"),
        ] {
            assert_eq!(template.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn keys_have_a_fixed_width() {
        assert_eq!(&decimal(0), b"000000000000");
        assert_eq!(&decimal(999_999_999_999), b"999999999999");
        assert_eq!(&decimal(1_234_567_890_123), b"234567890123");
    }

    fn sample(distribution: Distribution, keys: u64, seed: u64, thread: u64, count: usize) -> Vec<u64> {
        let mut sequence = key_sequence(&BenchArgs { distribution, keys, seed, ..args("") }, thread, 2).unwrap();
        std::iter::repeat_with(&mut sequence).take(count).collect()
    }

    #[test]
    fn seed_determines_the_keys_and_threads_differ() {
        for distribution in [Distribution::Uniform, Distribution::Zipf { exponent: 0.99 }] {
            let first = sample(distribution, 10_000, 1, 0, 100);
            assert_eq!(first, sample(distribution, 10_000, 1, 0, 100));
            assert_ne!(first, sample(distribution, 10_000, 2, 0, 100));
            assert_ne!(first, sample(distribution, 10_000, 1, 1, 100));
        }
    }

    #[test]
    fn uniform_keys_are_requested_about_equally_often() {
        let mut counts = [0_u32; 10];
        for key in sample(Distribution::Uniform, 10, 3, 0, 100_000) {
            counts[usize::try_from(key).unwrap()] += 1;
        }
        // The standard deviation of each count is 95.
        assert!(counts.iter().all(|count| (9_500..=10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipf_favors_low_keys_by_its_law() {
        let keys = sample(Distribution::Zipf { exponent: 1.0 }, 1_000, 3, 0, 100_000);
        let asked = |wanted| keys.iter().filter(|key| **key == wanted).count() as f64;
        let harmonic: f64 = (1..=1_000).map(|rank| 1.0 / f64::from(rank)).sum();
        assert!((asked(0) * harmonic / 100_000.0 - 1.0).abs() < 0.05);
        assert!((asked(0) / asked(9) - 10.0).abs() < 1.5);
        assert!(keys.iter().all(|key| *key < 1_000));
    }

    #[test]
    fn sequential_threads_share_the_keys() {
        let mut keys = sample(Distribution::Sequential, 10, 1, 0, 5);
        keys.extend(sample(Distribution::Sequential, 10, 1, 1, 5));
        keys.sort_unstable();
        assert_eq!(keys, (0..10).collect::<Vec<_>>());
        assert_eq!(sample(Distribution::Sequential, 3, 1, 0, 3), [0, 2, 1]);
        let args = BenchArgs { distribution: Distribution::Sequential, keys: 10, first_key: 4, ..args("") };
        let mut later = key_sequence(&args, 1, 2).unwrap();
        assert_eq!([later(), later(), later(), later()], [5, 7, 9, 1]);
    }

    #[test]
    fn actors_differ_and_are_spread() {
        let mut actors: Vec<u64> = (0..100_000).map(actor).collect();
        actors.sort_unstable();
        let gaps = actors.windows(2).map(|pair| pair[1] - pair[0]);
        let even = MAX_KEYS / 100_000;
        assert!(gaps.into_iter().all(|gap| (even / 4..even * 4).contains(&gap)));
    }

    #[test]
    fn one_key_is_enough() {
        for distribution in [Distribution::Uniform, Distribution::Zipf { exponent: 0.99 }, Distribution::Sequential] {
            assert_eq!(sample(distribution, 1, 1, 1, 3), [0, 0, 0]);
        }
    }
}
