//! The rules with the bucket of each, ready to serve. What a request asks of them is not here.

use crate::algorithm::{Limit, Tally};
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::metrics::{Metrics, RuleHits};
use crate::rules::{ActorFields, MatchPolicy, Operation, Quota, Rule, RuleSet, stacks};
use crate::store::key::{Prefix, Space};

/// The rules with the bucket of each, ready to serve.
#[derive(Debug)]
pub struct Policy {
    pub(super) rules: RuleSet,
    /// The bucket of each rule; `None` where the rule counts nothing.
    buckets: Vec<Option<Bucket>>,
    /// Where the hits of each rule are counted.
    pub(super) hits: Vec<RuleHits>,
}

/// How the counters of rules that can be in a stack are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CounterNames {
    /// As those of all rules.
    #[default]
    Usual,
    /// So that a Redis Cluster keeps those of one stack in one slot.
    InSlots,
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
    fn new(rule: &Rule, limit: Limit, space: Space) -> Self {
        let (limit, prefix) = match &rule.counter {
            None => (limit, Prefix::new(space, rule.pairs(), &limit)),
            Some(counter) => {
                let refill = rule.settings.refill_credits;
                (limit.counting(Tally::Used), Prefix::named(space, counter, &rule.actor_fields, &limit, refill))
            }
        };
        Self { limit, calendar: rule.settings.calendar, prefix, actor: ActorFields::new(&rule.actor_fields) }
    }

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
    pub fn new(rules: RuleSet, metrics: &Metrics, names: CounterNames) -> Self {
        let spaces = match names {
            CounterNames::Usual => rules.rules().iter().map(usual_space).collect(),
            CounterNames::InSlots => slotted(rules.rules()),
        };
        let buckets = rules
            .rules()
            .iter()
            .zip(spaces)
            .map(|(rule, space)| match rule.quota {
                Quota::Limited(limit) => Some(Bucket::new(rule, limit, space)),
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

    /// The bucket of the rule with this index; `None` where it counts nothing.
    #[inline]
    pub(super) fn bucket(&self, index: usize) -> Option<&Bucket> {
        self.buckets.get(index)?.as_ref()
    }
}

fn usual_space(rule: &Rule) -> Space {
    if rule.counter.is_some() { Space::Named } else { Space::Rule }
}

/// Where the counters of each rule are, if those of stacks are to be in one slot. Counters with a name always are: some of
/// the rules that share them may be in a stack, and others not.
fn slotted(rules: &[Rule]) -> Vec<Space> {
    let space = |(rule, can_stack): (&Rule, bool)| match (&rule.counter, rule.actor_fields.len()) {
        (Some(_), 0 | 1) => Space::NamedInSlotOfActor,
        (Some(_), _) => Space::NamedInSlotOfFirstField,
        (None, _) if !can_stack => Space::Rule,
        (None, 0 | 1) => Space::SlotOfActor,
        (None, _) => Space::SlotOfFirstField,
    };
    rules.iter().zip(stacks::can_stack(rules)).map(space).collect()
}
