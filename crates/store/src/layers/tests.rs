use super::*;
use crate::contract::SHOW;
use crate::testing::{LOOK, ScriptedStore, TAKE, at, outcomes, outcomes_together, record, wait, window};
use divvy_core::algorithm::ReservationAsk;

const POLICIES: [FailurePolicy; 4] =
    [FailurePolicy::Deny, FailurePolicy::Allow, FailurePolicy::Error, FailurePolicy::Local { buckets: 9 }];

fn fallback(policy: FailurePolicy) -> LayeredStore<ScriptedStore> {
    LayeredStore::new(ScriptedStore::default(), 0, policy, Clock::system())
}

/// Returns `(allowed, left, seconds until the reset)` of one hit on `key`, with three credits a minute.
fn hit(store: &impl Store, seconds: u64, key: &str) -> Result<(bool, u64, u64), String> {
    let outcome = outcomes(store, at(seconds), &[(key, window(3, 60), TAKE)]).remove(0);
    outcome.map(|o| (o.allowed, o.left, o.reset_ns / NANOS_PER_SECOND)).map_err(|e| e.to_string())
}

#[test]
fn policy_answers_only_while_the_store_fails() {
    let down = |policy| {
        let store = fallback(policy);
        assert_eq!(hit(&store, 0, "a"), Ok((true, 2, 60)));
        store.inner().is_down.store(true, Relaxed);
        let answers = [hit(&store, 1, "a"), hit(&store, 1, "a")];
        store.inner().is_down.store(false, Relaxed);
        assert_eq!(hit(&store, 1, "a"), Ok((true, 1, 59)), "the store goes on where it was");
        assert_eq!(store.fallback.failed.load(Relaxed), 2);
        let stood_in = if policy == FailurePolicy::Error { 0 } else { 2 };
        assert_eq!(store.fallback.stood_in.load(Relaxed), stood_in);
        answers
    };
    assert_eq!(down(FailurePolicy::Error), [Err("down".to_owned()), Err("down".to_owned())]);
    assert_eq!(down(FailurePolicy::Deny), [Ok((false, 0, 1)), Ok((false, 0, 1))]);
    assert_eq!(down(FailurePolicy::Allow), [Ok((true, 2, 60)), Ok((true, 2, 60))]);
    assert_eq!(down(FailurePolicy::Local { buckets: 9 }), [Ok((true, 2, 60)), Ok((true, 1, 60))]);
}

#[test]
fn policy_answers_a_whole_group_if_one_bucket_fails() {
    let answers = |policy| {
        let store = fallback(policy);
        let group = |seconds| {
            let group = [("!", window(1, 60), TAKE), ("b", window(5, 60), TAKE)];
            let told = outcomes_together(&store, at(seconds), &group).into_iter();
            told.map(|o| o.map(|o| (o.allowed, o.left)).map_err(|_| ())).collect::<Vec<_>>()
        };
        [group(0), group(1)]
    };
    assert_eq!(answers(FailurePolicy::Error), [[Err(()), Err(())], [Err(()), Err(())]]);
    assert_eq!(answers(FailurePolicy::Deny), [[Ok((false, 0)), Ok((false, 0))], [Ok((false, 0)), Ok((false, 0))]]);
    assert_eq!(answers(FailurePolicy::Allow), [[Ok((true, 0)), Ok((true, 4))], [Ok((true, 0)), Ok((true, 4))]]);
    // The second group is denied as a whole: the other bucket keeps its credit.
    let local = answers(FailurePolicy::Local { buckets: 9 });
    assert_eq!(local, [[Ok((true, 0)), Ok((true, 4))], [Ok((false, 0)), Ok((true, 4))]]);
}

#[test]
fn no_policy_shows_or_forgets_a_counter_or_answers_for_a_reservation_and_its_group() {
    let (limit, key) = (window(5, 60), record("a", "it"));
    let asks = [
        ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 },
        ReservationAsk::Commit { cost: 1, charges: true, run: None },
        ReservationAsk::Release { run: None },
        ReservationAsk::Renew { ttl_seconds: Some(60), run: None },
    ];
    let about_record = asks.map(|ask| (&*key, limit, Action::Reservation(ask)));
    let about_counter = [SHOW, Action::Forget].map(|action| ("a", limit, action));
    for policy in POLICIES {
        let store = fallback(policy);
        store.inner().is_down.store(true, Relaxed);
        for action in about_record.into_iter().chain(about_counter) {
            assert_eq!(outcomes(&store, at(0), &[action])[0].as_ref().unwrap_err().to_string(), "down", "{action:?}");
        }
        let group = [("b", limit, TAKE), about_record[0], ("c", limit, TAKE)];
        assert!(outcomes_together(&store, at(0), &group).iter().all(Result::is_err), "{policy:?}");
        assert_eq!(store.fallback.stood_in.load(Relaxed), 0);
    }
}

#[test]
fn local_count_is_bounded() {
    let store = fallback(FailurePolicy::Local { buckets: 1 });
    store.inner().is_down.store(true, Relaxed);
    let answers: Vec<_> = (0..4).map(|_| hit(&store, 0, "a").map(|(allowed, ..)| allowed)).collect();
    assert_eq!(answers, [Ok(true), Ok(true), Ok(true), Ok(false)]);
    assert!(hit(&store, 0, "b").is_err());
}

#[test]
fn policy_answers_only_entries_that_failed() {
    let store = fallback(FailurePolicy::Deny);
    let limit = window(3, 60);
    let batch = [("a", limit, TAKE), ("!", limit, TAKE), ("a", limit, LOOK)];
    let answers: Vec<_> =
        outcomes(&store, at(0), &batch).into_iter().map(|o| o.map(|o| (o.allowed, o.left)).ok()).collect();
    assert_eq!(answers, [Some((true, 2)), Some((false, 0)), Some((true, 2))]);
    assert_eq!(store.fallback.failed.load(Relaxed), 1);
}

#[test]
fn outage_lasts_until_ten_seconds_after_the_last_failure() {
    let store = fallback(FailurePolicy::Deny);
    let lasts_after = |seconds, key| {
        hit(&store, seconds, key).unwrap();
        store.fallback.outage.lock().lasts
    };
    assert!(!lasts_after(0, "a"));
    assert!(lasts_after(0, "!"));
    assert!(lasts_after(10, "a"), "a part that works does not end the outage of another");
    assert!(lasts_after(11, "!"));
    assert!(lasts_after(21, "a"));
    assert!(!lasts_after(22, "a"));
    assert!(lasts_after(23, "!"), "and there may be another");
}

#[test]
fn only_a_store_out_of_reach_is_an_outage() {
    let store = fallback(FailurePolicy::Error);
    for key in ["?", "+"] {
        assert!(hit(&store, 0, key).is_err());
        assert!(!store.fallback.is_out(at(0)) && !store.fallback.outage.lock().lasts, "{key}");
    }
    assert_eq!(store.fallback.failed.load(Relaxed), 2);
}

#[test]
fn overloaded_store_never_allows_hits() {
    let answer = |policy, key| hit(&fallback(policy), 0, key).map(|(allowed, ..)| allowed);
    for policy in [FailurePolicy::Allow, FailurePolicy::Local { buckets: 9 }] {
        assert_eq!(answer(policy, "+"), Err("no room".to_owned()), "{policy:?}");
        assert_eq!(answer(policy, "?"), Ok(true), "{policy:?}");
    }
    assert_eq!(answer(FailurePolicy::Deny, "+"), Ok(false));
}

#[test]
fn check_notices_an_outage_before_the_first_hit_under_any_policy() {
    for policy in POLICIES {
        let store = fallback(policy);
        let checked = || wait(store.check()).is_ok();
        assert!(checked() && !store.fallback.outage.lock().lasts);
        store.inner().is_down.store(true, Relaxed);
        assert_eq!(checked(), policy != FailurePolicy::Error);
        assert!(store.fallback.outage.lock().lasts && store.fallback.is_out(store.fallback.clock.now()), "{policy:?}");
        store.inner().is_down.store(false, Relaxed);
        // The time without failures that ends an outage.
        store.fallback.failed_at.fetch_sub(QUIET_NS + 1, Relaxed);
        assert!(checked() && !store.fallback.outage.lock().lasts, "{policy:?}");
    }
}

#[test]
fn outage_of_an_idle_server_ends_and_a_failure_in_the_future_is_no_outage() {
    let store = fallback(FailurePolicy::Deny);
    let is_out = |seconds| store.fallback.is_out(at(seconds));
    hit(&store, 3600, "!").unwrap();
    assert!(is_out(3600) && is_out(3595) && !is_out(0));
    hit(&store, 1, "!").unwrap();
    assert!(is_out(2) && is_out(11) && !is_out(12));
}
