use super::*;
use crate::store::testing::wait;
use crate::store::{Backend, MemoryStore};
use crate::tests::{ask, limiter_of};
use crate::{Intent, Limiter};
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

fn operation(pairs: &[(&'static str, &str)]) -> Operation {
    pairs.iter().copied().collect()
}

fn hit(limiter: &Limiter, pairs: &[(&'static str, &str)]) {
    let applied = ask(limiter, |builder| builder.add(&operation(pairs), Intent::Hit, None));
    assert!(applied.report().verdict(0).unwrap().allowed);
}

fn all(rule: RuleName) -> CountersOf {
    CountersOf { rule, actor: None, cursor: None, count: 100 }
}

fn actors(limiter: &Limiter, of: CountersOf) -> Vec<(String, u64)> {
    let page = wait(limiter.counters(of, &Scope::EVERYTHING)).unwrap();
    page.counters.into_iter().map(|counter| (counter.actor, counter.credit)).collect()
}

fn error(of: CountersOf) -> String {
    wait(limiter().counters(of, &Scope::EVERYTHING)).unwrap_err().to_string()
}

#[test]
fn rule_is_found_by_its_label_its_operation_or_as_the_default() {
    let limiter = limiter();
    hit(&limiter, &[("api", "upload"), ("user", "ada")]);
    hit(&limiter, &[("something", "else")]);
    let uploads = [("ada".to_owned(), 99)];
    let rule = operation(&[("user", "*"), ("api", "upload")]);
    assert_eq!(actors(&limiter, all(RuleName::Name("uploads"))), uploads);
    assert_eq!(actors(&limiter, all(RuleName::Operation(&rule))), uploads);
    let default = [(String::new(), 4)];
    assert_eq!(actors(&limiter, all(RuleName::Name("default"))), default);
    assert_eq!(actors(&limiter, all(RuleName::Operation(&operation(&[])))), default);
    let counter =
        wait(limiter.counters(all(RuleName::Name("default")), &Scope::EVERYTHING)).unwrap().counters.remove(0);
    assert!(counter.reset_ns > 50 * NANOS_PER_SECOND && counter.reset_ns <= 60 * NANOS_PER_SECOND);
}

#[test]
fn rule_without_a_label_is_listed_by_its_position_but_not_changed() {
    let limiter = limiter();
    hit(&limiter, &[("api", "twice")]);
    assert_eq!(actors(&limiter, all(RuleName::Name("rule-2"))), [(String::new(), 9)]);
    assert_eq!(actors(&limiter, all(RuleName::Name("rule-3"))), [(String::new(), 4)]);
    let refused =
        wait(limiter.forget_counters(all(RuleName::Name("rule-3")), &Scope::EVERYTHING)).unwrap_err().to_string();
    assert!(refused.contains("'rule-3' is named by its position") && refused.contains("`label = NAME`"), "{refused}");
    assert_eq!(actors(&limiter, all(RuleName::Name("rule-3"))), [(String::new(), 4)]);
    hit(&limiter, &[("any", "thing")]);
    assert_eq!(wait(limiter.forget_counters(all(RuleName::Name("default")), &Scope::EVERYTHING)).unwrap().forgotten, 1);
}

#[test]
fn single_actors_counter_is_listed_and_forgotten_alone() {
    let limiter = limiter();
    for user in ["ada", "bob", "cy"] {
        hit(&limiter, &[("api", "upload"), ("user", user)]);
    }
    let rule = RuleName::Name("uploads");
    let of = |actor| CountersOf { actor: Some(actor), ..all(rule) };
    assert_eq!(actors(&limiter, of("bob")), [("bob".to_owned(), 99)]);
    assert_eq!(actors(&limiter, of("dan")), []);
    assert_eq!(wait(limiter.forget_counters(of("bob"), &Scope::EVERYTHING)).unwrap().forgotten, 1);
    assert_eq!(wait(limiter.forget_counters(of("bob"), &Scope::EVERYTHING)).unwrap().forgotten, 0);
    assert_eq!(actors(&limiter, all(rule)), [("ada".to_owned(), 99), ("cy".to_owned(), 99)]);
}

#[test]
fn pages_cover_every_counter_even_while_counters_are_forgotten() {
    let limiter = limiter();
    for number in 0..250 {
        hit(&limiter, &[("api", "upload"), ("user", &format!("{number:03}"))]);
    }
    let of = CountersOf { count: 40, ..all(RuleName::Name("uploads")) };
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = wait(limiter.counters(CountersOf { cursor: cursor.as_deref(), ..of }, &Scope::EVERYTHING)).unwrap();
        assert!(page.counters.len() <= 40);
        seen.extend(page.counters.into_iter().map(|counter| counter.actor));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..250).map(|number| format!("{number:03}")).collect::<Vec<_>>());
    let (mut forgotten, mut cursor) = (0, None);
    loop {
        let page =
            wait(limiter.forget_counters(CountersOf { cursor: cursor.as_deref(), ..of }, &Scope::EVERYTHING)).unwrap();
        forgotten += page.forgotten;
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(forgotten, 250);
    assert_eq!(actors(&limiter, of), []);
}

#[test]
fn missing_or_uncounted_rule_is_reported() {
    assert_eq!(error(all(RuleName::Name("nobody"))), "no rule is called 'nobody'");
    let one = operation(&[("api", "upload")]);
    assert!(error(all(RuleName::Operation(&one))).contains("no rule has the operation 'api=upload'"));
    let literal = operation(&[("api", "upload"), ("user", "ada")]);
    assert!(error(all(RuleName::Operation(&literal))).contains("patterns included"));
    assert!(error(all(RuleName::Operation(&operation(&[("api", "twice")])))).contains("more than one rule"));
    assert!(error(all(RuleName::Operation(&operation(&[("api", "free")])))).contains("counts nothing"));
    let unruled = Limiter::new(None, Backend::Memory(MemoryStore::default()), Clock::system(), Metrics::new());
    let refused = wait(unruled.counters(all(RuleName::Name("any")), &Scope::EVERYTHING)).unwrap_err();
    assert!(matches!(refused, AdminError::Refused(Refusal::NoRules)));
}
