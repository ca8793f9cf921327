//! Hits at the limit of rules that count what they deny, or deny nothing.

use super::*;
use crate::store::WhenFull;

const RULES: &str = "
[api=count ip=*]; creditLimit = 3; resetSeconds = 3600; actorField = ip; overrun = count; label = count
[api=note ip=*]; creditLimit = 3; resetSeconds = 3600; actorField = ip; overrun = annotate; label = note
[api=soon ip=*]; creditLimit = 10; resetSeconds = 3600; actorField = ip; annotateAt = 80; label = soon
[api=both ip=*]; creditLimit = 4; resetSeconds = 3600; actorField = ip; overrun = annotate; matchPolicy = and; label = both
[api=both ip=*]; creditLimit = 5; resetSeconds = 3600; actorField = ip; annotateAt = 40; label = hard
[api=bucket ip=*]; creditLimit = 2; resetSeconds = 3600; actorField = ip; algorithm = token-bucket; overrun = count
label = bucket
[default]; creditLimit = 0
";

/// Returns whether a hit at this cost is allowed, the balance after it, and the rules that are exceeded.
fn hit_of(limiter: &Limiter, pairs: &str, cost: u64) -> (bool, i64, Vec<String>) {
    answer_of(&ask(limiter, |builder| builder.add(&operation(pairs), Intent::Hit, Some(cost))))
}

fn answer_of(applied: &Plan) -> (bool, i64, Vec<String>) {
    let report = applied.report();
    let verdict = report.verdict(0).unwrap();
    assert!(!verdict.allowed || verdict.retry_ns.is_none(), "{verdict:?}");
    (verdict.allowed, verdict.balance(), report.exceeded(0).into_iter().map(Into::into).collect())
}

fn exceeding(rules: &[&str]) -> Vec<String> {
    rules.iter().map(|rule| (*rule).to_owned()).collect()
}

#[test]
fn denied_hits_count() {
    let limiter = limiter_of(RULES);
    assert_eq!(hit_of(&limiter, "api=count ip=a", 2), (true, 1, vec![]));
    assert_eq!(hit_of(&limiter, "api=count ip=a", 2), (false, -1, vec![]));
    assert_eq!(hit_of(&limiter, "api=count ip=a", 1), (false, -2, vec![]));
    assert_eq!(hit_of(&limiter, "api=count ip=a", 0), (false, -2, vec![]));
    assert_eq!(hit_of(&limiter, "api=count ip=b", 3), (true, 0, vec![]));
    assert_eq!(hit_of(&limiter, "api=count ip=b", 0), (true, 0, vec![]), "exactly the limit is used");
    let peek = |pairs: &str, cost| {
        answer_of(&ask(&limiter, |builder| builder.add(&operation(pairs), Intent::Peek, Some(cost)))).0
    };
    assert_eq!([peek("api=count ip=b", 0), peek("api=count ip=b", 1), peek("api=count ip=a", 0)], [true, false, false]);
    assert_eq!(counted(&limiter), counts(&[("accepted{count}", 3), ("rejected{count}", 3)]));
    // A bucket owes what it denied.
    assert_eq!(hit_of(&limiter, "api=bucket ip=a", 5), (false, -3, vec![]));
}

#[test]
fn annotating_rule_denies_nothing_and_says_that_it_is_exceeded() {
    let limiter = limiter_of(RULES);
    assert_eq!(hit_of(&limiter, "api=note ip=a", 3), (true, 0, vec![]));
    assert_eq!(hit_of(&limiter, "api=note ip=a", 5), (true, -5, exceeding(&["note"])));
    let look = apply(&limiter, &[("api=note ip=a", Intent::Peek)]);
    assert_eq!(answer_of(&look), (true, -5, exceeding(&["note"])));
    assert_eq!(counted(&limiter), counts(&[("accepted{note}", 2)]));
    set_limit(&limiter, "note", "b", 0);
    assert_eq!(hit_of(&limiter, "api=note ip=b", 1), (false, 0, vec![]), "a limit of 0 denies");
    set(&limiter, ExceptionKind::Block, "note", "c");
    assert!(!hit_of(&limiter, "api=note ip=c", 1).0, "a block denies");
}

#[test]
fn answers_have_a_note_beyond_a_part_of_the_limit() {
    let limiter = limiter_of(RULES);
    assert_eq!(hit_of(&limiter, "api=soon ip=a", 8), (true, 2, vec![]));
    assert_eq!(hit_of(&limiter, "api=soon ip=a", 1), (true, 1, exceeding(&["soon"])));
    assert_eq!(hit_of(&limiter, "api=soon ip=a", 2), (false, 1, exceeding(&["soon"])), "the limit denies");
}

#[test]
fn annotating_rule_of_a_stack_counts_apart_from_it() {
    let limiter = limiter_of(RULES);
    assert_eq!(hit_of(&limiter, "api=both ip=a", 2), (true, 2, vec![]));
    assert_eq!(hit_of(&limiter, "api=both ip=a", 3), (true, -1, exceeding(&["both", "hard"])));
    // The other rule denies and takes nothing.
    assert_eq!(hit_of(&limiter, "api=both ip=a", 1), (false, 0, exceeding(&["both", "hard"])));
    let look = apply(&limiter, &[("api=both ip=a", Intent::Peek)]);
    let balances = look.report().standings(0).unwrap().map(|standing| standing.verdict.balance());
    assert_eq!(balances.collect::<Vec<_>>(), [-2, 0]);
}

#[test]
fn idempotent_hit_that_is_denied_counts_once() {
    let limiter = limiter_of(RULES);
    for _ in 0..2 {
        let hit = operation("api=count ip=a");
        let applied = ask(&limiter, |builder| builder.add_idempotent(&hit, Intent::Hit, Some(5), b"key"));
        assert_eq!(answer_of(&applied), (false, -2, vec![]));
    }
}

#[test]
fn rule_that_counts_denied_hits_decides_in_no_group() {
    let limiter = limiter_of(RULES);
    let hits = |builder: &mut PlanBuilder| {
        for pairs in ["api=soon ip=a", "api=count ip=a"] {
            builder.add(&operation(pairs), Intent::Hit, None);
        }
    };
    let mut refused = None;
    let applied = ask(&limiter, |builder| {
        let added = builder.together(
            Together::Summed,
            |member| member.refusal,
            |builder| {
                hits(builder);
                Ok(())
            },
        );
        refused = added.err();
        builder.add(&operation("api=soon ip=a"), Intent::Peek, None);
    });
    assert!(matches!(refused, Some(Refusal::CountsDenials(_))), "{refused:?}");
    assert_eq!(answer_of(&applied).1, 10, "nothing was taken");
}

/// Regression test: a reservation with two descriptors of one counter counted twice.
#[test]
fn request_with_two_operations_of_one_counter_counts_once() {
    let limiter = limiter_of(RULES);
    ask_together(&limiter, Together::AsOne, |builder| {
        for cost in [1, 2] {
            builder.add(&operation("api=note ip=a"), Intent::Hit, Some(cost));
        }
    });
    assert_eq!(hit_of(&limiter, "api=note ip=a", 0), (true, 1, vec![]));
}

/// Regression test: a denial without the counter's state said that nearly all of it was used.
#[test]
fn answer_of_a_full_store_has_no_note() {
    let bounds = Bounds { max_counters: 1, when_full: WhenFull::Deny, ..Bounds::default() };
    let limiter = limiter_on(Backend::Memory(MemoryStore::new(bounds)), parse_rules(RULES));
    assert_eq!(hit_of(&limiter, "api=soon ip=a", 1), (true, 9, vec![]));
    assert_eq!(hit_of(&limiter, "api=soon ip=b", 1), (false, 0, vec![]));
}
