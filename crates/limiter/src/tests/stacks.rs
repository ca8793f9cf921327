//! Stacks of rules, and groups of requests.

use super::*;

/// Rules for a key's minute and day, with a canary, a rule for a tenant, and one that denies everything.
const STACK: &str = "
[key=*]; creditLimit = 3; resetSeconds = 3600; actorField = key; matchPolicy = and; label = burst
[key=* trial=yes]; creditLimit = 1; resetSeconds = 3600; matchPolicy = canary; label = trial
[tenant=*]; creditLimit = 4; resetSeconds = 7200; algorithm = token-bucket; actorField = tenant
matchPolicy = and; label = tenant
[blocked=yes]; creditLimit = 0; resetSeconds = 0; matchPolicy = and; label = blocked
[free=yes]; creditLimit = 7; resetSeconds = 0; label = free
[key=*]; creditLimit = 100; resetSeconds = 86400; actorField = key; costField = tokens; label = daily
[default]; creditLimit = 9; resetSeconds = 3600
";

fn left(limiter: &Limiter, pairs: &str) -> Vec<(String, u64)> {
    let requests = apply(limiter, &[(pairs, Intent::Peek)]);
    let standings = requests.report().standings(0).unwrap();
    standings.map(|standing| (standing.name.to_owned(), standing.verdict.credit)).collect()
}

fn lefts(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    counts(expected)
}

/// Returns the rule that answered, and its answer.
fn answer_to(requests: &Plan, index: usize) -> (String, bool, u64) {
    let standing = requests.report().standing(index).unwrap();
    (standing.name.to_owned(), standing.verdict.allowed, standing.verdict.credit)
}

fn told_of(limiter: &Limiter, pairs: &str) -> (String, bool, u64) {
    answer_to(&apply(limiter, &[(pairs, Intent::Hit)]), 0)
}

fn answer(rule: &str, allowed: bool, credit: u64) -> (String, bool, u64) {
    (rule.to_owned(), allowed, credit)
}

/// Regression test: hits of an actor whose own limit at a canary is 0 were allowed, and counted nowhere.
#[test]
fn canary_that_always_denies_denies_nothing() {
    let limiter = limiter_of(STACK);
    set_limit(&limiter, "trial", "", 0);
    assert_eq!(told_of(&limiter, "key=a trial=yes"), ("burst".to_owned(), true, 2));
    assert_eq!(left(&limiter, "key=a trial=yes"), lefts(&[("burst", 2), ("daily", 99)]));
}

#[test]
fn all_rules_take_or_none_does_and_the_strictest_answers() {
    let limiter = limiter_of(STACK);
    assert_eq!(told_of(&limiter, "key=a tenant=x"), answer("burst", true, 2));
    // A quarter of the tenant's credits is left, and a third of the key's.
    assert_eq!(told_of(&limiter, "key=b tenant=x"), answer("tenant", true, 2));
    assert_eq!(told_of(&limiter, "key=a tenant=x"), answer("tenant", true, 1));
    assert_eq!(told_of(&limiter, "key=a tenant=x tokens=99"), answer("daily", false, 98));
    assert_eq!(left(&limiter, "key=a tenant=x"), lefts(&[("burst", 1), ("tenant", 1), ("daily", 98)]));
    assert_eq!(told_of(&limiter, "key=a tenant=y"), answer("burst", true, 0));
    // Both deny now. The day resets later than the hour, and a cost that never fits outlasts both.
    assert_eq!(told_of(&limiter, "key=a tenant=y tokens=98"), answer("daily", false, 97));
    assert_eq!(told_of(&limiter, "key=a tenant=y tokens=101"), answer("daily", false, 97));
    assert_eq!(told_of(&limiter, "key=a tenant=y"), answer("burst", false, 0));
    assert_eq!(left(&limiter, "key=a tenant=y"), lefts(&[("burst", 0), ("tenant", 3), ("daily", 97)]));
}

#[test]
fn unlimited_rule_allows_and_a_limit_of_0_denies_without_taking() {
    let limiter = limiter_of(STACK);
    assert_eq!(told_of(&limiter, "key=a free=yes"), answer("burst", true, 2));
    assert_eq!(told_of(&limiter, "key=a blocked=yes"), answer("blocked", false, 0));
    let verdict = apply(&limiter, &[("key=a blocked=yes", Intent::Hit)]).report().verdict(0).unwrap();
    assert_eq!(verdict.retry_ns, None, "waiting does not help");
    assert_eq!(left(&limiter, "key=a"), lefts(&[("burst", 2), ("daily", 100)]));
}

#[test]
fn canaries_are_applied_separately_even_if_the_stack_denies() {
    let limiter = limiter_of(STACK);
    for _ in 0..2 {
        assert_eq!(told_of(&limiter, "key=a trial=yes blocked=yes"), answer("blocked", false, 0));
    }
    assert_eq!(
        counted(&limiter),
        counts(&[("canary-accepted{trial}", 1), ("canary-rejected{trial}", 1), ("rejected{blocked}", 2)])
    );
}

#[test]
fn only_denying_rules_are_counted_in_a_denied_stack() {
    let limiter = limiter_of(STACK);
    for _ in 0..4 {
        told_of(&limiter, "key=a tenant=x");
    }
    let all =
        counts(&[("accepted{burst}", 3), ("accepted{daily}", 3), ("accepted{tenant}", 3), ("rejected{burst}", 1)]);
    assert_eq!(counted(&limiter), all);
    assert_eq!(limiter.metrics().hits.stacks_denied.get(), 1);
    apply(&limiter, &[("key=a tenant=x", Intent::Peek)]);
    assert_eq!((counted(&limiter), limiter.metrics().hits.stacks_denied.get()), (all, 1), "a peek counts nothing");
}

#[test]
fn peek_covers_the_whole_stack_and_a_reset_forgets_all_of_it() {
    let limiter = limiter_of(STACK);
    (0..3).for_each(|_| drop(told_of(&limiter, "key=a tenant=x trial=yes")));
    assert_eq!(peek(&limiter, "key=a tenant=x"), Ok((false, 0)));
    assert_eq!(peek(&limiter, "key=b tenant=x"), Ok((true, 1)));
    let forgotten = apply(&limiter, &[("key=a tenant=x trial=yes", Intent::Forget)]).report().forgotten(0).unwrap();
    assert_eq!(forgotten, 4, "the canary's, too");
    assert_eq!(peek(&limiter, "key=a tenant=x"), Ok((true, 3)));
}

#[test]
fn request_that_matches_too_many_rules_is_refused() {
    let rule = |key: usize| format!("[k{key}=*]\ncreditLimit=5\nresetSeconds=60\nmatchPolicy=and\n");
    let rules: String = (0..16).map(rule).collect();
    let limiter = limiter_of(&format!("{rules}[default]\ncreditLimit=5\nresetSeconds=60"));
    let pairs = |count| (0..count).map(|key| format!("k{key}=x")).collect::<Vec<_>>().join(" ");
    assert_eq!(hit(&limiter, &pairs(15)), Ok((true, 4)));
    assert!(hit(&limiter, &pairs(16)).unwrap_err().contains("more than 16 rules"));
    assert_eq!(peek(&limiter, &pairs(15)), Ok((true, 4)));
}

/// Applies these hits as a group.
fn apply_group(limiter: &Limiter, hits: &[(&str, Option<u64>)]) -> Plan {
    applied(limiter, plan_together(limiter, hits).unwrap())
}

fn plan_together(limiter: &Limiter, hits: &[(&str, Option<u64>)]) -> Result<Plan, RefusedMember> {
    let mut builder = PlanBuilder::default();
    limiter.begin(&mut builder, &Scope::EVERYTHING);
    add_together(&mut builder, Together::Summed, |builder| {
        hits.iter().for_each(|(pairs, cost)| builder.add(&operation(pairs), Intent::Hit, *cost));
    })?;
    Ok(builder.build())
}

#[test]
fn grouped_hits_each_have_a_verdict_and_add_costs_on_equal_counters() {
    let limiter = limiter_of(STACK);
    let requests = apply_group(&limiter, &[("key=a tenant=x", None), ("key=b tenant=x", None), ("other=1", Some(2))]);
    let allowed =
        |requests: &Plan| (0..requests.report().len()).map(|index| answer_to(requests, index)).collect::<Vec<_>>();
    assert_eq!(
        allowed(&requests),
        [answer("tenant", true, 2), answer("tenant", true, 2), answer("default", true, 7)],
        "the tenant's counter took two"
    );
    // The first three hits together exceed the tenant's limit. No rule denies the fourth, but the group is denied.
    let hits = [("key=a tenant=x", None), ("key=c tenant=x", None), ("key=d tenant=x", None), ("key=e", None)];
    assert_eq!(
        allowed(&apply_group(&limiter, &hits)),
        [answer("tenant", false, 2), answer("tenant", false, 2), answer("tenant", false, 2), answer("burst", true, 3)]
    );
    assert_eq!(left(&limiter, "key=e"), lefts(&[("burst", 3), ("daily", 100)]), "nothing was taken");
    assert_eq!(limiter.metrics().hits.stacks_denied.get(), 1);
    let counted = counted(&limiter);
    assert!(counted.contains(&("rejected{tenant}".to_owned(), 3)), "{counted:?}");
    assert!(counted.contains(&("accepted{burst}".to_owned(), 2)), "{counted:?}");
}

#[test]
fn grouped_hits_are_denied_by_one_limit_of_0_and_refused_by_one_invalid_cost() {
    let limiter = limiter_of(STACK);
    let requests = apply_group(&limiter, &[("key=a", None), ("blocked=yes", None)]);
    assert_eq!(
        [answer_to(&requests, 0), answer_to(&requests, 1)],
        [answer("burst", true, 3), answer("blocked", false, 0)]
    );
    let refused = plan_together(&limiter, &[("key=a", None), ("key=b tokens=x", None)]).unwrap_err();
    assert_eq!(refused.index, 1);
    assert_eq!(left(&limiter, "key=a"), lefts(&[("burst", 3), ("daily", 100)]));
}

/// The order of the requests does not matter: gateways report the end of one request with the beginning of another.
#[test]
fn refund_in_a_group_is_available_to_its_hits() {
    let limiter = limiter_of(STACK);
    let enter_and = |others: &[Intent]| {
        let applied = ask_together(&limiter, Together::Summed, |builder| {
            let intents = [&[Intent::Enter], others].concat();
            intents.iter().for_each(|intent| builder.add(&operation("key=a"), *intent, Some(3)));
        });
        applied.report().verdict(0).unwrap().allowed
    };
    assert!(enter_and(&[]));
    assert!(enter_and(&[Intent::Leave]));
    assert!(!enter_and(&[]));
    assert_eq!(left(&limiter, "key=a"), lefts(&[("burst", 0), ("daily", 97)]));
}

#[test]
fn limits_from_clients_work_in_groups() {
    let limiter = limiter_of(STACK);
    let both = |own, key: &str| {
        let applied = ask_together(&limiter, Together::Summed, |builder| {
            builder.add_limited(&operation("own=1"), hourly(3), Intent::Hit, own);
            builder.add(&operation(key), Intent::Hit, None);
        });
        let outcome = applied.report().outcome(0).unwrap();
        (outcome.allowed, outcome.left, applied.report().verdict(1).unwrap().allowed)
    };
    assert_eq!(both(2, "key=a"), (true, 1, true));
    assert_eq!(both(2, "key=a"), (false, 1, true));
    assert_eq!(both(1, "blocked=yes"), (true, 1, false));
    assert_eq!(limiter.metrics().hits.stacks_denied.get(), 2, "one by the client's own limit");
    assert!(counted(&limiter).contains(&("accepted{burst}".to_owned(), 1)), "{:?}", counted(&limiter));
    assert_eq!(left(&limiter, "key=a"), lefts(&[("burst", 2), ("daily", 99)]));
}

#[test]
fn lowest_limit_decides_grouped_hits_on_one_named_counter() {
    let plan = |plan: &str, credits: u64| {
        format!(
            "[plan={plan} user=*]\ncreditLimit = {credits}\nresetSeconds = 60\nactorField = user\ncounter = usage\n\n"
        )
    };
    let rules = [plan("pro", 10), plan("free", 5), "[default]\ncreditLimit = 0\n".into()].concat();
    let limiter = limiter_of(&rules);
    let hits = |costs: [u64; 2]| {
        answers(&apply_group(&limiter, &[("plan=pro user=a", Some(costs[0])), ("plan=free user=a", Some(costs[1]))]))
    };
    assert_eq!(hits([4, 2]), [(false, 5), (false, 5)]);
    assert_eq!(hits([3, 2]), [(true, 0), (true, 0)]);
    assert_eq!(hit(&limiter, "plan=pro user=a"), Ok((true, 4)));
}

#[test]
fn grouped_hits_with_debt_count_in_full_while_credit_is_left() {
    let rule = |api: &str, overrun: &str| {
        format!(
            "[api={api} user=*]\ncreditLimit = 5\nresetSeconds = 60\nactorField = user\ncounter = usage\n{overrun}\n\n"
        )
    };
    let rules = [rule("chat", "overrun = debt"), rule("mail", ""), "[default]\ncreditLimit = 0\n".into()].concat();
    let hits = |limiter: &Limiter, hits: &[(&str, u64)]| {
        let hits: Vec<_> = hits.iter().map(|(pairs, cost)| (*pairs, Some(*cost))).collect();
        let requests = apply_group(limiter, &hits);
        let verdicts = (0..hits.len()).map(|index| requests.report().verdict(index).unwrap());
        verdicts.map(|verdict| (verdict.allowed, verdict.balance())).collect::<Vec<_>>()
    };
    let limiter = limiter_of(&rules);
    assert_eq!(hits(&limiter, &[("api=chat user=a", 3), ("api=chat user=a", 4)]), [(true, -2); 2]);
    assert_eq!(hits(&limiter, &[("api=chat user=a", 1), ("api=chat user=b", 1)]), [(false, -2), (true, 5)]);
    // A rule without debt shares the counter, and decides.
    assert_eq!(hits(&limiter, &[("api=chat user=b", 3), ("api=mail user=b", 3)]), [(false, 5); 2]);
    assert_eq!(hits(&limiter, &[("api=mail user=b", 3), ("api=chat user=b", 2)]), [(true, 0); 2]);
}
