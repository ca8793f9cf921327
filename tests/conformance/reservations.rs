//! Reservations and leases: made, committed, renewed, released, and over.
use super::buckets::await_next_credit;
use super::*;

/// The holder of an earlier run gets no later run's credits, and leaves it as it is.
pub async fn settlement_concerns_its_own_run_of_a_name(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 3) {
        let (bucket, all) = (&*format!("runs {place}"), limit.capacity());
        let key = &*format!("{bucket}#name");
        let reserve = reserve(2, LONG);
        let made = async || {
            let made = opened.one(at(0), key, limit, reserve).await;
            assert_eq!((made.resolution, made.run.is_some()), (Resolution::Done, true), "{limit:?}");
            made.run
        };
        let first = made().await;
        assert_eq!(opened.one(at(0), key, limit, reserve).await.run, first, "{limit:?}");
        opened.follow(limit, &[(0, key, reserve, repeated(all - 2)), (0, key, release_of(first), allowed(all))]).await;
        let second = made().await;
        assert_ne!(second, first, "{limit:?}");
        let steps = [
            (0, key, release_of(first), gone(all - 2)),
            (0, key, renew_of(first, Some(9)), gone(all - 2)),
            (0, key, commit_if_open(first, 1), gone(all - 2)),
            // Its credits are still set aside, and the late cost counts in addition.
            (0, key, renew_of(second, None), allowed(all - 2)),
            (0, key, commit_of(first, 1), late(all - 3)),
            (0, key, commit_of(second, 2), allowed(all - 3)),
            (0, key, commit_of(second, 2), repeated(all - 3)),
            // The answer is of another run.
            (0, key, commit_if_open(first, 1), gone(all - 3)),
            (0, bucket, LOOK, allowed(all - 3)),
        ];
        opened.follow(limit, &steps).await;
    }
    let key = "runs of a lease#name";
    let limit = leases(1, 60);
    let reserve = async || opened.one(at(0), key, limit, reserve(1, 60)).await.run;
    let first = reserve().await;
    opened.follow(limit, &[(0, key, commit_of(first, 0), allowed(1))]).await;
    let second = reserve().await;
    opened.follow(limit, &[(0, key, release_of(first), gone(0)), (0, key, release_of(second), allowed(1))]).await;
    reserve().await;
    // Whichever has the name.
    opened.follow(limit, &[(0, key, RELEASE, allowed(1))]).await;
}

/// A stack's rules have windows of different lengths. Once one of them is over, its reservation is.
pub async fn reservation_that_is_over_in_one_bucket_is_made_anew_in_all(opened: StoreFixture) {
    let lease = leases(1, 60);
    let large = tokens(19, 1, 6_000);
    let group = async |actions: [Action; 2]| {
        let members = [("{next} lease#a", lease, actions[0]), ("{next} large#a", large, actions[1])];
        let outcomes = opened.apply_groups(at(0), &[&members]).await;
        [&outcomes[0], &outcomes[1]].map(|outcome| (outcome.resolution, outcome.run))
    };
    let reserve = async || group([reserve(1, 60), reserve(4, 60)]).await;
    let commit = async |[lease, large]: [(Resolution, Option<Run>); 2]| {
        group([commit_of(lease.1, 0), commit_of(large.1, 3)]).await.map(|(resolution, _)| resolution)
    };
    let left = async || opened.one(at(0), "{next} large", large, LOOK).await.left;

    let first = reserve().await;
    assert_eq!(reserve().await, first.map(|(_, run)| (Resolution::Repeated, run)));
    opened.one(at(0), "{next} lease", lease, FORGET).await;
    let second = reserve().await;
    assert_eq!(second.map(|(resolution, _)| resolution), [Resolution::Done; 2]);
    assert!(first[0].1 != second[0].1 && first[1].1 != second[1].1, "{first:?} {second:?}");
    assert_eq!(left().await, 15, "the credits are set aside once");
    opened.follow(large, &[(0, "{next} large#a", release_of(first[1].1), gone(15))]).await;
    assert_eq!((commit(first).await, left().await), ([Resolution::Late; 2], 12));
    assert_eq!((commit(second).await, left().await), ([Resolution::Done; 2], 13));

    // The lease is free after its commit, and the other bucket still knows the commit.
    let third = reserve().await;
    assert_eq!((third.map(|(resolution, _)| resolution), left().await), ([Resolution::Done; 2], 9));
    assert_eq!((commit(third).await, left().await), ([Resolution::Done; 2], 10));
}

pub async fn reserved_credits_are_not_available_to_others(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets) {
        let (bucket, all) = (&*format!("reserved {place}"), limit.capacity());
        let (one, other) = (&*format!("{bucket}#one"), &*format!("{bucket}#other"));
        let made = opened.one(at(0), one, limit, reserve(all, LONG)).await;
        assert_eq!((made.allowed, made.before, made.left), (true, all, 0), "{limit:?}");
        for ask in [
            Ask::Take { cost: 1 },
            Ask::Look { cost: 1 },
            Ask::Overdraw { cost: 1 },
            Ask::Drain { cost: 1, strict: false },
            Ask::Replay { cost: 1, strict: true },
        ] {
            let outcome = opened.one(at(0), bucket, limit, Action::Ask(ask)).await;
            assert_eq!((outcome.allowed, outcome.before, outcome.left), (false, 0, 0), "{ask:?} of {limit:?}");
        }
        let steps = [
            (0, other, reserve(1, LONG), denied(0)),
            (0, bucket, Action::Ask(Ask::Charge { cost: 2 }), denied(0).owing(2)),
            (0, bucket, Action::Ask(Ask::Refund { cost: 9 }), allowed(0)),
        ];
        opened.follow(limit, &steps).await;
        let reported = opened.one(at(0), bucket, limit, LOOK).await;
        assert!(
            reported.retry_ns.is_some_and(|retry_ns| retry_ns > 0 && retry_ns == reported.reset_ns),
            "{limit:?}: {reported:?}"
        );
        let steps =
            [(0, one, RELEASE, allowed(all)), (0, bucket, take(all), allowed(0)), (0, bucket, FORGET, allowed(0))];
        opened.follow(limit, &steps).await;
    }
}

pub async fn commit_counts_usage_once_and_is_remembered(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2) {
        let all = limit.capacity();
        let [a, b, c] = ["a", "b", "c"].map(|id| format!("committed {place}#{id}"));
        let (a, b, c) = (&*a, &*b, &*c);
        let steps = [
            (0, a, reserve(2, 900), allowed(all - 2)),
            (0, a, reserve(2, 900), repeated(all - 2)),
            (0, a, reserve(1, 900), different(all - 2)),
            (0, a, reserve(2, 901), different(all - 2)),
            (0, a, commit(1), allowed(all - 1)),
            (0, b, reserve(1, 900), allowed(all - 2)),
            // The first answer is repeated.
            (0, a, commit(1), repeated(all - 1)),
            (0, a, RELEASE, gone(all - 2)),
            (0, a, renew(900), gone(all - 2)),
            (0, a, reserve(2, 900), repeated(all - 2)),
            // More than was reserved.
            (0, b, commit(all + 3), allowed(0).owing(4)),
            (0, c, commit_if_open(None, 1), gone(0).owing(4)),
            (0, c, commit(1), late(0).owing(5)),
            (0, c, commit(7), repeated(0).owing(5)),
            // It is over.
            (0, c, reserve(2, 7), repeated(0).owing(5)),
        ];
        opened.follow(limit, &steps).await;
    }
}

pub async fn batch_reserves_and_commits_in_order(opened: StoreFixture) {
    let steps = [
        ("order#a", reserve(4, LONG), allowed(5)),
        ("order", TAKE, allowed(4)),
        ("order#b", reserve(5, LONG), denied(4)),
        ("order#a", commit(2), allowed(6)),
        ("order#b", reserve(5, LONG), allowed(1)),
        ("order", FORGET, allowed(0)),
        ("order#b", RELEASE, gone(9)),
        ("order#a", commit(3), repeated(6)),
        ("order", TAKE, allowed(8)),
    ];
    opened.follow_batch(limit(9, 6000), &steps).await;
}

pub async fn reservation_from_before_a_reset_frees_nothing_after_it(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2) {
        let (bucket, all) = (&*format!("reset {place}"), limit.capacity());
        let [a, b, x, y] = ["a", "b", "x", "y"].map(|id| format!("{bucket}#{id}"));
        let steps = [
            (0, &*a, reserve(2, LONG), allowed(all - 2)),
            (0, bucket, FORGET, allowed(0)),
            (0, bucket, FORGET, denied(0)),
        ];
        opened.follow(limit, &steps).await;
        // A nanosecond later.
        for (key, action, resolution, left) in [
            (&b, reserve(all, LONG), Resolution::Done, 0),
            (&a, renew(LONG), Resolution::Gone, 0),
            (&a, RELEASE, Resolution::Gone, 0),
            (&a, commit(1), Resolution::Late, 0),
            (&b, commit(0), Resolution::Done, all - 1),
        ] {
            let outcome = opened.one(at(0).plus(1), key, limit, action).await;
            assert_eq!((outcome.resolution, outcome.left), (resolution, left), "{action:?} of {limit:?}");
        }
        // In one batch at the same time, with the name of an earlier reservation: this is a different reservation.
        let steps = [
            (bucket, FORGET, allowed(0)),
            (&x, reserve(1, LONG), allowed(all - 1)),
            (&y, reserve(1, LONG), allowed(all - 2)),
            (bucket, FORGET, allowed(0)),
            (&x, reserve(1, LONG), allowed(all - 1)),
            (&y, RELEASE, gone(all - 1)),
            (&x, reserve(1, LONG), repeated(all - 1)),
        ];
        opened.follow_batch(limit, &steps).await;
    }
}

pub async fn group_reserves_from_all_buckets_or_none(opened: StoreFixture) {
    let (small, large) = (limit(2, 6000), tokens(9, 1, 6_000));
    let group = async |id: &str, credits, taken, answers: &[Answer]| {
        let (of_small, of_large) = (format!("{{reserve}} small#{id}"), format!("{{reserve}} large#{id}"));
        let members = [
            (&*of_small, small, reserve(credits, LONG)),
            (&of_large, large, reserve(4, LONG)),
            ("{reserve} taken", large, take(taken)),
            ("{reserve} looked at", large, LOOK),
        ];
        let outcomes = opened.apply_groups(at(0), &[&members]).await;
        for (((key, limit, action), outcome), expected) in members.into_iter().zip(outcomes).zip(answers) {
            opened.assert_answer(limit, action, outcome, *expected, key);
        }
    };
    group("a", 1, 3, &[allowed(1), allowed(5), allowed(6), allowed(9)]).await;
    // No room, and a hit that is denied.
    group("b", 2, 3, &[denied(1), allowed(5), allowed(6), allowed(9)]).await;
    group("b", 1, 7, &[allowed(1), allowed(5), denied(6), allowed(9)]).await;
    group("a", 1, 0, &[repeated(1), repeated(5)]).await;
    // The other members have no answer.
    group("a", 2, 0, &[different(1), allowed(5)]).await;
    // A denied request leaves nothing behind.
    let steps = [(0, "{reserve} large#b", RELEASE, gone(5)), (0, "{reserve} large#a", RELEASE, allowed(9))];
    opened.follow(large, &steps).await;
}

/// This test needs a store that can pass time.
pub async fn reservation_ends_with_its_ttl_or_its_window(opened: StoreFixture) {
    let tokens = tokens(4, 1, 6_000);
    let one = async |seconds, key: &str, limit, action| opened.one(at(seconds), key, limit, action).await;
    assert_eq!(one(0, "ends#a", tokens, reserve(3, 5)).await.session, at(5));
    assert_eq!(one(0, "ends#b", tokens, reserve(1, 8)).await.session, at(8));
    let outcome = one(2, "ends", tokens, take(2)).await;
    assert_eq!((outcome.left, outcome.reset_ns, outcome.retry_ns), (0, 3 * SECOND, Some(3 * SECOND)));
    let outcome = one(2, "ends", tokens, take(4)).await;
    assert_eq!((outcome.reset_ns, outcome.retry_ns), (3 * SECOND, Some(6 * SECOND)));
    let longer = one(4, "ends#b", tokens, renew(9)).await;
    assert_eq!((longer.session, longer.resolution), (at(13), Resolution::Done));
    assert_eq!(one(4, "ends#b", tokens, renew(1)).await.session, at(13), "never shorter");
    assert!(one(5, "ends", tokens, take(3)).await.allowed);
    for (seconds, key, action, resolution) in [
        (5, "ends#a", RELEASE, Resolution::Gone),
        (5, "ends#a", commit(1), Resolution::Late),
        (14, "ends#b", renew(9), Resolution::Gone),
        // A minute later, the commit is forgotten.
        (64, "ends#a", commit(1), Resolution::Repeated),
        (65, "ends#a", commit(1), Resolution::Late),
    ] {
        assert_eq!(one(seconds, key, tokens, action).await.resolution, resolution, "{key} at {seconds}");
    }
    let window = limit(5, 60);
    assert_eq!(one(0, "window#a", window, reserve(2, 100)).await.session, at(60), "with the window that it begins");
    opened.follow(window, &[(50, "window", TAKE, allowed(2).reset(10))]).await;
    assert_eq!(one(50, "window#a", window, renew(50)).await.session, at(60));
    opened.follow(window, &[(60, "window", TAKE, allowed(4).reset(60))]).await;
}

/// Leases are held under any change of the limit, and still exist after the store is reopened.
pub async fn leases_are_held_until_they_are_freed_or_expire(opened: StoreFixture) {
    let three = leases(3, 5_000);
    let steps = [
        (0, "leases#a", reserve(1, 5_000), allowed(2)),
        (0, "leases#b", reserve(1, 5_000), allowed(1)),
        (0, "leases#c", reserve(1, 5_000), allowed(0)),
        (0, "leases#a", reserve(1, 9), repeated(0)),
        (0, "leases#a", reserve(2, 5_000), different(0)),
    ];
    opened.follow(three, &steps).await;
    let outcome = opened.one(at(0), "leases#d", three, reserve(1, 5_000)).await;
    assert!(!outcome.allowed && outcome.retry_ns.is_some(), "when the first one ends: {outcome:?}");
    opened.follow(leases(2, 60), &[(0, "leases", LOOK, denied(0).owing(1))]).await;
    opened.follow(leases(4, 60), &[(0, "leases", LOOK, allowed(1))]).await;
    opened.store.close().await.unwrap();
    let Some(opened) = opened.reopen() else { return };
    let steps = [
        (0, "leases", LOOK, denied(0)),
        (0, "leases#a", RELEASE, allowed(1)),
        (0, "leases#a", RELEASE, gone(1)),
        (0, "leases#b", commit(1_000), allowed(2)),
    ];
    opened.follow(three, &steps).await;
    let kept = opened.one(at(0), "leases#c", three, renew_of(None, None)).await;
    assert!(kept.session.since(at(0)) >= 5_000 * SECOND, "{kept:?}");
    opened.follow(three, &[(0, "leases#c", RELEASE, allowed(3)), (0, "leases", FORGET, denied(0))]).await;
}

/// Waits for windows that Redis ends.
pub async fn reservation_in_a_window_of_redis_ends_on_time(opened: StoreFixture) {
    let limit = limit(3, 6000);
    let begin = Instant::now();
    let reserved = opened.one(at(0), "ends#a", limit, reserve(3, 1)).await;
    let lasts_ns = reserved.session.since(at(0));
    assert!(reserved.allowed && (900_000_000..=2 * SECOND).contains(&lasts_ns), "{lasts_ns}");
    let outcome = opened.one(at(0), "ends", limit, TAKE).await;
    assert!(!outcome.allowed && outcome.retry_ns.is_some_and(|retry_ns| retry_ns <= 2 * SECOND), "{outcome:?}");
    assert_eq!(outcome.retry_ns, Some(outcome.reset_ns));
    assert_eq!(opened.one(at(0), "ends", limit, take(4)).await.retry_ns, None);
    let elapsed = await_next_credit(&opened, "ends", limit, begin).await;
    assert!(elapsed >= Duration::from_secs(1), "ended after {elapsed:?}");
    // In the same window.
    opened.follow(limit, &[(0, "ends", LOOK, allowed(2).reset(6000)), (0, "ends#a", RELEASE, gone(2))]).await;
}

pub async fn concurrent_reservations_never_exceed_the_limit(opened: StoreFixture) {
    const CREDITS: u64 = 40;
    let (opened, limit) = (Arc::new(opened), tokens(CREDITS, 1, 6_000));
    let client = |opened: Arc<StoreFixture>, client| async move {
        let mut used = 0;
        for turn in 0..20 {
            let key = format!("crowd#{client} {turn}");
            if opened.one(at(0), &key, limit, reserve(3, 60)).await.allowed {
                let action = if turn % 2 == 0 { commit(1) } else { RELEASE };
                let ended = opened.one(at(0), &key, limit, action).await;
                assert_eq!((ended.resolution, ended.owed), (Resolution::Done, 0));
                used += u64::from(turn % 2 == 0);
            }
        }
        used
    };
    let used = sum_of_clients(16, &opened, client).await;
    assert!((1..=CREDITS).contains(&used));
    assert_eq!(opened.one(at(0), "crowd", limit, LOOK).await.left, CREDITS - used);
}

/// Settles a reservation of buckets with all these limits. All of them must have the same resolution.
pub async fn settle(
    opened: &StoreFixture,
    limits: &[(String, Limit)],
    round: u64,
    id: &str,
    action: Action,
) -> Resolution {
    let resolutions = settle_each(opened, limits, round, id, action).await;
    assert!(resolutions.iter().all(|one| *one == resolutions[0]), "one decided about a part: {resolutions:?}");
    resolutions[0]
}

pub async fn settle_each(
    opened: &StoreFixture,
    limits: &[(String, Limit)],
    round: u64,
    id: &str,
    action: Action,
) -> Vec<Resolution> {
    let keys: Vec<_> = limits.iter().map(|(place, _)| format!("{{settled {round}}} {place}#{id}")).collect();
    let group: Vec<_> = keys.iter().zip(limits).map(|(key, (_, limit))| (key.as_str(), *limit, action)).collect();
    let outcomes = opened.apply_groups(at(0), &[&group]).await;
    outcomes.into_iter().map(|outcome| outcome.resolution).collect()
}

pub async fn reservation_of_several_buckets_is_settled_by_the_first_call(opened: StoreFixture) {
    let limits = reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2).collect::<Vec<_>>();
    let (opened, limits) = (Arc::new(opened), Arc::new(limits));
    for round in 0..5 {
        for id in ["a", "b"] {
            assert_eq!(settle(&opened, &limits, round, id, reserve(1, LONG)).await, Resolution::Done);
        }
        // Each client commits another cost, and releases the other reservation. The sum counts both kinds of winners.
        let client = |opened: Arc<StoreFixture>, client| {
            let limits = Arc::clone(&limits);
            async move {
                let committed = settle(&opened, &limits, round, "a", commit(client)).await;
                let released = settle(&opened, &limits, round, "b", RELEASE).await;
                assert!([Resolution::Done, Resolution::Repeated].contains(&committed), "{committed:?}");
                assert!([Resolution::Done, Resolution::Gone].contains(&released), "{released:?}");
                u64::from(committed == Resolution::Done) + 100 * u64::from(released == Resolution::Done)
            }
        };
        assert_eq!(sum_of_clients(8, &opened, client).await, 101, "one commit and one release");
        let mut used = Vec::new();
        for (place, limit) in limits.iter() {
            let reported = opened.one(at(0), &format!("{{settled {round}}} {place}"), *limit, LOOK).await;
            used.push(limit.capacity() - reported.left + reported.owed);
        }
        assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
    }
    // If a bucket was forgotten, its commit is late. The others are settled nevertheless.
    settle(&opened, &limits, 9, "a", reserve(1, LONG)).await;
    opened.one(at(0), "{settled 9} 0", limits[0].1, FORGET).await;
    let resolutions = settle_each(&opened, &limits, 9, "a", commit_if_open(None, 1)).await;
    let expected = (0..limits.len()).map(|place| if place == 0 { Resolution::Gone } else { Resolution::Done });
    assert_eq!(resolutions, expected.collect::<Vec<_>>());
}
