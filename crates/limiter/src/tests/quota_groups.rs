//! Quota groups: rules that deny a request only if all of them are exceeded.

use proptest::prelude::*;

use super::*;

const RULES: &str = "
[a=*]; creditLimit = 2; resetSeconds = 3600; actorField = a; quotaGroup = one; label = a
[b=*]; creditLimit = 4; resetSeconds = 1800; actorField = b; quotaGroup = one; label = b
[z=*]; creditLimit = 0; quotaGroup = one; label = z
[d=*]; creditLimit = 3; resetSeconds = 3600; actorField = d; quotaGroup = two; label = d
[e=*]; creditLimit = 4; resetSeconds = 3600; actorField = e; counter = e; quotaGroup = two; label = e
[x=*]; creditLimit = 2; resetSeconds = 7200; actorField = x; matchPolicy = and; label = x
[y=*]; creditLimit = 5; resetSeconds = 7200; actorField = y; matchPolicy = and; label = y
[default]; limit = none
";

/// The answer to a request, and the state at its rules with counters.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    allowed: bool,
    /// The rule that answers.
    rule: String,
    /// Rules that deny.
    denying: Vec<String>,
    balances: Vec<(String, i64)>,
}

fn found(applied: &Plan, index: usize) -> Found {
    let report = applied.report();
    let standings: Vec<_> = report.standings(index).unwrap().collect();
    let standing = report.standing(index).unwrap();
    assert_eq!(report.verdict(index).unwrap(), standing.verdict);
    let counted = standings.iter().filter(|at| at.limit.is_some());
    Found {
        allowed: standing.verdict.allowed,
        rule: standing.name.to_owned(),
        denying: standings.iter().filter(|at| !at.verdict.allowed).map(|at| at.name.to_owned()).collect(),
        balances: counted.map(|at| (at.name.to_owned(), at.verdict.balance())).collect(),
    }
}

fn ask_one(limiter: &Limiter, pairs: &str, intent: Intent, cost: u64) -> Found {
    found(&ask(limiter, |builder| builder.add(&operation(pairs), intent, Some(cost))), 0)
}

fn hit_of(limiter: &Limiter, pairs: &str, cost: u64) -> Found {
    ask_one(limiter, pairs, Intent::Hit, cost)
}

/// Returns the answer: the rule that answers, those that deny, and the balances.
fn answer(rule: &str, denying: &[&str], balances: &[(&str, i64)]) -> Found {
    Found {
        allowed: denying.is_empty(),
        rule: rule.to_owned(),
        denying: denying.iter().map(|rule| (*rule).to_owned()).collect(),
        balances: balances.iter().map(|(rule, balance)| ((*rule).to_owned(), *balance)).collect(),
    }
}

#[test]
fn stack_denies_if_an_ordinary_rule_does_or_if_all_rules_of_a_group_are_exceeded() {
    let limiter = limiter_of(RULES);
    for (used_up, expected) in [
        ("none", answer("x", &[], &[("a", 1), ("b", 3), ("x", 1)])),
        ("a", answer("x", &[], &[("a", -1), ("b", 3), ("x", 1)])),
        ("b", answer("a", &[], &[("a", 1), ("b", -1), ("x", 1)])),
        // The group may allow again when the half-hour is over. The other rule has counted.
        ("ab", answer("b", &["a", "b"], &[("a", -1), ("b", -1), ("x", 1)])),
        ("x", answer("x", &["x"], &[("a", 1), ("b", 3), ("x", 0)])),
        ("ax", answer("x", &["x"], &[("a", -1), ("b", 3), ("x", 0)])),
        ("bx", answer("x", &["x"], &[("a", 1), ("b", -1), ("x", 0)])),
        ("abx", answer("x", &["a", "b", "x"], &[("a", -1), ("b", -1), ("x", 0)])),
    ] {
        // Each case has actors of its own.
        let pairs = |rule: &str| format!("{rule}={used_up}");
        for (rule, limit) in [("a", 2), ("b", 4), ("x", 2)] {
            if used_up.contains(rule) {
                assert!(hit_of(&limiter, &pairs(rule), limit).allowed);
            }
        }
        let stack = ["a", "b", "x"].map(pairs).join(" ");
        let peek = ask_one(&limiter, &stack, Intent::Peek, 1);
        assert_eq!((peek.allowed, &peek.denying), (expected.allowed, &expected.denying), "{used_up}");
        assert_eq!(hit_of(&limiter, &stack, 1), expected, "{used_up}");
    }
}

#[test]
fn group_answers_with_the_most_credits_left_or_the_earliest_end_of_a_denial() {
    let limiter = limiter_of(RULES);
    assert_eq!(hit_of(&limiter, "a=1 b=1", 1), answer("b", &[], &[("a", 1), ("b", 3)]));
    assert_eq!(hit_of(&limiter, "a=2 b=1", 3), answer("b", &[], &[("a", -1), ("b", 0)]));
    assert_eq!(hit_of(&limiter, "a=1 b=1", 1), answer("a", &[], &[("a", 0), ("b", -1)]));
    let denied = ask(&limiter, |builder| builder.add(&operation("a=1 b=1"), Intent::Hit, None));
    let verdict = denied.report().verdict(0).unwrap();
    assert!((0..=1800 * NANOS_PER_SECOND).contains(&verdict.retry_ns.unwrap()), "{verdict:?}");
    assert_eq!(found(&denied, 0), answer("b", &["a", "b"], &[("a", -1), ("b", -2)]));
    // A request that never fits into one rule may fit into the other.
    assert_eq!(hit_of(&limiter, "a=3 b=3", 3), answer("b", &[], &[("a", -1), ("b", 1)]));
}

#[test]
fn limit_of_0_is_always_exceeded_and_blocks_and_allows_decide_alone() {
    let limiter = limiter_of(RULES);
    assert_eq!(hit_of(&limiter, "a=1 z=1", 1), answer("a", &[], &[("a", 1)]));
    assert_eq!(hit_of(&limiter, "a=1 z=1 x=1", 2), answer("a", &["a", "z"], &[("a", -1), ("x", 0)]));
    assert!(!hit_of(&limiter, "z=1", 1).allowed);
    set_limit(&limiter, "b", "none", 0);
    assert_eq!(hit_of(&limiter, "a=2 b=none", 1), answer("a", &[], &[("a", 1)]));
    set(&limiter, ExceptionKind::Block, "b", "blocked");
    assert_eq!(hit_of(&limiter, "a=2 b=blocked", 1), answer("b", &["b"], &[("a", 0)]));
    set(&limiter, ExceptionKind::Allow, "b", "allowed");
    assert_eq!(hit_of(&limiter, "a=2 b=allowed", 5), answer("b", &[], &[("a", -5), ("b", 0)]));
}

#[test]
fn charges_and_refunds_concern_each_rule() {
    let limiter = limiter_of(RULES);
    assert_eq!(
        ask_one(&limiter, "a=1 b=1", Intent::Charge, 5).balances,
        answer("", &[], &[("a", -3), ("b", -1)]).balances
    );
    assert!(!hit_of(&limiter, "a=1 b=1", 0).allowed);
    assert_eq!(ask_one(&limiter, "b=1", Intent::Refund, 1), answer("b", &[], &[("b", 0)]));
    assert!(hit_of(&limiter, "a=1 b=1", 0).allowed);
    assert!(ask_one(&limiter, "a=1 b=1", Intent::Peek, 0).allowed);
    assert!(!ask_one(&limiter, "a=1 b=1", Intent::Peek, 1).allowed);
}

#[test]
fn reservation_counts_at_each_rule_and_is_denied_by_all() {
    let limiter = limiter_of(RULES);
    let reserve = |amount| {
        let terms = Reserve { credits: amount, ttl_seconds: Some(60), id: None };
        let applied = ask(&limiter, |builder| builder.add_reservation(&operation("a=1 b=1"), terms));
        (applied.report().reserved(0).unwrap().id.is_some(), found(&applied, 0))
    };
    assert_eq!(reserve(3), (true, answer("b", &[], &[("a", -1), ("b", 1)])));
    assert_eq!(reserve(3), (false, answer("b", &["a", "b"], &[("a", -4), ("b", -2)])));
}

#[test]
fn rules_count_what_they_would_deny_and_the_other_rules_what_they_take() {
    let limiter = limiter_of(RULES);
    for _ in 0..3 {
        hit_of(&limiter, "a=1 x=1", 1);
    }
    hit_of(&limiter, "a=1 b=1 y=1", 1);
    let expected = [
        ("accepted{a}", 2),
        ("accepted{b}", 1),
        ("accepted{default}", 3),
        ("accepted{x}", 2),
        ("accepted{y}", 1),
        ("rejected{a}", 2),
        ("rejected{x}", 1),
    ];
    assert_eq!(counted(&limiter), counts(&expected));
}

#[test]
fn requests_of_one_call_share_their_groups() {
    let limiter = limiter_of(RULES);
    assert!(hit_of(&limiter, "a=1", 2).allowed);
    let call = |requests: &[&str]| {
        let hits: Vec<_> = requests.iter().map(|pairs| (*pairs, Intent::Hit)).collect();
        let applied = apply(&limiter, &hits);
        let alone = (0..requests.len()).filter(|index| !applied.report().verdict(*index).unwrap().allowed).collect();
        (applied.report().denying(), alone)
    };
    let found = |denying: &[usize], alone: &[usize]| (denying.to_vec(), alone.to_vec());
    assert_eq!(call(&["a=1", "b=1", "y=1"]), found(&[], &[0]));
    assert_eq!(call(&["a=1", "d=1", "z=1"]), found(&[0, 2], &[0, 2]), "another group does not matter");
    assert_eq!(call(&["x=1", "x=1", "x=1 a=1 b=1", "a=1 b=1"]), found(&[2], &[2]));
    assert_eq!(call(&["b=1", "a=1", "b=1 y=1"]), found(&[], &[1, 2]), "the first one fits");
    assert_eq!(call(&["b=1", "a=1", "y=1"]), found(&[0, 1], &[0, 1]));
}

#[test]
fn atomic_hits_are_refused_and_the_operations_of_one_request_count_once() {
    let limiter = limiter_of(RULES);
    let refused = |together| {
        let mut refused = None;
        ask(&limiter, |builder| {
            let hits = |builder: &mut PlanBuilder| {
                ["a=1 b=1", "a=1 x=1"].iter().for_each(|pairs| builder.add(&operation(pairs), Intent::Hit, None));
            };
            refused = add_together(builder, together, hits).err();
        });
        refused.map(|refused| refused.refusal)
    };
    assert!(matches!(refused(Together::Summed), Some(Refusal::CountsDenials(_))));
    assert!(refused(Together::AsOne).is_none());
    assert_eq!(ask_one(&limiter, "a=1 b=1 x=1", Intent::Peek, 1), answer("x", &[], &[("a", 1), ("b", 3), ("x", 1)]));
}

/// The rules: their labels, limits and groups.
const MODELED: [(&str, u64, Option<&str>); 7] = [
    ("a", 2, Some("one")),
    ("b", 4, Some("one")),
    ("z", 0, Some("one")),
    ("d", 3, Some("two")),
    ("e", 4, Some("two")),
    ("x", 2, None),
    ("y", 5, None),
];

/// Counts a hit on these rules in `used`. Returns those that deny.
fn count(used: &mut [u64; 7], rules: &[usize], cost: u64) -> Vec<usize> {
    let of_group = |group: Option<&'static str>| rules.iter().copied().filter(move |rule| MODELED[*rule].2 == group);
    let refusing: Vec<_> = of_group(None).filter(|rule| used[*rule] + cost.max(1) > MODELED[*rule].1).collect();
    for rule in rules {
        let counts = MODELED[*rule].2.is_some() || refusing.is_empty();
        used[*rule] += if counts { cost } else { 0 };
    }
    let is_exceeded = |rule: usize| MODELED[rule].1 == 0 || used[rule] > MODELED[rule].1;
    let denies = |rule: &usize| match MODELED[*rule].2 {
        None => refusing.contains(rule),
        group => of_group(group).all(is_exceeded),
    };
    rules.iter().copied().filter(denies).collect()
}

proptest! {
    #[test]
    fn hits_are_answered_as_by_the_model(
        hits in prop::collection::vec((prop::sample::subsequence((0..7).collect::<Vec<_>>(), 1..=7), 0..3_u64), 1..20),
    ) {
        let (limiter, mut used) = (limiter_of(RULES), [0; 7]);
        for (rules, cost) in hits {
            let pairs: Vec<_> = rules.iter().map(|rule| format!("{}=1", MODELED[*rule].0)).collect();
            let denying: Vec<_> = count(&mut used, &rules, cost).into_iter().map(|rule| MODELED[rule].0).collect();
            let answered = hit_of(&limiter, &pairs.join(" "), cost);
            prop_assert_eq!(&answered.denying, &denying, "{:?} at {}", pairs, cost);
            prop_assert_eq!(answered.allowed, denying.is_empty());
            prop_assert!(answered.allowed || denying.contains(&&*answered.rule));
        }
    }
}
