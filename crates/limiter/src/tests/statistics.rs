//! ratelimit's statistics, from a hit to the metrics.

use super::*;
use crate::store::StoreError;
use divvy_core::calendar::{Calendar, Unit};
use divvy_core::config::ratelimit::compile::compile_alone;
use divvy_core::config::ratelimit::model;
use divvy_core::config::ratelimit::options::Options;
use divvy_core::rules::Settings;

const CONFIG: &str = "
domain: d
descriptors:
- {key: plain, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: shadow_none, value_to_metric: true, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
- {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
";

fn rules() -> RuleSet {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("d.yaml");
    std::fs::write(&path, CONFIG).unwrap();
    let (domains, _) = model::load(&[path], false).unwrap();
    let options = Options { near_limit_ratio: 0.5, ..Options::default() };
    compile_alone(&domains, &options).unwrap()
}

fn limiter() -> Limiter {
    limiter_on(Backend::Memory(MemoryStore::default()), rules())
}

/// Returns an operation as gRPC makes it.
fn entry(key: &str, value: &str) -> Operation {
    let mut operation = Operation::new();
    operation.push("domain", "d");
    operation.push(key, value);
    operation
}

/// Returns the statistics that are not 0, as `NAME of KEY: NUMBER`.
fn statistics(limiter: &Limiter) -> Vec<String> {
    let numbers = limiter.metrics().numbers(Vec::new()).into_iter();
    let shown = numbers.filter_map(|(name, number)| {
        let name = name.strip_prefix("ratelimit_service_rate_limit_")?.replace("{domain=\"d\",key1=\"", " of ");
        Some(format!("{}: {number}", name.trim_end_matches("\"}")))
    });
    shown.collect()
}

#[test]
fn hits_count_by_their_limits() {
    let limiter = limiter();
    let hits = [
        ("plain", 4),
        ("plain", 3),
        ("plain", 5),
        ("plain", 1),
        ("shadow", 5),
        ("none", 2),
        ("shadow_none", 3),
        ("free", 1),
        ("unknown", 1),
        ("user", 6),
        ("none", 0),
    ];
    ask(&limiter, |builder| {
        for (key, cost) in hits {
            builder.add(&entry(key, "x"), Intent::Enter, Some(cost));
        }
        builder.add(&entry("plain", "x"), Intent::Peek, None);
        builder.add(&entry("plain", "x"), Intent::Leave, Some(1));
        builder.add(&operation("domain=other plain=x"), Intent::Hit, None);
    });
    assert_eq!(
        statistics(&limiter),
        [
            "near_limit of plain: 5",
            "near_limit of shadow: 1",
            "near_limit of user_x: 1",
            "over_limit of none: 2",
            "over_limit of plain: 3",
            "over_limit of shadow: 3",
            "over_limit of shadow_none_x: 3",
            "shadow_mode of shadow: 3",
            "shadow_mode of shadow_none_x: 3",
            "total_hits of none: 2",
            "total_hits of plain: 13",
            "total_hits of shadow: 5",
            "total_hits of shadow_none_x: 3",
            "total_hits of user_x: 6",
            "within_limit of plain: 7",
            "within_limit of user_x: 6",
        ]
    );
}

#[test]
fn limits_of_requests_count_under_their_values() {
    let limiter = limiter();
    ask(&limiter, |builder| {
        for (operation, limit, cost) in
            [(entry("plain", "x"), 5, 7), (entry("new", ""), 0, 2), (entry("plain", "y"), 5, 0)]
        {
            let settings =
                Settings { credit_limit: limit, calendar: Calendar::in_utc(Unit::Minute), ..Settings::default() };
            builder.add_tallied(&operation, "d/minute", settings, Intent::Enter, cost);
            builder.note_own_hit(&operation, cost);
        }
    });
    assert_eq!(
        statistics(&limiter),
        [
            "near_limit of plain_x: 3",
            "over_limit of new: 2",
            "over_limit of plain_x: 2",
            "total_hits of new: 2",
            "total_hits of plain_x: 7",
        ]
    );
}

#[test]
fn repeated_answers_count_nothing() {
    let limiter = limiter();
    for _ in 0..3 {
        ask(&limiter, |builder| builder.add_idempotent(&entry("plain", "x"), Intent::Hit, Some(2), b"key"));
    }
    assert_eq!(statistics(&limiter), ["total_hits of plain: 2", "within_limit of plain: 2"]);
}

#[test]
fn hits_count_in_total_if_the_store_fails() {
    let limiter = limiter();
    let mut builder = PlanBuilder::default();
    limiter.begin(&mut builder, &Scope::EVERYTHING);
    builder.add(&entry("user", "x"), Intent::Enter, Some(2));
    let mut plan = builder.build();
    plan.batch.outcomes = vec![Err(StoreError::new("gone"))];
    assert_eq!(plan.report().count(limiter.metrics()), 1);
    assert_eq!(statistics(&limiter), ["total_hits of user_x: 2"]);
}

#[test]
fn limits_continue_their_statistics_after_a_reload() {
    let limiter = limiter();
    ask(&limiter, |builder| builder.add(&entry("plain", "x"), Intent::Enter, None));
    limiter.replace_rules(ActiveRules::new(rules(), limiter.metrics(), CounterNames::Usual));
    ask(&limiter, |builder| builder.add(&entry("plain", "x"), Intent::Enter, None));
    assert_eq!(statistics(&limiter), ["total_hits of plain: 2", "within_limit of plain: 2"]);
}
