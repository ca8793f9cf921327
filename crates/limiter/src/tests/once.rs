//! Idempotent requests, from the matching rules to the metrics.

use super::*;

const RULES: &str = "
[key=*]; creditLimit = 10; resetSeconds = 3600; actorField = key; costField = bytes; label = key
[stack=*]; creditLimit = 10; resetSeconds = 3600; matchPolicy = and; label = stack
[stack=open]; creditLimit = 5; resetSeconds = 0; label = open
[stack=closed]; creditLimit = 0; resetSeconds = 0; label = closed
[default]; creditLimit = 0
";

/// Applies the requests as one batch, each under a key.
pub(super) fn once(limiter: &Limiter, asked: &[(&str, Intent, &str)]) -> Plan {
    ask(limiter, |builder| {
        for (pairs, intent, key) in asked {
            builder.add_idempotent(&operation(pairs), *intent, None, key.as_bytes());
        }
    })
}

/// Returns whether each request is allowed and the credit left, or that its key belongs to another request.
fn answers_to(requests: &Plan) -> Vec<Result<(bool, u64), &'static str>> {
    let verdict = |index| match requests.report().verdict(index) {
        Ok(verdict) => Ok((verdict.allowed, verdict.credit)),
        Err(Refusal::DifferentRequest) => Err("different"),
        Err(refusal) => panic!("{refusal}"),
    };
    (0..requests.report().len()).map(verdict).collect()
}

#[test]
fn batch_may_contain_a_request_and_its_retry() {
    let limiter = limiter_of(RULES);
    let hit = |pairs, key| (pairs, Intent::Hit, key);
    let requests = once(
        &limiter,
        &[
            hit("key=a bytes=2", "x"),
            hit("bytes=2 key=a", "x"),
            hit("key=a bytes=3", "x"),
            hit("key=a bytes=2", "y"),
            ("key=a bytes=2", Intent::Charge, "x"),
            ("key=a bytes=2", Intent::Charge, "x"),
        ],
    );
    assert_eq!(
        answers_to(&requests),
        [Ok((true, 8)), Ok((true, 8)), Err("different"), Ok((true, 6)), Ok((true, 4)), Ok((true, 4))]
    );
    assert_eq!(requests.report().is_replay(), Err(2));
    let again = once(&limiter, &[hit("key=a bytes=2", "y"), ("key=a bytes=2", Intent::Charge, "x")]);
    assert_eq!((answers_to(&again), again.report().is_replay()), (vec![Ok((true, 6)), Ok((true, 4))], Ok(true)));
    assert_eq!(counted(&limiter), counts(&[("accepted{key}", 2)]));
}

#[test]
fn hit_of_cost_0_is_idempotent() {
    let limiter = limiter_of(RULES);
    let look = [("key=a bytes=0", Intent::Hit, "x")];
    assert_eq!(answers_to(&once(&limiter, &look)), [Ok((true, 10))]);
    assert_eq!(hit(&limiter, "key=a bytes=10"), Ok((true, 0)));
    let again = once(&limiter, &look);
    assert_eq!((answers_to(&again), again.report().is_replay()), (vec![Ok((true, 10))], Ok(true)));
}

/// A rule that denied may allow after a reload. Then the retry counts.
#[test]
fn denial_that_no_counter_decides_is_not_remembered() {
    let limiter = limiter_of(RULES);
    let closed = [("stack=closed", Intent::Hit, "x")];
    for _ in 0..2 {
        let denied = once(&limiter, &closed);
        assert_eq!((answers_to(&denied), denied.report().is_replay()), (vec![Ok((false, 0))], Ok(false)));
    }
    let open = [("stack=open", Intent::Hit, "x")];
    for is_replayed in [false, true] {
        let allowed = once(&limiter, &open);
        assert_eq!((answers_to(&allowed), allowed.report().is_replay()), (vec![Ok((true, 9))], Ok(is_replayed)));
    }
    assert_eq!(answers_to(&once(&limiter, &[("nobody=knows", Intent::Hit, "x")])), [Ok((false, 0))]);
}

#[test]
fn request_of_many_hits_has_a_record_for_each_hit_that_is_not_refused() {
    let limiter = limiter_of(RULES);
    let hits = ["key=a bytes=1", "key=a bytes=many", "key=a bytes=2", "key=b"];
    let ask = || {
        let applied = ask(&limiter, |builder| {
            let mut payload = Payload::new(Intent::Hit);
            hits.iter().for_each(|pairs| payload.add(&operation(pairs), None));
            let each = |builder: &mut PlanBuilder| {
                hits.iter().for_each(|pairs| builder.add(&operation(pairs), Intent::Hit, None));
            };
            builder.idempotent(b"x", &payload, each).unwrap();
            // This entry has no idempotency key.
            builder.add(&operation("key=c"), Intent::Hit, None);
        });
        let verdict = |index| applied.report().verdict(index).map(|verdict| verdict.credit).ok();
        ((0..hits.len()).map(verdict).collect::<Vec<_>>(), verdict(hits.len()), applied.report().is_replay())
    };
    let credits = vec![Some(9), None, Some(7), Some(9)];
    assert_eq!(ask(), (credits.clone(), Some(9), Ok(false)));
    assert_eq!(ask(), (credits, Some(8), Ok(true)));
}

#[test]
fn key_length_is_bounded() {
    let limiter = limiter_of(RULES);
    for key in [String::new(), "k".repeat(MAX_IDEMPOTENCY_KEY + 1)] {
        let refused = once(&limiter, &[("key=a", Intent::Hit, &key)]).report().verdict(0);
        assert!(matches!(refused, Err(Refusal::BadIdempotencyKey)), "{refused:?}");
    }
    assert_eq!(hit(&limiter, "key=a"), Ok((true, 9)));
}
