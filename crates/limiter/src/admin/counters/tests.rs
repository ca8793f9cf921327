use super::*;
use crate::Limiter;
use crate::store::{Backend, MemoryStore};
use crate::tests::{hit, limiter_of, operation, run};
use divvy_core::clock::{Clock, NANOS_PER_SECOND};
use divvy_core::rules::Operation;
use divvy_telemetry::metrics::Metrics;

const RULES: &str = "
[api=upload user=*]; creditLimit = 100; resetSeconds = 3600; actorField = user; label = uploads
[api=twice]; creditLimit = 10; resetSeconds = 3600; matchPolicy = canary
[api=twice]; creditLimit = 5; resetSeconds = 3600
[api=free]; creditLimit = 1; resetSeconds = 0
[default]; creditLimit = 5; resetSeconds = 60
";

fn limiter() -> Limiter {
    limiter_of(RULES)
}

fn all(rule: RuleName) -> CountersOf {
    CountersOf { rule, actor: None, cursor: None, count: 100 }
}

fn actors(limiter: &Limiter, of: CountersOf) -> Vec<(String, u64)> {
    let page = run(limiter.counters(of, &Scope::EVERYTHING)).unwrap();
    page.content.into_iter().map(|counter| (counter.actor, counter.credit)).collect()
}

fn error(of: CountersOf) -> String {
    run(limiter().counters(of, &Scope::EVERYTHING)).unwrap_err().to_string()
}

#[test]
fn rule_is_found_by_its_label_its_operation_or_as_the_default() {
    let limiter = limiter();
    hit(&limiter, "api=upload user=ada").unwrap();
    hit(&limiter, "something=else").unwrap();
    let uploads = [("ada".to_owned(), 99)];
    let rule = operation("user=* api=upload");
    assert_eq!(actors(&limiter, all(RuleName::Name("uploads"))), uploads);
    assert_eq!(actors(&limiter, all(RuleName::Operation(&rule))), uploads);
    let default = [(String::new(), 4)];
    assert_eq!(actors(&limiter, all(RuleName::Name("default"))), default);
    assert_eq!(actors(&limiter, all(RuleName::Operation(&Operation::new()))), default);
    let counter = run(limiter.counters(all(RuleName::Name("default")), &Scope::EVERYTHING)).unwrap().content.remove(0);
    assert!(counter.reset_ns > 50 * NANOS_PER_SECOND && counter.reset_ns <= 60 * NANOS_PER_SECOND);
}

#[test]
fn rule_without_a_label_is_listed_by_its_position_but_not_changed() {
    let limiter = limiter();
    hit(&limiter, "api=twice").unwrap();
    assert_eq!(actors(&limiter, all(RuleName::Name("rule-2"))), [(String::new(), 9)]);
    assert_eq!(actors(&limiter, all(RuleName::Name("rule-3"))), [(String::new(), 4)]);
    let refused =
        run(limiter.forget_counters(all(RuleName::Name("rule-3")), &Scope::EVERYTHING)).unwrap_err().to_string();
    assert!(refused.contains("'rule-3' is named by its position") && refused.contains("`label = NAME`"), "{refused}");
    assert_eq!(actors(&limiter, all(RuleName::Name("rule-3"))), [(String::new(), 4)]);
    hit(&limiter, "any=thing").unwrap();
    assert_eq!(run(limiter.forget_counters(all(RuleName::Name("default")), &Scope::EVERYTHING)).unwrap().content, 1);
}

#[test]
fn missing_or_uncounted_rule_is_reported() {
    assert_eq!(error(all(RuleName::Name("nobody"))), "no rule is called 'nobody'");
    for (pairs, expected) in [
        ("api=upload", "no rule has the operation 'api=upload'"),
        ("api=upload user=ada", "patterns included"),
        ("api=twice", "more than one rule"),
        ("api=free", "counts nothing"),
    ] {
        let error = error(all(RuleName::Operation(&operation(pairs))));
        assert!(error.contains(expected), "{error}");
    }
    let unruled = Limiter::new(None, Backend::Memory(MemoryStore::default()), Clock::system(), Metrics::new());
    let refused = run(unruled.counters(all(RuleName::Name("any")), &Scope::EVERYTHING)).unwrap_err();
    assert!(matches!(refused, AdminError::Refused(Refusal::NoRules)));
}
