//! The rules in force. Each has its counter, its limits of single actors, its metrics, and its ranking of actors.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use siphasher::sip128::SipHasher13;

use super::heavy_hitters::RuleTop;
use super::penalties::RulePenalty;
use super::register::Register;
use super::register::overrides::{Applicable, RuleExceptions};
use crate::store::key::{self, Prefix, Space};
use divvy_core::algorithm::{CountBasis, Limit};
use divvy_core::clock::{Timestamp, ceil_seconds};
use divvy_core::rules::descriptor::DescriptorKind;
use divvy_core::rules::diff::find_origins;
use divvy_core::rules::explain::{ActorExceptions, ActorOverride};
use divvy_core::rules::{
    ActorFields, DEFAULT_RULE, Descriptor, MAX_STACK, MatchPolicy, Operation, Overrun, Quota, Rule, RuleSet, Settings,
    stacks,
};
use divvy_telemetry::metrics::{LimitCounts, Metrics, RuleCount, RuleHits};

/// The rules with all that it takes to serve them: their counters, metrics, rankings of actors, and penalties.
#[derive(Debug)]
pub struct ActiveRules {
    pub(super) rules: RuleSet,
    /// The counter of each rule; `None` for a rule without a counter.
    counters: Vec<Option<RuleCounter>>,
    /// The rules by the prefix of their counters' keys. Rules that share a named counter have one prefix.
    by_prefix: HashMap<Box<[u8]>, Vec<usize>, FixedState>,
    /// The [`Rule::name`] of each rule, and its label or else its text.
    pub(super) names: Vec<(String, String)>,
    /// Fingerprint of each rule, which names the rule in reservation ids.
    fingerprints: Vec<u32>,
    /// The first rule with each fingerprint.
    by_fingerprint: HashMap<u32, usize, FixedState>,
    /// How the counters are named.
    pub(super) counter_names: CounterNames,
    /// Maximum number of counters that one request uses.
    pub(super) most_counters: usize,
    /// Metrics of each rule.
    pub(super) hits: Vec<RuleHits>,
    /// The descriptors and the statistics of ratelimit's limits. Empty if there are no domains.
    pub(super) limits: Vec<Option<(Arc<Descriptor>, Arc<LimitCounts>)>>,
    /// The top of each rule. Empty if nothing is counted.
    pub(super) tops: Vec<TopOfRule>,
    /// The penalty of each rule. Empty if no rule has one.
    pub(super) penalties: Vec<Option<RulePenalty>>,
    /// Whether answers may have to say that a rule is exceeded.
    pub(super) annotates: bool,
}

/// The naming of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CounterNames {
    /// The name of a counter consists of its identity.
    #[default]
    Usual,
    /// Fixed windows whose balance may be below 0 have names of their own in Redis. Other windows there are shared with programs that
    /// have no debt.
    InRedis,
    /// Same as [`CounterNames::InRedis`], and a Redis Cluster keeps the counters of one stack in one slot.
    InSlots,
}

impl CounterNames {
    /// Returns whether a rule's counters would differ if the rule had another `overrun`.
    pub fn are_apart(self, rule: &Rule) -> bool {
        let is_window = matches!(rule.quota, Quota::Limited(Limit::FixedWindow(_)));
        self != Self::Usual && is_window && rule.counter.is_none() && rule.overrun != Overrun::Refuse
    }

    /// Returns the space of the rule's counters. A counter with a name is in a slot even outside of stacks, because some of the
    /// rules that share it may be in a stack.
    fn space(self, rule: &Rule, can_stack: bool) -> Space {
        let is_in_slot = self == Self::InSlots && (can_stack || rule.counter.is_some());
        let is_of_one_field = rule.counter_fields().len() <= 1;
        let [without_slot, by_actor, by_first_field] = match (&rule.counter, self.are_apart(rule)) {
            (Some(_), _) => [Space::Named, Space::NamedInSlotOfActor, Space::NamedInSlotOfFirstField],
            (None, true) => [Space::Debt, Space::DebtInSlotOfActor, Space::DebtInSlotOfFirstField],
            (None, false) => [Space::Rule, Space::SlotOfActor, Space::SlotOfFirstField],
        };
        match (is_in_slot, is_of_one_field) {
            (false, _) => without_slot,
            (true, true) => by_actor,
            (true, false) => by_first_field,
        }
    }
}

/// The counters of a rule: how their keys are written, and the limit of each actor.
#[derive(Debug, Clone)]
pub(super) struct RuleCounter {
    /// The rule's limit, without a date.
    limit: Limit,
    pub prefix: Prefix,
    /// The rule's `actorField`.
    actor: ActorFields,
    /// The rule's settings. Limits of single actors differ from them in the credits.
    settings: Settings,
    /// The rule's exceptions for single actors, once they are loaded.
    exceptions: Option<RuleExceptions>,
}

impl RuleCounter {
    /// Creates a counter. `limit` is the rule's limit on a counter that other rules may share.
    fn new(rule: &Rule, limit: Limit, space: Space) -> Self {
        let (limit, prefix) = match &rule.counter {
            None => {
                let pairs = rule.counter_pairs();
                (limit, Prefix::new(space, pairs.iter().map(|(key, text)| (*key, &**text)), &limit))
            }
            Some(counter) => {
                let refill = rule.settings.refill_credits;
                let (prefix, fields) = (rule.actor_prefix.as_ref(), rule.counter_fields());
                let prefix = prefix.map(ToString::to_string);
                let limit = limit.counting(CountBasis::Used);
                (limit, Prefix::named(space, counter, fields, prefix.as_deref(), &limit, refill))
            }
        };
        let actor = ActorFields::of(rule);
        Self { limit, prefix, actor, settings: rule.settings, exceptions: None }
    }

    /// Creates the counter `name` of ratelimit's rules for a limit that a request brings; `None` if that allows nothing.
    pub fn of_descriptor(name: &str, settings: Settings, names: CounterNames) -> Option<Self> {
        let Ok(Quota::Limited(limit)) = settings.quota() else { return None };
        let (counter, descriptor) = (Some(name.to_owned()), Some(Arc::default()));
        let rule = Rule { settings, counter, descriptor, ..Rule::default() };
        Some(Self::new(&rule, limit, names.space(&rule, false)))
    }

    /// Appends the key of the counter that `operation` takes from. Returns the place where the actor begins.
    // Inlined, because it runs for each rule of each hit.
    #[inline(always)]
    pub fn write_actor(&self, operation: &Operation, out: &mut Vec<u8>) -> usize {
        out.extend_from_slice(self.prefix.as_bytes());
        let start = out.len();
        self.actor.write(operation, out);
        start
    }

    /// Returns the actor's limit at `now`. `None` if it may take nothing.
    // Inlined for the same reason.
    #[inline(always)]
    pub fn limit_of(&self, actor: &[u8], now: Timestamp) -> Option<Limit> {
        match self.own_quota(actor, now) {
            Some((_, Quota::Limited(limit))) => Some(self.dated(limit.in_place_of(&self.limit), now)),
            Some((_, Quota::Never)) => None,
            Some((_, Quota::Always { .. })) | None => Some(self.limit_at(now)),
        }
    }

    /// Returns whether the actor may have a block or an allow of this rule.
    #[inline]
    pub fn may_override(&self, actor: &[u8]) -> bool {
        self.exceptions.as_ref().is_some_and(|exceptions| exceptions.may_override(actor))
    }

    /// Returns the credits that the actor has in place of the rule's, and the resulting quota. `None` if it has none,
    /// or if the rule cannot have this limit (the rule may have changed since).
    #[inline]
    fn own_quota(&self, actor: &[u8], now: Timestamp) -> Option<(u64, Quota)> {
        let credits = self.exceptions.as_ref()?.limits.get(actor, now)?.credits()?;
        Some((credits, Settings { credit_limit: credits, ..self.settings }.quota().ok()?))
    }

    /// Returns the rule's limit at `now`.
    pub fn limit_at(&self, now: Timestamp) -> Limit {
        self.dated(self.limit, now)
    }

    #[inline]
    fn dated(&self, limit: Limit, now: Timestamp) -> Limit {
        match (limit, self.settings.calendar) {
            (Limit::CalendarWindow(limit), Some(calendar)) => Limit::CalendarWindow(calendar.dated(limit, now)),
            (limit, _) => limit,
        }
    }
}

impl ActiveRules {
    /// Creates them. A rule continues the counts in `metrics` of an earlier rule with its name.
    pub fn new(rules: RuleSet, metrics: &Metrics, names: CounterNames) -> Self {
        let stacking = if names == CounterNames::InSlots { stacks::can_stack(rules.rules()) } else { Vec::new() };
        let shared = shared_limits(rules.rules());
        let counter = |(index, rule): (usize, &Rule)| {
            let Quota::Limited(limit) = rule.quota else { return None };
            let others = rule.counter.as_deref().and_then(|counter| shared.get(counter));
            let limit = others.map_or(limit, |others| limit.share_counter_with(others));
            Some(RuleCounter::new(rule, limit, names.space(rule, stacking.get(index) == Some(&true))))
        };
        let counters: Vec<_> = rules.rules().iter().enumerate().map(counter).collect();
        let hits = |(index, rule): (usize, &Rule)| {
            metrics.hits.rule(&rule.name(index), rule.match_policy == MatchPolicy::Canary)
        };
        let hits = rules.rules().iter().enumerate().map(hits).collect();
        let limit = |rule: &Rule| {
            let descriptor = rule.descriptor.as_ref().filter(|descriptor| descriptor.kind == DescriptorKind::Limit)?;
            Some((Arc::clone(descriptor), metrics.ratelimit.configured(&descriptor.statistic())))
        };
        let limits = rules.domains().map(|_| rules.rules().iter().map(limit).collect()).unwrap_or_default();
        let mut by_prefix: HashMap<_, Vec<_>, _> = HashMap::default();
        for (index, counter) in counters.iter().enumerate() {
            if let Some(RuleCounter { prefix, .. }) = counter {
                by_prefix.entry(prefix.as_bytes().into()).or_default().push(index);
            }
        }
        let counter_names = names;
        let text = |rule: &Rule| rule.label.clone().unwrap_or_else(|| rule.to_string());
        let names = |(index, rule): (usize, &Rule)| (rule.name(index).into_owned(), text(rule));
        let names = rules.rules().iter().enumerate().map(names).collect();
        let fingerprint = |rule: &Rule| {
            let conditions: Vec<_> = rule.conditions().map(|condition| format!("\n{condition}")).collect();
            let text = rule.to_string() + &conditions.concat();
            SipHasher13::new_with_keys(0, 0).hash(text.as_bytes()).h1 as u32
        };
        let fingerprints: Vec<_> = rules.rules().iter().map(fingerprint).collect();
        let by_fingerprint = fingerprints.iter().enumerate().rev().map(|(index, print)| (*print, index)).collect();
        let most_counters = most_counters(rules.rules());
        let penalized = rules.rules().iter().filter(|rule| rule.penalty.is_some()).count();
        let penalty = |(rule, label): (&Rule, Option<&str>)| RulePenalty::new(rule, label?, penalized);
        let mut penalties: Vec<_> = rules.rules().iter().zip(labels(rules.rules())).map(penalty).collect();
        if penalties.iter().all(Option::is_none) {
            penalties.clear();
        }
        Self {
            counters,
            by_prefix,
            names,
            fingerprints,
            by_fingerprint,
            counter_names,
            most_counters,
            hits,
            limits,
            tops: Vec::new(),
            penalties,
            annotates: rules.rules().iter().any(Rule::annotates),
            rules,
        }
    }

    /// Puts the exceptions for single actors in force, including later changes.
    pub(super) fn set_exceptions(&mut self, register: &Register) {
        for (label, counter) in labels(self.rules.rules()).zip(&mut self.counters) {
            if let (Some(label), Some(counter)) = (label, counter) {
                counter.exceptions = Some(register.of_rule(label));
            }
        }
    }

    /// Returns the labels of the rules with a counter, as limits of actors use them.
    pub(super) fn labels_that_count(&self) -> impl Iterator<Item = &str> {
        let counting = labels(self.rules.rules()).zip(&self.counters).filter(|(_, counter)| counter.is_some());
        counting.filter_map(|(label, _)| label)
    }

    /// Returns the exceptions for the actor of `operation` at the rule with this index. `everywhere` is the override of all rules
    /// that applies, with its text.
    pub(super) fn exceptions_of(
        &self,
        index: usize,
        operation: &Operation,
        everywhere: Option<&(Applicable, String)>,
        now: Timestamp,
    ) -> ActorExceptions {
        let own_quota = |counter: &RuleCounter| {
            let mut actor = Vec::new();
            counter.actor.write(operation, &mut actor);
            counter.own_quota(&actor, now)
        };
        let found = self.find_override(index, operation, everywhere.map(|(found, _)| found), now, &mut Vec::new());
        let actor_override = found.map(|Applicable { kind, is_for_rule, ends, reason, .. }| ActorOverride {
            kind,
            expires_in: ends.map(|ends| ceil_seconds(ends.since(now))),
            reason: reason.map(|reason| reason.to_string()),
            entry: everywhere.filter(|_| !is_for_rule).map(|(_, text)| text.clone()),
        });
        let credits = self.counter(index).and_then(own_quota).map(|(credits, _)| credits);
        ActorExceptions { credits, actor_override }
    }

    /// Returns the override that decides about the actor of `operation` at the rule with this index: one of the rule's, or
    /// `everywhere`. `actor` is a buffer.
    pub(super) fn find_override(
        &self,
        index: usize,
        operation: &Operation,
        everywhere: Option<&Applicable>,
        now: Timestamp,
        actor: &mut Vec<u8>,
    ) -> Option<Applicable> {
        let counter = self.counter(index);
        let exceptions = counter.and_then(|counter| counter.exceptions.as_ref());
        let Some((counter, exceptions)) = counter.zip(exceptions.filter(|exceptions| exceptions.has_overrides()))
        else {
            return everywhere.cloned();
        };
        actor.clear();
        counter.actor.write(operation, actor);
        exceptions.find_override(actor, everywhere, now)
    }

    /// Finds a rule by its counter's key. Returns it with its counter. If several rules match, it is the one with this
    /// fingerprint, or else the first.
    pub(super) fn rule_of(&self, key: &[u8], fingerprint: u32) -> Option<(usize, &RuleCounter)> {
        let has_key =
            |rule: &usize| self.counter(*rule).is_some_and(|counter| key.starts_with(counter.prefix.as_bytes()));
        // Fast path: the rule has not changed since.
        let known = self.by_fingerprint.get(&fingerprint).copied().filter(has_key);
        let rule = known.or_else(|| {
            let rules = self.by_prefix.get(key::split_limit(key)?.0)?;
            rules.iter().find(|rule| self.fingerprint(**rule) == fingerprint).or(rules.first()).copied()
        })?;
        Some((rule, self.counter(rule)?))
    }

    /// Finds the rule that a record of a reservation names: the rule with its counter, or else the rule with this
    /// fingerprint.
    pub(super) fn rule_of_record(&self, key: &[u8], fingerprint: u32) -> Option<&Rule> {
        let by_key = self.rule_of(key, fingerprint).map(|(rule, _)| rule);
        self.rules.rules().get(by_key.or_else(|| self.by_fingerprint.get(&fingerprint).copied())?)
    }

    /// Returns the fingerprint of the rule with this index. It depends only on the rule's operation and
    /// conditions.
    pub(super) fn fingerprint(&self, rule: usize) -> u32 {
        self.fingerprints.get(rule).copied().unwrap_or_default()
    }

    /// Returns the hits of the rules that had the name of the rule with this index, since the server started.
    pub fn named_count(&self, index: usize) -> RuleCount {
        self.hits.get(index).map(RuleHits::named_count).unwrap_or_default()
    }

    /// Returns the own counts of each rule, in order. See [`RuleHits::own_count`].
    pub fn rule_counts(&self) -> impl Iterator<Item = RuleCount> {
        self.hits.iter().map(RuleHits::own_count)
    }

    /// Counts hits on the rule with this index.
    #[cfg(any(test, feature = "testing"))]
    pub fn count_for_test(&self, index: usize, allowed: bool, hits: u64) {
        self.hits.get(index).into_iter().for_each(|of| of.count(allowed, hits));
    }

    /// Returns whether the rule with this index has statistics of ratelimit.
    pub(super) fn has_statistics(&self, index: usize) -> bool {
        self.limits.get(index).is_some_and(Option::is_some)
    }

    /// Returns the compiled rules.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Returns the counter of the rule with this index; `None` if the rule has no counter.
    #[inline]
    pub(super) fn counter(&self, index: usize) -> Option<&RuleCounter> {
        self.counters.get(index)?.as_ref()
    }
}

/// Returns the maximum number of counters that one request uses: those of all canaries, of a stack, and of the rule
/// that ends it.
fn most_counters(rules: &[Rule]) -> usize {
    let count = |policy| rules.iter().filter(|rule| rule.match_policy == policy).count();
    count(MatchPolicy::Canary) + (count(MatchPolicy::And) + 1).min(MAX_STACK)
}

/// Returns a limit for each named counter: the limit of one of its rules, adapted to the limits of the others.
fn shared_limits(rules: &[Rule]) -> HashMap<&str, Limit> {
    let mut shared: HashMap<&str, Limit> = HashMap::new();
    for rule in rules {
        if let (Some(counter), Quota::Limited(limit)) = (rule.counter.as_deref(), rule.quota) {
            shared.entry(counter).and_modify(|known| *known = known.share_counter_with(&limit)).or_insert(limit);
        }
    }
    shared
}

/// Returns each rule's label for limits of actors, if it has one.
pub(super) fn labels(rules: &[Rule]) -> impl Iterator<Item = Option<&str>> {
    let has_default_label = rules.iter().any(|rule| rule.label.as_deref() == Some(DEFAULT_RULE));
    let default = move |rule: &Rule| (rule.is_default() && !has_default_label).then_some(DEFAULT_RULE);
    rules.iter().map(move |rule| rule.label.as_deref().or(default(rule)))
}

/// The top of one rule.
#[derive(Debug)]
pub struct TopOfRule {
    pub top: Arc<RuleTop>,
    /// The rule's `actorField`.
    pub actor: ActorFields,
}

/// Returns the tops of these rules. A rule that was in force `before` keeps its top, even if its limit has changed.
pub(super) fn tops_of(rules: &RuleSet, before: Option<&ActiveRules>) -> Vec<TopOfRule> {
    let (old, tops) = before.map_or((&[][..], &[][..]), |before| (before.rules.rules(), &before.tops[..]));
    let kept = |rule: &Rule, origin: usize| {
        let of_rule = tops.get(origin)?;
        old.get(origin).filter(|old| counts_alike(old, rule)).map(|_| Arc::clone(&of_rule.top))
    };
    let top = |(rule, origin): (&Rule, Option<usize>)| TopOfRule {
        top: origin.and_then(|origin| kept(rule, origin)).unwrap_or_default(),
        actor: ActorFields::of(rule),
    };
    rules.rules().iter().zip(find_origins(old, rules.rules())).map(top).collect()
}

/// Returns whether the rules' counts have the same meaning: both name their actors in the same way, and both or none of them
/// is a canary.
fn counts_alike(old: &Rule, new: &Rule) -> bool {
    let is_canary = |rule: &Rule| rule.match_policy == MatchPolicy::Canary;
    old.actor_fields == new.actor_fields && old.actor_prefix == new.actor_prefix && is_canary(old) == is_canary(new)
}
