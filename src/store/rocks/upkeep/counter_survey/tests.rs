//! The count of counters, compared with a model, through compactions, sweeps, forgetting and restarts.

use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;

use super::{Database, WAL_ALLOWANCE, is_disk_full};
use crate::algorithm::{Ask, Limit, TokenBucket};
use crate::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use crate::store::bounds::Bounds;
use crate::store::contract::{Action, Batch, Store};
use crate::store::key::{Space, write_client_key};
use crate::store::testing::wait;
use crate::store::{Durability, RocksOptions, RocksStore};

const HOUR: u64 = 3600 * NANOS_PER_SECOND;
const KEYS: u8 = 12;

/// Times of hits. By the clock of compactions and sweeps, a bucket with a window of an hour that was hit long ago has
/// expired.
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

fn sweep(store: &RocksStore) {
    while !store.core.engine.table.knows_records() {
        std::thread::yield_now();
    }
    // The thread does the same when little room is left.
    store.core.engine.write_back().unwrap();
    // While a compaction runs, the records that it drops are in doubt. RocksDB may begin one at any time.
    for _ in 0..100 {
        while store.core.engine.with_disk(|database| Ok(database.is_compacting())).unwrap() {
            std::thread::yield_now();
        }
        store.core.sweep(store.core.clock.now(), 0).unwrap();
        if exactly(store).is_some() {
            break;
        }
    }
}

/// Writes all counters back, including those that have expired since they were hit long ago. Commits all changes first,
/// because the journal would still contain the counters otherwise.
fn write_back_all(store: &RocksStore) {
    wait(store.check()).unwrap();
    store.core.engine.write_back_at(time(When::LongAgo)).unwrap();
}

/// Compacts the files without a write-back first, like RocksDB's automatic compactions.
fn compact_without_write_back(store: &RocksStore) {
    let compact = |database: &Database| {
        database.compact();
        Ok(())
    };
    store.core.engine.with_disk(compact).unwrap();
}

fn close(store: RocksStore) {
    wait(store.close()).unwrap();
}

fn exactly(store: &RocksStore) -> Option<u64> {
    let count = store.core.engine.admission.counters.count()?;
    (count.at_least == count.at_most).then_some(count.at_least)
}

#[test]
fn compaction_that_drops_expired_counters_lowers_the_count() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 90_000_000, 1_000);
    (0..100).for_each(|key| assert!(hit(&store, key, When::LongAgo).is_some()));
    (100..140).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
    assert_eq!(store.core.engine.admission.counters.at_least(), 140);
    write_back_all(&store);
    store.compact().unwrap();
    assert_eq!(store.expired_dropped(), 100);
    assert_eq!(store.core.engine.admission.counters.at_least(), 40);
    // These counters are still in the table, and begin anew.
    (0..100).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
    assert_eq!(store.core.engine.admission.counters.at_least(), 140);
    sweep(&store);
    assert_eq!(exactly(&store), Some(140));
    close(store);
}

#[test]
fn compaction_that_drops_an_old_record_of_a_live_counter_keeps_the_count() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 90_000_000, 1_000);
    (0..100).for_each(|key| assert!(hit(&store, key, When::LongAgo).is_some()));
    write_back_all(&store);
    // The later counters are only in the table while the compaction runs.
    (0..50).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
    (90..100).for_each(|key| assert_eq!(act(&store, key, Action::Forget, When::LongAgo), Some(true)));
    compact_without_write_back(&store);
    assert_eq!(store.core.engine.admission.counters.at_least(), 50, "40 dropped, 10 forgotten");
    sweep(&store);
    assert_eq!(exactly(&store), Some(50));
    close(store);
}

#[test]
fn sweep_forgets_expired_counters() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 90_000_000, 100);
    // The store's own thread sweeps as soon as room is short. It waits while there is no write-back.
    store.core.engine.without_write_backs(|| {
        (0..60).for_each(|key| assert!(hit(&store, key, When::LongAgo).is_some()));
        (60..100).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
        assert_eq!(hit(&store, 100, When::Now), None, "full");
    });
    write_back_all(&store);
    sweep(&store);
    assert_eq!(exactly(&store), Some(40));
    assert_eq!(store.core.engine.with_disk(|database| Ok(database.records().count())).unwrap(), 40);
    assert!(hit(&store, 100, When::Now).is_some());
    close(store);
}

/// The sweep never evicts records that are in the hot table.
#[test]
fn sweep_does_not_change_the_tables_bound() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1, 1_000_000);
    (0..20_000).for_each(|key| assert!(hit(&store, key, When::LongAgo).is_some()));
    write_back_all(&store);
    sweep(&store);
    assert_eq!(exactly(&store), Some(0));
    assert!(store.core.engine.table.usage().counters <= 20_000, "{:?}", store.core.engine.table.usage());
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
    (100..110).for_each(|key| {
        assert!(hit(&store, key, When::Now).is_some() || store.core.engine.admission.counters.is_counted())
    });
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !store.core.engine.admission.counters.is_counted() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert!(exactly(&store).is_some_and(|count| (30..=40).contains(&count)));
    assert_eq!(hit(&store, 200, When::Now), None);
    close(store);
}

/// Regression test: a counter that is written back may still have a change in the journal. Once it had expired, a
/// compaction that dropped its record let it return at the next start, uncounted.
#[test]
fn counters_restored_from_the_journal_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 90_000_000, 1_000);
    (0..100).for_each(|key| assert!(hit(&store, key, When::LongAgo).is_some()));
    store.core.engine.write_back_at(time(When::LongAgo)).unwrap();
    compact_without_write_back(&store);
    sweep(&store);
    assert_eq!(exactly(&store), Some(0));
    (200..240).for_each(|key| assert!(hit(&store, key, When::Now).is_some()));
    close(store);
    let store = open(dir.path(), 90_000_000, 1_000);
    store.core.engine.write_back().unwrap();
    let count = store.core.engine.admission.counters.count().unwrap();
    assert!((40..=140).contains(&count.at_most) && count.at_least <= 40, "{count:?}");
    sweep(&store);
    assert_eq!(exactly(&store), Some(40));
    close(store);
}

/// Ends the store's threads and drops the database without storing anything, as the end of the process would.
fn drop_without_closing(store: RocksStore) {
    *store.core.stopping.lock() = true;
    store.core.engine.admission.commits.close();
    store.core.stop.notify_all();
    let threads = std::mem::take(&mut *store.threads.lock());
    for thread in threads.writers.into_iter().chain(threads.bound) {
        thread.join().unwrap();
    }
}

#[test]
fn log_counts_beyond_its_allowance() {
    const MAX_DISK: u64 = 20_000_000;
    let documented = MAX_DISK + (192 << 20);
    assert!(!is_disk_full(MAX_DISK - 1, WAL_ALLOWANCE, MAX_DISK));
    assert!(is_disk_full(MAX_DISK, 0, MAX_DISK));
    // The whole flood is still in the log.
    assert!(is_disk_full(0, WAL_ALLOWANCE + MAX_DISK, MAX_DISK));
    assert!(
        WAL_ALLOWANCE + MAX_DISK + (60 << 20) < documented,
        "room for data that arrives before the measurement and the flush"
    );
    assert!(!is_disk_full(u64::MAX / 2, u64::MAX / 2, u64::MAX) && is_disk_full(u64::MAX, u64::MAX, u64::MAX));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Hit(u8, When),
    Forget(u8),
    WriteBack,
    WriteBackAll,
    Compact,
    Sweep,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..KEYS;
    let when = prop_oneof![Just(When::LongAgo), Just(When::Now)];
    let step = prop_oneof![
        10 => (key(), when).prop_map(|(key, when)| Step::Hit(key, when)),
        4 => key().prop_map(Step::Forget),
        2 => Just(Step::WriteBack),
        2 => Just(Step::WriteBackAll),
        1 => Just(Step::Compact),
        1 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The model does not know whether a compaction drops an expired record or leaves it, so such a counter may or may
    /// not exist. The existence of the others is certain.
    #[test]
    fn count_is_never_too_high_nor_too_low(steps in steps(), memory in prop_oneof![Just(0usize), Just(10_000_000)]) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path(), memory, 1_000_000);
        // The last change of each counter, by its time.
        let mut model = HashMap::new();
        for step in steps {
            match step {
                Step::Hit(key, when) => {
                    // A bucket that was drained now is not drained again at an earlier time.
                    let when = if model.get(&key) == Some(&When::Now) { When::Now } else { when };
                    prop_assert!(hit(&store, key.into(), when).is_some());
                    model.insert(key, when);
                }
                Step::Forget(key) => {
                    if act(&store, key.into(), Action::Forget, When::LongAgo) == Some(true) {
                        prop_assert!(model.remove(&key).is_some());
                    }
                }
                Step::WriteBackAll => write_back_all(&store),
                Step::WriteBack => store.core.engine.write_back().unwrap(),
                Step::Compact => store.compact().unwrap(),
                Step::Sweep => {
                    sweep(&store);
                    model.retain(|_, when| *when == When::Now);
                }
                Step::Reopen => {
                    close(store);
                    store = open(dir.path(), memory, 1_000_000);
                }
            }
            let count = store.core.engine.admission.counters.count();
            prop_assert!(count.is_some(), "a clean stop stores the count");
            let count = count.unwrap();
            let live = model.values().filter(|when| **when == When::Now).count() as u64;
            prop_assert!(count.at_least <= model.len() as u64 && live <= count.at_most, "{:?} {:?}", count, model);
        }
        sweep(&store);
        let live = model.values().filter(|when| **when == When::Now).count() as u64;
        prop_assert_eq!(store.core.engine.admission.counters.at_least(), live);
        close(store);
    }
}
