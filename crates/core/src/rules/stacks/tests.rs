use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::config::{self, Format};
use crate::rules::testing::{canary, rule, rules_strategy};
use crate::rules::{Seconds, Settings};

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

const MINUTE_AND_DAY: &str = "
        [key=*]\ncreditLimit=100\nresetSeconds=60\nactorField=key\nmatchPolicy=and
        [key=*]\ncreditLimit=5000\nwindow=day\ntimezone=Europe/Berlin\nactorField=key
        [default]\ncreditLimit=0\nresetSeconds=0";

#[test]
fn stack_is_described_in_words() {
    assert_eq!(words(MINUTE_AND_DAY), ["100 in 60 s for each key; 5000 a day from 00:00 Europe/Berlin for each key"]);
    let tenants = "
            [tenant=*]\ncreditLimit=1000000\nresetSeconds=60\nactorField=tenant\nmatchPolicy=and\ncostField=tokens
            [tenant=* key=*]\ncreditLimit=60\nresetSeconds=60\nactorField=tenant, key\ncostField=none
            [default]\ncreditLimit=9\nresetSeconds=0";
    assert_eq!(
        words(tenants),
        [
            "1000000 in 60 s at the cost in tokens for each tenant; 60 in 60 s at a cost of 1 each for each \
             tenant and key",
            "1000000 in 60 s at the cost in tokens for each tenant",
        ]
    );
    let denied = "[key=*]\ncreditLimit=100\nresetSeconds=60\nactorField=key\nmatchPolicy=and\n[default]\ncreditLimit=0";
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

fn masked(rules: Vec<Rule>) -> Vec<(usize, usize)> {
    let rules = RuleSet::new(rules).unwrap();
    find_masked_rules(&rules)
}

/// Compares pair by pair, by definition.
fn by_definition(rules: &[Rule]) -> Vec<(usize, usize)> {
    let contains = |general: &Rule, special: &Rule| {
        let asks_more = |(key, asked): &(String, _)| special.pattern(key).is_some_and(|p| Pattern::contains(asked, p));
        general.operation.iter().all(asks_more) && general.conditions_contain(special)
    };
    let first_mask = |(index, special): (usize, &Rule)| {
        let earlier = &rules[..index];
        let by = earlier.iter().position(|r| r.match_policy == MatchPolicy::Stop && contains(r, special))?;
        Some((index, by))
    };
    rules.iter().enumerate().filter_map(first_mask).collect()
}

proptest! {
    #[test]
    fn masking_follows_the_definition(rules in rules_strategy(100)) {
        prop_assert_eq!(masked(rules.clone()), by_definition(&rules));
    }
}

/// Returns a stop rule that allows everything.
fn grant(header: &str) -> Rule {
    Rule { quota: Quota::Always { credit: 1 }, ..rule(header) }
}

fn bypasses(rules: Vec<Rule>) -> Vec<(usize, usize)> {
    let index = |rule: &Rule| rules.iter().position(|candidate| std::ptr::eq(candidate, rule)).unwrap();
    find_bypasses(&rules).into_iter().map(|(limit, by)| (index(limit), index(by))).collect()
}

#[test]
fn any_key_before_a_limit_on_a_value_bypasses_it() {
    assert_eq!(bypasses(vec![grant("key=*"), rule("path=/login ip=*"), rule("path=/a"), rule("")]), [(1, 0)]);
    assert_eq!(bypasses(vec![grant("path=* key=*"), grant("user=*"), rule("path=/login")]), [(2, 0), (2, 1)]);
}

#[test]
fn other_rules_bypass_nothing() {
    for rules in [
        // The order is right.
        vec![rule("path=/login ip=*"), grant("key=*"), rule("")],
        // The earlier rule denies everything.
        vec![rule("key=*"), rule("path=/login ip=*")],
        // Matching continues after the earlier rule.
        vec![canary("key=*"), rule("path=/login ip=*")],
        // The later rule is unreachable.
        vec![grant("ip=*"), rule("path=/login ip=*")],
        // The earlier rule requires a certain value.
        vec![grant("plan=pro key=*"), rule("path=/login ip=*")],
        // The later rule limits nothing, or has no certain value.
        vec![grant("key=*"), grant("path=/status")],
        vec![grant("key=*"), rule("ip=*")],
    ] {
        assert_eq!(bypasses(rules.clone()), [], "{rules:?}");
    }
}
