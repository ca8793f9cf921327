//! Reports for statsd: the changes since the last report, as lines.

use std::collections::HashMap;
use std::fmt::Display;
use std::mem;

use crate::metrics::Metrics;
use crate::metrics::histogram::BucketContents;

/// Turns counts into lines, and remembers the counts of the last report.
pub struct Reporter {
    lines: Lines,
    /// Hits by status and rule.
    hits: HashMap<(String, String), u64>,
    /// Errors by code.
    errors: HashMap<&'static str, u64>,
    durations: Vec<BucketContents>,
}

/// Lines of a report: `name:value|type`, with `|@rate` if a line stands for several observations.
#[derive(Debug, Default)]
struct Lines {
    /// Prefix of all names: empty, or ending in a dot.
    prefix: String,
    lines: Vec<String>,
}

impl Lines {
    fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('.');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
        Self { prefix, lines: Vec::new() }
    }

    fn count(&mut self, name: impl Display, new: u64) {
        if new > 0 {
            self.lines.push(format!("{}{name}:{new}|c", self.prefix));
        }
    }

    fn gauge(&mut self, name: impl Display, value: impl Display) {
        self.lines.push(format!("{}{name}:{value}|g", self.prefix));
    }

    /// Adds a time that stands for `observations`, in fractions of milliseconds, because most hits take less than one.
    fn time(&mut self, name: impl Display, millis: f64, observations: u64) {
        let mut line = format!("{}{name}:{millis}|ms", self.prefix);
        if observations > 1 {
            line.push_str(&format!("|@{}", 1.0 / observations as f64));
        }
        self.lines.push(line);
    }
}

impl Reporter {
    /// Creates a reporter. Names begin with `prefix` and a dot, unless it is empty.
    pub fn new(prefix: &str) -> Self {
        Self { lines: Lines::new(prefix), hits: HashMap::new(), errors: HashMap::new(), durations: Vec::new() }
    }

    /// Returns a line for each count that changed since the last report, and one for the open connections.
    pub fn report(&mut self, metrics: &Metrics) -> Vec<String> {
        self.report_hits(metrics);
        self.report_errors(metrics);
        self.report_durations(metrics.hits.duration.observed());
        self.lines.gauge("connections", metrics.connections.open());
        mem::take(&mut self.lines.lines)
    }

    fn report_hits(&mut self, metrics: &Metrics) {
        let mut by_status: HashMap<String, u64> = HashMap::new();
        for counted in metrics.hits.counted() {
            let last = self.hits.entry((counted.status, counted.rule));
            let (status, rule) = last.key().clone();
            let new = counted.hits - mem::replace(last.or_default(), counted.hits);
            *by_status.entry(status.clone()).or_default() += new;
            self.lines.count(format_args!("hit.{status}.{rule}"), new);
        }
        for (status, new) in by_status {
            self.lines.count(format_args!("hit.{status}"), new);
        }
    }

    fn report_errors(&mut self, metrics: &Metrics) {
        for (code, errors) in metrics.errors.counted() {
            let new = errors - mem::replace(self.errors.entry(code).or_default(), errors);
            self.lines.count(format_args!("error.{code}"), new);
        }
    }

    /// Adds a line for each bucket with new hits: their mean, with the sample rate that makes statsd count all of them. The
    /// number of lines is bounded, count and mean are exact, and percentiles are as precise as the buckets.
    fn report_durations(&mut self, now: Vec<BucketContents>) {
        let last = mem::replace(&mut self.durations, now);
        for (index, now) in self.durations.iter().enumerate() {
            let last = last.get(index).copied().unwrap_or_default();
            let hits = now.observations.wrapping_sub(last.observations);
            if hits == 0 {
                continue;
            }
            let mean_ns = now.sum.wrapping_sub(last.sum) as f64 / hits as f64;
            // Rounded to microseconds: anything finer is noise.
            self.lines.time("hit", (mean_ns / 1e3).round() / 1e3, hits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ErrorKind;

    fn report(reporter: &mut Reporter, metrics: &Metrics) -> Vec<String> {
        let mut lines = reporter.report(metrics);
        lines.sort();
        lines
    }

    #[test]
    fn report_contains_the_changes_since_the_last_one() {
        let metrics = Metrics::new();
        let (status, canary) = (metrics.hits.rule("status", false), metrics.hits.rule("default", true));
        let mut reporter = Reporter::new("");
        assert_eq!(report(&mut reporter, &metrics), ["connections:0|g"]);
        status.count(true, 3);
        status.count(false, 1);
        canary.count(true, 2);
        metrics.hits.rule("default", false).count(true, 4);
        metrics.errors.count(ErrorKind::Unknown);
        let _open = metrics.connections.front("line").opened();
        assert_eq!(
            report(&mut reporter, &metrics),
            [
                "connections:1|g",
                "error.unknown:1|c",
                "hit.accepted.default:4|c",
                "hit.accepted.status:3|c",
                "hit.accepted:7|c",
                "hit.canary-accepted.default:2|c",
                "hit.canary-accepted:2|c",
                "hit.rejected.status:1|c",
                "hit.rejected:1|c",
            ]
        );
        status.count(true, 1);
        metrics.errors.count(ErrorKind::UnknownCommand);
        metrics.errors.count(ErrorKind::Unauthenticated);
        assert_eq!(
            report(&mut reporter, &metrics),
            [
                "connections:1|g",
                "error.unauthenticated:1|c",
                "error.unknown-command:1|c",
                "hit.accepted.status:1|c",
                "hit.accepted:1|c"
            ]
        );
        assert_eq!(report(&mut reporter, &metrics), ["connections:1|g"]);
    }

    #[test]
    fn prefix_is_followed_by_one_dot() {
        for prefix in ["api", "api.", "api.."] {
            assert_eq!(Reporter::new(prefix).report(&Metrics::new()), ["api.connections:0|g"]);
        }
    }

    #[test]
    fn line_has_a_name_a_value_a_type_and_an_optional_rate() {
        let mut lines = Lines::new("");
        lines.count("nothing", 0);
        lines.count("all", u64::MAX);
        lines.gauge("level", 0);
        lines.time("one", 0.001, 1);
        lines.time("three", 12.0, 3);
        assert_eq!(
            lines.lines,
            ["all:18446744073709551615|c", "level:0|g", "one:0.001|ms", "three:12|ms|@0.3333333333333333"]
        );
    }

    #[test]
    fn each_bucket_has_one_line_for_all_of_its_hits() {
        let metrics = Metrics::new();
        let mut reporter = Reporter::new("");
        metrics.hits.duration.observe(12_000, 3);
        metrics.hits.duration.observe(20_000, 1);
        metrics.hits.duration.observe(1_500_000, 1);
        metrics.hits.duration.observe(2_000_000_000, 2);
        assert_eq!(
            report(&mut reporter, &metrics),
            ["connections:0|g", "hit:0.014|ms|@0.25", "hit:1.5|ms", "hit:2000|ms|@0.5"]
        );
        metrics.hits.duration.observe(12_000, 1);
        assert_eq!(report(&mut reporter, &metrics), ["connections:0|g", "hit:0.012|ms"]);
    }
}
