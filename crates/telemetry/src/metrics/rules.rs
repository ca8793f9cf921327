//! The rules: those in force and the reloads of their file, configurations from a management server, the answers of each rule, and
//! the blocks that they set. Names and meaning of hits are the original Divvy's. It has no charges, refunds and reservations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use prometheus::core::Collector;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registry::{Counts, Histogram, Registry, handles, named_values};
use divvy_core::clock::NANOS_PER_SECOND;

/// Upper bounds in microseconds. The bounds from 1 ms up are the original's, but most hits take far less.
const DURATIONS: [u64; 12] = [10, 25, 50, 100, 250, 500, 1_000, 2_000, 5_000, 10_000, 100_000, 500_000];

/// Labels of metrics by rule.
const BY_RULE: &[&str] = &["rule_label"];

/// Labels of metrics by rule and outcome.
const BY_STATUS: &[&str] = &["status", "rule_label"];

handles! {
    /// The rules in force, and the outcome of their last load.
    Config(registry) {
        info: IntGaugeVec =
            registry.gauges("divvy_config_info", "1, labeled with the hash of the rules in force.", &["hash"]),
        version: IntGauge =
            registry.gauge("divvy_config_version", "Number of times rules were put in force since the start."),
        rules: IntGauge = registry.gauge("divvy_config_rules", "Rules in force."),
        last_load_succeeded: IntGauge =
            registry.gauge("divvy_config_last_load_successful", "1 if the last load of the rules succeeded."),
        loaded_at: Gauge = registry.fraction(
            "divvy_config_last_success_timestamp_seconds",
            "When rules were last loaded without an error, in seconds since 1970; 0: never.",
        ),
        failed_at: Gauge = registry.fraction(
            "divvy_config_last_failure_timestamp_seconds",
            "When rules were last refused, in seconds since 1970; 0: never.",
        ),
        failures: IntCounter = registry.counter("divvy_config_failures_total", "Failed loads of the rules."),
    }
}

impl Config {
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
        self.loaded_at.set(at as f64 / NANOS_PER_SECOND as f64);
    }

    /// Records that a reload at `at` (nanoseconds since 1970) failed. The previous rules stay in force.
    pub fn refused(&self, at: u64) {
        self.last_load_succeeded.set(0);
        self.failed_at.set(at as f64 / NANOS_PER_SECOND as f64);
        self.failures.inc();
    }
}

named_values! {
    /// The answer to a configuration from a management server.
    XdsAnswer {
        /// It is in force.
        Ack = "ack",
        /// It was refused.
        Nack = "nack",
    }
}

handles! {
    /// Configurations that a management server sends over xDS.
    Xds(registry) {
        /// Whether there is a stream.
        pub connected: IntGauge =
            registry.gauge("divvy_xds_connected", "1 while there is a stream to the management server."),
        /// Answers to configurations.
        pub answers: Counts<XdsAnswer> = registry.counts(
            "divvy_xds_answers_total",
            "Configurations from the management server, by the answer to them.",
            "answer",
            XdsAnswer::ALL,
        ),
    }
}

handles! {
    /// The hits of all rules.
    Hits(registry) {
        by_rule: IntCounterVec =
            registry.counters_by_rule("divvy_hits_total", "Hits, by the matching rule and its decision.", BY_STATUS),
        /// Whether rules that come into force have counts of their own.
        counts_each_rule: AtomicBool = AtomicBool::new(false),
        /// Time from the arrival of a hit's batch until the batch has its answers.
        pub duration: Histogram = registry.histogram(
            "divvy_hit_duration_seconds",
            "Time from the arrival of a hit's batch to its answers.",
            NANOS_PER_SECOND,
            &DURATIONS.map(|micros| 1_000 * micros),
        ),
        /// Denials by stacks of rules, and by sets of requests that are decided together.
        pub stacks_denied: IntCounter = registry.counter(
            "divvy_stacks_denied_total",
            "Hits that a stack of rules denied, and groups of hits of which one was denied.",
        ),
        charges: IntCounterVec =
            registry.counters_by_rule("divvy_charges_total", "Charges, by the rule that counted them.", BY_RULE),
        refunds: IntCounterVec =
            registry.counters_by_rule("divvy_refunds_total", "Refunds, by the rule that gave the credit back.", BY_RULE),
        commits: IntCounterVec = registry.counters_by_rule(
            "divvy_commits_total",
            "Commits of reservations, by outcome (settled, late, repeated) and the rule that counted them.",
            BY_STATUS,
        ),
        releases: IntCounterVec = registry.counters_by_rule(
            "divvy_releases_total",
            "Released reservations, by the rule that made them.",
            BY_RULE,
        ),
        replays: IntCounterVec = registry.counters_by_rule(
            "divvy_idempotent_replays_total",
            "Replayed answers to hits, charges and refunds with an idempotency key, by the rule that counted the first request.",
            BY_RULE,
        ),
    }
}

/// The handles of one rule, looked up once, when the rule comes into force.
#[derive(Debug, Clone)]
pub struct RuleHits {
    accepted: IntCounter,
    rejected: IntCounter,
    /// The rule's own counts, which it shares with no other rule and no earlier one. `None` if the server does not need them.
    own: Option<Arc<OwnHits>>,
    /// Charges counted by this rule.
    pub charges: IntCounter,
    /// Refunds that this rule gave back.
    pub refunds: IntCounter,
    /// Commits of reservations, by outcome.
    pub commits: Commits,
    /// Reservations released unused.
    pub releases: IntCounter,
    /// Requests answered again under their idempotency key.
    pub replays: IntCounter,
}

/// The hits of one rule since it came into force.
#[derive(Debug, Default)]
struct OwnHits {
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// The number of hits of one rule since it came into force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleCount {
    /// Hits that the rule allowed.
    pub allowed: u64,
    /// Hits that the rule denied, or would have denied if it is a canary.
    pub denied: u64,
}

/// The commits of one rule's reservations, by outcome.
#[derive(Debug, Clone)]
pub struct Commits {
    pub settled: IntCounter,
    /// Commits after the reservation had expired.
    pub late: IntCounter,
    /// Commits that had been made before.
    pub repeated: IntCounter,
}

/// The number of hits with one status and one rule's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HitCount {
    pub status: String,
    /// The rule's name: its label, `default`, or its position, as in `rule-2`.
    pub rule: String,
    pub hits: u64,
}

impl Hits {
    /// Gives each rule that comes into force after this counts of its own: see [`RuleHits::own_count`].
    pub fn count_each_rule(&self) {
        self.counts_each_rule.store(true, Relaxed);
    }

    /// Returns the handles of the rule with this name. A reloaded rule with the same name keeps its counts.
    pub fn rule(&self, name: &str, is_canary: bool) -> RuleHits {
        let statuses = if is_canary { ["canary-accepted", "canary-rejected"] } else { ["accepted", "rejected"] };
        let [accepted, rejected] = statuses.map(|status| self.by_rule.with_label_values(&[status, name]));
        let families = [&self.charges, &self.refunds, &self.releases, &self.replays];
        let [charges, refunds, releases, replays] = families.map(|family| family.with_label_values(&[name]));
        let commits = ["settled", "late", "repeated"].map(|status| self.commits.with_label_values(&[status, name]));
        let [settled, late, repeated] = commits;
        let commits = Commits { settled, late, repeated };
        let own = self.counts_each_rule.load(Relaxed).then(Arc::default);
        RuleHits { accepted, rejected, own, charges, refunds, commits, releases, replays }
    }

    /// Returns all counts.
    pub fn counted(&self) -> Vec<HitCount> {
        let families = self.by_rule.collect();
        let metrics = families.iter().flat_map(|family| family.get_metric());
        metrics
            .map(|metric| {
                let label = |name: &str| {
                    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
                    pair.map(|pair| pair.value().to_owned()).unwrap_or_default()
                };
                // Counts are whole numbers, exact up to 2^53.
                let hits = metric.get_counter().get_value() as u64;
                HitCount { status: label("status"), rule: label("rule_label"), hits }
            })
            .collect()
    }
}

impl RuleHits {
    /// Counts hits that have the same answer.
    pub fn count(&self, allowed: bool, hits: u64) {
        if allowed { &self.accepted } else { &self.rejected }.inc_by(hits);
        if let Some(own) = &self.own {
            if allowed { &own.allowed } else { &own.denied }.fetch_add(hits, Relaxed);
        }
    }

    /// Returns the hits of the rules with this name since the server started.
    pub fn named_count(&self) -> RuleCount {
        RuleCount { allowed: self.accepted.get(), denied: self.rejected.get() }
    }

    /// Returns the rule's own counts. They are 0 unless [`Hits::count_each_rule`] was called before.
    pub fn own_count(&self) -> RuleCount {
        let read =
            |own: &Arc<OwnHits>| RuleCount { allowed: own.allowed.load(Relaxed), denied: own.denied.load(Relaxed) };
        self.own.as_ref().map(read).unwrap_or_default()
    }
}

handles! {
    /// The blocks of actors that rules set.
    RuleBlocks(registry) {
        /// Number of blocks that were set.
        pub set: IntCounter = registry.counter("divvy_rule_blocks_total", "Blocks of actors that rules set."),
        /// Number of blocks that could not be set.
        pub failed: IntCounter = registry.counter(
            "divvy_rule_blocks_failed_total",
            "Blocks of actors that rules could not set: --max-blocks was reached, or the store failed.",
        ),
        /// Number of denials that did not count.
        pub lost_denials: IntCounter = registry.counter(
            "divvy_rule_blocks_lost_denials_total",
            "Denials that did not count for blocks: too many other actors were denied at the time, or the store failed.",
        ),
    }
}
