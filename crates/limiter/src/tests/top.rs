//! Rankings of actors: the requests that count, and the users who may see them.

use super::*;
use crate::inspection::{Order, Ranked, RuleName, RuleRanking, TopOf, Window};

const RULES: &str = "
[api=call user=*]; creditLimit = 3; resetSeconds = 3600; actorField = user; matchPolicy = canary; label = trial
[api=call user=*]; creditLimit = 5; resetSeconds = 3600; actorField = user; costField = tokens; overrun = debt
matchPolicy = and; label = tokens
[api=call user=* path=*]; creditLimit = 8; resetSeconds = 60; actorField = user, path; label = calls
[job=*]; algorithm = concurrency; creditLimit = 2; resetSeconds = 600; actorField = job; label = jobs
[blocked=*]; creditLimit = 0; actorField = blocked; label = blocked
[all=*]; creditLimit = 4; resetSeconds = 60; label = all
[default]; creditLimit = 1000; resetSeconds = 3600; actorField = who
";
const CALL: &str = "api=call user=ann path=/a tokens=3";

fn ranked(limiter: &Limiter, rule: &str, order: Order, scope: &Scope) -> Result<RuleRanking, String> {
    let of = TopOf { rule: RuleName::Name(rule), order, window: Window::Hour, count: 100 };
    limiter.top(of, scope).map_err(|error| error.to_string())
}

/// Returns the actors of a rule with their counts, and the total.
fn top(limiter: &Limiter, rule: &str, order: Order) -> (Vec<(String, u64)>, u64) {
    let ranking = ranked(limiter, rule, order, &Scope::EVERYTHING).unwrap().ranking;
    assert!(ranking.has_room && !ranking.is_sampled);
    let pair = |ranked: Ranked| (String::from_utf8(ranked.actor.into()).unwrap(), ranked.count);
    (ranking.actors.into_iter().map(pair).collect(), ranking.total)
}

fn counts_of<const N: usize>(counts: [(&str, u64); N]) -> (Vec<(String, u64)>, u64) {
    (counts.map(|(actor, count)| (actor.to_owned(), count)).to_vec(), counts.iter().map(|(_, count)| count).sum())
}

#[test]
fn each_rule_counts_what_it_took_and_denied() {
    let limiter = limiter_of(RULES);
    for _ in 0..4 {
        apply(&limiter, &[(CALL, Intent::Hit), (CALL, Intent::Peek), ("who=bob", Intent::Hit)]);
    }
    // The debt allows two of the four hits. The canary has three credits, and canaries are no part of a stack.
    assert_eq!(top(&limiter, "tokens", Order::Taken), counts_of([("ann", 6)]));
    assert_eq!(top(&limiter, "tokens", Order::Denied), counts_of([("ann", 2)]));
    assert_eq!(top(&limiter, "calls", Order::Taken), counts_of([("user=ann path=/a", 2)]), "denied hits take nothing");
    assert_eq!(top(&limiter, "calls", Order::Denied), counts_of([]));
    assert_eq!(top(&limiter, "trial", Order::Taken), counts_of([("ann", 3)]));
    assert_eq!(top(&limiter, "trial", Order::Denied), counts_of([("ann", 1)]));
    assert!(ranked(&limiter, "trial", Order::Denied, &Scope::EVERYTHING).unwrap().is_canary);
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([("bob", 4)]));
}

#[test]
fn charges_count_and_refunds_take_nothing_back() {
    let limiter = limiter_of(RULES);
    apply(&limiter, &[(CALL, Intent::Charge), (CALL, Intent::Charge), (CALL, Intent::Refund)]);
    assert_eq!(top(&limiter, "tokens", Order::Taken), counts_of([("ann", 6)]));
    assert_eq!(top(&limiter, "tokens", Order::Denied), counts_of([]));
}

#[test]
fn repeated_answers_count_nothing() {
    let limiter = limiter_of(RULES);
    let asked = [
        ("who=bob", Intent::Hit, "a"),
        ("who=bob", Intent::Hit, "a"),
        ("who=eve", Intent::Hit, "a"),
        ("all=x", Intent::Hit, "b"),
        ("blocked=eve", Intent::Hit, "c"),
        (CALL, Intent::Charge, "d"),
        (CALL, Intent::Charge, "d"),
    ];
    super::once::once(&limiter, &asked);
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([("bob", 1), ("eve", 1)]));
    assert_eq!(top(&limiter, "all", Order::Taken), counts_of([("", 1)]), "a rule without actors has one");
    assert_eq!(top(&limiter, "blocked", Order::Denied), counts_of([("eve", 1)]));
    assert_eq!(top(&limiter, "tokens", Order::Taken), counts_of([("ann", 3)]));
}

#[test]
fn actors_of_rules_without_counters_are_named() {
    let limiter = limiter_of(RULES);
    let hit = |pairs| (pairs, Intent::Hit);
    apply(&limiter, &[hit("blocked=eve"), hit("who=x"), hit("blocked=mallory"), hit("blocked=eve")]);
    assert_eq!(top(&limiter, "blocked", Order::Denied), counts_of([("eve", 2), ("mallory", 1)]));
    // An actor that may take nothing has no counter, either.
    set_limit(&limiter, "default", "bob", 0);
    apply(&limiter, &[hit("who=bob"), hit("who=ann")]);
    assert_eq!(top(&limiter, "default", Order::Denied), counts_of([("bob", 1)]));
}

#[test]
fn commits_count_and_reservations_do_not() {
    let limiter = limiter_of(RULES);
    let reserve = |pairs: &str, credits| {
        let reserve = Reserve { credits, ttl_seconds: Some(30), id: None };
        ask(&limiter, |builder| builder.add_reservation(&operation(pairs), reserve)).report().reserved(0).unwrap().id
    };
    let settle = |id: &ReservationId, settlement| drop(ask(&limiter, |builder| builder.settle(id, settlement)));
    let id = reserve("who=bob", 10).unwrap();
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([]));
    settle(&id, Settlement::Commit { cost: 7 });
    settle(&id, Settlement::Commit { cost: 7 });
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([("bob", 7)]), "once");
    assert!(reserve("who=bob", 2_000).is_none());
    assert_eq!(top(&limiter, "default", Order::Denied), counts_of([("bob", 1)]));
    let released = reserve("who=eve", 10).unwrap();
    settle(&released, Settlement::Release);
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([("bob", 7)]));
    let lease = reserve("job=a", 1).unwrap();
    settle(&lease, Settlement::Commit { cost: 5 });
    assert_eq!(top(&limiter, "jobs", Order::Taken), counts_of([("a", 1)]), "a lease, regardless of its cost");
}

#[test]
fn groups_count_all_or_nothing() {
    let limiter = limiter_of(RULES);
    let group = |all: &[&str]| {
        ask_together(&limiter, Together::Summed, |builder| {
            all.iter().for_each(|pairs| builder.add(&operation(pairs), Intent::Hit, None));
        });
    };
    group(&["all=x", "all=x", "who=bob"]);
    group(&["all=x", "all=x", "all=x", "who=bob"]);
    assert_eq!(top(&limiter, "all", Order::Taken), counts_of([("", 2)]), "the credits of both hits, once");
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([("bob", 1)]));
    assert_eq!(top(&limiter, "all", Order::Denied), counts_of([("", 3)]));
}

#[test]
fn counts_survive_threads_and_reloads() {
    let limiter = limiter_of(RULES);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                apply(&limiter, &[("who=bob", Intent::Hit), ("blocked=eve", Intent::Hit)]);
            });
        }
    });
    let reload = |rules: &str| replace_rules(&limiter, rules);
    // The default rule's limit changes, and the rules move.
    let default = "[default]\ncreditLimit = 2\nresetSeconds = 60\nactorField = who\n";
    let blocked = "[blocked=*]\ncreditLimit = 0\nactorField = blocked\nlabel = blocked\n";
    reload(&format!("[x=*]\ncreditLimit = 1\nresetSeconds = 60\n\n{blocked}\n{default}"));
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([("bob", 3)]));
    assert_eq!(top(&limiter, "blocked", Order::Denied), counts_of([("eve", 3)]));
    reload(default);
    assert_eq!(
        ranked(&limiter, "blocked", Order::Denied, &Scope::EVERYTHING),
        Err("no rule is called 'blocked'".into())
    );
    reload(&format!("{blocked}\n[default]\ncreditLimit = 2\nresetSeconds = 60\nactorField = user\n"));
    assert_eq!(top(&limiter, "blocked", Order::Denied), counts_of([]), "a rule that was gone begins anew");
    assert_eq!(top(&limiter, "default", Order::Taken), counts_of([]), "and so does one with other actors");
}

#[test]
fn users_see_what_is_in_scope() {
    let limiter = limiter_of(RULES);
    let hit = |pairs| (pairs, Intent::Hit);
    apply(&limiter, &[hit("who=bob"), hit("who=bob"), hit("who=ann"), hit("all=x"), hit(CALL)]);
    let label = Scope::new(["*"], []);
    assert_eq!(ranked(&limiter, "default", Order::Taken, &label).unwrap().ranking.total, 3);
    let of_ann = Scope::new(["*"], [("who", "ann")]);
    let own = ranked(&limiter, "default", Order::Taken, &of_ann).unwrap();
    let actors: Vec<_> = own.ranking.actors.iter().map(|ranked| (&*ranked.actor, ranked.count)).collect();
    assert_eq!((actors, own.ranking.total, own.is_of_one_actor), (vec![(&b"ann"[..], 1)], 1, true));
    let of_eve = Scope::new(["*"], [("who", "eve")]);
    let none = ranked(&limiter, "default", Order::Taken, &of_eve).unwrap();
    assert_eq!((none.ranking.actors.len(), none.ranking.total), (0, 0));
    assert_eq!(ranked(&limiter, "none", Order::Taken, &label).unwrap_err(), "no rule is called 'none'");
}
