//! The bounds of an open store: surveys and restarts find the counters that exist, and expired ones make room.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::RocksStore;
use crate::disk::database::{COUNTERS, Database};
use divvy_core::algorithm::{Ask, Limit, TokenBucket};
use divvy_core::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy_store::key::{Space, write_client_key};
use divvy_store::testing::wait;
use divvy_store::{Action, Batch, Bounds, Durability, Outage, RocksOptions, Store};

const HOUR: u64 = 3600 * NANOS_PER_SECOND;

/// Times of hits. By the clock of compactions, a bucket with a window of an hour that was hit long ago has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    LongAgo,
    Now,
}

fn open(path: &Path, cache_memory: usize, max_counters: u64) -> RocksStore {
    let bounds = Bounds { max_counters, ..Bounds::default() };
    // The store makes no commits of its own, because the test does not synchronize with them.
    let options = RocksOptions { cache_memory, bounds, durability: Durability::Lazy, ..RocksOptions::default() };
    RocksStore::open(path, options).unwrap()
}

fn time(when: When) -> Timestamp {
    let now = Clock::system().now();
    match when {
        When::LongAgo => Timestamp::from_nanos(now.as_nanos() - 3 * HOUR),
        When::Now => now,
    }
}

/// Returns the answer to the action, if there is one.
fn act(store: &RocksStore, key: u32, action: Action, when: When) -> Option<bool> {
    let limit = Limit::TokenBucket(TokenBucket::new(1_000_000_000, 1_000_000_000, HOUR).unwrap());
    let mut batch = Batch::default();
    batch.begin(time(when));
    batch.push(limit, action, time(when), |out| {
        write_client_key(Space::TokenBucket, &limit, format!("key-{key}").as_bytes(), out);
    });
    wait(store.apply(&mut batch));
    batch.outcome(0).map(|outcome| outcome.allowed).ok()
}

fn hit(store: &RocksStore, key: u32, when: When) -> Option<bool> {
    act(store, key, Action::Ask(Ask::Drain { cost: 1_000, strict: false }), when)
}

/// Regression test: while write-backs were behind, a stop waited for all of them.
#[test]
fn store_that_is_being_closed_leaves_write_backs_to_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let options = RocksOptions { max_journal: 1 << 20, durability: Durability::Lazy, ..RocksOptions::default() };
    let store = RocksStore::open(dir.path(), options).unwrap();
    *store.core.stopping.lock() = true;
    store.core.stop.notify_all();
    store.threads.lock().drain(..).for_each(|thread| thread.join().unwrap());
    for key in 0..40_000 {
        hit(&store, key, When::Now);
        if key % 500 == 0 {
            wait(store.check()).unwrap();
        }
    }
    store.core.write_back_while_due(&mut Outage::of("write-backs", "counters stay in the journal"));
    assert!(store.core.engine.write_back_if_due().unwrap(), "one was due");
}

/// Writes all counters back, including those that have expired since they were hit long ago. Commits all changes first,
/// because the journal would still contain the counters otherwise.
fn write_back_all(store: &RocksStore) {
    wait(store.check()).unwrap();
    store.core.engine.write_back_at(time(When::LongAgo)).unwrap();
}

fn until(is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_true() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Counts the counters, as the store does after a start.
fn count(store: &RocksStore) -> u64 {
    until(|| store.core.engine.table.knows_records());
    store.core.survey().unwrap();
    store.core.engine.table.counters.count()
}

fn close(store: RocksStore) {
    wait(store.close()).unwrap();
}

/// Ends the store's threads and drops the database without storing anything, as the end of the process would.
fn drop_without_closing(store: RocksStore) {
    *store.core.stopping.lock() = true;
    store.core.engine.table.commits.close();
    store.core.stop.notify_all();
    store.threads.lock().drain(..).for_each(|thread| thread.join().unwrap());
}

#[test]
fn expired_counters_make_room_in_a_full_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 90_000_000, 100);
    // The store's own thread reclaims counters as soon as room is short. It waits while there is no write-back.
    store.core.engine.without_write_backs(|| {
        (0..60).for_each(|key| assert!(hit(&store, key, When::LongAgo).is_some()));
        (60..100).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
        assert_eq!(hit(&store, 100, When::Now), None, "full");
    });
    write_back_all(&store);
    until(|| hit(&store, 100, When::Now).is_some());
    assert!(count(&store) <= 45);
    // Those in the table have no record anymore. They begin anew, and fill the store again.
    (0..55).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
    assert!((200..210).any(|key| hit(&store, key, When::Now).is_none()));
    close(store);
}

#[test]
fn killed_store_is_counted_in_the_background_without_refusing_hits() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 90_000_000, 1_000);
    (0..30).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
    store.core.engine.write_back().unwrap();
    drop_without_closing(store);
    let store = open(dir.path(), 90_000_000, 20);
    let counters = &store.core.engine.table.counters;
    (100..110).for_each(|key| assert!(hit(&store, key, When::Now).is_some() || counters.is_counted()));
    until(|| counters.is_counted());
    assert!((30..=40).contains(&counters.count()), "{}", counters.count());
    assert_eq!(hit(&store, 200, When::Now), None);
    close(store);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Hit(u8, When),
    Forget(u8),
    WriteBackAll,
    Compact,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..12u8;
    let when = prop_oneof![Just(When::LongAgo), Just(When::Now)];
    let step = prop_oneof![
        10 => (key(), when).prop_map(|(key, when)| Step::Hit(key, when)),
        4 => key().prop_map(Step::Forget),
        2 => Just(Step::WriteBackAll),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The model is the set of live counters. Expired ones may or may not count.
    #[test]
    fn count_includes_all_live_counters(steps in steps(), memory in prop_oneof![Just(0usize), Just(10_000_000)]) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path(), memory, 1_000_000);
        let mut live = HashSet::new();
        let mut expired = HashSet::new();
        // Their records were dropped by a compaction. A counter that is used again is not counted until it is written.
        let mut dropped = HashSet::new();
        for step in steps {
            match step {
                Step::Hit(key, when) => {
                    // A bucket that was drained now is not drained again at an earlier time.
                    let when = if live.contains(&key) { When::Now } else { when };
                    prop_assert!(hit(&store, key.into(), when).is_some());
                    if when == When::Now {
                        live.insert(key);
                        expired.remove(&key);
                    } else {
                        expired.insert(key);
                    }
                }
                Step::Forget(key) => {
                    let forgotten = act(&store, key.into(), Action::Forget, When::LongAgo);
                    prop_assert!(!live.remove(&key) || forgotten == Some(true));
                }
                Step::WriteBackAll => {
                    write_back_all(&store);
                    dropped.clear();
                }
                Step::Compact => {
                    store.core.engine.write_back().unwrap();
                    let compact = |database: &Database| {
                        database.compact(&[COUNTERS]);
                        Ok(())
                    };
                    store.core.engine.with_disk(compact).unwrap();
                    dropped.extend(&expired);
                }
                Step::Reopen => {
                    close(store);
                    dropped.clear();
                    store = open(dir.path(), memory, 1_000_000);
                    count(&store);
                }
            }
            let count = store.core.engine.table.counters.count();
            let counted = live.difference(&dropped).count();
            prop_assert!(count >= counted as u64, "{} of {:?} without {:?}", count, live, dropped);
        }
        // A counter in the table whose record was dropped, and that was hit since, counts once it has a record again.
        store.core.engine.write_back().unwrap();
        let count = count(&store);
        prop_assert!((live.len() as u64..=12).contains(&count), "{} of {:?}", count, live);
        close(store);
    }
}
