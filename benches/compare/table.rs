//! The table, and the list of other figures below it, with their bars.

use std::fmt;

use serde::Serialize;

use crate::bars::{BARS, Metric, Relation, Target, Verdict};
use crate::rounds::{Samples, Subject};

/// Prefix of the names of another build's subjects. The rest is the subject's name in this build.
pub const OTHER: &str = "other ";
const MIB: f64 = (1 << 20) as f64;

#[derive(Debug, Default, Serialize)]
pub struct Table {
    rows: Vec<Row>,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// Medians over the rounds. Times are in microseconds.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    subject: String,
    actors: u64,
    /// Requests that were due each second, in an open loop.
    offered_per_second: Option<f64>,
    requests_per_second: f64,
    p50: f64,
    p99: f64,
    p99_9: f64,
    cpu_us_per_request: f64,
    /// CPU time per request relative to the first subject of the case.
    cpu_ratio: f64,
    /// Upper bound of `cpu_ratio`, at 95 %.
    cpu_ratio_upper: Option<f64>,
    /// Maximum memory of the server.
    resident_mib: Option<f64>,
}

/// A figure outside of the rows.
#[derive(Debug, Serialize)]
struct Figure {
    case: &'static str,
    /// The row's subject, or `None` for the whole case.
    subject: Option<String>,
    what: String,
    measured: f64,
    /// The bound at 95 %, for a figure with several rounds.
    bound: Option<f64>,
    target: Option<Target>,
    verdict: Option<Verdict>,
}

impl Table {
    /// Adds a row for each subject, and the verdicts of the case's bars. The first subject is the reference.
    ///
    /// # Panics
    /// Panics if a bar names a missing subject.
    pub fn add_rows(&mut self, case: &'static str, subjects: &[Subject], samples: &[Samples]) {
        let Some(reference) = samples.first() else { return };
        self.rows.extend(subjects.iter().zip(samples).map(|(subject, samples)| {
            let cpu_ratio = samples.ratio(reference, |sample| sample.server.cpu_us_per_request);
            let resident = samples.max(|sample| sample.server.resident_bytes as f64) / MIB;
            Row {
                case,
                subject: subject.name.clone(),
                actors: subject.load.actors,
                offered_per_second: subject.load.rate,
                requests_per_second: samples.median(|sample| sample.requests_per_second),
                p50: samples.median(|sample| sample.latency_us.p50),
                p99: samples.median(|sample| sample.latency_us.p99),
                p99_9: samples.median(|sample| sample.latency_us.p99_9),
                cpu_us_per_request: samples.median(|sample| sample.server.cpu_us_per_request),
                cpu_ratio: cpu_ratio.median(),
                cpu_ratio_upper: cpu_ratio.upper(),
                resident_mib: Some(resident).filter(|mib| *mib > 0.0),
            }
        }));
        let samples_of = |name: &str| {
            let place = subjects.iter().position(|subject| subject.name == name);
            place.map(|place| &samples[place])
        };
        for bar in BARS.iter().filter(|bar| bar.case == case) {
            let both = samples_of(bar.subject).zip(samples_of(bar.reference));
            let (this, other) = both.unwrap_or_else(|| panic!("{case} has no {} and {}", bar.subject, bar.reference));
            let paired = match bar.relation {
                Relation::Ratio => this.ratio(other, |sample| bar.metric.of(sample)),
                Relation::Added => this.paired(other, |sample| bar.metric.of(sample), |this, other| this - other),
            };
            self.figures.push(Figure {
                case,
                subject: Some(bar.subject.to_owned()),
                what: bar.what(),
                measured: paired.median(),
                bound: bar.target.bound(&paired),
                target: Some(bar.target),
                verdict: Some(bar.target.judge_rounds(&paired)),
            });
        }
        self.add_builds(case, subjects, &samples_of);
    }

    /// Compares this build with the other one.
    fn add_builds<'a>(
        &mut self,
        case: &'static str,
        subjects: &[Subject],
        samples_of: &impl Fn(&str) -> Option<&'a Samples>,
    ) {
        for other in subjects.iter().map(|subject| &subject.name) {
            let Some(this) = other.strip_prefix(OTHER) else { continue };
            let Some((this_samples, other_samples)) = samples_of(this).zip(samples_of(other)) else { continue };
            for metric in [Metric::Cpu, Metric::Throughput] {
                let ratio = this_samples.ratio(other_samples, |sample| metric.of(sample));
                self.figures.push(Figure {
                    case,
                    subject: None,
                    what: format!("{}: {this} / {other}", metric.name()),
                    measured: ratio.median(),
                    bound: ratio.upper(),
                    target: None,
                    verdict: None,
                });
            }
        }
    }

    /// Adds a figure that occurs once in a run.
    pub fn add_figure(&mut self, case: &'static str, what: impl Into<String>, measured: f64, target: Option<Target>) {
        let verdict = target.map(|target| target.judge(measured));
        self.figures.push(Figure { case, subject: None, what: what.into(), measured, bound: None, target, verdict });
    }

    pub fn add_note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the verdict on a row's subject; the worst one if there are several.
    fn verdict(&self, row: &Row) -> &'static str {
        let about = self.figures.iter().filter(|figure| figure.case == row.case);
        let of_row: Vec<_> = about
            .filter(|figure| figure.subject.as_ref() == Some(&row.subject))
            .filter_map(|figure| figure.verdict)
            .collect();
        let worst = [Verdict::Missed, Verdict::Open, Verdict::Met].into_iter().find(|worst| of_row.contains(worst));
        worst.map_or("", Verdict::name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<13} {:<34} {:>9} {:>8} {:>8} {:>9} {:>7} {:>6} {:>6} {:>8}  bar",
            "case", "subject", "req/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs", "ratio", "95 %", "RSS MiB"
        )?;
        for row in &self.rows {
            let Row { case, subject, requests_per_second, p50, p99, p99_9, cpu_us_per_request, cpu_ratio, .. } = row;
            let (upper, resident) = (optional(row.cpu_ratio_upper, 2), optional(row.resident_mib, 0));
            let line = format!(
                "{case:<13} {subject:<34} {requests_per_second:>9.0} {p50:>8.0} {p99:>8.0} {p99_9:>9.0} \
                 {cpu_us_per_request:>7.2} {cpu_ratio:>6.2} {upper:>6} {resident:>8}  {}",
                self.verdict(row)
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        if !self.figures.is_empty() {
            writeln!(f, "\n{:<13} {:<72} {:>9} {:>9} {:>8}  bar", "case", "figure", "measured", "95 %", "target")?;
        }
        for Figure { case, what, measured, bound, target, verdict, .. } in &self.figures {
            let target = match target {
                Some(Target::AtMost(most)) => format!("≤ {most}"),
                Some(Target::AtLeast(least)) => format!("≥ {least}"),
                None => String::new(),
            };
            let (bound, verdict) = (optional(*bound, 2), verdict.map_or("", Verdict::name));
            let line = format!("{case:<13} {what:<72} {measured:>9.2} {bound:>9} {target:>8}  {verdict}");
            writeln!(f, "{}", line.trim_end())?;
        }
        for note in &self.notes {
            writeln!(f, "\n{note}")?;
        }
        Ok(())
    }
}

fn optional(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(String::new, |number| format!("{number:.decimals$}"))
}
