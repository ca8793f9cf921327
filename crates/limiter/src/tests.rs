//! The cost of hits, with a store in memory.

use std::convert::identity;

use super::*;
use crate::counters::Page;
use crate::exceptions::{ExceptionKind, ExceptionTarget, ExceptionTerms};
use crate::store::{Bounds, MemoryStore};
use divvy_core::algorithm::FixedWindow;
use divvy_core::clock::NANOS_PER_SECOND;
use divvy_core::config::{self, Format};
use divvy_core::rules::{Operation, RuleSet};

mod once;
mod overrides;
mod overruns;
pub(crate) mod penalties;
mod quota_groups;
mod reservations;
mod scopes;
mod stacks;
mod statistics;
mod top;

const RULES: &str = "
[api=upload user=*]; creditLimit = 50; resetSeconds = 3600; actorField = user; matchPolicy = canary
[api=upload user=*]; creditLimit = 100; resetSeconds = 3600; actorField = user; costField = bytes
[api=denied]; creditLimit = 0; resetSeconds = 0; costField = bytes
[api=trial]; creditLimit = 10; resetSeconds = 3600; costField = bytes; matchPolicy = canary
[default]; creditLimit = 5; resetSeconds = 3600
";

/// Compiles rules. The settings of a rule may be on one line, separated by semicolons.
pub(crate) fn parse_rules(text: &str) -> RuleSet {
    config::parse(&text.replace("; ", "\n"), Format::Ini, "rules.ini").unwrap().rules
}

pub(crate) fn limiter_of(rules: &str) -> Limiter {
    limiter_on(Backend::Memory(MemoryStore::default()), parse_rules(rules))
}

pub(crate) fn limiter_on(store: Backend, rules: RuleSet) -> Limiter {
    let metrics = Metrics::new();
    let active = ActiveRules::new(rules, &metrics, CounterNames::Usual);
    Limiter::new(Some(active), store, Clock::system(), metrics)
}

/// Applies a plan.
fn applied(limiter: &Limiter, mut plan: Plan) -> Plan {
    run(limiter.apply(&mut plan));
    plan
}

/// Applies what `add` adds as one batch.
pub(crate) fn ask(limiter: &Limiter, add: impl FnOnce(&mut PlanBuilder)) -> Plan {
    ask_within(limiter, &Scope::EVERYTHING, add)
}

/// Applies what `add` adds as one batch within the scope.
fn ask_within(limiter: &Limiter, scope: &Scope, add: impl FnOnce(&mut PlanBuilder)) -> Plan {
    let mut builder = PlanBuilder::default();
    limiter.begin(&mut builder, scope);
    add(&mut builder);
    applied(limiter, builder.build())
}

/// Applies what `add` adds as one group.
fn ask_together(limiter: &Limiter, together: Together, add: impl FnOnce(&mut PlanBuilder)) -> Plan {
    ask(limiter, |builder| add_together(builder, together, add).unwrap())
}

/// Adds what `add` adds as one group.
pub(crate) fn add_together(
    builder: &mut PlanBuilder,
    together: Together,
    add: impl FnOnce(&mut PlanBuilder),
) -> Result<(), RefusedMember> {
    builder.together(together, identity, |builder| {
        add(builder);
        Ok(())
    })
}

/// A limiter whose time the test chooses.
struct TestLimiter {
    limiter: Limiter,
    started: Timestamp,
    /// Time since the start.
    seconds: u64,
}

impl TestLimiter {
    fn new(rules: &str) -> Self {
        Self::of(limiter_of(rules))
    }

    fn of(limiter: Limiter) -> Self {
        Self { started: limiter.now(), limiter, seconds: 0 }
    }

    fn now(&self) -> Timestamp {
        self.started.plus(self.seconds * NANOS_PER_SECOND)
    }

    /// Applies the requests that `add` adds as one plan.
    fn ask(&self, add: impl FnOnce(&mut PlanBuilder)) -> Plan {
        applied(&self.limiter, self.plan(add))
    }

    fn plan(&self, add: impl FnOnce(&mut PlanBuilder)) -> Plan {
        let mut builder = PlanBuilder::default();
        self.limiter.begin_at(&mut builder, self.now());
        add(&mut builder);
        builder.build()
    }
}

pub(crate) fn replace_rules(limiter: &Limiter, rules: &str) {
    limiter.replace_rules(ActiveRules::new(parse_rules(rules), limiter.metrics(), CounterNames::Usual));
}

fn limiter() -> Limiter {
    limiter_of(RULES)
}

/// Returns the terms of a limit without an end.
fn with_credits(credits: u64) -> ExceptionTerms<'static> {
    ExceptionTerms { credits: Some(credits), ..ExceptionTerms::default() }
}

fn set_limit(limiter: &Limiter, rule: &str, actor: &str, credits: u64) {
    run(limiter.set_exception(ExceptionTarget::limit(rule, actor), with_credits(credits), &Scope::EVERYTHING)).unwrap();
}

/// Sets an exception without an end. The reason of a block or an allow consists of its kind and its rule.
fn set(limiter: &Limiter, kind: ExceptionKind, rule: &str, actor: &str) {
    let reason = format!("{} {rule}", kind.name());
    let terms = ExceptionTerms { reason: Some(&reason), ..ExceptionTerms::default() };
    run(limiter.set_exception(ExceptionTarget { kind, rule, actor }, terms, &Scope::EVERYTHING)).unwrap();
}

/// Removes an exception that is there.
fn remove(limiter: &Limiter, kind: ExceptionKind, rule: &str, actor: &str) {
    assert!(run(limiter.remove_exception(ExceptionTarget { kind, rule, actor }, None, &Scope::EVERYTHING)).unwrap());
}

/// Returns the contents of all pages.
pub(crate) fn all_pages<T>(page: impl Fn(Option<&str>) -> Page<T>) -> Vec<T> {
    let (mut contents, mut cursor) = (Vec::new(), None);
    loop {
        let Page { content, next } = page(cursor.as_deref());
        contents.push(content);
        cursor = next;
        if cursor.is_none() {
            return contents;
        }
    }
}

pub(crate) fn operation(pairs: &str) -> Operation {
    pairs.split(' ').map(|pair| pair.split_once('=').unwrap()).collect()
}

#[test]
fn batch_applied_in_parts_is_answered_in_order() {
    const LIMIT: usize = 100;
    let (limiter, count) = (limiter(), 2 * MAX_PART / ENTRY_WEIGHT);
    let asked = vec![("api=upload user=ada bytes=1", Intent::Hit); count];
    let requests = apply(&limiter, &asked);
    assert!(requests.batch.parts(MAX_PART).len() > 2);
    for (index, answer) in answers(&requests).into_iter().enumerate() {
        assert_eq!(answer, (index < LIMIT, LIMIT.saturating_sub(index + 1) as u64));
    }
}

#[test]
fn changed_actor_prefix_starts_every_actor_afresh() {
    let limiter = limiter();
    for more in ["", "counter = usage\n"] {
        for prefix in ["", "actorPrefix = ip: 32, 64\n", "actorPrefix = ip: 24, 64\n", "actorPrefix = ip: 24, 56\n"] {
            replace_rules(&limiter, &format!("[default]\ncreditLimit = 5\nper = 1h\nactorField = ip\n{more}{prefix}"));
            let requests = apply(&limiter, &[("ip=192.0.2.7", Intent::Hit), ("ip=2001:db8::7", Intent::Hit)]);
            assert_eq!(answers(&requests), [(true, 4); 2], "{prefix} {more}");
        }
    }
}

/// Applies the requests as one batch.
fn apply(limiter: &Limiter, asked: &[(&str, Intent)]) -> Plan {
    ask(limiter, |builder| asked.iter().for_each(|(pairs, intent)| builder.add(&operation(pairs), *intent, None)))
}

pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Returns `(allowed, credit)` of a request, or its error.
fn answer_at(applied: &Plan, index: usize) -> Result<(bool, u64), String> {
    let verdict = applied.report().verdict(index);
    verdict.map(|verdict| (verdict.allowed, verdict.credit)).map_err(|refusal| refusal.to_string())
}

/// Returns `(allowed, credit)` of each request. None is refused.
fn answers(applied: &Plan) -> Vec<(bool, u64)> {
    (0..applied.report().len()).map(|index| answer_at(applied, index).unwrap()).collect()
}

/// Returns `(allowed, credit)` of the last request, or its error.
fn last(limiter: &Limiter, asked: &[(&str, Intent)]) -> Result<(bool, u64), String> {
    answer_at(&apply(limiter, asked), asked.len() - 1)
}

pub(crate) fn hit(limiter: &Limiter, pairs: &str) -> Result<(bool, u64), String> {
    last(limiter, &[(pairs, Intent::Hit)])
}

fn peek(limiter: &Limiter, pairs: &str) -> Result<(bool, u64), String> {
    last(limiter, &[(pairs, Intent::Peek)])
}

#[test]
fn cost_field_sets_the_cost_of_a_hit() {
    let limiter = limiter();
    assert_eq!(hit(&limiter, "api=upload user=ada bytes=60"), Ok((true, 40)));
    assert_eq!(hit(&limiter, "api=upload user=ada bytes=41"), Ok((false, 40)), "all or nothing");
    assert_eq!(hit(&limiter, "api=upload user=ada"), Ok((true, 39)), "one without the field");
    assert_eq!(hit(&limiter, "api=upload user=ada bytes=0"), Ok((true, 39)));
    assert_eq!(hit(&limiter, "api=upload user=ada bytes=39"), Ok((true, 0)));
    assert_eq!(hit(&limiter, "api=upload user=bob bytes=18446744073709551615"), Ok((false, 100)));
}

#[test]
fn peek_uses_the_same_cost() {
    let limiter = limiter();
    assert_eq!(peek(&limiter, "api=upload user=ada bytes=100"), Ok((true, 100)));
    assert_eq!(peek(&limiter, "api=upload user=ada bytes=101"), Ok((false, 100)));
    assert!(peek(&limiter, "api=upload user=ada bytes=all").unwrap_err().contains("'bytes'"));
    assert_eq!(hit(&limiter, "api=upload user=ada bytes=100"), Ok((true, 0)));
}

#[test]
fn cost_other_than_a_number_takes_nothing_from_any_counter() {
    let limiter = limiter();
    let error = hit(&limiter, "api=upload user=ada bytes=1k").unwrap_err();
    assert!(error.contains("'bytes'") && error.contains("'1k'"), "{error}");
    let counters =
        || apply(&limiter, &[("api=upload user=ada bytes=1k", Intent::Forget)]).report().forgotten(0).unwrap();
    assert_eq!(counters(), 0, "neither the canary nor the rule itself was counted");
    assert_eq!(hit(&limiter, "api=upload user=ada bytes=10"), Ok((true, 90)));
    assert_eq!(counters(), 2);
}

#[test]
fn requests_around_a_refused_one_are_answered() {
    let limiter = limiter();
    let hit = |cost| (cost, Intent::Hit);
    let costs = ["api=upload user=ada bytes=1", "api=upload user=ada bytes=x", "api=upload user=ada bytes=2"];
    let requests = apply(&limiter, &costs.map(hit));
    assert!(matches!(requests.report().verdict(1), Err(Refusal::Cost(_))));
    assert_eq!([0, 2].map(|index| answer_at(&requests, index)), [Ok((true, 99)), Ok((true, 97))]);
}

#[test]
fn every_participating_rule_needs_a_valid_cost() {
    let limiter = limiter();
    assert_eq!(hit(&limiter, "api=denied bytes=5"), Ok((false, 0)));
    assert!(hit(&limiter, "api=denied bytes=five").is_err(), "even if nothing is counted");
    assert!(hit(&limiter, "api=trial bytes=five").is_err(), "including a canary");
    assert!(peek(&limiter, "api=trial bytes=five").is_err(), "a peek predicts the answer to a hit");
    assert_eq!(hit(&limiter, "api=trial bytes=7"), Ok((true, 4)), "each rule has a cost of its own");
    assert_eq!(hit(&limiter, "api=other bytes=five"), Ok((true, 3)), "any value is valid if no rule needs it");
}

#[test]
fn explicit_cost_overrides_the_cost_field_and_0_takes_nothing() {
    let limiter = limiter();
    let upload = operation("api=upload user=ann bytes=7");
    let hit = |cost| answers(&ask(&limiter, |builder| builder.add(&upload, Intent::Hit, cost)));
    assert_eq!([hit(Some(30)), hit(Some(0)), hit(None)].concat(), [(true, 70), (true, 70), (true, 63)]);
}

/// Returns a limit of this many credits an hour.
fn hourly(credits: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(credits, 3600 * NANOS_PER_SECOND).unwrap())
}

#[test]
fn hits_under_a_limit_from_the_client_share_its_counter_and_cost_0_takes_nothing() {
    let limiter = limiter();
    let hit = |cost| {
        let of_b = operation("key=a domain=b");
        let applied = ask(&limiter, |builder| builder.add_limited(&of_b, hourly(3), Intent::Hit, cost));
        let outcome = applied.report().outcome(0).unwrap();
        (outcome.allowed, outcome.left)
    };
    let answers = [0, 2, 2, 1, 0].map(hit);
    assert_eq!(answers, [(true, 3), (true, 1), (false, 1), (true, 0), (false, 0)]);
}

#[test]
fn answering_rule_is_reported_and_is_never_a_canary() {
    let limiter = limiter();
    let requests = apply(&limiter, &[("api=upload user=ann", Intent::Hit), ("api=denied", Intent::Hit)]);
    assert_eq!(requests.report().standing(0).unwrap().place, 1);
    assert_eq!(requests.report().standing(1).unwrap().text, "api=denied");
    assert!(requests.report().standing(2).is_err());
}

/// Returns `status{label}` of each count that is not 0.
fn counted(limiter: &Limiter) -> Vec<(String, u64)> {
    let mut counted: Vec<_> = limiter.metrics().hits.counted().into_iter().filter(|counted| counted.hits > 0).collect();
    counted.sort_by(|a, b| (&a.status, &a.rule).cmp(&(&b.status, &b.rule)));
    counted.into_iter().map(|counted| (format!("{}{{{}}}", counted.status, counted.rule), counted.hits)).collect()
}

fn counts(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    expected.iter().map(|(name, hits)| ((*name).to_owned(), *hits)).collect()
}

#[test]
fn every_matching_rule_is_counted_by_its_verdict() {
    let limiter = limiter();
    apply(&limiter, &[("api=trial bytes=7", Intent::Hit), ("api=trial bytes=7", Intent::Hit)]);
    let by_trial = [("accepted{default}", 2), ("canary-accepted{rule-4}", 1), ("canary-rejected{rule-4}", 1)];
    assert_eq!(counted(&limiter), counts(&by_trial), "the default rule let both through");
    apply(&limiter, &[("api=denied", Intent::Hit), ("api=other", Intent::Hit), ("api=denied", Intent::Hit)]);
    let by_all = [
        ("accepted{default}", 3),
        ("canary-accepted{rule-4}", 1),
        ("canary-rejected{rule-4}", 1),
        ("rejected{rule-3}", 2),
    ];
    assert_eq!(counted(&limiter), counts(&by_all));
}

#[test]
fn only_hits_are_counted() {
    let limiter = limiter();
    apply(&limiter, &[("api=upload user=ada", Intent::Peek), ("api=upload user=ada", Intent::Forget)]);
    hit(&limiter, "api=upload user=ada bytes=x").unwrap_err();
    assert_eq!(counted(&limiter), []);
    let timed = limiter.metrics().hits.duration.observed().iter().map(|bucket| bucket.observations).sum::<u64>();
    assert_eq!(timed, 0);
    let batches = limiter.metrics().batches.requests.observed().iter().map(|bucket| bucket.observations).sum::<u64>();
    assert_eq!(batches, 2);
}

#[test]
fn hit_on_an_unavailable_counter_is_neither_accepted_nor_rejected() {
    let rules = "[path=*]; creditLimit=9; resetSeconds=60; actorField=path; label=paths\n[default]; creditLimit=0";
    let store = MemoryStore::new(Bounds { max_counters: 1, ..Bounds::default() });
    let limiter = limiter_on(Backend::Memory(store), parse_rules(rules));
    let requests = apply(&limiter, &[("path=/a", Intent::Hit), ("path=/b", Intent::Hit), ("path=/a", Intent::Hit)]);
    assert!(matches!(requests.report().verdict(1), Err(Refusal::Store(_))));
    assert_eq!([0, 2].map(|index| answer_at(&requests, index)), [Ok((true, 8)), Ok((true, 7))]);
    assert_eq!(counted(&limiter), counts(&[("accepted{paths}", 2)]));
    assert_eq!(limiter.metrics().batches.store_errors.get(), 1);
}

const EACH_ALGORITHM: &str = "
[api=fixed-window]; creditLimit = 3; resetSeconds = 3600; costField = bytes
[api=sliding-window]; creditLimit = 3; resetSeconds = 3600; algorithm = sliding-window; costField = bytes
[api=sliding-log]; creditLimit = 3; resetSeconds = 3600; algorithm = sliding-log; costField = bytes
[api=token-bucket]; creditLimit = 3; resetSeconds = 3600; algorithm = token-bucket; costField = bytes
[api=leaky-bucket]; creditLimit = 3; resetSeconds = 3600; algorithm = leaky-bucket; costField = bytes
[default]; creditLimit = 9; resetSeconds = 0
";

fn hit_at_cost(limiter: &Limiter, pairs: &str, cost: u64) -> Verdict {
    let applied = ask(limiter, |builder| builder.add(&operation(pairs), Intent::Hit, Some(cost)));
    applied.report().verdict(0).unwrap()
}

#[test]
fn hit_of_cost_0_is_allowed_if_cost_1_would_be_and_takes_nothing() {
    for algorithm in ["fixed-window", "sliding-window", "sliding-log", "token-bucket", "leaky-bucket"] {
        let limiter = limiter_of(EACH_ALGORITHM);
        let free = format!("api={algorithm} bytes=0");
        assert_eq!(hit(&limiter, &free), Ok((true, 3)), "{algorithm}: of a fresh counter");
        assert_eq!(hit(&limiter, &format!("api={algorithm} bytes=2")), Ok((true, 1)));
        assert_eq!(hit(&limiter, &free), Ok((true, 1)), "{algorithm}: with one credit left");
        assert_eq!(hit(&limiter, &format!("api={algorithm} bytes=1")), Ok((true, 0)));
        assert_eq!(hit(&limiter, &free), Ok((false, 0)), "{algorithm}: with nothing left");
        assert_eq!(peek(&limiter, &free), Ok((false, 0)), "{algorithm}: a peek tells what the hit would answer");
        let verdict = hit_at_cost(&limiter, &format!("api={algorithm} bytes=2"), 0);
        assert!(
            !verdict.allowed && verdict.retry_ns.is_some(),
            "{algorithm}: the cost that is given wins: {verdict:?}"
        );
    }
}

#[test]
fn rules_without_counters_decide_a_hit_of_cost_0() {
    assert_eq!(hit(&limiter(), "api=denied bytes=0"), Ok((false, 0)));
    assert!(!hit_at_cost(&limiter(), "api=denied", 0).allowed);
    assert!(hit_at_cost(&limiter_of(EACH_ALGORITHM), "api=other", 0).allowed);
}

/// Returns `(allowed, credit, seconds to the reset)` of a hit at this time (seconds since 1970).
fn hit_when(at: &mut TestLimiter, pairs: &str, second: u64) -> (bool, u64, u64) {
    at.seconds = second;
    let applied = at.ask(|builder| builder.add(&operation(pairs), Intent::Hit, None));
    let Verdict { allowed, credit, reset_ns, .. } = applied.report().verdict(0).unwrap();
    (allowed, credit, divvy_core::clock::ceil_seconds(reset_ns))
}

/// Returns a limiter whose time is given in seconds since 1970.
fn at_the_epoch(rules: &str) -> TestLimiter {
    TestLimiter { limiter: limiter_of(rules), started: Timestamp::EPOCH, seconds: 0 }
}

// Midnight in Berlin, at the start of 1 November 2026.
const MIDNIGHT: u64 = 1_793_487_600;
const DAY: u64 = 86_400;

#[test]
fn stack_of_a_minute_and_a_month_crosses_midnight() {
    let mut limiter = at_the_epoch(
        "[user=*]\ncreditLimit = 2\nwindow = minute\nmatchPolicy = and\nactorField = user
        [user=*]\ncreditLimit = 5\nwindow = month\ntimezone = Europe/Berlin\nactorField = user
        [default]\ncreditLimit = 0",
    );
    let month = |second| MIDNIGHT + 30 * DAY - second;
    for (second, answer) in [
        (MIDNIGHT - 30, (true, 1, 30)),
        (MIDNIGHT - 20, (true, 0, 20)),
        // The minute denies, so the month keeps its three credits.
        (MIDNIGHT - 10, (false, 0, 10)),
        (MIDNIGHT, (true, 1, 60)),
        (MIDNIGHT + 1, (true, 0, 59)),
        (MIDNIGHT + 2, (false, 0, 58)),
        // Two of five is a smaller share than one of two.
        (MIDNIGHT + 60, (true, 2, month(MIDNIGHT + 60))),
        (MIDNIGHT + 61, (true, 0, 59)),
        (MIDNIGHT + 120, (true, 0, month(MIDNIGHT + 120))),
        (MIDNIGHT + 180, (false, 0, month(MIDNIGHT + 180))),
    ] {
        let after = second as i64 - MIDNIGHT as i64;
        assert_eq!(hit_when(&mut limiter, "user=a", second), answer, "{after} s after midnight");
    }
}
