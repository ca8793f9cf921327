//! Rules that limit requests in flight: which requests take leases, and the answers to a gateway.

use super::*;

const RULES: &str = "
[method=* key=* request_id=*]; creditLimit = 2; resetSeconds = 600; algorithm = concurrency; actorField = key
holdField = request_id; label = held
[key=*]; creditLimit = 4; resetSeconds = 60; algorithm = concurrency; actorField = key; costField = none
matchPolicy = and; label = at-once
[key=*]; creditLimit = 100; resetSeconds = 3600; actorField = key; label = credits
[trial=*]; creditLimit = 1; resetSeconds = 60; algorithm = concurrency; holdField = request_id
matchPolicy = canary; label = trial
[trial=*]; creditLimit = 100; resetSeconds = 3600; label = tried
[default]; creditLimit = 0; resetSeconds = 0
";

impl TestLimiter {
    /// Returns the answer to a gateway.
    fn gateway(&self, pairs: &str, intent: Intent, cost: Option<u64>) -> Result<(bool, u64), String> {
        answer_at(&self.ask(|builder| builder.add(&operation(pairs), intent, cost)), 0)
    }

    fn enter(&self, request: &str) -> (bool, u64) {
        self.gateway(&format!("method=GET key=k request_id={request}"), Intent::Enter, None).unwrap()
    }

    fn leave(&self, request: &str) -> (bool, u64) {
        self.gateway(&format!("method=GET key=k request_id={request}"), Intent::Leave, None).unwrap()
    }
}

#[test]
fn rule_sets_the_ttl_of_a_lease_regardless_of_the_request() {
    let mut at = TestLimiter::new(RULES);
    let lease = at.try_reserve("method=GET key=a request_id=1", 1, None, None).unwrap();
    // The TTL exceeds --max-reservation-ttl, and is rounded up.
    assert!((600..620).contains(&(lease.ends_ns.unwrap() / NANOS_PER_SECOND)));
    let id = lease.id.unwrap();
    assert!(at.try_reserve("method=GET key=a request_id=1", 1, 5, None).unwrap().verdict.allowed);
    assert!(!at.try_reserve("method=GET key=a request_id=1", 1, 5, None).unwrap().verdict.allowed);
    at.seconds = 300;
    assert_eq!(at.only_left("method=GET key=a request_id=1"), 0);
    assert!([None, Some(3_600)].into_iter().all(|ttl| (600..620).contains(&at.renew(&id, ttl).unwrap())));
    at.seconds = 650;
    assert_eq!(at.only_left("method=GET key=a request_id=1"), 1, "the one that was not renewed is lost");
    assert!(at.release(&id) && !at.release(&id));
    assert_eq!(at.only_left("method=GET key=a request_id=1"), 2);
}

#[test]
fn hit_on_a_concurrency_limit_is_refused_and_takes_nothing_elsewhere() {
    let at = TestLimiter::new(RULES);
    for pairs in ["key=a", "method=GET key=a request_id=1"] {
        let error = at.gateway(pairs, Intent::Hit, None).unwrap_err();
        assert!(error.contains("it gives leases"), "{error}");
    }
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 4), ("credits".to_owned(), 100)]);
    // The other rule of the stack needs a TTL, because it gives no leases.
    for (ttl, expected) in [(None, "TTL"), (Some(601), "TTL 601 is not from 1 s to the maximum of 600 s")] {
        assert!(at.try_reserve("key=a", 1, ttl, None).unwrap_err().contains(expected));
    }
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 4), ("credits".to_owned(), 100)]);
}

#[test]
fn stack_reserves_credits_and_one_lease() {
    let at = TestLimiter::new(RULES);
    let ids: Vec<_> = (0..4).map(|_| at.id("key=a", 20)).collect();
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 0), ("credits".to_owned(), 20)]);
    assert!(!at.reserve("key=a", 1).verdict.allowed, "four run");
    assert_eq!(at.commit(&ids[0], 30), Ok(("settled", 10)));
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 1), ("credits".to_owned(), 10)]);
    assert!(!at.reserve("key=a", 11).verdict.allowed, "more credits than there are");
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 1), ("credits".to_owned(), 10)]);
}

#[test]
fn charges_and_refunds_do_not_affect_leases() {
    let at = TestLimiter::new(RULES);
    let id = at.id("key=a", 20);
    assert_eq!(at.gateway("key=a", Intent::Charge, Some(5)), Ok((true, 75)));
    assert_eq!(at.gateway("key=a", Intent::Refund, Some(5)), Ok((true, 80)));
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 3), ("credits".to_owned(), 80)]);
    let only_leases = "method=GET key=a request_id=1";
    assert!(at.gateway(only_leases, Intent::Charge, Some(5)).unwrap_err().contains("counts no costs"));
    assert_eq!(at.gateway(only_leases, Intent::Refund, Some(5)), Ok((true, 2)));
    assert!(at.release(&id));
}

#[test]
fn gateway_takes_and_frees_only_the_lease_that_the_field_names() {
    let at = TestLimiter::new(RULES);
    assert_eq!([at.enter("1"), at.enter("2"), at.enter("3")], [(true, 1), (true, 0), (false, 0)]);
    assert_eq!(at.enter("1"), (true, 0), "asked again, it is the same lease");
    assert_eq!(at.leave("3"), (true, 0), "the denied request held no lease");
    assert_eq!(at.leave("1"), (true, 1));
    assert_eq!(at.leave("1"), (true, 1));
    assert_eq!([at.enter("3"), at.enter("4")], [(true, 0), (false, 0)]);
    let looks = at.gateway("method=GET key=k request_id=5", Intent::EnterOrCharge, Some(0));
    assert_eq!(looks, Ok((false, 0)), "a cost of 0 looks");
    let both = at.gateway("method=GET key=other request_id=5", Intent::EnterOrCharge, Some(2));
    assert_eq!(both, Ok((true, 0)));
    assert_eq!(at.gateway("method=GET key=other request_id=5", Intent::Leave, None), Ok((true, 2)));
    let rules = at.limiter.active_rules().unwrap();
    let counted = &rules.hits[0];
    assert_eq!((counted.releases.get(), counted.refunds.get()), (2, 0));
}

#[test]
fn gateway_without_the_field_takes_and_frees_nothing() {
    let at = TestLimiter::new(RULES);
    for intent in [Intent::Enter, Intent::EnterOrCharge, Intent::Leave] {
        let error = at.gateway("key=a", intent, None).unwrap_err();
        assert!(error.contains("holdField"), "{error}");
        let unnamed = at.gateway("method=GET key=a request_id=", intent, None).unwrap_err();
        assert!(unnamed.contains("'request_id'") && unnamed.contains("1 to 255 bytes"), "{unnamed}");
    }
    assert_eq!(at.left("key=a"), [("at-once".to_owned(), 4), ("credits".to_owned(), 100)]);
}

#[test]
fn canary_counts_leases_and_denies_nothing() {
    let at = TestLimiter::new(RULES);
    assert_eq!(at.gateway("trial=x", Intent::Hit, None), Ok((true, 99)));
    let first = at.reserve("trial=x", 1).id.unwrap();
    let second = at.reserve("trial=x", 1).id.unwrap();
    let denied = || {
        let counted = at.limiter.metrics().hits.counted().into_iter();
        let mut of_trial = counted.filter(|counted| counted.rule == "trial" && counted.status == "canary-rejected");
        of_trial.next().map_or(0, |counted| counted.hits)
    };
    assert_eq!(denied(), 1);
    assert!(at.release(&first) && at.release(&second));
    assert!(at.reserve("trial=x", 1).verdict.allowed);
    assert_eq!(denied(), 1, "the lease was free again");
    assert!(at.gateway("trial=x request_id=1", Intent::Enter, None).unwrap().0);
    assert_eq!(denied(), 2);
    assert!(at.gateway("trial=x request_id=1", Intent::Leave, None).unwrap().0);
}

#[test]
fn group_takes_each_lease_once_or_none() {
    let at = TestLimiter::new(RULES);
    let together = |requests: &[(&str, Intent, Option<u64>)]| {
        let mut refused = None;
        let answered = at.ask(|builder| {
            let added = add_together(builder, Together::Summed, |builder| {
                requests.iter().for_each(|(pairs, intent, cost)| builder.add(&operation(pairs), *intent, *cost));
            });
            refused = added.err();
        });
        if let Some(RefusedMember { index, refusal }) = refused {
            return vec![Err(format!("{index}: {refusal}"))];
        }
        (0..requests.len()).map(|index| answer_at(&answered, index).map(|(allowed, _)| allowed)).collect::<Vec<_>>()
    };
    let enter = |pairs| (pairs, Intent::Enter, None);
    let (one, other) = ("method=GET key=a request_id=1", "method=GET key=b request_id=1");
    assert_eq!(together(&[enter(one), enter(other), enter(one)]), [Ok(true), Ok(true), Ok(true)]);
    assert_eq!([at.only_left(one), at.only_left(other)], [1, 1]);
    let next = "method=GET key=a request_id=2";
    assert_eq!(together(&[enter(next), enter("unknown=x")]), [Ok(true), Ok(false)]);
    assert_eq!(at.only_left(one), 1, "the default rule denies, so no lease is taken");
    let look = (one, Intent::Enter, Some(0));
    for two in [[enter(one), enter(next)], [enter(one), look], [look, enter(one)]] {
        let refused = together(&two);
        assert!(
            refused[0].as_ref().is_err_and(|error| error.contains("1: requests that are decided together")),
            "{refused:?}"
        );
    }
    // A release does not belong to the group.
    assert_eq!(together(&[look, (one, Intent::Leave, None)]), [Ok(true), Ok(true)]);
    assert_eq!(at.only_left(one), 2);
}

#[test]
fn reload_neither_doubles_nor_loses_leases() {
    let at = TestLimiter::new(RULES);
    let pairs = "method=GET key=k request_id=1";
    let id = at.try_reserve(pairs, 1, None, Some("1")).unwrap().id.unwrap();
    at.enter("2");
    replace_rules(
        &at.limiter,
        &RULES.replacen("creditLimit = 2; resetSeconds = 600", "creditLimit = 3; resetSeconds = 30", 1),
    );
    assert_eq!([at.enter("3"), at.enter("4")], [(true, 0), (false, 0)]);
    assert_eq!(at.enter("1"), (true, 0), "still the same lease");
    assert!(at.renew(&id, None).unwrap() > 500, "never for less than before");
    assert!(at.release(&id));
    assert_eq!(at.leave("2"), (true, 2));
    // Without such a rule in force, a lease keeps its original TTL.
    let id = at.try_reserve(pairs, 1, None, None).unwrap().id.unwrap();
    replace_rules(&at.limiter, "[default]\ncreditLimit = 1\nresetSeconds = 1");
    assert!(at.renew(&id, None).unwrap() >= 30);
    assert!(at.release(&id));
}

/// A rule without counters would not notice that leases end.
#[test]
fn limit_of_0_drains_a_service() {
    let at = TestLimiter::new(RULES);
    assert_eq!([at.enter("1"), at.enter("2")], [(true, 1), (true, 0)]);
    replace_rules(&at.limiter, &RULES.replacen("creditLimit = 2;", "creditLimit = 0;", 1));
    assert_eq!(
        [at.enter("3"), at.enter("2")],
        [(false, 0), (true, 0)],
        "no lease is granted, and held leases continue"
    );
    at.leave("1");
    at.leave("3");
    let error = at.gateway("method=GET key=k request_id=4", Intent::Hit, None).unwrap_err();
    assert!(error.contains("it gives leases"), "{error}");
    replace_rules(&at.limiter, RULES);
    assert_eq!([at.enter("4"), at.enter("5")], [(true, 0), (false, 0)], "one is held, and one is free again");
}

/// Envoy also reports the end of denied requests. They must not free leases that others have taken.
#[test]
fn end_of_a_gateway_request_frees_only_its_lease() {
    for policy in ["and", "canary"] {
        let at = TestLimiter::new(&format!(
            "[api=* id=*]\ncreditLimit = 1\nresetSeconds = 600\nalgorithm = concurrency\nholdField = id\nmatchPolicy = {policy}\n\
             label = at-once\n\n[api=*]\ncreditLimit = 3\nresetSeconds = 3600\nlabel = hits\n\n[default]\ncreditLimit = 0\n"
        ));
        let ask = |id: &str, intent| at.gateway(&format!("api=x id={id}"), intent, None).unwrap().0;
        for id in ["1", "2", "3"] {
            assert!(ask(id, Intent::Enter) && ask(id, Intent::Leave), "{policy}");
        }
        assert!(!ask("4", Intent::Enter) && ask("4", Intent::Leave), "three an hour: {policy}");
        assert!(!ask("5", Intent::Enter), "{policy}");
    }
}

#[test]
fn committed_lease_can_be_taken_again_under_its_name() {
    let at = TestLimiter::new(RULES);
    let pairs = "method=GET key=k request_id=1";
    let id = at.try_reserve(pairs, 1, None, Some("1")).unwrap().id.unwrap();
    assert_eq!(at.commit(&id, 7), Ok(("settled", 2)));
    assert_eq!([at.enter("1"), at.enter("2"), at.enter("3")], [(true, 1), (true, 0), (false, 0)]);
}

#[test]
fn rules_of_one_operation_need_separate_leases() {
    let rules = |policy: &str, counter: &str| {
        let rule = |limit: u64, more: &str| {
            format!(
                "[job=*]\ncreditLimit = {limit}\nresetSeconds = 60\nalgorithm = concurrency\nactorField = job\n{more}\n"
            )
        };
        let trial = rule(5, &format!("matchPolicy = {policy}\n{counter}"));
        config::parse(&(trial + &rule(2, "") + "[default]\ncreditLimit = 0\n"), Format::Ini, "rules.ini")
    };
    for policy in ["canary", "and"] {
        let problems = rules(policy, "").unwrap_err().to_string();
        assert!(problems.contains("its own `counter`"), "{policy}: {problems}");
        assert!(rules(policy, "counter = trial\n").is_ok(), "{policy}");
    }
}
