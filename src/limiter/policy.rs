//! Rules that are ready to serve: each with its bucket, its limits of single actors, and its metrics.

mod actor_limits;

use std::collections::HashMap;
use std::sync::Arc;

use siphasher::sip128::SipHasher13;

use self::actor_limits::LabelLimits;
pub use self::actor_limits::ListedLimits;
pub(super) use self::actor_limits::{ActorLimits, Cursor};
use crate::algorithm::{Limit, Tally};
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::metrics::{Metrics, RuleHits};
use crate::rules::{ActorFields, MAX_STACK, MatchPolicy, Operation, Overrun, Quota, Rule, RuleSet, Settings, stacks};
use crate::store::key::{Prefix, Space};

/// The name of the default rule, if it has no label.
pub(super) const DEFAULT_RULE: &str = "default";

/// The rules with the bucket of each, ready to serve.
#[derive(Debug)]
pub struct Policy {
    pub(super) rules: RuleSet,
    /// The bucket of each rule; `None` where the rule counts nothing.
    buckets: Vec<Option<Bucket>>,
    /// The rules whose buckets' keys begin so: several, where they share a counter's name.
    by_prefix: HashMap<Box<[u8]>, Vec<usize>>,
    /// Fingerprint of each rule. Reservation ids name the rule by it.
    fingerprints: Vec<u32>,
    /// Counters that one request asks, at most.
    most_counters: usize,
    /// Where the hits of each rule are counted.
    pub(super) hits: Vec<RuleHits>,
}

/// How the counters of rules are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CounterNames {
    /// By what identifies them, and nothing else.
    #[default]
    Usual,
    /// Fixed windows with debt have names of their own in Redis: others there are shared with programs that know of none.
    InRedis,
    /// Likewise, and so that a Redis Cluster keeps those of one stack in one slot.
    InSlots,
}

impl CounterNames {
    /// Whether the rule's counters are apart from those of a rule that differs from it in `overrun` alone.
    pub fn are_apart(self, rule: &Rule) -> bool {
        let is_window = matches!(rule.quota, Quota::Limited(Limit::FixedWindow(_)));
        self != Self::Usual && is_window && rule.counter.is_none() && rule.overrun == Overrun::Debt
    }
}

#[derive(Debug)]
pub(super) struct Bucket {
    pub limit: Limit,
    /// By which its windows end.
    calendar: Option<Calendar>,
    pub prefix: Prefix,
    /// The rule's `actorField`.
    actor: ActorFields,
    /// What the limit follows from, but for the credits.
    settings: Settings,
    /// The limits of single actors, once they are known.
    of_actors: Option<Arc<LabelLimits>>,
}

impl Bucket {
    /// `limit` is the rule's, on a counter that other rules may share.
    fn new(rule: &Rule, limit: Limit, space: Space) -> Self {
        let (limit, prefix) = match &rule.counter {
            None => (limit, Prefix::new(space, rule.pairs(), &limit)),
            Some(counter) => {
                let refill = rule.settings.refill_credits;
                (limit.counting(Tally::Used), Prefix::named(space, counter, &rule.actor_fields, &limit, refill))
            }
        };
        let actor = ActorFields::new(&rule.actor_fields);
        Self { limit, calendar: rule.settings.calendar, prefix, actor, settings: rule.settings, of_actors: None }
    }

    /// Appends the key of the bucket that `operation` takes from. Returns its actor's limit, see [`Bucket::limit_of`].
    #[inline]
    pub fn write_key(&self, operation: &Operation, now: Timestamp, out: &mut Vec<u8>) -> Option<Limit> {
        out.extend_from_slice(self.prefix.as_bytes());
        let start = out.len();
        self.actor.write(operation, out);
        self.limit_of(out.get(start..).unwrap_or_default(), now)
    }

    /// The actor's limit as it is for an ask at `now`; `None` when it may take nothing.
    #[inline]
    pub fn limit_of(&self, actor: &[u8], now: Timestamp) -> Option<Limit> {
        match self.of_actors.as_ref().and_then(|of_actors| of_actors.get(actor, now)) {
            None => Some(self.limit_at(now)),
            Some(own) => self.resized(own.credits, now),
        }
    }

    /// The credits that the actor has in place of the rule's.
    fn own_credits(&self, operation: &Operation, now: Timestamp) -> Option<u64> {
        let mut actor = Vec::new();
        self.actor.write(operation, &mut actor);
        let credits = self.of_actors.as_ref()?.get(&actor, now)?.credits;
        (Settings { credit_limit: credits, ..self.settings }).quota().is_ok().then_some(credits)
    }

    /// The rule's limit, but with so many credits, on the same counter.
    fn resized(&self, credits: u64, now: Timestamp) -> Option<Limit> {
        match (Settings { credit_limit: credits, ..self.settings }).quota() {
            Ok(Quota::Limited(limit)) => Some(self.dated(limit.counting(self.limit.tally()).beside(&self.limit), now)),
            Ok(Quota::Never) => None,
            // The rule has become one that cannot have so many.
            Ok(Quota::Always { .. }) | Err(_) => Some(self.limit_at(now)),
        }
    }

    /// The rule's limit as it is for an ask at `now`.
    pub fn limit_at(&self, now: Timestamp) -> Limit {
        self.dated(self.limit, now)
    }

    #[inline]
    fn dated(&self, limit: Limit, now: Timestamp) -> Limit {
        match (limit, self.calendar) {
            (Limit::CalendarWindow(limit), Some(calendar)) => Limit::CalendarWindow(calendar.dated(limit, now)),
            (limit, _) => limit,
        }
    }
}

impl Policy {
    /// A rule with a label goes on counting in `metrics` where one with that label has counted before.
    pub fn new(rules: RuleSet, metrics: &Metrics, names: CounterNames) -> Self {
        let spaces = match names {
            CounterNames::Usual | CounterNames::InRedis => {
                rules.rules().iter().map(|rule| usual_space(rule, names)).collect()
            }
            CounterNames::InSlots => slotted(rules.rules()),
        };
        let shared = shared_limits(rules.rules());
        let beside_others = |rule: &Rule, limit: Limit| {
            let others = rule.counter.as_deref().and_then(|counter| shared.get(counter));
            others.map_or(limit, |others| limit.beside(others))
        };
        let buckets: Vec<_> = rules
            .rules()
            .iter()
            .zip(spaces)
            .map(|(rule, space)| match rule.quota {
                Quota::Limited(limit) => Some(Bucket::new(rule, beside_others(rule, limit), space)),
                Quota::Never | Quota::Always { .. } => None,
            })
            .collect();
        let hits = |rule: &Rule| metrics.hits.rule(rule.label.as_deref(), rule.match_policy == MatchPolicy::Canary);
        let hits = rules.rules().iter().map(hits).collect();
        let mut by_prefix: HashMap<_, Vec<_>> = HashMap::new();
        for (index, bucket) in buckets.iter().enumerate() {
            if let Some(Bucket { prefix, .. }) = bucket {
                by_prefix.entry(prefix.as_bytes().into()).or_default().push(index);
            }
        }
        let fingerprint = |rule: &Rule| SipHasher13::new_with_keys(0, 0).hash(rule.to_string().as_bytes()).h1 as u32;
        let fingerprints = rules.rules().iter().map(fingerprint).collect();
        let most_counters = most_counters(rules.rules());
        Self { rules, buckets, by_prefix, fingerprints, most_counters, hits }
    }

    /// Counters that one request asks, at most.
    pub(super) fn most_counters(&self) -> usize {
        self.most_counters
    }

    /// From now on, actors have the limits of their own that are known here, as long as they are.
    pub(super) fn know(&mut self, limits: &ActorLimits) {
        let labels = labels(self.rules.rules());
        for (label, bucket) in labels.zip(&mut self.buckets) {
            if let (Some(label), Some(bucket)) = (label, bucket) {
                bucket.of_actors = Some(limits.of_label(label));
            }
        }
    }

    /// By which limits of actors know the rules that count.
    pub(super) fn labels_that_count(&self) -> impl Iterator<Item = &str> {
        let counting = labels(self.rules.rules()).zip(&self.buckets).filter(|(_, bucket)| bucket.is_some());
        counting.filter_map(|(label, _)| label)
    }

    /// The credits that the actor of `operation` has in place of those of the rule with this index.
    pub fn own_credits(&self, index: usize, operation: &Operation, now: Timestamp) -> Option<u64> {
        self.bucket(index)?.own_credits(operation, now)
    }

    /// The rule whose buckets' keys consist of `prefix` and the actor. Of several, the one with this fingerprint, or else the
    /// first.
    pub(super) fn rule_with(&self, prefix: &[u8], fingerprint: u32) -> Option<usize> {
        let rules = self.by_prefix.get(prefix)?;
        rules.iter().find(|rule| self.fingerprint(**rule) == fingerprint).or(rules.first()).copied()
    }

    /// Fingerprint of the rule with this index. It stays the same as long as the rule's operations do.
    pub(super) fn fingerprint(&self, rule: usize) -> u32 {
        self.fingerprints.get(rule).copied().unwrap_or_default()
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

/// Counters that one request asks, at most: those of all canaries, of a stack, and of the rule that ends it.
fn most_counters(rules: &[Rule]) -> usize {
    let count = |policy| rules.iter().filter(|rule| rule.match_policy == policy).count();
    count(MatchPolicy::Canary) + (count(MatchPolicy::And) + 1).min(MAX_STACK)
}

/// For each counter with a name a limit of one of its rules, beside those of the others.
fn shared_limits(rules: &[Rule]) -> HashMap<&str, Limit> {
    let mut shared: HashMap<&str, Limit> = HashMap::new();
    for rule in rules {
        if let (Some(counter), Quota::Limited(limit)) = (rule.counter.as_deref(), rule.quota) {
            shared.entry(counter).and_modify(|known| *known = known.beside(&limit)).or_insert(limit);
        }
    }
    shared
}

/// What each rule is called by limits of actors, if anything.
fn labels(rules: &[Rule]) -> impl Iterator<Item = Option<&str>> {
    let has_default_label = rules.iter().any(|rule| rule.label.as_deref() == Some(DEFAULT_RULE));
    let default = move |rule: &Rule| (rule.is_default() && !has_default_label).then_some(DEFAULT_RULE);
    rules.iter().map(move |rule| rule.label.as_deref().or(default(rule)))
}

fn usual_space(rule: &Rule, names: CounterNames) -> Space {
    match rule.counter {
        Some(_) => Space::Named,
        None if names.are_apart(rule) => Space::Debt,
        None => Space::Rule,
    }
}

/// Where the counters of each rule are, if those of stacks are to be in one slot. Counters with a name always are: some of
/// the rules that share them may be in a stack, and others not.
fn slotted(rules: &[Rule]) -> Vec<Space> {
    let space = |(rule, can_stack): (&Rule, bool)| {
        let is_apart = CounterNames::InSlots.are_apart(rule);
        match (&rule.counter, rule.actor_fields.len()) {
            (Some(_), 0 | 1) => Space::NamedInSlotOfActor,
            (Some(_), _) => Space::NamedInSlotOfFirstField,
            (None, _) if !can_stack => usual_space(rule, CounterNames::InSlots),
            (None, 0 | 1) if is_apart => Space::DebtInSlotOfActor,
            (None, _) if is_apart => Space::DebtInSlotOfFirstField,
            (None, 0 | 1) => Space::SlotOfActor,
            (None, _) => Space::SlotOfFirstField,
        }
    };
    rules.iter().zip(stacks::can_stack(rules)).map(space).collect()
}
