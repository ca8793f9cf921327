//! Reservations, from the rules that a request matches to the states of their buckets.

mod leases;
mod seals;

use super::*;
use crate::plan::NamedRecord;
use crate::store::Bounds;
use crate::store::record_key::{self, RecordSpace};
use divvy_core::algorithm::record::REMEMBERED_NS;

/// A stack of rules for requests, for a tenant's credits and for a key's credits, with canaries. Also rules without
/// counters.
const RULES: &str = "
[key=*]; creditLimit = 3; resetSeconds = 3600; actorField = key; costField = none; matchPolicy = and
label = requests
[key=*]; creditLimit = 50; resetSeconds = 3600; algorithm = token-bucket; actorField = key; matchPolicy = canary
label = trial
[tenant=*]; creditLimit = 60; resetSeconds = 3600; algorithm = sliding-window; actorField = tenant
matchPolicy = and; label = tenant
[key=*]; creditLimit = 100; resetSeconds = 3600; actorField = key; label = credits
[user=*]; creditLimit = 100; resetSeconds = 600; actorField = user; label = user
[debtor=*]; creditLimit = 100; resetSeconds = 3600; algorithm = token-bucket; actorField = debtor
overrun = debt; label = debt
[log=*]; creditLimit = 100; resetSeconds = 3600; algorithm = sliding-log; actorField = log
[free=yes]; creditLimit = 7; resetSeconds = 0
[default]; creditLimit = 0; resetSeconds = 0
";

impl TestLimiter {
    fn try_reserve(
        &self,
        pairs: &str,
        credits: u64,
        ttl_seconds: impl Into<Option<u32>>,
        id: Option<&str>,
    ) -> Result<Reserved, String> {
        let reserve = Reserve { credits, ttl_seconds: ttl_seconds.into(), id: id.map(str::as_bytes) };
        let requests = self.ask(|builder| builder.add_reservation(&operation(pairs), reserve));
        requests.report().reserved(0).map_err(|refusal| refusal.to_string())
    }

    fn reserve(&self, pairs: &str, credits: u64) -> Reserved {
        self.try_reserve(pairs, credits, 30, None).unwrap()
    }

    /// Returns the id as a client would send it back.
    fn sent_back(&self, id: ReservationId) -> ReservationId {
        self.limiter.read_id(self.limiter.write_id(id).unwrap().as_bytes()).unwrap()
    }

    fn id(&self, pairs: &str, credits: u64) -> ReservationId {
        self.reserve(pairs, credits).id.unwrap()
    }

    /// Returns the result and the balance of a commit.
    fn commit(&self, id: &ReservationId, cost: u64) -> Result<(&'static str, i64), String> {
        let committed = self.ask(|builder| builder.settle(id, Settlement::Commit { cost })).report().committed(0);
        committed.map(|done| (done.word(), done.verdict.balance())).map_err(|refusal| refusal.to_string())
    }

    fn release(&self, id: &ReservationId) -> bool {
        self.ask(|builder| builder.settle(id, Settlement::Release)).report().settled(0).unwrap().is_released()
    }

    fn renew(&self, id: &ReservationId, ttl_seconds: impl Into<Option<u32>>) -> Option<u64> {
        let ttl_seconds = ttl_seconds.into();
        self.ask(|builder| builder.settle(id, Settlement::Renew { ttl_seconds }))
            .report()
            .settled(0)
            .unwrap()
            .lasts_seconds(ttl_seconds)
    }

    /// Returns the balance of each rule that decides about a hit, by label, without canaries.
    fn left(&self, pairs: &str) -> Vec<(String, i64)> {
        let requests = self.ask(|builder| builder.add(&operation(pairs), Intent::Peek, None));
        let standings = requests.report().standings(0).unwrap();
        standings.map(|standing| (standing.name.to_owned(), standing.verdict.balance())).collect()
    }

    fn only_left(&self, pairs: &str) -> i64 {
        self.left(pairs)[0].1
    }

    /// Returns the credits that the canary of a key leaves.
    fn trial_left(&self, key: &str) -> u64 {
        let pairs = format!("key={key}");
        let requests = self.ask(|builder| builder.add(&operation(&pairs), Intent::Hit, Some(0)));
        let canary = requests.members.iter().find(|member| member.is_canary).unwrap();
        let crate::plan::Source::Entry(entry) = canary.source else { panic!("{canary:?}") };
        requests.batch.outcomes[entry].as_ref().unwrap().left
    }
}

fn labelled(expected: &[(&str, i64)]) -> Vec<(String, i64)> {
    expected.iter().map(|(label, left)| ((*label).to_owned(), *left)).collect()
}

#[test]
fn reserved_credit_is_unavailable_to_others_until_it_is_settled() {
    let at = TestLimiter::new(RULES);
    let reserved = at.reserve("user=a", 70);
    assert_eq!((reserved.verdict.allowed, reserved.verdict.credit, reserved.is_repeated), (true, 30, false));
    let ends = reserved.ends_ns.unwrap();
    assert!((30 * NANOS_PER_SECOND..=31 * NANOS_PER_SECOND).contains(&ends), "{ends}: in whole steps of a second");
    assert_eq!(at.only_left("user=a"), 30);
    let denied = at.reserve("user=a", 31);
    assert_eq!((denied.verdict.allowed, denied.id, denied.ends_ns), (false, None, None), "all or nothing");

    let id = reserved.id.unwrap();
    assert_eq!(at.commit(&id, 20), Ok(("settled", 80)));
    assert_eq!(at.commit(&id, 20), Ok(("repeated", 80)));
    assert_eq!(at.only_left("user=a"), 80);
    assert_eq!(at.commit(&at.id("user=a", 10), 130), Ok(("settled", -50)), "regardless of the reservation");
}

#[test]
fn reservation_ends_with_its_ttl_or_window_or_later_if_renewed() {
    let mut at = TestLimiter::new(RULES);
    let (brief, renewed) = (at.id("user=a", 10), at.id("user=a", 20));
    at.seconds = 25;
    assert!((30..=31).contains(&at.renew(&renewed, 30).unwrap()));
    assert!((29..=31).contains(&at.renew(&renewed, 5).unwrap()), "never for less than it was");
    at.seconds = 32;
    assert_eq!(at.only_left("user=a"), 80);
    assert_eq!(at.renew(&brief, 30), None);
    at.seconds = 599;
    let last = at.id("user=a", 5);
    assert_eq!(at.renew(&last, 60), Some(1), "its window ends");
    at.seconds = 600;
    assert_eq!((at.only_left("user=a"), at.renew(&last, 60)), (100, None));
    assert_eq!(at.commit(&last, 30), Ok(("late", 70)), "in the window of now");
    assert_eq!(at.commit(&last, 30), Ok(("repeated", 70)));
    at.seconds += 1 + REMEMBERED_NS / NANOS_PER_SECOND;
    assert_eq!(at.commit(&last, 30), Ok(("late", 40)), "it is forgotten after a minute");
}

#[test]
fn all_rules_of_a_stack_reserve_or_none_does() {
    let at = TestLimiter::new(RULES);
    let pairs = "key=k tenant=t";
    assert_eq!(at.left(pairs), labelled(&[("requests", 3), ("tenant", 60), ("credits", 100)]));
    let reserved = at.reserve(pairs, 40);
    assert_eq!((reserved.verdict.allowed, reserved.verdict.credit), (true, 20), "the tenant's are the scarcest");
    assert_eq!(at.left(pairs), labelled(&[("requests", 2), ("tenant", 20), ("credits", 60)]));
    let denied = at.reserve(pairs, 41);
    assert_eq!((denied.verdict.allowed, denied.verdict.credit, denied.id), (false, 20, None));
    assert_eq!(
        at.left(pairs),
        labelled(&[("requests", 2), ("tenant", 20), ("credits", 60)]),
        "none has taken anything"
    );

    let id = reserved.id.unwrap();
    assert_eq!(at.commit(&id, 50), Ok(("settled", 10)), "of the one with the least");
    assert_eq!(at.left(pairs), labelled(&[("requests", 2), ("tenant", 10), ("credits", 50)]), "no request");
    assert_eq!(at.commit(&id, 50), Ok(("repeated", 10)));
    // A request counts as one, even if its reservation is given back.
    let id = at.id(pairs, 10);
    assert!(at.release(&id));
    assert_eq!(at.left(pairs), labelled(&[("requests", 1), ("tenant", 10), ("credits", 50)]));
    assert!(at.reserve(pairs, 1).verdict.allowed);
    assert!(!at.reserve(pairs, 1).verdict.allowed, "the requests are used up");
    assert_eq!(at.left(pairs), labelled(&[("requests", 0), ("tenant", 9), ("credits", 49)]));
}

#[test]
fn stack_with_a_forgotten_bucket_is_settled_on_the_others() {
    let at = TestLimiter::new(RULES);
    let id = at.id("key=k tenant=t", 40);
    at.ask(|builder| builder.add(&operation("tenant=t"), Intent::Forget, None));
    assert!((30..=31).contains(&at.renew(&id, 30).unwrap()), "the other one's");
    assert_eq!(at.commit(&id, 50), Ok(("late", 10)), "which says the most");
    assert_eq!(at.left("key=k tenant=t"), labelled(&[("requests", 2), ("tenant", 10), ("credits", 50)]));
}

#[test]
fn canary_counts_the_reserved_amount_and_ignores_commits() {
    let at = TestLimiter::new(RULES);
    let id = at.id("key=k", 40);
    assert_eq!(at.trial_left("k"), 10);
    assert_eq!(at.commit(&id, 90), Ok(("settled", 10)));
    assert_eq!(at.trial_left("k"), 10);
    assert!(at.reserve("key=j", 60).verdict.allowed, "its denial denies nothing");
}

/// Regression test: a repeated request counted again at rules that set nothing aside.
#[test]
fn repeated_reservation_counts_once_at_every_rule() {
    let rules = "
        [api=*]; creditLimit = 90; resetSeconds = 3600; matchPolicy = canary; label = canary
        [api=*]; creditLimit = 80; resetSeconds = 3600; overrun = annotate; matchPolicy = and; label = note
        [api=*]; creditLimit = 70; resetSeconds = 3600; quotaGroup = group; label = member
        [api=* by=*]; creditLimit = 60; resetSeconds = 3600; actorField = by; matchPolicy = and; label = allowed
        [api=* by=*]; creditLimit = 50; resetSeconds = 3600; actorField = by; quotaGroup = group; label = free
        [api=*]; creditLimit = 40; resetSeconds = 3600; label = credits
        [default]; creditLimit = 0";
    let at = TestLimiter::new(rules);
    set(&at.limiter, ExceptionKind::Allow, "allowed", "ann");
    set(&at.limiter, ExceptionKind::Allow, "free", "ann");
    let (pairs, all) = ("api=a by=ann", [90, 80, 70, 60, 50, 40]);
    let used = || {
        let look = at.ask(|builder| builder.add(&operation(pairs), Intent::Refund, Some(0)));
        let left: Vec<_> = look.batch.outcomes.iter().map(|outcome| outcome.as_ref().unwrap().left).collect();
        all.iter().zip(left).map(|(all, left)| all - left).collect::<Vec<_>>()
    };
    let reserve = |credits, id| {
        let reserved = at.try_reserve(pairs, credits, 30, id).unwrap();
        (reserved.is_repeated, reserved.id)
    };
    assert_eq!(used(), [0; 6]);
    let (is_repeated, id) = reserve(5, Some("x"));
    assert_eq!((is_repeated, used()), (false, vec![5; 6]));
    assert_eq!((reserve(5, Some("x")), used()), ((true, id.clone()), vec![5; 6]));
    reserve(5, Some("y"));
    assert_eq!(used(), [10; 6]);
    reserve(5, None);
    reserve(5, None);
    assert_eq!(used(), [20; 6], "without an id, nothing is repeated");
    // The id may have other terms once it is free.
    assert!(at.release(&id.unwrap()));
    assert!(!reserve(6, Some("x")).0);
    assert_eq!(used(), [26, 26, 26, 26, 26, 21]);
}

#[test]
fn rule_with_debt_reserves_the_rest_and_owes_the_committed_cost() {
    let at = TestLimiter::new(RULES);
    assert!(!at.reserve("debtor=a", 101).verdict.allowed, "all or nothing");
    let id = at.id("debtor=a", 60);
    assert!(
        at.ask(|builder| builder.add(&operation("debtor=a"), Intent::Hit, Some(70)))
            .report()
            .verdict(0)
            .unwrap()
            .allowed
    );
    assert_eq!(at.only_left("debtor=a"), -30);
    assert!(!at.reserve("debtor=a", 1).verdict.allowed);
    assert_eq!(at.commit(&id, 200), Ok(("settled", -170)));
}

#[test]
fn actor_reserves_under_its_own_limit() {
    let at = TestLimiter::new(RULES);
    set_limit(&at.limiter, "user", "a", 200);
    let id = at.id("user=a", 150);
    assert_eq!(at.only_left("user=a"), 50);
    assert_eq!(at.commit(&id, 120), Ok(("settled", 80)));
    set_limit(&at.limiter, "user", "a", 0);
    let denied = at.reserve("user=a", 1);
    assert_eq!((denied.verdict.allowed, denied.id), (false, None));
    // A commit after the reservation's end is a charge, so it counts even for an actor that may take nothing.
    assert_eq!(at.commit(&id, 120), Ok(("repeated", 80)));
    assert!(at.reserve("user=b", 100).verdict.allowed);
}

#[test]
fn rules_without_counters_reserve_nothing_and_answer_as_usual() {
    let at = TestLimiter::new(RULES);
    let free = at.reserve("free=yes", 1000);
    assert_eq!((free.verdict.allowed, free.verdict.credit, free.ends_ns, free.is_repeated), (true, 7, None, false));
    let id = free.id.unwrap();
    assert_eq!(at.renew(&id, 9), Some(9));
    assert_eq!(at.commit(&id, 5), Ok(("settled", 0)));
    assert!(!at.release(&id), "nothing was set aside");
    let never = at.reserve("nobody=x", 1);
    assert_eq!((never.verdict.allowed, never.id, never.ends_ns), (false, None, None));
}

#[test]
fn id_chosen_by_the_client_is_repeated_or_conflicts() {
    let mut at = TestLimiter::new(RULES);
    let ask = |at: &TestLimiter, credits, ttl, id| at.try_reserve("user=a", credits, ttl, Some(id));
    let first = ask(&at, 40, 30, "one").unwrap();
    let again = ask(&at, 40, 30, "one").unwrap();
    assert_eq!((first.is_repeated, again.is_repeated), (false, true));
    assert_eq!((&again.id, again.verdict.allowed, again.verdict.credit), (&first.id, true, 60));
    assert_eq!(again.ends_ns, first.ends_ns, "at the same time");
    for (credits, ttl) in [(41, 30), (40, 31)] {
        assert!(ask(&at, credits, ttl, "one").unwrap_err().contains("choose another id"));
    }
    assert_ne!(ask(&at, 10, 30, "two").unwrap().id, first.id);
    assert_eq!(at.only_left("user=a"), 50);
    // Another actor's reservation may have the same id.
    assert!(!at.try_reserve("user=b", 40, 30, Some("one")).unwrap().is_repeated);

    let id = first.id.unwrap();
    assert_eq!(at.commit(&id, 45), Ok(("settled", 45)));
    let committed = ask(&at, 40, 30, "one").unwrap();
    assert_eq!((committed.is_repeated, committed.ends_ns), (true, None), "it is committed already");
    at.seconds = 100;
    assert!(!ask(&at, 40, 30, "one").unwrap().is_repeated, "and free again once it is forgotten");
}

#[test]
fn invalid_reservation_is_refused_and_takes_nothing() {
    let at = TestLimiter::new(RULES);
    for (pairs, credits, ttl, expected) in [
        ("user=a", 0, 30, "at least 1 credit"),
        ("user=a", 1, 0, "TTL 0 is not from 1 s"),
        ("user=a", 1, 601, "TTL 601 is not from 1 s"),
        ("log=a", 1, 1, "`algorithm = sliding-window` can"),
        ("log=a", 1, 601, "TTL 601 is not from 1 s"),
    ] {
        let error = at.try_reserve(pairs, credits, ttl, None).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(at.only_left(pairs), 100);
    }
    let of_no_counter = at.try_reserve("free=yes", 1, 601, None);
    assert!(of_no_counter.is_err_and(|error| error.contains("TTL 601")), "although nothing would be set aside");
    assert!(at.try_reserve("user=a", 1, 1, Some(&"x".repeat(MAX_CLIENT_ID))).unwrap().verdict.allowed);
    let (of_nothing, renewal) = (ReservationId::new([].into_iter()), Settlement::Renew { ttl_seconds: Some(601) });
    let renewed = at.ask(|builder| builder.settle(&of_nothing, renewal)).report().settled(0);
    assert!(renewed.unwrap_err().to_string().contains("TTL 601 is not from 1 s"));
}

#[test]
fn reservation_is_settled_on_its_original_bucket() {
    let mut at = TestLimiter::new(RULES);
    let (first, second, ended) = (at.id("user=a", 10), at.id("user=a", 20), at.id("user=a", 30));
    let raised = RULES.replace("creditLimit = 100; resetSeconds = 600", "creditLimit = 500; resetSeconds = 600");
    replace_rules(&at.limiter, &raised);
    assert_eq!(at.only_left("user=a"), 500, "another counter");
    assert_eq!(at.commit(&first, 15), Ok(("settled", 35)), "100 minus the reserved credits");
    assert!((30..=31).contains(&at.renew(&second, 30).unwrap()));
    assert!(at.release(&second));
    assert_eq!(at.only_left("user=a"), 500);
    assert_eq!(at.limiter.active_rules().unwrap().hits[4].commits.settled.get(), 0, "of no rule");
    at.seconds = 40;
    let error = at.commit(&ended, 15).unwrap_err();
    assert!(error.contains("nothing was charged") && error.contains("has ended"), "{error}");
    assert_eq!(at.only_left("user=a"), 500, "and no actor is charged");
    replace_rules(&at.limiter, RULES);
    assert_eq!(at.commit(&ended, 15), Ok(("late", 70)), "the rule is back, and its counter");
}

/// Only a server can seal ids. Even with a valid seal, such an id could do no more than a charge.
#[test]
fn malformed_ids_with_a_valid_seal_settle_nothing_or_become_charges() {
    let at = TestLimiter::new(RULES);
    at.id("user=a", 10);
    let id_of = |bucket: &[u8], records: usize| {
        let mut record = Vec::new();
        record_key::write(RecordSpace::Reservations, b"s", &mut record, |out| out.extend_from_slice(bucket));
        let id = ReservationId::new(std::iter::repeat_n(NamedRecord { rule: 0, run: None, key: &record }, records));
        at.sent_back(id)
    };
    let mut log = Vec::new();
    let active = at.limiter.active_rules().unwrap();
    active.counter(6).unwrap().write_actor(&operation("log=a"), &mut log);
    for foreign in [
        ReservationId::new([NamedRecord { rule: 0, run: None, key: b"x" }].into_iter()),
        id_of(b"", 1),
        id_of(b"\x01\x01\x00\x05", 16),
        id_of(&log, 1),
    ] {
        let error = at.commit(&foreign, 5).unwrap_err();
        assert!(error.contains("unknown reservation id"), "{error}");
    }
    assert_eq!(at.only_left("log=a"), 100);
    // A bucket under a client's own limit has no rule.
    let limit = Limit::FixedWindow(FixedWindow::new(5, NANOS_PER_SECOND).unwrap());
    let mut own = Vec::new();
    crate::store::key::write_client_key(Space::TokenBucket, &limit, b"k", &mut own);
    let own = id_of(&own, 1);
    assert!(at.commit(&own, 5).unwrap_err().contains("nothing was charged"));
    assert_eq!((at.release(&own), at.renew(&own, 5)), (false, None));
    let mut user = Vec::new();
    active.counter(4).unwrap().write_actor(&operation("user=a"), &mut user);
    assert_eq!(at.commit(&id_of(&user, 16), 5), Ok(("late", 85)), "once, however often it is named");
}

/// Several plans share usage, but not limits.
#[test]
fn reserving_rule_answers_and_counts_a_commit_on_a_shared_counter() {
    let plan = |plan: &str, credits: u64| {
        format!(
            "[plan={plan} user=*]\ncreditLimit = {credits}\nresetSeconds = 600\nactorField = user\ncounter = usage\nlabel = {plan}\n\n"
        )
    };
    let at =
        TestLimiter::new(&(plan("free", 100) + &plan("pro", 1_000) + "[default]\ncreditLimit = 0\nresetSeconds = 0\n"));
    let id = at.id("plan=pro user=a", 600);
    assert_eq!(at.commit(&id, 300), Ok(("settled", 700)));
    assert_eq!(at.commit(&id, 300), Ok(("repeated", 700)));
    let settled = |rule: usize| at.limiter.active_rules().unwrap().hits[rule].commits.settled.get();
    assert_eq!([settled(0), settled(1)], [0, 1]);
}

/// Returns the id of a reservation for all of these operations; `None` if it is denied.
fn reserve_as_one(at: &TestLimiter, all: &[&str], credits: u64, ttl_seconds: Option<u32>) -> Option<ReservationId> {
    let requests = at.ask(|builder| {
        add_together(builder, Together::AsOne, |builder| {
            all.iter().for_each(|pairs| builder.add_clamped_reservation(&operation(pairs), credits, ttl_seconds));
        })
        .unwrap();
    });
    requests.report().reserved_together().unwrap()
}

#[test]
fn several_operations_reserve_jointly_under_one_id() {
    let at = TestLimiter::new(RULES);
    let id = reserve_as_one(&at, &["user=a", "key=k tenant=t"], 40, Some(30)).unwrap();
    let id = at.sent_back(id);
    assert_eq!(id.records().count(), 3, "of the user, the tenant and the key");
    assert_eq!(at.only_left("user=a"), 60);
    assert_eq!(at.left("key=k tenant=t"), labelled(&[("requests", 2), ("tenant", 20), ("credits", 60)]));
    assert_eq!(reserve_as_one(&at, &["user=a", "key=k tenant=t"], 21, None), None, "too much for the tenant");
    assert_eq!(reserve_as_one(&at, &["key=k tenant=t", "blocked=yes"], 1, None), None, "denied by the last");
    assert_eq!(at.only_left("user=a"), 60, "all or none");
    assert_eq!(at.left("key=k tenant=t"), labelled(&[("requests", 2), ("tenant", 20), ("credits", 60)]));
    assert_eq!(at.commit(&id, 50), Ok(("settled", 10)));
    assert_eq!(at.left("key=k tenant=t"), labelled(&[("requests", 2), ("tenant", 10), ("credits", 50)]));
    assert_eq!((at.only_left("user=a"), at.commit(&id, 50)), (50, Ok(("repeated", 10))));
    assert!(reserve_as_one(&at, &["free=yes", "free=yes"], 5, None).unwrap().is_of_nothing());
}

#[test]
fn counter_shared_by_several_operations_reserves_once() {
    let at = TestLimiter::new(RULES);
    let id = reserve_as_one(&at, &["user=a", "user=a x=y", "key=k", "key=k x=y"], 30, None).unwrap();
    let left = |at: &TestLimiter| (at.only_left("user=a"), at.left("key=k"));
    assert_eq!(left(&at), (70, labelled(&[("requests", 2), ("credits", 70)])));
    assert_eq!(id.records().count(), 2);
    assert_eq!(at.commit(&id, 10), Ok(("settled", 90)));
    let charged = at.ask(|builder| {
        add_together(builder, Together::AsOne, |builder| {
            for (pairs, cost) in [("user=a", 120), ("key=k", 5), ("user=a x=y", 7), ("blocked=yes", 7)] {
                builder.add(&operation(pairs), Intent::Charge, Some(cost));
            }
        })
        .unwrap();
    });
    assert_eq!(
        left(&at),
        (-30, labelled(&[("requests", 2), ("credits", 85)])),
        "charges count regardless of the credit left, and only the largest on a shared counter"
    );
    assert_eq!([0, 1, 2].map(|index| charged.report().verdict(index).unwrap().balance()), [-30, 85, -30]);
    assert!(matches!(charged.report().verdict(3), Err(Refusal::NothingToCharge(_))), "and the others count");
}

#[test]
fn credits_and_ttls_are_clamped_if_the_client_leaves_them_to_the_server() {
    let at = TestLimiter::new(RULES);
    let reserve = |at: &TestLimiter, pairs: &str, credits, ttl_seconds| {
        at.ask(|builder| builder.add_clamped_reservation(&operation(pairs), credits, ttl_seconds))
            .report()
            .reserved(0)
            .unwrap()
    };
    for (user, ttl_seconds, expected) in
        [("a", None, 600), ("b", Some(u32::MAX), 600), ("c", Some(0), 1), ("d", Some(7), 7_u64)]
    {
        let reserved = reserve(&at, &format!("user={user}"), 1, ttl_seconds);
        let seconds = lasting_seconds(reserved.ends_ns.unwrap());
        // Ends are rounded up to a 32nd of the time, and the answer is rounded down.
        assert!((expected.saturating_sub(1)..=expected + 20).contains(&seconds), "{ttl_seconds:?}: {seconds}");
    }
    let stacked = reserve(&at, "key=k tenant=t", u64::MAX, None);
    assert_eq!(at.left("key=k tenant=t"), labelled(&[("requests", 2), ("tenant", 0), ("credits", 0)]), "each its own");
    assert_eq!(at.trial_left("k"), 0);
    assert_eq!(at.commit(&stacked.id.unwrap(), 10), Ok(("settled", 50)));
    assert!(
        !reserve(&at, "key=k tenant=t", u64::MAX, None).verdict.allowed,
        "not all that a counter can hold is there"
    );
    assert!(!reserve(&at, "blocked=yes", u64::MAX, None).verdict.allowed);
    let id = reserve_as_one(&at, &["user=x", "key=x tenant=x"], u64::MAX, None).unwrap();
    assert_eq!(at.left("key=x tenant=x"), labelled(&[("requests", 2), ("tenant", 0), ("credits", 0)]));
    assert_eq!((at.only_left("user=x"), at.release(&id), at.only_left("user=x")), (0, true, 100));
}

#[test]
fn late_commit_without_room_for_all_records_counts_against_no_rule() {
    let store = MemoryStore::new(Bounds { max_reservations: 2, ..Bounds::default() });
    let mut at = TestLimiter::of(limiter_on(Backend::Memory(store), parse_rules(RULES)));
    let stacked = at.reserve("key=k tenant=t", 10).id.unwrap();
    assert_eq!(stacked.records().count(), 2);
    at.seconds = 120;
    at.reserve("user=a", 1);
    let before = at.left("key=k tenant=t");
    assert!(at.ask(|builder| builder.settle(&stacked, Settlement::Commit { cost: 7 })).report().settled(0).is_err());
    assert_eq!(at.left("key=k tenant=t"), before, "from both or from neither");
    at.seconds = 240;
    assert_eq!(at.commit(&stacked, 7).map(|(word, _)| word), Ok("late"));
}

/// No server makes such an id. Even so, each of its records is settled.
#[test]
fn id_that_names_a_bucket_twice_is_settled_record_by_record() {
    let at = TestLimiter::new(RULES);
    let ids = ["a", "b"].map(|_| at.reserve("user=a", 10).id.unwrap());
    let both = ReservationId::new(ids.iter().flat_map(ReservationId::records));
    assert_eq!(at.only_left("user=a"), 80);
    assert_eq!(at.commit(&both, 3).map(|(word, _)| word), Ok("settled"));
    assert_eq!(at.only_left("user=a"), 94);
}
