//! Windows, costs and debt, one after the other, in batches and in groups, and by clients at the same time.
use super::*;

pub async fn credits_decrease_by_one_and_return_with_the_next_window(opened: StoreFixture) {
    let steps = [
        (0, "credits", TAKE, allowed(1).reset(60)),
        (10, "credits", TAKE, allowed(0).reset(50)),
        (59, "credits", TAKE, denied(0).reset(1)),
        // A fresh window starts with its first hit.
        (60, "credits", TAKE, allowed(1).reset(60)),
    ];
    opened.follow(limit(2, 60), &steps).await;
}

/// Takes a credit of a window in Redis that has none left, as soon as the next one begins. Returns how long that took.
pub async fn await_next_credit(opened: &StoreFixture, key: &str, limit: Limit, begin: Instant) -> Duration {
    while !opened.one(at(0), key, limit, TAKE).await.allowed {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    begin.elapsed()
}

pub async fn window_in_redis_ends_on_time_and_the_next_hit_begins_a_new_one(opened: StoreFixture) {
    const WINDOW: Duration = Duration::from_millis(250);
    let limit = Limit::FixedWindow(FixedWindow::new(1, WINDOW.as_nanos() as u64).unwrap());
    let begin = Instant::now();
    opened.follow(limit, &[(0, "short", TAKE, allowed(0))]).await;
    let elapsed = await_next_credit(&opened, "short", limit, begin).await;
    assert!(elapsed >= WINDOW, "ended after {elapsed:?}");
}

pub async fn actions_on_a_bucket_in_one_batch_see_each_other(opened: StoreFixture) {
    let steps = [
        ("one", TAKE, allowed(2)),
        ("other", TAKE, allowed(2)),
        ("one", TAKE, allowed(1)),
        ("one", TAKE, allowed(0)),
        ("other", TAKE, allowed(1)),
        ("one", TAKE, denied(0)),
    ];
    opened.follow_batch(limit(3, 60), &steps).await;
}

pub async fn peek_takes_nothing(opened: StoreFixture) {
    let steps = [
        (0, "looking", LOOK, allowed(2).reset(0)),
        (0, "looking", TAKE, allowed(1)),
        (5, "looking", LOOK, allowed(1).reset(55)),
        (5, "looking", LOOK, allowed(1).reset(55)),
        (5, "looking", TAKE, allowed(0)),
        (5, "looking", LOOK, denied(0).reset(55)),
    ];
    opened.follow(limit(2, 60), &steps).await;
}

pub async fn forgotten_bucket_starts_anew(opened: StoreFixture) {
    // Its window is over, if time can be passed.
    let at_last = if opened.later(60) > 0 { denied(0) } else { allowed(0) };
    let steps = [
        (0, "forgotten", FORGET, denied(0)),
        (0, "forgotten", TAKE, allowed(1)),
        (1, "forgotten", FORGET, allowed(0)),
        (1, "forgotten", FORGET, denied(0)),
        (2, "forgotten", TAKE, allowed(1).reset(60)),
        (62, "forgotten", FORGET, at_last),
    ];
    opened.follow(limit(2, 60), &steps).await;
}

pub async fn cost_is_taken_completely_or_not_at_all(opened: StoreFixture) {
    let steps = [
        (0, "cost", take(7), allowed(3).reset(60)),
        (0, "cost", take(4), denied(3).reset(60)),
        (0, "cost", take(3), allowed(0).reset(60)),
        (0, "cost", take(0), allowed(0).reset(60)),
    ];
    opened.follow(limit(10, 60), &steps).await;
}

pub async fn debt_makes_the_balance_negative_and_is_refunded(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets) {
        let (all, key) = (limit.capacity(), &*format!("debt {place}"));
        let steps = [
            // Nothing was taken.
            (0, key, Action::Ask(Ask::Refund { cost: 1 }), allowed(all)),
            (0, key, Action::Ask(Ask::Overdraw { cost: all + 3 }), allowed(0).owing(3)),
            (0, key, Action::Ask(Ask::Overdraw { cost: 1 }), denied(0).owing(3)),
            (0, key, Action::Ask(Ask::Charge { cost: 4 }), denied(0).owing(7)),
            // A tally counts, even if it is denied. It is allowed up to the limit, at which one of 0 is, too.
            (0, key, Action::Ask(Ask::Tally { cost: 2 }), denied(0).owing(9)),
            (0, key, Action::Ask(Ask::Tally { cost: 0 }), denied(0).owing(9)),
            (0, key, Action::Ask(Ask::Refund { cost: 10 }), allowed(1)),
            (0, key, Action::Ask(Ask::Tally { cost: 1 }), allowed(0)),
            (0, key, Action::Ask(Ask::Tally { cost: 0 }), allowed(0)),
        ];
        opened.follow(limit, &steps).await;
        let charged = opened.one(at(0), key, limit, Action::Ask(Ask::Charge { cost: u64::MAX })).await;
        assert_eq!(charged.left, 0, "{limit:?}");
        assert!(opened.one(at(0), key, limit, LOOK).await.owed >= 1 << 52, "{limit:?}");
        let refund = Action::Ask(Ask::Refund { cost: u64::MAX });
        // It is then like a fresh one.
        opened.follow(limit, &[(0, key, refund, allowed(all)), (0, key, FORGET, denied(0))]).await;
    }
}

/// Takes a share of at most `extra` credits, and half of what is left. Returns its credits, its length and its end.
async fn share(opened: &StoreFixture, key: &str, limit: Limit, extra: u32) -> (u64, Option<u64>, Timestamp) {
    let share = Action::Ask(Ask::Share { cost: 0, extra, parts: 2 });
    let outcome = opened.one(at(0), key, limit, share).await;
    assert!(outcome.allowed, "{limit:?}");
    (outcome.before - outcome.left, outcome.retry_ns, outcome.session)
}

pub async fn share_of_a_window_is_taken_ahead_and_returned_once(opened: StoreFixture) {
    for (place, limit) in [limit(100, 600), calendar(100, Unit::Year, "UTC", "00:00")].into_iter().enumerate() {
        let (limit, key) = (dated(limit, at(0)), &*format!("share {place}"));
        let give_back = |credits, until| Action::Ask(Ask::Return { credits, until });
        opened.follow(limit, &[(0, key, take(20), allowed(80))]).await;
        let (credits, life_ns, ends) = share(&opened, key, limit, 50).await;
        assert!(credits == 40 && life_ns.is_some_and(|life_ns| life_ns > 500 * SECOND), "{limit:?}: {life_ns:?}");
        let steps = [
            (0, key, give_back(15, ends), allowed(55)),
            // It belongs to another window, before or after this one.
            (0, key, give_back(15, ends.plus(600 * SECOND)), allowed(55)),
            (0, key, give_back(15, ends.minus(600 * SECOND)), allowed(55)),
            (0, key, give_back(9, ends), allowed(64)),
            (0, key, give_back(1_000, ends), allowed(100)),
            // The bucket is like a fresh one, which has no window to give back to.
            (0, key, give_back(1, ends), allowed(100)),
            (0, key, take(90), allowed(10)),
        ];
        opened.follow(limit, &steps).await;
        assert_eq!(share(&opened, key, limit, 9).await.0, 5);
        opened.follow(limit, &[(0, key, take(5), allowed(0))]).await;
        assert_eq!(share(&opened, key, limit, 9).await, (0, None, Timestamp::EPOCH));
        if opened.buckets == Buckets::ByPassedTime && place == 0 {
            let next = [(600, key, take(30), allowed(70)), (601, key, give_back(5, ends), allowed(70))];
            opened.follow(limit, &next).await;
        }
    }
}

pub async fn share_of_a_bucket_lasts_until_it_could_be_full(opened: StoreFixture) {
    for (place, limit) in
        [tokens(100, 1, 1), Limit::new(Kind::LeakyBucket, 100, 1, SECOND).unwrap()].into_iter().enumerate()
    {
        let key = &*format!("share of a bucket {place}");
        assert_eq!(share(&opened, key, limit, 50).await.0, 0, "a full one gives none");
        opened.follow(limit, &[(0, key, take(40), allowed(60))]).await;
        let (credits, life_ns, ends) = share(&opened, key, limit, 50).await;
        assert_eq!((credits, life_ns), (30, Some(40 * SECOND)), "{limit:?}");
        if opened.buckets == Buckets::ByPassedTime {
            assert_eq!(ends, at(40), "{limit:?}");
            let give_back = |credits| Action::Ask(Ask::Return { credits, until: ends });
            let steps = [
                // It takes nothing back: it could be full before other shares end.
                (10, key, give_back(10), allowed(40)),
                (40, key, give_back(1), allowed(70)),
            ];
            opened.follow(limit, &steps).await;
        }
    }
    for kind in [Kind::SlidingWindow, Kind::SlidingLog] {
        let (limit, key) = (Limit::new(kind, 100, 100, 60 * SECOND).unwrap(), &*format!("share {kind:?}"));
        opened.follow(limit, &[(0, key, take(40), allowed(60))]).await;
        assert_eq!(share(&opened, key, limit, 50).await.0, 0, "{kind:?}");
    }
}

/// Reserved credits stay apart, and a window with reservations has shares as before.
pub async fn share_leaves_reserved_credits_alone(opened: StoreFixture) {
    let (limit, key) = (limit(100, 600), "share next to a reservation");
    let reserve = Action::Reservation(ReservationAsk::Reserve { credits: 60, ttl_seconds: 60 });
    let once = |credits, until| Action::Idempotent { ask: Ask::Return { credits, until }, fingerprint: 1 };
    opened.follow(limit, &[(0, "share next to a reservation#r", reserve, allowed(40))]).await;
    let (credits, _, ends) = share(&opened, key, limit, 50).await;
    assert_eq!(credits, 20);
    let steps = [
        (0, key, take(21), denied(20)),
        (0, "share next to a reservation#o", once(15, ends), allowed(35)),
        (0, "share next to a reservation#o", once(15, ends), repeated(35)),
        (0, key, take(35), allowed(0)),
    ];
    opened.follow(limit, &steps).await;
}

/// A rule's counter whose actor has limits of its own, which end.
pub async fn usage_under_another_limit_is_no_debt(opened: StoreFixture) {
    if opened.buckets != Buckets::ByPassedTime {
        return;
    }
    for kind in [Kind::TokenBucket, Kind::LeakyBucket] {
        let limits = [1, 5, 1_000].map(|credits| Limit::new(kind, credits, credits, 60 * SECOND).unwrap());
        let of = |place: usize| if place == 0 { limits[0] } else { limits[place].in_place_of(&limits[0]) };
        let (key, mut model) = (format!("own limit {kind:?}"), Model::default());
        let charge = |cost| Action::Ask(Ask::Charge { cost });
        for (seconds, place, action) in [
            (0, 2, charge(900)),
            (1, 0, TAKE),
            (2, 1, TAKE),
            (9, 0, charge(3)),
            (10, 2, TAKE),
            (11, 0, charge(0)),
            (11, 2, charge(1_500)),
            (12, 1, TAKE),
            (13, 0, charge(2)),
            (90, 1, charge(1)),
            (200, 0, TAKE),
            (9_000, 0, TAKE),
            (9_001, 0, charge(700)),
            (9_002, 1, Action::Ask(Ask::Refund { cost: 600 })),
            (9_003, 0, TAKE),
        ] {
            let now = at(opened.later(seconds));
            let outcome = opened.one(now, &key, of(place), action).await;
            assert_eq!(outcome, expected(&mut model, key.clone(), of(place), action, now), "{kind:?} at {seconds}");
        }
        // Credits that were set aside under the larger limit are no debt either, unless more was used.
        for (name, cost, owed) in [("a", 1_000, 0), ("b", 1_200, 200)] {
            let (key, now) = (format!("reserved {kind:?} {name}#{name}"), at(opened.later(9_100)));
            let made = opened.one(now, &key, of(2), reserve(1_000, 60)).await;
            let settled = opened.one(now, &key, of(0), commit_of(made.run, cost)).await;
            assert_eq!((settled.left, settled.owed, settled.resolution), (0, owed, Resolution::Done), "{kind:?}");
        }
    }
}

/// Runs this many clients at the same time, each with its number. Returns the sum of their results.
pub async fn sum_of_clients<F: Future<Output = u64> + Send + 'static>(
    clients: u64,
    opened: &Arc<StoreFixture>,
    client: impl Fn(Arc<StoreFixture>, u64) -> F,
) -> u64 {
    let clients: Vec<_> = (0..clients).map(|number| tokio::spawn(client(Arc::clone(opened), number))).collect();
    let mut sum = 0;
    for client in clients {
        sum += client.await.unwrap();
    }
    sum
}

pub async fn concurrent_hits_share_the_credits_exactly(opened: StoreFixture) {
    const CREDITS: u64 = 1000;
    let client = |opened: Arc<StoreFixture>, _| async move {
        let mut allowed = 0;
        for _ in 0..100 {
            allowed += u64::from(opened.one(at(0), "concurrent", limit(CREDITS, 60), TAKE).await.allowed);
        }
        allowed
    };
    assert_eq!(sum_of_clients(16, &Arc::new(opened), client).await, CREDITS);
}

pub async fn concurrent_groups_take_from_all_buckets_or_none(opened: StoreFixture) {
    let (of_all, of_one) = (limit(500, 6_000), tokens(40, 1, 6_000));
    let opened = Arc::new(opened);
    let client = |opened: Arc<StoreFixture>, client| async move {
        let (of_this, mut allowed) = (format!("{{together}} {client}"), 0);
        for _ in 0..60 {
            // The entries may have either order, because the store locks them in a fixed one.
            let mut group = [("{together} all", of_all, TAKE), (of_this.as_str(), of_one, TAKE)];
            group.rotate_left(client as usize % 2);
            let outcomes = opened.apply_groups(at(0), &[&group]).await;
            allowed += u64::from(outcomes.iter().all(|outcome| outcome.allowed));
        }
        // A denied group takes from no counter.
        assert_eq!(opened.one(at(0), &of_this, of_one, LOOK).await.left, 40 - allowed);
        allowed
    };
    assert_eq!(sum_of_clients(16, &opened, client).await, 500);
    assert_eq!(opened.one(at(0), "{together} all", of_all, LOOK).await.left, 0);
}

pub async fn closing_keeps_usage(opened: StoreFixture) {
    let mut limits = limits(opened.buckets);
    // Only reservations take leases.
    limits.retain(|limit| limit.kind() != Kind::Concurrency);
    let keys: Vec<_> = (0..limits.len()).map(|place| format!("closing {place}")).collect();
    let mut model = Model::default();
    let mut take_from_all = async |opened: &StoreFixture, seconds, action| {
        let now = at(opened.later(seconds));
        let asked: Vec<_> = keys.iter().zip(&limits).map(|(key, limit)| (key.as_str(), *limit, action)).collect();
        let outcomes = opened.apply(now, &asked).await;
        for ((key, limit, action), outcome) in asked.into_iter().zip(outcomes) {
            assert_eq!(outcome, expected(&mut model, key.to_owned(), limit, action, now), "{limit:?}");
        }
        assert_eq!(model.buckets.len(), limits.len(), "every limit has a state");
    };
    for (seconds, action) in [(0, TAKE), (4, TAKE), (4, Action::Ask(Ask::Drain { cost: 2, strict: true }))] {
        take_from_all(&opened, seconds, action).await;
    }
    opened.store.close().await.unwrap();
    let Some(reopened) = opened.reopen() else { return };
    for seconds in [8, 12, 30] {
        take_from_all(&reopened, seconds, TAKE).await;
    }
}

/// Each step has another limit. The first ones are one batch, the others a batch each.
pub async fn counter_stays_within_its_bounds_and_expires(opened: StoreFixture) {
    let usual = Counter::default();
    let expires = |expiry| Counter { expiry, ..usual };
    let after = |seconds| expires(Expiry::After(seconds * SECOND));
    let saturates = Counter { saturates: true, ..usual };
    let once = |limit| Counter { keeps_expiry: true, ..limit };
    // The seconds, the limit, the increment, and its answer: the value, and the increment that was applied.
    let steps: &[(u64, Counter, i64, i64, i64)] = &[
        (0, usual, 5, 5, 5),
        (0, Counter { upper: 6, ..usual }, 2, 5, 0),
        (0, Counter { upper: 6, ..saturates }, 2, 6, 1),
        (0, Counter { lower: -3, ..usual }, -10, 6, 0),
        (0, Counter { lower: -3, ..saturates }, -10, -3, -9),
        (0, usual, i64::MIN, -3, 0),
        (0, saturates, i64::MIN, i64::MIN, i64::MIN + 3),
        (0, usual, i64::MAX, -1, i64::MAX),
        (0, usual, 1, 0, 1),
        (0, after(60), 1, 1, 1),
        (50, once(after(60)), 1, 2, 1),
        (59, usual, 1, 3, 1),
        (60, usual, 1, 1, 1),
        (100_000, after(60), 1, 2, 1),
        (100_050, after(60), 1, 3, 1),
        (100_109, expires(Expiry::At(Timestamp::MAX)), 1, 4, 1),
        (200_000, expires(Expiry::At(at(200_005))), 1, 5, 1),
        (200_004, once(expires(Expiry::At(at(7)))), 1, 6, 1),
        (200_004, Counter { upper: 6, ..after(900) }, 1, 6, 0),
        (200_005, once(after(60)), 1, 1, 1),
        (200_010, expires(Expiry::At(at(7))), 1, 2, 1),
        (200_010, usual, 1, 1, 1),
        (200_020, usual, 1, 2, 1),
    ];
    let (together, alone) = steps.split_at(10);
    let batches = std::iter::once(together).chain(alone.chunks(1));
    for (number, batch) in batches.enumerate() {
        let asked: Vec<_> = batch
            .iter()
            .map(|(_, limit, by, ..)| ("{counter}", Limit::Counter(*limit), Action::Ask(Ask::Add { by: *by })))
            .collect();
        let outcomes = opened.apply(at(batch[0].0), &asked).await;
        let found: Vec<_> = outcomes
            .iter()
            .map(|outcome| (outcome.left.cast_signed(), outcome.left.wrapping_sub(outcome.before).cast_signed()))
            .collect();
        assert_eq!(
            found,
            batch.iter().map(|(.., value, applied)| (*value, *applied)).collect::<Vec<_>>(),
            "batch {number}"
        );
    }
}
