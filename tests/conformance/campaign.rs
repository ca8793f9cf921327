//! Random operations of every kind, in batches, compared with the algorithms alone. From time to time, the store is
//! reopened, either after it was closed or after a simulated kill.
//!
//! `DIVVY_TEST_OPERATIONS` sets the number of operations for each backend (default 20,000), and `DIVVY_TEST_SEED`
//! selects them.

use std::fs;

use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::support::{seed, setting};

/// Buckets per limit.
const BUCKETS: u8 = 3;
/// Reservations and idempotency keys per bucket.
const NAMES: u8 = 4;

type Operation = (u8, (usize, Option<u64>), Action, u8);

/// Generates a pause in seconds, and the operations after it.
fn batches() -> impl Strategy<Value = (u64, Vec<Operation>)> {
    let action = prop_oneof![
        6 => (0u64..4).prop_map(|cost| Action::Ask(Ask::Take { cost })),
        2 => (0u64..4).prop_map(|cost| Action::Ask(Ask::Look { cost })),
        2 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Overdraw { cost })),
        2 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Charge { cost })),
        2 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Tally { cost })),
        4 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Refund { cost })),
        2 => (0u32..9, 1u16..4).prop_map(|(extra, parts)| Action::Ask(Ask::Share { cost: 0, extra, parts })),
        2 => (0u32..9, 0u64..90).prop_map(|(credits, seconds)| {
            Action::Ask(Ask::Return { credits, until: Timestamp::from_nanos(seconds * SECOND) })
        }),
        1 => Just(Action::Forget),
        16 => about_reservation(Buckets::ByPassedTime).prop_map(Action::Reservation),
        12 => once(),
    ];
    // The limit may change while the bucket stays, as after a reload.
    let which = (0..limits(Buckets::ByPassedTime).len(), prop::option::weighted(0.3, 1u64..12));
    let pause = prop_oneof![3 => Just(0u64), 3 => 0u64..4, 1 => 0u64..90];
    (pause, prop::collection::vec((0..BUCKETS, which, action, 0..NAMES), 1..24))
}

impl StoreFixture {
    fn closed(self) -> Option<Self> {
        wait(self.store.close()).unwrap();
        self.reopen()
    }

    /// Returns the store as a start finds it after SIGKILL: with the current state of the files.
    fn killed(self) -> Option<Self> {
        let copy = tempfile::tempdir().unwrap();
        for file in fs::read_dir(self.dir.as_ref()?.path()).unwrap() {
            let file = file.unwrap();
            // RocksDB may delete its own files at any time.
            let _ = fs::copy(file.path(), copy.path().join(file.file_name()));
        }
        let Self { store, reopen, buckets, .. } = self;
        wait(store.close()).unwrap();
        Some(Self { store: reopen?(Some(&copy)), dir: Some(copy), reopen, buckets })
    }
}

fn any_number_of_operations_agrees_with_the_algorithms_alone(mut opened: StoreFixture) {
    let operations: usize = setting("DIVVY_TEST_OPERATIONS", 20_000);
    let seed = [seed().to_le_bytes(); 4].concat();
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let (runtime, batches) = (Runtime::new().unwrap(), batches());
    let (mut model, mut now) = (Model::default(), at(0));
    let (mut done, mut starts) = (0, 0);
    while done < operations {
        let (pause, asked) = batches.new_tree(&mut runner).unwrap().current();
        now = now.plus(pause * SECOND);
        let name = |(bucket, (which, credits), action, id): Operation| {
            let limit = limits(opened.buckets)[which];
            let limit = credits.map_or(limit, |credits| resized(limit, credits));
            let action = match action {
                Action::Ask(Ask::Return { credits, until }) => {
                    Action::Ask(Ask::Return { credits, until: now.plus(until.as_nanos()) })
                }
                action => action,
            };
            named(format!("{{campaign}}:{bucket}:{which}"), limit, action, id)
        };
        let asked: Vec<_> = asked.into_iter().map(name).collect();
        let outcomes = runtime.block_on(opened.apply_named(now, &asked));
        for (operation, outcome) in asked.into_iter().zip(outcomes) {
            let shown = format!("{operation:?} at {now:?}, number {done}");
            let (key, limit, action) = operation;
            assert_eq!(without_run(outcome), expected(&mut model, key, limit, action, now), "{shown}");
            done += 1;
        }
        if opened.dir.is_some() && done / 2_000 > starts {
            starts += 1;
            opened = if starts % 2 == 0 { opened.closed() } else { opened.killed() }.unwrap();
        }
    }
    println!("{done} operations, {starts} starts");
}

macro_rules! campaign {
    ($($backend:ident),*) => { $(
        #[test]
        fn $backend() {
            any_number_of_operations_agrees_with_the_algorithms_alone(super::$backend());
        }
    )* };
}

campaign!(memory, redis, redis_cluster);
#[cfg(feature = "rocksdb")]
campaign!(rocks, rocks_evicting);
