//! Stacks, as far as the rules alone tell: which rules must allow one request together, and which of them can never matter.
//!
//! Looked at is the most general request that each rule matches. Requests that happen to match more rules than those make
//! larger stacks, which nobody can list.

use std::collections::HashMap;
use std::hash::Hash;

use super::overlaps::Overlaps;
use super::reachability::MostGeneral;
pub use super::stack_words::in_words;
use super::{MatchPolicy, Overrun, Pattern, Quota, Rule, RuleSet, Scratch};
use crate::algorithm::Limit;

/// The rules that must allow the most general request which the rule with this index matches, in their order; one when it
/// stands alone, none when a rule before it stops.
fn members(rules: &RuleSet, index: usize, scratch: &mut Scratch) -> Vec<usize> {
    let Some(rule) = rules.rules().get(index).filter(|rule| rule.match_policy != MatchPolicy::Canary) else {
        return Vec::new();
    };
    let matched = rules.matches_values(&MostGeneral::of(rule), scratch);
    let members: Vec<_> =
        matched.filter(|(_, rule)| rule.match_policy != MatchPolicy::Canary).map(|(index, _)| index).collect();
    if members.contains(&index) { members } else { Vec::new() }
}

/// Every stack of two or more rules, once.
pub fn stacks(rules: &RuleSet) -> Vec<Vec<usize>> {
    let mut scratch = Scratch::default();
    let mut stacks: Vec<_> = (0..rules.rules().len()).map(|index| members(rules, index, &mut scratch)).collect();
    stacks.retain(|members| members.len() > 1);
    stacks.sort_unstable();
    stacks.dedup();
    stacks
}

/// Whether each rule can be in a stack with others: one with [`MatchPolicy::And`], which matching goes on after, or one that
/// such a request may reach.
pub fn can_stack(rules: &[Rule]) -> Vec<bool> {
    let partners = Earlier::new(rules, |rule| (rule.match_policy == MatchPolicy::And).then_some(()));
    let can_stack = |(index, rule): (usize, &Rule)| match rule.match_policy {
        MatchPolicy::Canary => false,
        MatchPolicy::And => true,
        MatchPolicy::Stop => partners.find(index, partners.groups.values()).is_some(),
    };
    rules.iter().enumerate().map(can_stack).collect()
}

/// Rules that matching goes on after, in groups.
struct Earlier<'a, G> {
    rules: &'a [Rule],
    groups: HashMap<G, Overlaps<'a>>,
    stops: Overlaps<'a>,
}

impl<'a, G: Hash + Eq> Earlier<'a, G> {
    /// `group` gives the group of a rule that matters.
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

    /// The first rule before the one with this index that one request may match besides it, of these groups.
    fn find<'b>(&'b self, index: usize, groups: impl IntoIterator<Item = &'b Overlaps<'a>>) -> Option<usize>
    where
        'a: 'b,
    {
        let rule = self.rules.get(index)?;
        let is_met = |earlier: usize| {
            self.rules.get(earlier).is_some_and(|earlier| may_meet(earlier, rule) && !self.stops_before(index, earlier))
        };
        groups.into_iter().filter_map(|group| group.find_meeting(rule, index, is_met)).min()
    }

    /// Whether another rule before the one with this index stops for every request that both match.
    fn stops_before(&self, index: usize, earlier: &Rule) -> bool {
        let Some(rule) = self.rules.get(index) else { return false };
        let stops = |stop: usize| self.rules.get(stop).is_some_and(|stop| matches_all_of_both(stop, earlier, rule));
        self.stops.find_containing((earlier, rule), index, stops).is_some()
    }
}

/// Two rules that count under one name, by their indexes, and that one request may match: it would be counted twice.
pub fn counted_twice(rules: &[Rule]) -> Vec<(usize, usize)> {
    fn counter(rule: &Rule) -> Option<&str> {
        rule.counter.as_deref().filter(|_| rule.identity().is_some())
    }
    let sharing = Earlier::new(rules, counter);
    let twice = |(index, rule): (usize, &Rule)| {
        let counter = counter(rule)?;
        sharing.find(index, sharing.groups.get(counter)).map(|earlier| (earlier, index))
    };
    rules.iter().enumerate().filter_map(twice).collect()
}

/// Whether `stop` matches every request that both of the others match, as far as one of them alone says so for each key.
fn matches_all_of_both(stop: &Rule, one: &Rule, other: &Rule) -> bool {
    count_comparison();
    let is_implied = |(key, pattern): &(String, Pattern)| {
        [one, other].into_iter().filter_map(|rule| rule.pattern(key)).any(|special| pattern.contains(special))
    };
    stop.operation.iter().all(is_implied)
}

/// Is there a request that both match?
fn may_meet(one: &Rule, other: &Rule) -> bool {
    count_comparison();
    one.operation.iter().all(|(key, pattern)| other.pattern(key).is_none_or(|other| pattern.overlaps(other)))
}

/// Two rules that can be in a stack, by their indexes, and whose counters a Redis Cluster would keep in different slots: a
/// counter's slot is that of the first of its actor's values.
pub fn torn_by_slots(rules: &[Rule]) -> Vec<(usize, usize)> {
    fn slot(rule: &Rule) -> Option<Option<&str>> {
        match rule.quota {
            Quota::Limited(_) => Some(rule.actor_fields.first().map(String::as_str)),
            Quota::Never | Quota::Always { .. } => None,
        }
    }
    let partners = Earlier::new(rules, |rule| slot(rule).filter(|_| rule.match_policy == MatchPolicy::And));
    let torn = |(index, rule): (usize, &Rule)| {
        let own = slot(rule).filter(|_| rule.match_policy != MatchPolicy::Canary)?;
        let torn = partners.groups.iter().filter(|(other, _)| **other != own || own.is_none());
        partners.find(index, torn.map(|(_, group)| group)).map(|earlier| (earlier, index))
    };
    rules.iter().enumerate().filter_map(torn).collect()
}

/// A rule of a stack that can never deny before another one does, or that another one keeps from ever being asked, by
/// their indexes; without the other where the rule allows all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idle {
    pub rule: usize,
    pub by: Option<usize>,
}

/// Every rule that can never matter in its stack, in order, each with the first reason.
pub fn idle_rules(rules: &RuleSet) -> Vec<Idle> {
    let mut scratch = Scratch::default();
    let rule_at = |index: usize| rules.rules().get(index);
    let idle = |(index, rule): (usize, &Rule)| {
        if rule.match_policy == MatchPolicy::And && matches!(rule.quota, Quota::Always { .. }) {
            return Some(Idle { rule: index, by: None });
        }
        let Quota::Limited(limit) = rule.quota else { return None };
        let others = members(rules, index, &mut scratch).into_iter().filter(|other| *other != index);
        let by = others.filter_map(|other| Some((other, rule_at(other)?))).find(|(_, other)| match other.quota {
            Quota::Never => other.match_policy == MatchPolicy::And,
            Quota::Limited(by) => covers((other, &by), (rule, &limit)),
            Quota::Always { .. } => false,
        });
        by.map(|(by, _)| Idle { rule: index, by: Some(by) })
    };
    rules.rules().iter().enumerate().filter_map(idle).collect()
}

/// Whether the one, which is asked whenever the other is, always denies first: its counters take all that the other's take,
/// and it grants no more in the same time.
fn covers((one, limit): (&Rule, &Limit), (other, other_limit): (&Rule, &Limit)) -> bool {
    // What is counted under a name, other rules may have used.
    let takes_as_much = other.counter.is_none()
        && one.cost_field == other.cost_field
        && (one.overrun == Overrun::Refuse || other.overrun == Overrun::Debt)
        && one.actor_fields.iter().all(|field| other.actor_fields.contains(field));
    let is_same_operation = one.operation.len() == other.operation.len()
        && one.operation.iter().all(|(key, pattern)| other.pattern(key) == Some(pattern));
    let begins_alike = is_same_operation && one.actor_fields.len() == other.actor_fields.len();
    let (least, factor) = match (limit, other_limit) {
        (Limit::FixedWindow(_), Limit::FixedWindow(_)) | (Limit::TokenBucket(_), Limit::TokenBucket(_)) => {
            // Theirs begins with a hit: unless both do with the same ones, two of the one may overlap one of the other.
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

    /// The rules before this one, by their indexes, that one request may match besides it: by definition, pair by pair.
    fn asked_before(rules: &[Rule], index: usize) -> Vec<usize> {
        let stops = || rules[..index].iter().filter(|rule| rule.match_policy == MatchPolicy::Stop);
        let is_asked = |earlier: &usize| {
            let (earlier, rule) = (&rules[*earlier], &rules[index]);
            earlier.match_policy != MatchPolicy::Stop
                && may_meet(earlier, rule)
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
        fn rules_that_meet_are_those_of_the_definition(
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
                let earlier = asked_before(&rules, index).into_iter();
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
                asked_before(&rules, index).into_iter().find(shares).map(|earlier| (earlier, index))
            };
            prop_assert_eq!(counted_twice(&rules), (0..rules.len()).filter_map(twice).collect::<Vec<_>>());
            let torn = |index: usize| {
                let field = |index: usize| rules[index].actor_fields.first();
                let differs = |earlier: &usize| field(*earlier) != field(index) || field(index).is_none();
                partners(index).into_iter().find(differs).map(|earlier| (earlier, index))
            };
            prop_assert_eq!(torn_by_slots(&rules), (0..rules.len()).filter_map(torn).collect::<Vec<_>>());
        }
    }

    #[test]
    fn many_rules_are_compared_with_few_others_each() {
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
                |rules: &[Rule]| drop(counted_twice(rules)),
                |rules: &[Rule]| drop(torn_by_slots(rules)),
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
        stacks(&rules).into_iter().map(|stack| in_words(&members(stack))).collect()
    }

    fn idle(text: &str) -> Vec<(usize, Option<usize>)> {
        idle_rules(&rules(text)).into_iter().map(|idle| (idle.rule, idle.by)).collect()
    }

    const MINUTE_AND_DAY: &str = "
        [key=*]\ncreditLimit=100\nresetSeconds=60\nactorField=key\nmatchPolicy=and
        [key=*]\ncreditLimit=5000\nwindow=day\ntimezone=Europe/Berlin\nactorField=key
        [default]\ncreditLimit=0\nresetSeconds=0";

    #[test]
    fn a_stack_is_told_in_words() {
        assert_eq!(words(MINUTE_AND_DAY), ["100 in 60 s and 5,000 a day from 00:00 Europe/Berlin, for each key"]);
        let tenants = "
            [tenant=*]\ncreditLimit=1000000\nresetSeconds=60\nactorField=tenant\nmatchPolicy=and\ncostField=tokens
            [tenant=* key=*]\ncreditLimit=60\nresetSeconds=60\nactorField=tenant, key\ncostField=none
            [default]\ncreditLimit=9\nresetSeconds=0";
        assert_eq!(
            words(tenants),
            [
                "1,000,000 in 60 s at the cost in tokens for each tenant and 60 in 60 s at a cost of 1 each for each \
                 tenant and key",
                "1,000,000 in 60 s at the cost in tokens, for each tenant",
            ]
        );
    }

    #[test]
    fn rules_without_and_make_no_stack() {
        assert!(words("[a=*]\ncreditLimit=1\nresetSeconds=1\n[default]\ncreditLimit=0\nresetSeconds=0").is_empty());
    }

    #[test]
    fn a_rule_can_be_in_a_stack_when_a_request_can_match_it_and_one_before_it() {
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
        assert_eq!(torn_by_slots(rules.rules()), [(0, 1), (0, 4)], "by another actor, and by none");
    }

    #[test]
    fn rules_after_one_that_stops_for_all_of_a_stack_are_not_in_it() {
        let rules = rules(
            "[tenant=* key=*]\ncreditLimit=1\nresetSeconds=1\nmatchPolicy=and\nactorField=tenant, key
            [tenant=*]\ncreditLimit=9\nresetSeconds=9\nactorField=tenant
            [ip=*]\ncreditLimit=1\nresetSeconds=1\nactorField=ip
            [default]\ncreditLimit=1\nresetSeconds=1",
        );
        assert_eq!(can_stack(rules.rules()), [true, true, false, false]);
        assert_eq!(torn_by_slots(rules.rules()), []);
    }

    #[test]
    fn what_another_rule_always_denies_first_never_matters() {
        assert_eq!(idle(MINUTE_AND_DAY), []);
        let two = |first: &str, second: &str| {
            idle(&format!(
                "[key=*]\nmatchPolicy=and\n{first}\n[key=*]\n{second}\n[default]\ncreditLimit=0\nresetSeconds=0"
            ))
        };
        let minute = "creditLimit=10\nresetSeconds=60\nactorField=key";
        assert_eq!(two(minute, "creditLimit=20\nresetSeconds=60\nactorField=key"), [(1, Some(0))]);
        assert_eq!(two("creditLimit=20\nresetSeconds=60\nactorField=key", minute), [(0, Some(1))]);
        // One counter for all takes what each key's does.
        assert_eq!(
            two("creditLimit=10\nresetSeconds=60", "creditLimit=20\nresetSeconds=60\nactorField=key"),
            [(1, Some(0))]
        );
        let other_path =
            "[path=*]\nmatchPolicy=and\ncreditLimit=3\nresetSeconds=2\n[path=/a*]\ncreditLimit=4\nresetSeconds=2
            [default]\ncreditLimit=0\nresetSeconds=0";
        assert_eq!(idle(other_path), []);
        // Windows that begin apart: two of the first may overlap one of the second.
        assert_eq!(two("creditLimit=10\nresetSeconds=60", "creditLimit=19\nresetSeconds=60\nactorField=key"), []);
        assert_eq!(two(minute, "creditLimit=6\nresetSeconds=60"), []);
        assert_eq!(two(minute, "creditLimit=600\nresetSeconds=3600\nactorField=key"), []);
        assert_eq!(two(minute, "creditLimit=20\nresetSeconds=60\nactorField=key\ncostField=bytes"), []);
        assert_eq!(two("creditLimit=9\nresetSeconds=0", minute), [(0, None)]);
        assert_eq!(two("creditLimit=0\nresetSeconds=0", minute), [(1, Some(0))]);
    }
}
