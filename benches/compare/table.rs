//! The table, and the bars that say what its figures should be.

use std::fmt;

use serde::Serialize;

use crate::load::Sample;
use crate::rounds::{Samples, Subject};

#[derive(Debug, Default, Serialize)]
pub struct Table {
    rows: Vec<Row>,
    bars: Vec<Bar>,
    notes: Vec<String>,
}

/// Medians over the rounds; times in microseconds.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    subject: String,
    requests_per_second: f64,
    p50: f64,
    p99: f64,
    p99_9: f64,
    cpu_us_per_request: f64,
    /// CPU per request in relation to the first subject of the case.
    cpu_ratio: f64,
}

#[derive(Debug, Serialize)]
struct Bar {
    case: &'static str,
    what: String,
    measured: f64,
    bound: Bound,
    met: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// A figure of a sample that a bar looks at.
#[derive(Debug, Clone, Copy)]
pub enum Metric {
    Cpu,
    Throughput,
    P99,
    P99_9,
}

impl Metric {
    fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Cpu => sample.server.cpu_us_per_request,
            Self::Throughput => sample.requests_per_second,
            Self::P99 => sample.latency_us.p99,
            Self::P99_9 => sample.latency_us.p99_9,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Throughput => "throughput",
            Self::P99 => "p99",
            Self::P99_9 => "p99.9",
        }
    }
}

impl Table {
    /// Adds a row for each subject. The first one is the case's reference.
    pub fn add_rows(&mut self, case: &'static str, subjects: &[Subject], samples: &[Samples]) {
        let Some(reference) = samples.first() else { return };
        self.rows.extend(subjects.iter().zip(samples).map(|(subject, samples)| Row {
            case,
            subject: subject.name.clone(),
            requests_per_second: samples.median(|sample| sample.requests_per_second),
            p50: samples.median(|sample| sample.latency_us.p50),
            p99: samples.median(|sample| sample.latency_us.p99),
            p99_9: samples.median(|sample| sample.latency_us.p99_9),
            cpu_us_per_request: samples.median(|sample| sample.server.cpu_us_per_request),
            cpu_ratio: samples.ratio(reference, |sample| sample.server.cpu_us_per_request),
        }));
    }

    pub fn add_bar(&mut self, case: &'static str, what: impl Into<String>, measured: f64, bound: Bound) {
        let met = match bound {
            Bound::AtMost(most) => measured <= most,
            Bound::AtLeast(least) => measured >= least,
        };
        self.bars.push(Bar { case, what: what.into(), measured, bound, met });
    }

    /// A bar for the ratio of one subject's figure to another's.
    pub fn add_ratio_bar(
        &mut self,
        case: &'static str,
        metric: Metric,
        (subject, samples): (&Subject, &Samples),
        (reference, reference_samples): (&Subject, &Samples),
        bound: Bound,
    ) {
        let what = format!("{}: {} / {}", metric.name(), subject.name, reference.name);
        self.add_bar(case, what, samples.ratio(reference_samples, |sample| metric.of(sample)), bound);
    }

    pub fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<10} {:<36} {:>10} {:>8} {:>8} {:>9} {:>7} {:>7}",
            "case", "subject", "req/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs", "ratio"
        )?;
        for row in &self.rows {
            let Row { case, subject, requests_per_second, p50, p99, p99_9, cpu_us_per_request, cpu_ratio } = row;
            writeln!(
                f,
                "{case:<10} {subject:<36} {requests_per_second:>10.0} {p50:>8.0} {p99:>8.0} {p99_9:>9.0} \
                 {cpu_us_per_request:>7.2} {cpu_ratio:>7.2}"
            )?;
        }
        if !self.bars.is_empty() {
            writeln!(f, "\n{:<10} {:<78} {:>9} {:>9}  met", "case", "bar", "measured", "target")?;
        }
        for Bar { case, what, measured, bound, met } in &self.bars {
            let bound = match bound {
                Bound::AtMost(most) => format!("≤ {most}"),
                Bound::AtLeast(least) => format!("≥ {least}"),
            };
            let met = if *met { "yes" } else { "no" };
            writeln!(f, "{case:<10} {what:<78} {measured:>9.2} {bound:>9}  {met}")?;
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}
