//! Hits: the answers of each rule, and their duration. Names and meaning are the original Divvy's. Also charges, refunds and
//! reservations, which the original does not have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec};

use super::registry::{Histogram, Registry, Unit};

/// Upper bounds in microseconds. The bounds from 1 ms up are the original's, but most hits take far less.
const DURATIONS: [u64; 12] = [10, 25, 50, 100, 250, 500, 1_000, 2_000, 5_000, 10_000, 100_000, 500_000];

/// The hits of all rules.
pub struct Hits {
    by_rule: IntCounterVec,
    /// Whether rules that come into force have counts of their own.
    counts_each_rule: AtomicBool,
    /// Time from the arrival of a hit's batch until the batch has its answers.
    pub duration: Histogram,
    /// Denials by stacks of rules, and by sets of requests that are decided together.
    pub stacks_denied: IntCounter,
    charges: IntCounterVec,
    refunds: IntCounterVec,
    commits: IntCounterVec,
    releases: IntCounterVec,
    replays: IntCounterVec,
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
    pub(super) fn new(registry: &Registry) -> Self {
        let by_rule = |name, help| registry.counters_by_rule(name, help, &["rule_label"]);
        let by_status = |name, help| registry.counters_by_rule(name, help, &["status", "rule_label"]);
        Self {
            by_rule: by_status("divvy_hits_total", "Hits, by the matching rule and its decision."),
            counts_each_rule: AtomicBool::new(false),
            duration: registry.histogram(
                "divvy_hit_duration_seconds",
                "Time from the arrival of a hit's batch to its answers.",
                Unit::Seconds,
                &DURATIONS.map(|micros| 1_000 * micros),
            ),
            stacks_denied: registry.counter(
                "divvy_stacks_denied_total",
                "Hits that a stack of rules denied, and groups of hits of which one was denied.",
            ),
            charges: by_rule("divvy_charges_total", "Charges, by the rule that counted them."),
            refunds: by_rule("divvy_refunds_total", "Refunds, by the rule that gave the credit back."),
            commits: by_status(
                "divvy_commits_total",
                "Commits of reservations, by outcome (settled, late, repeated) and the rule that counted them.",
            ),
            releases: by_rule("divvy_releases_total", "Released reservations, by the rule that made them."),
            replays: by_rule(
                "divvy_idempotent_replays_total",
                "Replayed answers to hits, charges and refunds with an idempotency key, by the rule that counted the first request.",
            ),
        }
    }

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
