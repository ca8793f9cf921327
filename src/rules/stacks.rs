//! Stacks, as far as the rules alone determine them: which rules must allow one request together, and which of them
//! never have an effect.
//!
//! The analysis uses the most general request that each rule matches. A request that happens to match more rules makes
//! a larger stack, and the number of such stacks is unbounded.

use std::collections::HashMap;
use std::hash::Hash;

use super::overlaps::Overlaps;
pub use super::stack_words::describe_stack;
use super::{MatchPolicy, Overrun, Pattern, Quota, Rule, RuleSet, Scratch};
use crate::algorithm::Limit;

/// Returns the rules, in order, that must allow the most general request of the rule with this index: only that rule if
/// it stands alone, and none if an earlier rule stops the request.
fn members(rules: &RuleSet, index: usize, scratch: &mut Scratch) -> Vec<usize> {
    let Some(rule) = rules.rules().get(index).filter(|rule| rule.match_policy != MatchPolicy::Canary) else {
        return Vec::new();
    };
    let matched = rules.matches_all_of(rule, scratch);
    let members: Vec<_> =
        matched.filter(|(_, rule)| rule.match_policy != MatchPolicy::Canary).map(|(index, _)| index).collect();
    if members.contains(&index) { members } else { Vec::new() }
}

/// Finds every stack of two or more rules, once.
pub fn find_stacks(rules: &RuleSet) -> Vec<Vec<usize>> {
    let mut scratch = Scratch::default();
    let mut stacks: Vec<_> = (0..rules.rules().len()).map(|index| members(rules, index, &mut scratch)).collect();
    stacks.retain(|members| members.len() > 1);
    stacks.sort_unstable();
    stacks.dedup();
    stacks
}

/// Returns, for each rule, whether it can be in a stack with others: because it has [`MatchPolicy::And`], or because a
/// request that matches such a rule may reach it.
pub fn can_stack(rules: &[Rule]) -> Vec<bool> {
    let partners = EarlierRules::new(rules, |rule| (rule.match_policy == MatchPolicy::And).then_some(()));
    let can_stack = |(index, rule): (usize, &Rule)| match rule.match_policy {
        MatchPolicy::Canary => false,
        MatchPolicy::And => true,
        MatchPolicy::Stop => partners.find(index, partners.groups.values()).is_some(),
    };
    rules.iter().enumerate().map(can_stack).collect()
}

/// Rules after which matching continues, in groups.
struct EarlierRules<'a, G> {
    rules: &'a [Rule],
    groups: HashMap<G, Overlaps<'a>>,
    stops: Overlaps<'a>,
}

impl<'a, G: Hash + Eq> EarlierRules<'a, G> {
    /// Indexes the rules. `group` returns the group of a rule, or `None` to ignore it.
    fn new(rules: &'a [Rule], group: impl Fn(&'a Rule) -> Option<G>) -> Self {
        let mut earlier = Self { rules, groups: HashMap::new(), stops: Overlaps::default() };
        for (index, rule) in rules.iter().enumerate() {
            if rule.match_policy == MatchPolicy::Stop {
                earlier.stops.add(index, rule);
            } else if let Some(group) = group(rule) {
                earlier.groups.entry(group).or_default().add(index, rule);
            }
        }
        earlier
    }

    /// Returns the first rule of these groups, before the one with this index, that a request may match together with
    /// it.
    fn find<'b>(&'b self, index: usize, groups: impl IntoIterator<Item = &'b Overlaps<'a>>) -> Option<usize>
    where
        'a: 'b,
    {
        let rule = self.rules.get(index)?;
        let is_partner = |earlier: usize| {
            self.rules
                .get(earlier)
                .is_some_and(|earlier| may_overlap(earlier, rule) && !self.is_stopped_before(index, earlier))
        };
        groups.into_iter().filter_map(|group| group.find_overlapping(rule, index, is_partner)).min()
    }

    /// Returns whether an earlier rule stops every request that matches both `earlier` and the rule with this index.
    fn is_stopped_before(&self, index: usize, earlier: &Rule) -> bool {
        let Some(rule) = self.rules.get(index) else { return false };
        let stops = |stop: usize| self.rules.get(stop).is_some_and(|stop| matches_all_of_both(stop, earlier, rule));
        self.stops.find_containing((earlier, rule), index, stops).is_some()
    }
}

/// Finds two rules, by their indexes, that share a named counter and that one request may match. It would be counted
/// twice.
pub fn find_double_counts(rules: &[Rule]) -> Vec<(usize, usize)> {
    fn counter(rule: &Rule) -> Option<&str> {
        rule.counter.as_deref().filter(|_| rule.identity().is_some())
    }
    let sharing = EarlierRules::new(rules, counter);
    let twice = |(index, rule): (usize, &Rule)| {
        let counter = counter(rule)?;
        sharing.find(index, sharing.groups.get(counter)).map(|earlier| (earlier, index))
    };
    rules.iter().enumerate().filter_map(twice).collect()
}

/// Returns whether `stop` matches every request that matches both other rules. Only checks whether, for each key, one
/// of them alone implies it.
fn matches_all_of_both(stop: &Rule, one: &Rule, other: &Rule) -> bool {
    count_comparison();
    let is_implied = |(key, pattern): &(String, Pattern)| {
        [one, other].into_iter().filter_map(|rule| rule.pattern(key)).any(|special| pattern.contains(special))
    };
    stop.operation.iter().all(is_implied)
        && stop.conditions().all(|condition| one.implies(condition) || other.implies(condition))
}

/// Returns whether there is a request that both match.
fn may_overlap(one: &Rule, other: &Rule) -> bool {
    count_comparison();
    one.operation.iter().all(|(key, pattern)| other.pattern(key).is_none_or(|other| pattern.overlaps(other)))
        && !one.conditions().any(|condition| other.conditions().any(|other| condition.excludes(other)))
}

/// Finds two rules, by their indexes, that can be in a stack and whose counters a Redis Cluster would keep in different
/// slots. The first of an actor's values determines the slot of its counter.
pub fn find_slot_conflicts(rules: &[Rule]) -> Vec<(usize, usize)> {
    fn slot(rule: &Rule) -> Option<Option<&str>> {
        match rule.quota {
            Quota::Limited(_) => Some(rule.actor_fields.first().map(String::as_str)),
            Quota::Never | Quota::Always { .. } => None,
        }
    }
    let partners = EarlierRules::new(rules, |rule| slot(rule).filter(|_| rule.match_policy == MatchPolicy::And));
    let torn = |(index, rule): (usize, &Rule)| {
        let own = slot(rule).filter(|_| rule.match_policy != MatchPolicy::Canary)?;
        let torn = partners.groups.iter().filter(|(other, _)| **other != own || own.is_none());
        partners.find(index, torn.map(|(_, group)| group)).map(|earlier| (earlier, index))
    };
    rules.iter().enumerate().filter_map(torn).collect()
}

/// A rule that has no effect in its stack: another one always denies first, or prevents it from being reached. `by` is
/// the other rule, or `None` if the rule allows everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleRule {
    /// Index of the rule that has no effect.
    pub rule: usize,
    /// Index of the rule that deprives it of its effect. `None` if the rule itself allows everything.
    pub by: Option<usize>,
}

/// Finds every rule that has no effect in its stack, in order, each with the first reason.
pub fn find_idle_rules(rules: &RuleSet) -> Vec<IdleRule> {
    let mut scratch = Scratch::default();
    let rule_at = |index: usize| rules.rules().get(index);
    let idle = |(index, rule): (usize, &Rule)| {
        if rule.match_policy == MatchPolicy::And && matches!(rule.quota, Quota::Always { .. }) {
            return Some(IdleRule { rule: index, by: None });
        }
        let Quota::Limited(limit) = rule.quota else { return None };
        let others = members(rules, index, &mut scratch).into_iter().filter(|other| *other != index);
        let by = others.filter_map(|other| Some((other, rule_at(other)?))).find(|(_, other)| match other.quota {
            Quota::Never => other.match_policy == MatchPolicy::And,
            Quota::Limited(by) => covers((other, &by), (rule, &limit)),
            Quota::Always { .. } => false,
        });
        by.map(|(by, _)| IdleRule { rule: index, by: Some(by) })
    };
    rules.rules().iter().enumerate().filter_map(idle).collect()
}

/// Returns whether `one`, which is checked whenever `other` is, always denies first: its counters take every credit
/// that those of `other` take, and it grants no more in the same time.
fn covers((one, limit): (&Rule, &Limit), (other, other_limit): (&Rule, &Limit)) -> bool {
    // Other rules may have used a named counter.
    let takes_as_much = other.counter.is_none()
        && one.costs_the_same(other)
        && (one.overrun == Overrun::Refuse || other.overrun == Overrun::Debt)
        && one
            .actor_fields
            .iter()
            .all(|field| other.actor_fields.contains(field) && has_wider_actors(one, other, field));
    let is_same_operation = one.operation.len() == other.operation.len()
        && one.operation.iter().all(|(key, pattern)| other.pattern(key) == Some(pattern))
        && one.networks == other.networks
        && one.list == other.list;
    let begins_alike = is_same_operation
        && one.actor_fields.len() == other.actor_fields.len()
        && one.actor_prefix == other.actor_prefix;
    let (least, factor) = match (limit, other_limit) {
        (Limit::FixedWindow(_), Limit::FixedWindow(_)) | (Limit::TokenBucket(_), Limit::TokenBucket(_)) => {
            // Such windows begin with a hit. Unless both windows begin with the same hits, two windows of one rule may
            // overlap one window of the other.
            (limit.capacity(), if begins_alike { 1 } else { 2 })
        }
        (Limit::CalendarWindow(one), Limit::CalendarWindow(other)) if one.calendar != other.calendar => return false,
        (Limit::Concurrency(one), Limit::Concurrency(other)) if one.ttl_seconds < other.ttl_seconds => return false,
        _ => (limit.capacity(), 1),
    };
    let is_same_kind = std::mem::discriminant(limit) == std::mem::discriminant(other_limit);
    let is_same_rate = match limit {
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => limit.rate() == other_limit.rate(),
        Limit::CalendarWindow(_) | Limit::Concurrency(_) => true,
        Limit::FixedWindow(_) | Limit::SlidingWindow(_) | Limit::SlidingLog(_) => {
            limit.rate().map(|(_, time_ns)| time_ns) == other_limit.rate().map(|(_, time_ns)| time_ns)
        }
    };
    takes_as_much && is_same_kind && is_same_rate && other_limit.capacity() >= least.saturating_mul(factor)
}

/// Returns whether all values of the field that `other` counts together are counted together by `one`, too.
fn has_wider_actors(one: &Rule, other: &Rule, field: &str) -> bool {
    let lengths =
        |rule: &Rule| rule.actor_prefix.as_ref().filter(|prefix| prefix.field == field).map(|prefix| prefix.lengths);
    match (lengths(one), lengths(other)) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(one), Some(other)) => one.are_at_most(other),
    }
}

/// Counts comparisons of rules, for a test.
fn count_comparison() {
    #[cfg(test)]
    tests::COMPARISONS.with(|comparisons| comparisons.set(comparisons.get() + 1));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::config::{self, Format};
    use crate::rules::testing::{rule, rules_strategy};
    use crate::rules::{Seconds, Settings};
    use proptest::prelude::*;

    thread_local! {
        pub static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// Returns the earlier rules, by their indexes, that a request may match together with this one: by definition,
    /// pair by pair.
    fn overlapping_before(rules: &[Rule], index: usize) -> Vec<usize> {
        let stops = || rules[..index].iter().filter(|rule| rule.match_policy == MatchPolicy::Stop);
        let is_asked = |earlier: &usize| {
            let (earlier, rule) = (&rules[*earlier], &rules[index]);
            earlier.match_policy != MatchPolicy::Stop
                && may_overlap(earlier, rule)
                && !stops().any(|stop| matches_all_of_both(stop, earlier, rule))
        };
        (0..index).filter(is_asked).collect()
    }

    fn limited(header: &str, credits: u64, counter: Option<&str>, field: &str, match_policy: MatchPolicy) -> Rule {
        let settings = Settings { credit_limit: credits, reset_seconds: Seconds::whole(60), ..Settings::default() };
        let counter = counter.map(str::to_owned);
        let actor_fields = if field.is_empty() { Vec::new() } else { vec![field.to_owned()] };
        Rule { settings, quota: settings.quota().unwrap(), counter, actor_fields, match_policy, ..rule(header) }
    }

    proptest! {
        #[test]
        fn overlapping_rules_follow_the_definition(
            rules in rules_strategy(25),
            others in prop::collection::vec((0..3usize, 0..3usize, 0..3usize), 25),
        ) {
            let rules: Vec<_> = rules.into_iter().zip(others).map(|(rule, (policy, counter, field))| {
                let policies = [MatchPolicy::And, MatchPolicy::Stop, MatchPolicy::Canary];
                let limited = limited("", 5, [None, Some("a"), Some("b")][counter], ["", "k", "l"][field], policies[policy]);
                Rule { operation: rule.operation, ..limited }
            }).collect();
            let partners = |index: usize| {
                let is_canary = |index: usize| rules[index].match_policy == MatchPolicy::Canary;
                let earlier = overlapping_before(&rules, index).into_iter();
                earlier.filter(|earlier| !is_canary(index) && !is_canary(*earlier)).collect::<Vec<_>>()
            };
            let expected: Vec<_> = (0..rules.len()).map(|index| match rules[index].match_policy {
                MatchPolicy::Canary => false,
                MatchPolicy::And => true,
                MatchPolicy::Stop => !partners(index).is_empty(),
            }).collect();
            prop_assert_eq!(can_stack(&rules), expected);
            let twice = |index: usize| {
                let shares = |earlier: &usize| rules[index].counter.is_some() && rules[*earlier].counter == rules[index].counter;
                overlapping_before(&rules, index).into_iter().find(shares).map(|earlier| (earlier, index))
            };
            prop_assert_eq!(find_double_counts(&rules), (0..rules.len()).filter_map(twice).collect::<Vec<_>>());
            let torn = |index: usize| {
                let field = |index: usize| rules[index].actor_fields.first();
                let differs = |earlier: &usize| field(*earlier) != field(index) || field(index).is_none();
                partners(index).into_iter().find(differs).map(|earlier| (earlier, index))
            };
            prop_assert_eq!(find_slot_conflicts(&rules), (0..rules.len()).filter_map(torn).collect::<Vec<_>>());
        }
    }

    #[test]
    fn each_of_many_rules_is_compared_with_few_others() {
        const RULES: usize = 10_000;
        let and_or_stop = [MatchPolicy::And, MatchPolicy::Stop];
        let plans = |place: usize| {
            let header = format!("plan=p{} user=*", place / 2);
            limited(&header, 5, Some(["a", "b"][place % 2]), "user", and_or_stop[place % 2])
        };
        let of_one_counter =
            |place: usize| limited(&format!("plan=p{place}-* user=*"), 5, Some("a"), "user", MatchPolicy::And);
        let keys = |place: usize| limited(&format!("key=k{}", place / 2), 5, None, "key", and_or_stop[place % 2]);
        let counters =
            |place: usize| limited(&format!("k{}=*", place % 50), 5, Some(&place.to_string()), "", MatchPolicy::And);
        let kinds: [&dyn Fn(usize) -> Rule; 4] = [&plans, &of_one_counter, &keys, &counters];
        for kind in kinds {
            let rules: Vec<_> = (0..RULES).map(kind).collect();
            for look in [
                |rules: &[Rule]| drop(can_stack(rules)),
                |rules: &[Rule]| drop(find_double_counts(rules)),
                |rules: &[Rule]| drop(find_slot_conflicts(rules)),
            ] {
                COMPARISONS.set(0);
                look(&rules);
                assert!(COMPARISONS.get() <= 4 * RULES, "{} comparisons", COMPARISONS.get());
            }
        }
    }

    fn rules(text: &str) -> RuleSet {
        config::parse(text, Format::Ini, "rules.ini").unwrap().rules
    }

    fn words(text: &str) -> Vec<String> {
        let rules = rules(text);
        let members = |stack: Vec<usize>| stack.into_iter().map(|index| &rules.rules()[index]).collect::<Vec<_>>();
        find_stacks(&rules).into_iter().map(|stack| describe_stack(&members(stack))).collect()
    }

    fn idle(text: &str) -> Vec<(usize, Option<usize>)> {
        find_idle_rules(&rules(text)).into_iter().map(|idle| (idle.rule, idle.by)).collect()
    }

    const MINUTE_AND_DAY: &str = "
        [key=*]\ncreditLimit=100\nresetSeconds=60\nactorField=key\nmatchPolicy=and
        [key=*]\ncreditLimit=5000\nwindow=day\ntimezone=Europe/Berlin\nactorField=key
        [default]\ncreditLimit=0\nresetSeconds=0";

    #[test]
    fn stack_is_described_in_words() {
        assert_eq!(
            words(MINUTE_AND_DAY),
            ["100 in 60 s for each key; 5,000 a day from 00:00 Europe/Berlin for each key"]
        );
        let tenants = "
            [tenant=*]\ncreditLimit=1000000\nresetSeconds=60\nactorField=tenant\nmatchPolicy=and\ncostField=tokens
            [tenant=* key=*]\ncreditLimit=60\nresetSeconds=60\nactorField=tenant, key\ncostField=none
            [default]\ncreditLimit=9\nresetSeconds=0";
        assert_eq!(
            words(tenants),
            [
                "1,000,000 in 60 s at the cost in tokens for each tenant; 60 in 60 s at a cost of 1 each for each \
                 tenant and key",
                "1,000,000 in 60 s at the cost in tokens for each tenant",
            ]
        );
        let denied =
            "[key=*]\ncreditLimit=100\nresetSeconds=60\nactorField=key\nmatchPolicy=and\n[default]\ncreditLimit=0";
        assert_eq!(words(denied), ["100 in 60 s for each key; [default] denies everything"]);
    }

    #[test]
    fn rules_without_and_do_not_stack() {
        assert!(words("[a=*]\ncreditLimit=1\nresetSeconds=1\n[default]\ncreditLimit=0\nresetSeconds=0").is_empty());
    }

    #[test]
    fn rule_can_stack_if_a_request_can_match_it_and_an_earlier_one() {
        let rules = rules(
            "[a=x* b=*]\ncreditLimit=1\nresetSeconds=1\nmatchPolicy=and\nactorField=b
            [a=*y]\ncreditLimit=1\nresetSeconds=1\nactorField=a
            [a=z]\ncreditLimit=1\nresetSeconds=1
            [c=*]\ncreditLimit=1\nresetSeconds=1\nmatchPolicy=canary
            [d=*]\ncreditLimit=1\nresetSeconds=1
            [e=*]\ncreditLimit=0\nresetSeconds=1
            [default]\ncreditLimit=1\nresetSeconds=1\nactorField=b, a",
        );
        assert_eq!(can_stack(rules.rules()), [true, true, false, false, true, true, true]);
        assert_eq!(find_slot_conflicts(rules.rules()), [(0, 1), (0, 4)], "by another actor, and without an actor");
    }

    #[test]
    fn rules_behind_a_stop_rule_for_the_whole_stack_cannot_stack() {
        let rules = rules(
            "[tenant=* key=*]\ncreditLimit=1\nresetSeconds=1\nmatchPolicy=and\nactorField=tenant, key
            [tenant=*]\ncreditLimit=9\nresetSeconds=9\nactorField=tenant
            [ip=*]\ncreditLimit=1\nresetSeconds=1\nactorField=ip
            [default]\ncreditLimit=1\nresetSeconds=1",
        );
        assert_eq!(can_stack(rules.rules()), [true, true, false, false]);
        assert_eq!(find_slot_conflicts(rules.rules()), []);
    }

    #[test]
    fn rule_is_idle_if_another_always_denies_first() {
        assert_eq!(idle(MINUTE_AND_DAY), []);
        let two = |first: &str, second: &str| {
            idle(&format!(
                "[key=*]\nmatchPolicy=and\n{first}\n[key=*]\n{second}\n[default]\ncreditLimit=0\nresetSeconds=0"
            ))
        };
        let minute = "creditLimit=10\nresetSeconds=60\nactorField=key";
        assert_eq!(two(minute, "creditLimit=20\nresetSeconds=60\nactorField=key"), [(1, Some(0))]);
        assert_eq!(two("creditLimit=20\nresetSeconds=60\nactorField=key", minute), [(0, Some(1))]);
        // A counter shared by all takes every credit that a key's own counter takes.
        assert_eq!(
            two("creditLimit=10\nresetSeconds=60", "creditLimit=20\nresetSeconds=60\nactorField=key"),
            [(1, Some(0))]
        );
        let other_path =
            "[path=*]\nmatchPolicy=and\ncreditLimit=3\nresetSeconds=2\n[path=/a*]\ncreditLimit=4\nresetSeconds=2
            [default]\ncreditLimit=0\nresetSeconds=0";
        assert_eq!(idle(other_path), []);
        // The windows begin at different times, so two of the first may overlap one of the second.
        assert_eq!(two("creditLimit=10\nresetSeconds=60", "creditLimit=19\nresetSeconds=60\nactorField=key"), []);
        assert_eq!(two(minute, "creditLimit=6\nresetSeconds=60"), []);
        assert_eq!(two(minute, "creditLimit=600\nresetSeconds=3600\nactorField=key"), []);
        assert_eq!(two(minute, "creditLimit=20\nresetSeconds=60\nactorField=key\ncostField=bytes"), []);
        assert_eq!(two("creditLimit=9\nresetSeconds=0", minute), [(0, None)]);
        assert_eq!(two("creditLimit=0\nresetSeconds=0", minute), [(1, Some(0))]);
    }
}
