//! Performance targets of the project, and the comparison of figures with them.
//!
//! A bar on a ratio is met if its bound at 95 % is within a twentieth of it. The bound comes from the sign test, so it
//! does not depend on the distribution of the rounds, and a few disturbed rounds do not move it.

use serde::Serialize;

use crate::rounds::Paired;
use crate::sample::Sample;

/// Rounds needed to judge a bar on a ratio.
pub const ROUNDS: u32 = 9;
/// A bar is met if the bound misses it by less than this factor.
const TOLERANCE: f64 = 1.05;

/// Target for a subject's figure relative to the reference's figure in the same round.
pub struct Bar {
    pub case: &'static str,
    pub subject: &'static str,
    pub reference: &'static str,
    pub metric: Metric,
    pub relation: Relation,
    pub target: Target,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

/// A figure of a sample.
#[derive(Debug, Clone, Copy)]
pub enum Metric {
    Cpu,
    Throughput,
    P50,
    P99,
    P99_9,
}

/// Relation of a figure to the reference's.
#[derive(Debug, Clone, Copy)]
pub enum Relation {
    /// The figure divided by the reference's.
    Ratio,
    /// The figure minus the reference's.
    Added,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    Missed,
    /// There are too few rounds.
    Open,
}

use Metric::{Cpu, P50, P99, P99_9, Throughput};
use Target::{AtLeast, AtMost};

pub const BARS: [Bar; 19] = [
    ratio("pipelined", Cpu, "divvy RESP", "redis INCR", AtMost(0.9)),
    ratio("pipelined", Cpu, "divvy line", "redis INCR", AtMost(0.9)),
    ratio("pipelined", Cpu, "divvy RESP, one field", "redis INCR", AtMost(0.6)),
    ratio("pipelined", Cpu, "divvy line, one field", "redis INCR", AtMost(0.6)),
    ratio("pipelined", Cpu, "divvy RESP, 10,000 rules", "divvy RESP", AtMost(1.3)),
    ratio("single", Cpu, "divvy RESP", "redis INCR", AtMost(1.0)),
    ratio("single", P99, "divvy RESP", "redis INCR", AtMost(1.0)),
    ratio("sync", Throughput, "divvy RESP", "redis INCR, appendfsync always", AtLeast(1.0)),
    ratio("filling", Cpu, "divvy RESP", "redis INCR", AtMost(2.0)),
    ratio("uniform", Cpu, "divvy RESP", "redis INCR", AtMost(1.5)),
    ratio("uniform", Throughput, "divvy RESP", "redis INCR", AtLeast(0.8)),
    ratio("zipf", Cpu, "divvy RESP", "redis INCR", AtMost(1.0)),
    ratio("open-loop", P99_9, "divvy RESP", "divvy RESP, idle", AtMost(2.0)),
    ratio("tenfold", Cpu, "divvy RESP", "redis INCR, a tenth of the actors", AtMost(6.0)),
    ratio("single", Cpu, "divvy HTTP", "divvy RESP", AtMost(1.6)),
    ratio("single", Cpu, "divvy gRPC", "divvy RESP", AtMost(2.0)),
    ratio("single", Cpu, "divvy gRPC, five descriptors", "divvy gRPC", AtMost(2.5)),
    ratio("tier-one", Cpu, "divvy RESP on redis", "redis, by divvy-bench", AtMost(0.6)),
    added("tier-one", P50, "divvy RESP on redis", "redis, by divvy-bench", AtMost(200.0)),
];

/// Bars on figures that occur once in a run.
pub const RESIDENT_RATIO: Target = AtMost(0.9);
/// With fewer actors, this ratio mostly shows the fixed memory of a server.
pub const RESIDENT_RATIO_ACTORS: u64 = 10_000_000;
/// The default of `--cache-memory`, and the fixed memory of a server.
pub const RESIDENT_MIB: Target = AtMost(320.0 + 160.0);
pub const DISK_BYTES_PER_COUNTER: Target = AtMost(60.0);
pub const RESTART_SECONDS: Target = AtMost(2.0);
/// Share of the previous throughput. A measurement of ten seconds cannot detect smaller losses.
pub const FULL_SPEED: Target = AtLeast(0.9);

const fn ratio(
    case: &'static str,
    metric: Metric,
    subject: &'static str,
    reference: &'static str,
    target: Target,
) -> Bar {
    Bar { case, subject, reference, metric, relation: Relation::Ratio, target }
}

const fn added(
    case: &'static str,
    metric: Metric,
    subject: &'static str,
    reference: &'static str,
    target: Target,
) -> Bar {
    Bar { relation: Relation::Added, ..ratio(case, metric, subject, reference, target) }
}

impl Bar {
    pub fn what(&self) -> String {
        let Self { subject, reference, metric, relation, .. } = self;
        match relation {
            Relation::Ratio => format!("{}: {subject} / {reference}", metric.name()),
            Relation::Added => format!("{}: {subject} - {reference}", metric.name()),
        }
    }
}

impl Target {
    /// Judges a figure that occurs once in a run.
    pub fn judge(self, figure: f64) -> Verdict {
        let is_met = match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
        };
        if is_met { Verdict::Met } else { Verdict::Missed }
    }

    pub fn judge_rounds(self, paired: &Paired) -> Verdict {
        let (bound, bar) = match self {
            Self::AtMost(most) => (paired.upper(), Self::AtMost(most * TOLERANCE)),
            Self::AtLeast(least) => (paired.lower(), Self::AtLeast(least / TOLERANCE)),
        };
        match bound {
            Some(bound) if paired.rounds() >= ROUNDS as usize => bar.judge(bound),
            _ => Verdict::Open,
        }
    }

    /// Returns the relevant bound at 95 %.
    pub fn bound(self, paired: &Paired) -> Option<f64> {
        match self {
            Self::AtMost(_) => paired.upper(),
            Self::AtLeast(_) => paired.lower(),
        }
    }
}

impl Metric {
    pub fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Cpu => sample.server.cpu_us_per_request,
            Self::Throughput => sample.requests_per_second,
            Self::P50 => sample.latency_us.p50,
            Self::P99 => sample.latency_us.p99,
            Self::P99_9 => sample.latency_us.p99_9,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Throughput => "throughput",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
        }
    }
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Open => "open",
        }
    }
}
