use super::*;
use crate::Intent;
use crate::store::testing::window;
use crate::tests::{all_pages, ask, limiter_of, run};
use divvy_core::algorithm::Concurrency;
use divvy_core::rules::{Pattern, Quota, Rule, Settings};
use proptest::prelude::*;

/// Returns a limiter with five rules by user.
fn limiter() -> Limiter {
    let section = |number| format!("[n={number} user=*]; creditLimit = 9; resetSeconds = 3600; actorField = user\n");
    let rules = (0..5).map(section).collect::<String>() + "[default]; creditLimit = 0";
    limiter_of(&rules)
}

#[test]
fn page_about_a_long_actor_reads_few_counters() {
    let limiter = limiter();
    let long = "x".repeat(MAX_PART * 3 / 4);
    let of_rule = |number: &'static str| [("n", number), ("user", &long)].into_iter().collect::<Operation>();
    let numbers = ["0", "1", "2", "3", "4"];
    ask(&limiter, |builder| numbers.iter().for_each(|number| builder.add(&of_rule(number), Intent::Hit, None)));
    let actor = [("user", long.as_str())].into_iter().collect();
    let pages = all_pages(|cursor| run(limiter.status(&actor, cursor, 100, &Scope::EVERYTHING)).unwrap());
    let names = |page: Vec<RuleStatus>| page.into_iter().map(|status| status.rule).collect::<Vec<_>>().join(" ");
    let pages: Vec<_> = pages.into_iter().map(names).collect();
    assert_eq!(pages, ["rule-1 rule-2", "rule-3 rule-4", "rule-5"]);
}

proptest! {
    #[test]
    fn limit_is_the_sum_of_its_parts(
        used in 0..50_u64, held in 0..50_u64, is_lease in any::<bool>(), own_limit in prop::option::of(0..40_u64),
    ) {
        let mut rule = Rule::new(vec![("user".into(), Pattern::parse("*"))], Settings::default(), Quota::Never, 1);
        if is_lease {
            rule.quota = Quota::Limited(Limit::Concurrency(Concurrency::new(9, 60).unwrap()));
        }
        // A limit of nothing has no counter, so the rule's limit reads it.
        let capacity = own_limit.filter(|credits| *credits > 0).unwrap_or(30);
        let (left, owed) = (capacity.saturating_sub(used + held), (used + held).saturating_sub(capacity));
        let outcome = Outcome { allowed: true, before: held, left, owed, reset_ns: 5, ..Outcome::default() };
        let exceptions = ActorExceptions { credits: own_limit, actor_override: None };
        let status = RuleStatus::new((0, &rule), window(capacity, 60), exceptions, outcome);
        let limit = own_limit.unwrap_or(30);
        let (reserved, in_flight) = if is_lease { (0, held) } else { (held, 0) };
        prop_assert_eq!((status.limit, status.used, status.reserved, status.in_flight), (limit, used, reserved, in_flight));
        prop_assert_eq!(status.verdict.balance(), limit as i64 - used as i64 - held as i64);
        prop_assert_eq!(status.verdict.credit, limit.saturating_sub(used + held));
        prop_assert_eq!((status.verdict.reset_ns, status.own_limit), (5, own_limit));
    }
}
