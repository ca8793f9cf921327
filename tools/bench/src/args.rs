//! The options of `divvy-bench`: their names, defaults and valid values.

use std::num::{NonZeroU64, NonZeroUsize};

use divvy_core::units::{self, Time};

use crate::plan::{Distribution, MAX_KEYS};

/// Maximum duration of a run and of a warm-up: 30 days, in seconds.
const MAX_SECONDS: u64 = 30 * 86_400;

/// Last paragraph of the help.
const UNITS: &str = "\
SECONDS accepts the units ms, s, m, h, d and w, as in 250ms. A number without a unit is in seconds.";

/// Load a server with hits, and report its throughput, its latency and the cost of a request.
///
/// Drives Redis, too: `divvy-bench --protocol resp --addr 127.0.0.1:6379 --command 'INCR hits:{}'`. Over gRPC, it calls
/// Envoy's rate limit service.
///
/// Each connection sends a batch of `--pipeline` requests, waits for all replies, and sends the next batch. With
/// `--rate`, requests are due at fixed times instead, whether or not the server keeps up. Their latency counts from the
/// time when they were due, so a stall shows in every request that it delayed.
///
/// Exits with 1 when a reply was an error or was missing.
#[derive(clap::Parser)]
#[command(name = "divvy-bench", version, max_term_width = 100, after_help = UNITS)]
pub struct BenchArgs {
    /// Address of the server [default: 127.0.0.1, and divvy's port for the protocol]
    #[arg(long, value_name = "HOST:PORT")]
    pub addr: Option<String>,

    /// Protocol to speak
    #[arg(long, value_enum, default_value_t = Protocol::Line)]
    pub protocol: Protocol,

    /// User of the server's access file, whose password is --password. Needs --protocol resp [default: default]
    #[arg(long, env = "DIVVY_USER", value_name = "NAME")]
    pub user: Option<String>,

    /// Password of the server. Others can read it on a command line: prefer the environment variable. Needs --protocol
    /// line or resp
    #[arg(long, env = "DIVVY_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub password: Option<String>,

    /// The request; `{}` becomes an actor of twelve digits. Words are split and quoted as in a shell, except for the line
    /// protocol. For HTTP, they are the pairs of a hit. For gRPC, the pairs follow the domain, and `/` begins another
    /// descriptor [default: `HIT ip={}`, for RESP `DIVVY.HIT ip={}`, for HTTP `ip={}`, for gRPC `divvy ip={}`]
    #[arg(long, value_name = "TEMPLATE")]
    pub command: Option<String>,

    /// Number of connections
    #[arg(long, value_name = "N", default_value = "50")]
    pub connections: NonZeroUsize,

    /// Requests in flight on a connection. With --rate: the maximum, and the number of consecutive requests that go to
    /// one connection
    #[arg(long, value_name = "N", default_value = "1")]
    pub pipeline: NonZeroU64,

    /// Stop after this many requests
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    pub requests: Option<NonZeroU64>,

    /// Stop after this time
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(0..=MAX_SECONDS), default_value = "10s")]
    pub duration: Time,

    /// Number of different keys (actors, counters)
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u64).range(1..=MAX_KEYS))]
    pub keys: u64,

    /// How keys are chosen: `uniform`, `zipf[:EXPONENT]` (lower keys more often; the exponent is 0.99 unless given), or
    /// `sequential` (each key once, then again from the start)
    #[arg(long, value_name = "NAME", default_value = "uniform")]
    pub distribution: Distribution,

    /// sequential: the number of the first key, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub first_key: u64,

    /// Open loop: total requests per second, due at fixed times
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,

    /// Load the server this long before measuring
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds(0..=MAX_SECONDS), default_value = "0")]
    pub warmup: Time,

    /// Seed of the choice of keys: the same seed chooses the same keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Threads that drive the connections
    #[arg(long, value_name = "N", default_value = "1")]
    pub threads: NonZeroUsize,

    /// Process ID of a server on this machine, to report its CPU time per request and its resident memory
    #[arg(long)]
    pub pid: Option<u32>,

    /// Report in JSON
    #[arg(long)]
    pub json: bool,

    /// Print the manual page instead
    #[cfg(feature = "packaging")]
    #[arg(long, hide = true)]
    pub man: bool,

    /// Print a script that completes the flags in this shell instead
    #[cfg(feature = "packaging")]
    #[arg(long, hide = true, value_name = "SHELL")]
    pub completions: Option<clap_complete::Shell>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    Line,
    Resp,
    Http,
    Grpc,
}

impl BenchArgs {
    pub fn addr(&self) -> &str {
        self.addr.as_deref().unwrap_or(self.defaults().0)
    }

    pub fn command(&self) -> &str {
        self.command.as_deref().unwrap_or(self.defaults().1)
    }

    /// Returns the address and the command of the protocol, for a run without them.
    fn defaults(&self) -> (&'static str, &'static str) {
        match self.protocol {
            Protocol::Line => ("127.0.0.1:8321", "HIT ip={}"),
            Protocol::Resp => ("127.0.0.1:9049", "DIVVY.HIT ip={}"),
            Protocol::Http => ("127.0.0.1:8322", "ip={}"),
            Protocol::Grpc => ("127.0.0.1:8323", "divvy ip={}"),
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.001..=1e8).contains(&rate) => Ok(rate),
        _ => Err("expected requests per second, from 0.001 to 100000000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_parsed() {
        for (text, expected) in [
            ("uniform", Distribution::Uniform),
            ("sequential", Distribution::Sequential),
            ("zipf", Distribution::Zipf { exponent: 0.99 }),
            ("zipf:1.2", Distribution::Zipf { exponent: 1.2 }),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        for wrong in ["", "zipf:", "zipf:x", "zipf:-1", "zipf:nan", "normal"] {
            assert!(wrong.parse::<Distribution>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_bounded() {
        for wrong in ["-1", "nan", "inf", "1e300", "x", "0"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
