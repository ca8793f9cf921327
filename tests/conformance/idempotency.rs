//! Requests that are repeated with their idempotency keys.
use super::*;

pub async fn closing_keeps_reservations_and_idempotent_answers(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets) {
        let key = format!("kept {place}#it");
        assert!(opened.one(at(0), &key, limit, reserve(1, LONG)).await.allowed, "{limit:?}");
    }
    let (once, window) = (take_once(2, u64::MAX), limit(10, 10_000));
    let first = opened.one(at(0), "kept once#it", window, once).await;
    opened.store.close().await.unwrap();
    let Some(reopened) = opened.reopen() else { return };
    for (place, limit) in reservable(reopened.buckets) {
        let (bucket, all) = (&*format!("kept {place}"), limit.capacity());
        let look = if all > 1 { allowed(all - 1) } else { denied(0) };
        let steps = [(0, bucket, LOOK, look), (0, &*format!("{bucket}#it"), commit(0), allowed(all))];
        reopened.follow(limit, &steps).await;
    }
    let again = reopened.one(at(0), "kept once#it", window, once).await;
    assert_eq!(again, Outcome { resolution: Resolution::Repeated, ..first });
    assert_eq!(reopened.one(at(0), "kept once", window, LOOK).await.left, 8);
}

pub async fn idempotent_request_is_taken_once_and_its_answer_repeated(opened: StoreFixture) {
    let is_one = |limit: &Limit| limit.capacity() > 2 && limit.kind() != Kind::Concurrency;
    for (place, limit) in limits(opened.buckets).into_iter().filter(is_one).enumerate() {
        let (bucket, all) = (&*format!("once {place}"), limit.capacity());
        let (one, other) = (&*format!("{bucket}#one"), &*format!("{bucket}#other"));
        let ask = async |key: &str, action| opened.one(at(0), key, limit, action).await;
        let left = async || ask(bucket, LOOK).await.left;
        let first = ask(one, take_once(1, 7)).await;
        assert_eq!((first.allowed, first.before, first.left), (true, all, all - 1), "{limit:?}");
        ask(bucket, TAKE).await;
        let again = Outcome { resolution: Resolution::Repeated, ..first };
        assert_eq!((ask(one, take_once(1, 7)).await, left().await), (again, all - 2), "{limit:?}");
        // Another request with the same idempotency key.
        opened.follow(limit, &[(0, one, take_once(2, 8), different(all - 2))]).await;
        // A denial is an answer, too.
        let refused = ask(other, take_once(all, 7)).await;
        assert_eq!((refused.allowed, refused.resolution), (false, Resolution::Done), "{limit:?}");
        // A reset clears the counter, and keeps the answers.
        assert!(ask(bucket, FORGET).await.allowed, "{limit:?}");
        let refused_again = Outcome { resolution: Resolution::Repeated, ..refused };
        assert_eq!((ask(other, take_once(all, 7)).await, left().await), (refused_again, all), "{limit:?}");
        assert_eq!((ask(one, take_once(1, 7)).await, left().await), (again, all), "{limit:?}");
        let later = at(opened.later(59));
        assert_eq!(opened.one(later, one, limit, take_once(1, 7)).await, again, "{limit:?}");
        if opened.buckets == Buckets::ByPassedTime {
            opened.follow(limit, &[(60, one, take_once(1, 7), allowed(all - 1))]).await;
        }
    }
}

pub async fn idempotent_tally_counts_once_even_if_it_is_denied(opened: StoreFixture) {
    let may_exceed = |limit: &Limit| !matches!(limit.kind(), Kind::Concurrency | Kind::SlidingLog);
    for (place, limit) in limits(opened.buckets).into_iter().filter(may_exceed).enumerate() {
        let (bucket, all) = (&*format!("tallied {place}"), limit.capacity());
        for (id, cost, owed) in [("granted", all, 0), ("denied", 1, 1)] {
            let tally = Action::Idempotent { ask: Ask::Tally { cost }, fingerprint: 7 };
            let key = &*format!("{bucket}#{id}");
            let first = opened.one(at(0), key, limit, tally).await;
            assert_eq!((first.allowed, first.owed), (owed == 0, owed), "{limit:?}");
            let again = opened.one(at(0), key, limit, tally).await;
            assert_eq!(again, Outcome { resolution: Resolution::Repeated, ..first }, "{limit:?}");
            assert_eq!(opened.one(at(0), bucket, limit, LOOK).await.owed, owed, "{limit:?}");
        }
    }
}

/// A reservation and an idempotent request may have the same name.
pub async fn batch_keeps_idempotent_requests_and_reservations_of_the_same_name_apart(opened: StoreFixture) {
    let charge = Action::Idempotent { ask: Ask::Charge { cost: 4 }, fingerprint: 1 };
    let refund = Action::Idempotent { ask: Ask::Refund { cost: 3 }, fingerprint: 1 };
    let steps = [
        ("once order#a", take_once(2, 1), allowed(8)),
        ("once order#a", reserve(3, LONG), allowed(5)),
        ("once order#a", take_once(2, 1), repeated(8)),
        ("once order#a", take_once(2, 2), different(5)),
        ("once order#b", charge, allowed(1)),
        ("once order#b", charge, repeated(1)),
        ("once order#c", refund, allowed(4)),
        ("once order#c", refund, repeated(4)),
        ("once order#a", commit(0), allowed(7)),
        ("once order", LOOK, allowed(7)),
    ];
    opened.follow_batch(limit(10, 1_000), &steps).await;
}

pub async fn repeated_group_takes_nothing_and_repeated_denial_stays_denied(opened: StoreFixture) {
    let (small, large) = (limit(3, 1_000), limit(100, 1_000));
    let (a, b, c) = ("{g}a#x", "{g}b#x", "{g}c#x");
    let once = take_once(2, 1);
    let denied_again = Answer { allowed: false, ..repeated(1) };
    opened.follow_group("both", &[(a, small, once, allowed(1)), (b, large, once, allowed(98))]).await;
    opened.follow_group("both", &[(a, small, once, repeated(1)), (b, large, once, repeated(98))]).await;
    // With another key, the group is denied: the small limit denies, and the other member is held back.
    let (other_a, other_b) = (("{g}a#y", small, once), ("{g}b#y", large, once));
    let with = |(key, limit, action), answer| (key, limit, action, answer);
    opened.follow_group("other", &[with(other_a, denied(1)), with(other_b, allowed(98))]).await;
    assert!(opened.one(at(0), "{g}a", small, FORGET).await.allowed);
    opened.one(at(0), "{g}b", large, TAKE).await;
    opened.follow_group("other", &[with(other_a, denied_again), with(other_b, repeated(98))]).await;
    // The group no longer contains the member that denied. The other one was never taken, so it is taken now.
    opened.follow_group("rest", &[with(other_b, allowed(95))]).await;
    opened.follow_group("rest", &[with(other_b, repeated(95))]).await;
    // Only the new member is taken. The other answers are repeated.
    let more = [(a, small, once, repeated(1)), (b, large, once, repeated(98)), (c, small, once, allowed(1))];
    opened.follow_group("more", &more).await;
    // Another request with the same key as one member changes none of them.
    let outcomes = opened.apply_groups(at(0), &[&[("{g}a#z", small, once), (b, large, take_once(3, 2))]]).await;
    assert_eq!((outcomes[1].resolution, outcomes[1].left), (Resolution::Different, 95));
    opened.follow_group("z", &[("{g}a#z", small, take_once(3, 3), allowed(0))]).await;
    assert_eq!(opened.one(at(0), "{g}b", large, LOOK).await.left, 95);
}

pub async fn denied_group_repeats_its_first_answer_after_a_charge(opened: StoreFixture) {
    let (short, long) = (limit(3, 1_000), limit(100, 100_000));
    let once = take_once(2, 1);
    let ask = async |name: &str| {
        let (of_short, of_long) = (format!("{{again}} short#{name}"), format!("{{again}} long#{name}"));
        opened.apply_groups(at(0), &[&[(&of_short, short, once), (&of_long, long, once)]]).await
    };
    assert!(ask("x").await.iter().all(|outcome| outcome.allowed));
    let refused = ask("y").await;
    assert_eq!(refused.iter().map(|outcome| outcome.allowed).collect::<Vec<_>>(), [false, true]);
    let charge = Action::Ask(Ask::Charge { cost: 500 });
    assert_eq!(opened.one(at(0), "{again} long", long, charge).await.left, 0);
    for _ in 0..2 {
        let again = refused.iter().map(|outcome| Outcome { resolution: Resolution::Repeated, ..*outcome });
        assert_eq!(ask("y").await, again.collect::<Vec<_>>());
    }
    opened.follow(long, &[(0, "{again} long", LOOK, denied(0).owing(402))]).await;
    opened.follow(short, &[(0, "{again} short", LOOK, allowed(1))]).await;
}

pub async fn concurrent_equal_idempotent_requests_are_taken_once(opened: StoreFixture) {
    let limit = limit(1_000, 10_000);
    let opened = Arc::new(opened);
    let client = |opened: Arc<StoreFixture>, _| async move {
        let mut first = 0;
        for name in 0..20 {
            let outcome = opened.one(at(0), &format!("same#{name}"), limit, take_once(1, 1)).await;
            first += u64::from(outcome.resolution == Resolution::Done);
        }
        first
    };
    let first = sum_of_clients(16, &opened, client).await;
    assert_eq!((first, opened.one(at(0), "same", limit, LOOK).await.left), (20, 980));
}
