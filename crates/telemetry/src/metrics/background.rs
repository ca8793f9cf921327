//! Work in the background: the rules in force and the reloads of their file, restarts of the tasks that the process depends
//! on, and the state of the audit log.

use prometheus::{Gauge, IntCounter, IntGauge, IntGaugeVec};

use super::registry::{Registry, named_values};

const NANOS_PER_SECOND: f64 = 1e9;

/// The rules in force, and the outcome of their last load.
pub struct Config {
    info: IntGaugeVec,
    version: IntGauge,
    rules: IntGauge,
    last_load_succeeded: IntGauge,
    loaded_at: Gauge,
    failed_at: Gauge,
    failures: IntCounter,
}

impl Config {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            info: registry.gauges("divvy_config_info", "1, labeled with the hash of the rules in force.", &["hash"]),
            version: registry.gauge("divvy_config_version", "Number of times rules were put in force since the start."),
            rules: registry.gauge("divvy_config_rules", "Rules in force."),
            last_load_succeeded: registry
                .gauge("divvy_config_last_load_successful", "1 if the last load of the rules succeeded."),
            loaded_at: registry.fraction(
                "divvy_config_last_success_timestamp_seconds",
                "When rules were last loaded without an error, in seconds since 1970; 0: never.",
            ),
            failed_at: registry.fraction(
                "divvy_config_last_failure_timestamp_seconds",
                "When rules were last refused, in seconds since 1970; 0: never.",
            ),
            failures: registry.counter("divvy_config_failures_total", "Failed loads of the rules."),
        }
    }

    /// Records that rules with this hash came into force at `at` (nanoseconds since 1970).
    pub fn loaded(&self, hash: &str, rules: usize, at: u64) {
        self.info.reset();
        self.info.with_label_values(&[hash]).set(1);
        self.version.inc();
        self.rules.set(i64::try_from(rules).unwrap_or(i64::MAX));
        self.confirmed(at);
    }

    /// Records that a reload at `at` (nanoseconds since 1970) found the rules in force.
    pub fn confirmed(&self, at: u64) {
        self.last_load_succeeded.set(1);
        self.loaded_at.set(at as f64 / NANOS_PER_SECOND);
    }

    /// Records that a reload at `at` (nanoseconds since 1970) failed. The previous rules stay in force.
    pub fn refused(&self, at: u64) {
        self.last_load_succeeded.set(0);
        self.failed_at.set(at as f64 / NANOS_PER_SECOND);
        self.failures.inc();
    }
}

/// The blocks of actors that rules set.
pub struct RuleBlocks {
    /// Number of blocks that were set.
    pub set: IntCounter,
    /// Number of blocks that could not be set.
    pub failed: IntCounter,
    /// Number of denials that did not count.
    pub lost_denials: IntCounter,
}

impl RuleBlocks {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            set: registry.counter("divvy_rule_blocks_total", "Blocks of actors that rules set."),
            failed: registry.counter(
                "divvy_rule_blocks_failed_total",
                "Blocks of actors that rules could not set: --max-blocks was reached, or the store failed.",
            ),
            lost_denials: registry.counter(
                "divvy_rule_blocks_lost_denials_total",
                "Denials that did not count for blocks: too many other actors were denied at the time, or the store failed.",
            ),
        }
    }
}

named_values! {
    /// A task that runs as long as the process does.
    Task {
        /// Accepts connections. Each front has one.
        Accept = "accept",
        /// Reloads the users and the keys of tokens.
        Access = "access",
        /// Keeps the limits of single actors up to date.
        Limits = "limits",
        /// Samples the counts of the rules for the live page.
        Page = "page",
        /// Counts denials, and blocks actors that a rule keeps denying.
        Penalties = "penalties",
        /// Checks whether the store can answer hits.
        Probe = "probe",
        /// Reloads the rules.
        Rules = "rules",
        /// Keeps the key for reservation ids up to date.
        Seal = "seal",
        /// Reloads the TLS files.
        Tls = "tls",
    }
}

/// Lines that could not be written, and whether that is so now.
pub struct Audit {
    /// Number of lines that are not in the file.
    pub lines_lost: IntCounter,
    failing: IntGauge,
}

impl Audit {
    pub(super) fn new(registry: &Registry) -> Self {
        let help = "1 if the audit log could not be written the last time.";
        Self {
            lines_lost: registry
                .counter("divvy_audit_lines_lost_total", "Lines that could not be written to the audit log."),
            failing: registry.gauge("divvy_audit_log_failing", help),
        }
    }

    /// Records whether the log could be written.
    pub fn set_failing(&self, is_failing: bool) {
        self.failing.set(is_failing.into());
    }
}
