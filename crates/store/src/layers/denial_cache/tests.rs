use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::layers::{FailurePolicy, LayeredStore};
use crate::memory::MemoryStore;
use crate::testing::{LOOK, ScriptedStore, TAKE, at, batch, outcomes, outcomes_together, record, wait, window};
use divvy_core::algorithm::{Ask, ReservationAsk, TokenBucket};
use divvy_core::clock::{Clock, NANOS_PER_MILLI, NANOS_PER_SECOND};

fn cache(entries: usize) -> LayeredStore<ScriptedStore> {
    LayeredStore::new(ScriptedStore::default(), entries, FailurePolicy::Error, Clock::system())
}

/// Returns the outcomes of a batch, and how many of its actions the store was asked about.
fn ask(cache: &LayeredStore<ScriptedStore>, now: Timestamp, asks: &[(&str, Limit, Action)]) -> (Vec<Outcome>, u64) {
    let before = cache.inner().asked.load(Relaxed);
    let outcomes = outcomes(cache, now, asks).into_iter().map(Result::unwrap).collect();
    (outcomes, cache.inner().asked.load(Relaxed) - before)
}

/// Hits `key`, with two credits a minute. Returns `(allowed, left, seconds until the reset)`, and whether the store was
/// asked.
fn hit(cache: &LayeredStore<ScriptedStore>, seconds: u64, key: &str) -> ((bool, u64, u64), bool) {
    hit_of(cache, at(seconds), key, window(2, 60))
}

fn hit_of(cache: &LayeredStore<ScriptedStore>, now: Timestamp, key: &str, limit: Limit) -> ((bool, u64, u64), bool) {
    let (outcomes, asked) = ask(cache, now, &[(key, limit, TAKE)]);
    let outcome = outcomes[0];
    assert_eq!(outcome.source == OutcomeSource::Store, asked > 0);
    ((outcome.allowed, outcome.left, outcome.reset_ns / NANOS_PER_SECOND), asked > 0)
}

fn after_ms(millis: u64) -> Timestamp {
    at(0).plus(millis * NANOS_PER_MILLI)
}

#[test]
fn cache_denies_for_a_second_and_until_the_window_ends() {
    let cache = cache(10_000);
    let hit = |millis, key| hit_of(&cache, after_ms(millis), key, window(2, 60));
    assert_eq!(hit(0, "a"), ((true, 1, 60), true));
    assert_eq!(hit(1_000, "a"), ((true, 0, 59), true));
    assert_eq!(hit(1_999, "a"), ((false, 0, 58), false));
    assert_eq!(hit(1_999, "b"), ((true, 1, 60), true));
    assert_eq!(hit(2_000, "a"), ((false, 0, 58), true), "another server may have forgotten it");
    assert_eq!(hit(59_500, "a"), ((false, 0, 0), true));
    assert_eq!(hit(59_999, "a"), ((false, 0, 0), false));
    assert_eq!(hit(60_000, "a"), ((true, 1, 60), true));
    assert_eq!(cache.denials.answered.load(Relaxed), 2);
}

#[test]
fn hit_after_a_refund_asks_the_store_and_so_does_every_charge() {
    let cache = cache(10_000);
    let limit = window(2, 60);
    let ask_one = |one| {
        let (outcomes, asked) = ask(&cache, at(0), &[("a", limit, Action::Ask(one))]);
        ((outcomes[0].allowed, outcomes[0].left, outcomes[0].owed), asked > 0)
    };
    assert_eq!(ask_one(Ask::Overdraw { cost: 5 }), ((true, 0, 3), true));
    assert_eq!(ask_one(Ask::Overdraw { cost: 1 }), ((false, 0, 3), false), "the debt is known, too");
    assert_eq!(ask_one(Ask::Charge { cost: 2 }), ((false, 0, 5), true));
    assert_eq!(ask_one(Ask::Look { cost: 1 }), ((false, 0, 5), false));
    assert_eq!(ask_one(Ask::Tally { cost: 1 }), ((false, 0, 6), true), "it counts, though it is denied");
    assert_eq!(ask_one(Ask::Look { cost: 1 }), ((false, 0, 6), false));
    assert_eq!(ask_one(Ask::Show), ((true, 0, 6), true));
    assert_eq!(ask_one(Ask::Refund { cost: 7 }), ((true, 1, 0), true));
    assert_eq!(ask_one(Ask::Take { cost: 1 }), ((true, 0, 0), true));
    // The same happens within one batch.
    let both = ask(&cache, at(0), &[("a", limit, Action::Ask(Ask::Refund { cost: 1 })), ("a", limit, TAKE)]).0;
    assert!(both.into_iter().all(|outcome| outcome.allowed));
}

#[test]
fn store_answers_for_reservations_and_for_hits_after_they_free_credits() {
    let cache = cache(10_000);
    let (limit, key) = (window(2, 60), record("a", "it"));
    let about = |one| {
        let (outcomes, asked) = ask(&cache, at(0), &[(&key, limit, Action::Reservation(one))]);
        assert_eq!(asked, 1, "{one:?}: never from memory");
        (outcomes[0].allowed, outcomes[0].left)
    };
    let hit = || hit(&cache, 0, "a");
    let reserve = ReservationAsk::Reserve { credits: 2, ttl_seconds: 60 };
    assert_eq!(about(reserve), (true, 0));
    assert_eq!(hit(), ((false, 0, 60), true), "the cache learns nothing from a reservation");
    assert_eq!(hit(), ((false, 0, 60), false), "the cache learns from a hit");
    assert_eq!(about(reserve), (true, 0), "the same once more");
    assert_eq!(hit(), ((false, 0, 60), false));
    assert_eq!(about(ReservationAsk::Release { run: None }), (true, 2));
    assert_eq!(hit(), ((true, 1, 60), true));
    assert_eq!(about(ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 }), (true, 0));
    assert_eq!((hit().1, hit().1), (true, false));
    assert_eq!(about(ReservationAsk::Commit { cost: 0, charges: true, run: None }), (true, 1));
    // The same happens within one batch.
    let late = ReservationAsk::Commit { cost: 1, charges: true, run: None };
    let other = record("a", "other");
    let batch = [("a", limit, TAKE), (&*other, limit, Action::Reservation(late)), ("a", limit, TAKE)];
    assert_eq!(ask(&cache, at(0), &batch).0.iter().map(|outcome| outcome.owed).collect::<Vec<_>>(), [0, 1, 1]);
    // The store answers for a whole group that reserves, even if it is known to be denied.
    assert_eq!((hit().1, hit().1), (true, false));
    let before = cache.inner().asked.load(Relaxed);
    let of_b = record("b", "it");
    let group = [("a", limit, TAKE), (&*of_b, limit, Action::Reservation(reserve))];
    let told = outcomes_together(&cache, at(0), &group).into_iter().map(|o| o.unwrap().allowed).collect::<Vec<_>>();
    assert_eq!((told, cache.inner().asked.load(Relaxed) - before), (vec![false, true], 2));
}

#[test]
fn hit_after_a_group_that_frees_credits_asks_the_store() {
    let (cache, limit) = (cache(10_000), window(2, 60));
    let (of_a, of_b) = (record("a", "it"), record("b", "it"));
    let reserve = Action::Reservation(ReservationAsk::Reserve { credits: 2, ttl_seconds: 60 });
    let reserved = outcomes_together(&cache, at(0), &[(&of_a, limit, reserve), (&of_b, limit, reserve)]);
    assert!(reserved.into_iter().all(|outcome| outcome.unwrap().allowed));
    assert_eq!((hit(&cache, 0, "a").1, hit(&cache, 0, "a").1), (true, false));
    let release = Action::Reservation(ReservationAsk::Release { run: None });
    let mut batch = batch(at(0), &[(&of_a, limit, release), (&of_b, limit, release), ("a", limit, TAKE)]);
    batch.groups.push(0..2);
    wait(cache.apply(&mut batch));
    assert_eq!([0, 1, 2].map(|index| batch.outcome(index).map(|outcome| outcome.allowed).ok()), [Some(true); 3]);
}

#[test]
fn denial_does_not_answer_for_a_larger_limit() {
    let cache = cache(10_000);
    let (small, large) = (window(2, 60), window(3, 60).counting(window(2, 60).count_basis()));
    let hit = |limit| hit_of(&cache, at(0), "a", limit);
    hit(small);
    hit(small);
    assert_eq!(hit(small), ((false, 0, 60), false));
    assert_eq!(hit(large), ((true, 0, 60), true));
    assert_eq!(hit(large), ((false, 0, 60), false));
    assert_eq!(hit(small), ((false, 0, 60), false));
}

#[test]
fn known_denial_denies_a_group_whose_other_members_answer_like_unused_buckets() {
    let cache = cache(10_000);
    let (one, five) = (window(1, 60), window(5, 60));
    let hit = |millis, keys: [(&str, Limit, Action); 2]| {
        let before = cache.inner().asked.load(Relaxed);
        let outcomes = outcomes_together(&cache, after_ms(millis), &keys);
        let told: Vec<_> = outcomes.into_iter().map(|o| o.map(|o| (o.allowed, o.left)).unwrap()).collect();
        (told, cache.inner().asked.load(Relaxed) - before)
    };
    assert_eq!(hit(0, [("a", one, TAKE), ("b", five, TAKE)]), (vec![(true, 0), (true, 4)], 2));
    assert_eq!(hit(10, [("a", one, TAKE), ("b", five, TAKE)]), (vec![(false, 0), (true, 5)], 0));
    // The cache learned from the group about each bucket. The store gets all members of another group.
    assert_eq!(hit(20, [("c", one, TAKE), ("b", five, TAKE)]), (vec![(true, 0), (true, 3)], 2));
    let alone = outcomes(&cache, after_ms(30), &[("c", one, TAKE), ("b", five, TAKE)]);
    assert!(!alone[0].as_ref().unwrap().allowed && alone[1].as_ref().unwrap().left == 2);
    assert_eq!(cache.denials.answered.load(Relaxed), 3);
    assert_eq!(hit(60_000, [("a", one, TAKE), ("b", five, TAKE)]).1, 2, "its window is over");
}

#[test]
fn cache_of_size_0_asks_the_store_each_time() {
    let cache = cache(0);
    let answers: Vec<_> = (0..4).map(|_| hit(&cache, 0, "a")).collect();
    assert_eq!(answers[3], ((false, 0, 60), true));
    assert_eq!(cache.denials.answered.load(Relaxed), 0);
}

#[test]
fn answer_from_before_a_forget_is_not_remembered() {
    let cache = cache(10_000);
    let limit = window(1, 60);
    hit(&cache, 0, "a");
    hit(&cache, 0, "a");
    let returns_before = cache.denials.returns.load(Ordering::SeqCst);
    let mut late = batch(at(0), &[("a", window(2, 60), TAKE)]);
    wait(cache.inner().apply(&mut late));
    outcomes(&cache, at(1), &[("a", window(2, 60), Action::Forget), ("b", limit, LOOK)]);
    cache.denials.learn(&late, returns_before);
    assert_eq!(hit(&cache, 1, "a"), ((true, 1, 60), true));
}

#[test]
fn store_answers_for_other_algorithms_and_supplied_times() {
    let cache = cache(10_000);
    let bucket = Limit::TokenBucket(TokenBucket::new(1, 1, 60 * NANOS_PER_SECOND).unwrap());
    let mut batch = Batch::default();
    for _ in 0..3 {
        batch.begin(at(100));
        batch.push(bucket, TAKE, at(100), |out| out.push(b't'));
        batch.push(window(1, 60), TAKE, at(90), |out| out.push(b'w'));
        wait(cache.apply(&mut batch));
    }
    assert!(!batch.outcome(0).unwrap().allowed && !batch.outcome(1).unwrap().allowed);
    assert_eq!(cache.denials.answered.load(Relaxed), 0);
}

proptest! {
    /// The cache changes no outcome, for any sequence of asks and forgets.
    #[test]
    fn cache_changes_no_outcome(
        steps in prop::collection::vec((0..30u64, prop::collection::vec((0..3usize, 0..4u64, 0..10u8), 1..6)), 1..40),
        entries in prop::sample::select(vec![1usize, 100]),
    ) {
        let (cache, plain) = (cache(entries), MemoryStore::default());
        let mut millis = 0;
        for (pause, asks) in steps {
            millis += pause * 150;
            let batch: Vec<_> = asks.into_iter().map(|(key, cost, kind)| {
                let action = match kind {
                    0 => Action::Forget,
                    1 | 2 => Action::Ask(Ask::Look { cost }),
                    _ => Action::Ask(Ask::Take { cost }),
                };
                (["a", "b", "c"][key], window(3, 6), action)
            }).collect();
            let of = |outcomes: Vec<Result<Outcome, StoreError>>| {
                outcomes.into_iter().map(|outcome| Outcome { source: OutcomeSource::Store, ..outcome.unwrap() }).collect::<Vec<_>>()
            };
            prop_assert_eq!(of(outcomes(&cache, after_ms(millis), &batch)), of(outcomes(&plain, after_ms(millis), &batch)));
        }
    }
}

#[test]
fn denial_does_not_outlive_its_window_when_the_clock_is_set_back() {
    let cache = cache(10_000);
    hit(&cache, 3600, "a");
    hit(&cache, 3600, "a");
    assert_eq!(hit(&cache, 3600, "a"), ((false, 0, 60), false));
    let (_, was_asked) = hit(&cache, 0, "a");
    assert!(was_asked, "an hour earlier nothing is known");
}

fn until(seconds: u64) -> Denial {
    Denial { hash: [0; 2], until: at(seconds), learned: at(0), credits: 5, owed: 0 }
}

fn known(denials: &DenialCache, key: &[u8], seconds: u64) -> Option<Timestamp> {
    denials.used_up(key, at(seconds)).map(|known| known.until)
}

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

#[test]
fn table_stays_bounded_and_never_confuses_buckets() {
    let denials = DenialCache::new(100);
    for number in 0..10_000 {
        let (place, hash) = denials.place(&key(number)).unwrap();
        *place.lock() = Denial { hash, ..until(1_000 + number) };
    }
    let known: Vec<_> = (0..10_000).filter_map(|number| Some((number, known(&denials, &key(number), 1)?))).collect();
    assert_eq!(known.len(), 100);
    assert!(known.iter().all(|(number, until)| *until == at(1_000 + number)));
}
