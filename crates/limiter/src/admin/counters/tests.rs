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
fn single_actors_counter_is_listed_and_forgotten_alone() {
    let limiter = limiter();
    for user in ["ada", "bob", "cy"] {
        hit(&limiter, &format!("api=upload user={user}")).unwrap();
    }
    let rule = RuleName::Name("uploads");
    let of = |actor| CountersOf { actor: Some(actor), ..all(rule) };
    assert_eq!(actors(&limiter, of("bob")), [("bob".to_owned(), 99)]);
    assert_eq!(actors(&limiter, of("dan")), []);
    assert_eq!(run(limiter.forget_counters(of("bob"), &Scope::EVERYTHING)).unwrap().content, 1);
    assert_eq!(run(limiter.forget_counters(of("bob"), &Scope::EVERYTHING)).unwrap().content, 0);
    assert_eq!(actors(&limiter, all(rule)), [("ada".to_owned(), 99), ("cy".to_owned(), 99)]);
}

#[test]
fn pages_cover_every_counter_even_while_counters_are_forgotten() {
    let limiter = limiter();
    let users: Vec<_> = (0..250).map(|number| format!("{number:03}")).collect();
    for user in &users {
        hit(&limiter, &format!("api=upload user={user}")).unwrap();
    }
    let of = CountersOf { count: 40, ..all(RuleName::Name("uploads")) };
    let (mut seen, mut cursor) = (Vec::new(), None);
    while seen.is_empty() || cursor.is_some() {
        let page = run(limiter.counters(CountersOf { cursor: cursor.as_deref(), ..of }, &Scope::EVERYTHING)).unwrap();
        assert!((1..=40).contains(&page.content.len()));
        seen.extend(page.content.into_iter().map(|counter| counter.actor));
        cursor = page.next;
    }
    assert_eq!(seen, users);
    let (mut forgotten, mut cursor) = (0, None);
    while forgotten == 0 || cursor.is_some() {
        let of = CountersOf { cursor: cursor.as_deref(), ..of };
        let page = run(limiter.forget_counters(of, &Scope::EVERYTHING)).unwrap();
        assert!(page.content > 0);
        forgotten += page.content;
        cursor = page.next;
    }
    assert_eq!(forgotten, 250);
    assert_eq!(actors(&limiter, of), []);
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
