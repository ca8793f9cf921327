//! Scopes: what they cover, and that everything else is refused without a trace.

mod operators;
mod random;

use super::*;

const RULES: &str = "
[api=upload user=*]; creditLimit = 5; resetSeconds = 3600; actorField = user; matchPolicy = and
label = upload-hour
[api=upload user=* tenant=*]; creditLimit = 50; resetSeconds = 3600; actorField = tenant, user
label = upload-tenant
[api=upload user=*]; creditLimit = 50; resetSeconds = 60; actorField = user; label = upload-minute
[api=search user=*]; creditLimit = 9; resetSeconds = 3600; actorField = user; matchPolicy = canary
label = trial
[api=search user=*]; creditLimit = 5; resetSeconds = 3600; actorField = user; label = search
[job=*]; creditLimit = 2; resetSeconds = 60; algorithm = concurrency; label = default
[plain=*]; creditLimit = 5; resetSeconds = 3600
[default]; creditLimit = 5; resetSeconds = 3600
";
const REFUSED: &str = "this is outside the scope of your user";

fn scope(labels: &[&str]) -> Scope {
    Scope::new(labels.iter().copied(), [])
}

/// The scope of one actor under every rule.
fn scope_of(actor: &[(&str, &str)]) -> Scope {
    Scope::new(["*"], actor.iter().copied())
}

fn verdict(limiter: &Limiter, scope: &Scope, pairs: &str, intent: Intent) -> Result<(bool, u64), String> {
    answer_at(&ask_within(limiter, scope, |builder| builder.add(&operation(pairs), intent, None)), 0)
}

#[test]
fn limits_of_clients_are_never_in_scope() {
    let limiter = limiter_of(RULES);
    let limit = hourly(3);
    let applied = ask_within(&limiter, &scope(&["*"]), |builder| {
        builder.add_bucket(Space::TokenBucket, b"a", limit, divvy_core::algorithm::Ask::Take { cost: 1 }, None);
        builder.add_limited(&operation("plain=x"), limit, Intent::Hit, 1);
        builder.add_barred(&operation("plain=x"), std::num::NonZeroU64::MIN, Intent::Hit);
    });
    for index in 0..3 {
        assert!(matches!(applied.report().outcome(index), Err(Refusal::OutOfScope)));
    }
    assert_eq!(run(limiter.approximate_len()).unwrap(), 0);
}

#[test]
fn remembered_answer_is_not_repeated_out_of_scope() {
    let limiter = limiter_of(RULES);
    let hit = |builder: &mut PlanBuilder| {
        builder.add_idempotent(&operation("api=search user=ann"), Intent::Hit, None, b"key");
    };
    let credit = |scope| ask_within(&limiter, &scope, hit).report().verdict(0).map(|verdict| verdict.credit);
    let all = ["search", "trial"];
    assert_eq!(credit(scope(&all)).unwrap(), 4);
    assert!(matches!(credit(scope(&all[..1])), Err(Refusal::OutOfScope)));
    assert!(matches!(credit(scope_of(&[("user", "bob")])), Err(Refusal::OutOfScope)));
    assert_eq!(credit(scope_of(&[("user", "ann")])).unwrap(), 4, "repeated");
}

#[test]
fn scope_applies_to_the_rules_of_each_plan_and_ends_with_it() {
    let limiter = limiter_of(RULES);
    let uploads = scope(&["upload-*"]);
    let pinned = limiter.active_rules();
    assert!(verdict(&limiter, &uploads, "api=upload user=ann", Intent::Hit).is_ok());
    replace_rules(&limiter, &RULES.replace("label = upload-hour", "label = other"));
    assert!(verdict(&limiter, &uploads, "api=upload user=ann", Intent::Hit).is_err());
    let mut builder = PlanBuilder::default();
    let mut is_refused = |active, scope: &Scope| {
        limiter.begin_under(&mut builder, active, scope);
        builder.add(&operation("api=upload user=ann"), Intent::Hit, None);
        builder.refusals().next().is_some()
    };
    assert!(!is_refused(pinned, &uploads));
    assert!(is_refused(limiter.active_rules(), &uploads));
    assert!(!is_refused(limiter.active_rules(), &Scope::EVERYTHING), "the builder's next user has no scope");
    assert!(is_refused(None, &uploads));
}

fn reserve(limiter: &Limiter, scope: &Scope, pairs: &str) -> Result<ReservationId, Refusal> {
    let terms = Reserve { credits: 1, ttl_seconds: Some(30), id: None };
    let applied = ask_within(limiter, scope, |builder| builder.add_reservation(&operation(pairs), terms));
    applied.report().reserved(0).map(|reserved| reserved.id.unwrap())
}

fn settle(limiter: &Limiter, scope: &Scope, id: &ReservationId, settlement: Settlement) -> Result<bool, String> {
    let applied = ask_within(limiter, scope, |builder| builder.settle(id, settlement));
    let settled = applied.report().settled(0).map_err(|refusal| refusal.to_string());
    settled.map(|settled| settled.is_released())
}

/// The id names the old counter, which no rule has anymore.
#[test]
fn reservation_stays_in_scope_when_its_rule_gets_another_limit() {
    let limiter = limiter_of(RULES);
    let searches = scope(&["search", "trial"]);
    let ids = [0; 3].map(|_| reserve(&limiter, &searches, "api=search user=ann").unwrap());
    replace_rules(&limiter, &RULES.replace("creditLimit = 5;", "creditLimit = 7;"));
    assert_eq!(settle(&limiter, &searches, &ids[0], Settlement::Release), Ok(true));
    assert!(settle(&limiter, &scope_of(&[("user", "bob")]), &ids[1], Settlement::Release).is_err());
    assert_eq!(settle(&limiter, &scope_of(&[("user", "ann")]), &ids[1], Settlement::Release), Ok(true));
    replace_rules(&limiter, "[default]\ncreditLimit = 0\n");
    assert!(settle(&limiter, &searches, &ids[2], Settlement::Release).is_err(), "no rule says that it is in scope");
    assert!(settle(&limiter, &scope_of(&[("user", "ann")]), &ids[2], Settlement::Release).is_err());
    assert_eq!(settle(&limiter, &scope(&["*"]), &ids[2], Settlement::Release), Ok(true));
}
