//! Reservations on disk survive kills and write-backs.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::RocksStore;
use crate::hot_table::HotTable;
use divvy_core::algorithm::record::{Content, Record, Reservation};
use divvy_core::algorithm::{Ask, Limit, Outcome, ReservationAsk, Resolution};
use divvy_core::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy_store::key::{Prefix, Space};
use divvy_store::testing::{at, wait, window};
use divvy_store::{Action, Batch, Bounds, RocksOptions, Store, StoreError, WhenFull};

const TEN: ReservationAsk = ReservationAsk::Reserve { credits: 10, ttl_seconds: 60 };
const COMMIT: ReservationAsk = ReservationAsk::Commit { cost: 3, charges: false, run: None };

fn limit() -> Limit {
    window(100, 3_600)
}

fn open(dir: &Path) -> RocksStore {
    RocksStore::open(dir, RocksOptions::default()).unwrap()
}

fn bucket(actor: &str) -> impl FnOnce(&mut Vec<u8>) -> Option<Limit> {
    move |out| {
        Prefix::new(Space::Rule, [("a", "*")], &limit()).write_key(actor, out);
        Some(limit())
    }
}

fn apply_at(
    store: &RocksStore,
    now: Timestamp,
    asks: &[(&str, &str, ReservationAsk)],
) -> Vec<Result<Outcome, StoreError>> {
    let mut batch = Batch::default();
    batch.begin(now);
    for (actor, id, ask) in asks {
        batch.push_reservation(*ask, id.as_bytes(), bucket(actor));
    }
    wait(store.apply(&mut batch));
    (0..batch.len()).map(|index| batch.outcome(index)).collect()
}

fn apply(store: &RocksStore, id: &str, ask: ReservationAsk) -> Outcome {
    apply_at(store, Clock::system().now(), &[("x", id, ask)]).remove(0).unwrap()
}

/// Returns the credit left for a hit.
fn left(store: &RocksStore) -> u64 {
    let mut batch = Batch::default();
    batch.begin(Clock::system().now());
    batch.push_if(Action::Ask(Ask::Look { cost: 1 }), batch.now(), bucket("x"));
    wait(store.apply(&mut batch));
    batch.outcome(0).unwrap().left
}

/// A store and its directory.
struct StoreInDir {
    store: RocksStore,
    dir: TempDir,
}

impl StoreInDir {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: open(dir.path()), dir }
    }

    /// Opens a copy of the files in their current state, as a start after SIGKILL would.
    fn kill_and_reopen(self) -> Self {
        let copy = tempfile::tempdir().unwrap();
        for file in fs::read_dir(self.dir.path()).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        Self { store: open(copy.path()), dir: copy }
    }

    fn close_and_reopen(self) -> Self {
        wait(self.store.close()).unwrap();
        self.kill_and_reopen()
    }
}

fn write_back(store: &RocksStore) {
    store.core.engine.write_back().unwrap();
}

/// Returns the number of reservations that count toward the bound.
fn remembered(store: &RocksStore) -> u64 {
    store.core.engine.table.records.remembered().reservations
}

#[test]
fn kills_and_write_backs_lose_no_reservation_and_no_settlement() {
    let release = ReservationAsk::Release { run: None };
    let settlements = [(COMMIT, Resolution::Repeated, 97, 1), (release, Resolution::Gone, 100, 0)];
    let write_backs = [(false, false), (false, true), (true, false), (true, true)];
    let cases = settlements
        .into_iter()
        .flat_map(|settlement| write_backs.map(|before_and_after| (settlement, before_and_after)));
    for ((settlement, again, credits, records), (before, after)) in cases {
        let opened = StoreInDir::new();
        assert!(apply(&opened.store, "one", TEN).allowed);
        if before {
            write_back(&opened.store);
        }
        let opened = opened.kill_and_reopen();
        let store = &opened.store;
        assert_eq!((left(store), remembered(store)), (90, 1));
        assert_eq!(apply(store, "one", TEN).resolution, Resolution::Repeated);
        let first = apply(store, "one", settlement);
        assert_eq!((first.resolution, first.left), (Resolution::Done, credits));
        if after {
            write_back(store);
        }
        let opened = opened.kill_and_reopen();
        let repeated = apply(&opened.store, "one", COMMIT);
        assert_eq!((repeated.resolution, repeated.left, left(&opened.store)), (again, credits, credits));
        assert_eq!(remembered(&opened.store), records);
        assert!(records == 0 || repeated.reset_ns == first.reset_ns);
        assert_eq!(apply(&opened.close_and_reopen().store, "one", COMMIT).resolution, again);
    }
}

#[test]
fn reservation_over_the_bound_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = Bounds { max_reservations: 2, max_counters: 1, when_full: WhenFull::Allow, ..Bounds::default() };
    let store = RocksStore::open(dir.path(), RocksOptions { bounds, ..RocksOptions::default() }).unwrap();
    let now = Clock::system().now();
    let refused = |outcome: &Result<Outcome, StoreError>, flag: &str| {
        outcome.as_ref().is_err_and(|error| error.to_string().contains(flag))
    };
    let outcomes =
        apply_at(&store, now, &[("x", "one", TEN), ("x", "two", TEN), ("x", "three", TEN), ("y", "four", TEN)]);
    assert!(outcomes[..2].iter().flatten().all(|outcome| outcome.allowed));
    assert!(refused(&outcomes[2], "--max-reservations") && refused(&outcomes[3], "full"), "{outcomes:?}");
    assert_eq!((left(&store), wait(store.approximate_len()).unwrap()), (80, 1));
    // An open reservation can be committed, and a released one makes room for another.
    assert_eq!(apply(&store, "one", COMMIT).resolution, Resolution::Done);
    assert_eq!(apply(&store, "two", ReservationAsk::Release { run: None }).resolution, Resolution::Done);
    assert!(apply(&store, "three", TEN).allowed);
    // There is no room for a late commit.
    let late = ReservationAsk::Commit { cost: 3, charges: true, run: None };
    assert!(refused(&apply_at(&store, now, &[("x", "five", late)])[0], "--max-reservations"));
    assert_eq!(left(&store), 87);
    // All records expire.
    let later = now.plus(200 * NANOS_PER_SECOND);
    store.core.engine.sweep_records(later);
    assert_eq!(remembered(&store), 0);
}

/// No request arrives that would detect the change.
#[test]
fn clock_set_back_keeps_no_record_longer_in_idle_stripes() {
    let table = HotTable::new(1 << 20, 0, Bounds::default());
    for key in [b"a", b"b", b"c"] {
        let reservation = Reservation { credits: 1, ttl_seconds: 60, run: None };
        let content = Content::Open { reservation, ends: at(10_060), generation: 1, capacity: 9 };
        let record = Record { until: at(10_060), content };
        table.load_record(table.hasher.hash(key), record);
    }
    let left = |seconds, was_set_back| {
        table.sweep_records(at(seconds), was_set_back);
        table.records.remembered().reservations
    };
    assert_eq!((left(10_000, false), left(0, true)), (3, 3));
    assert_eq!((left(59, false), left(60, false)), (3, 0));
}

#[test]
fn clock_set_back_between_two_runs_keeps_no_reservation_longer() {
    let now = Clock::system().now();
    let opened = StoreInDir::new();
    assert!(apply_at(&opened.store, now.plus(3_600 * NANOS_PER_SECOND), &[("x", "one", TEN)])[0].is_ok());
    let store = opened.kill_and_reopen().store;
    let remembered = |seconds: u64, id| {
        assert!(apply_at(&store, now.plus(seconds * NANOS_PER_SECOND), &[("x", id, TEN)])[0].is_ok());
        remembered(&store)
    };
    assert_eq!((remembered(0, "two"), remembered(62, "three")), (2, 1));
}

/// An evicted bucket is read again, with its reserved credits.
#[test]
fn evicted_bucket_returns_with_its_reservations() {
    let dir = tempfile::tempdir().unwrap();
    let store = RocksStore::open(dir.path(), RocksOptions { cache_memory: 0, ..RocksOptions::default() }).unwrap();
    assert!(apply(&store, "one", TEN).allowed);
    let others: Vec<_> = (0..30_000).map(|other| other.to_string()).collect();
    for _ in 0..2 {
        write_back(&store);
        let mut batch = Batch::default();
        batch.begin(Clock::system().now());
        for other in &others {
            batch.push_if(Action::Ask(Ask::Take { cost: 1 }), batch.now(), bucket(other));
        }
        wait(store.apply(&mut batch));
    }
    let misses = || store.core.engine.table.usage().misses;
    let before = misses();
    assert_eq!(apply(&store, "one", COMMIT).resolution, Resolution::Done);
    assert_eq!((misses(), left(&store)), (before + 1, 97));
}

/// If a reservation's record in RocksDB counted as a counter, the count would be too high.
#[test]
fn reservation_records_do_not_count_as_counters() {
    let opened = StoreInDir::new();
    for id in 0..100 {
        assert!(apply(&opened.store, &id.to_string(), ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 }).allowed);
    }
    write_back(&opened.store);
    let store = opened.kill_and_reopen().store;
    while !store.core.engine.table.knows_records() {
        std::thread::yield_now();
    }
    store.core.survey().unwrap();
    assert_eq!(store.core.engine.table.counters.count(), 1);
    assert_eq!(remembered(&store), 100);
}

/// Regression test: the first member of a group dropped the expired record of the second, and the record that replaced
/// it was not counted.
#[test]
fn records_of_one_stripe_replaced_in_a_group_are_counted() {
    let opened = StoreInDir::new();
    let engine = &opened.store.core.engine;
    let stripe = |actor: &str| {
        let mut key = Vec::new();
        bucket(actor)(&mut key);
        engine.table.hasher.hash(&key).stripe()
    };
    let other = (0..100_000).map(|actor| actor.to_string()).find(|actor| stripe(actor) == stripe("x")).unwrap();
    let now = Clock::system().now();
    for seconds in [0, 10, 20] {
        let mut batch = Batch::default();
        batch.begin(now.plus(seconds * NANOS_PER_SECOND));
        for actor in ["x", &other] {
            let one_second = ReservationAsk::Reserve { credits: 10, ttl_seconds: 1 };
            batch.push_reservation(one_second, b"one", bucket(actor));
        }
        batch.group(0);
        wait(opened.store.apply(&mut batch));
        assert_eq!(
            [
                batch.outcome(0).map(|outcome| outcome.allowed).ok(),
                batch.outcome(1).map(|outcome| outcome.allowed).ok()
            ],
            [Some(true); 2]
        );
        assert_eq!(engine.table.records.remembered().reservations, 2);
    }
}
