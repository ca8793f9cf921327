//! The rules with the bucket of each, ready to serve. What a request asks of them is not here.

use crate::algorithm::Limit;
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::metrics::{Metrics, RuleHits};
use crate::rules::{ActorFields, MatchPolicy, Operation, Quota, Rule, RuleSet};
use crate::store::key::{Prefix, Space};

/// The rules with the bucket of each, ready to serve.
#[derive(Debug)]
pub struct Policy {
    pub(super) rules: RuleSet,
    /// The bucket of each rule; `None` where the rule counts nothing.
    pub(super) buckets: Vec<Option<Bucket>>,
    /// Where the hits of each rule are counted.
    pub(super) hits: Vec<RuleHits>,
}

#[derive(Debug)]
pub(super) struct Bucket {
    pub limit: Limit,
    /// By which its windows end.
    calendar: Option<Calendar>,
    pub prefix: Prefix,
    /// The rule's `actorField`.
    actor: ActorFields,
}

impl Bucket {
    /// Appends the key of the bucket that `operation` takes from.
    pub fn write_key(&self, operation: &Operation, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        self.actor.write(operation, out);
    }

    /// The limit as it is for an ask at `now`.
    pub fn limit_at(&self, now: Timestamp) -> Limit {
        match (self.limit, self.calendar) {
            (Limit::CalendarWindow(limit), Some(calendar)) => Limit::CalendarWindow(calendar.dated(limit, now)),
            (limit, _) => limit,
        }
    }
}

impl Policy {
    /// A rule with a label goes on counting in `metrics` where one with that label has counted before.
    pub fn new(rules: RuleSet, metrics: &Metrics) -> Self {
        let buckets = rules
            .rules()
            .iter()
            .map(|rule| match rule.quota {
                Quota::Limited(limit) => Some(Bucket {
                    limit,
                    calendar: rule.settings.calendar,
                    prefix: Prefix::new(Space::Rule, rule.pairs(), &limit),
                    actor: ActorFields::new(&rule.actor_fields),
                }),
                Quota::Never | Quota::Always { .. } => None,
            })
            .collect();
        let hits = |rule: &Rule| metrics.hits.rule(rule.label.as_deref(), rule.match_policy == MatchPolicy::Canary);
        let hits = rules.rules().iter().map(hits).collect();
        Self { rules, buckets, hits }
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }
}
