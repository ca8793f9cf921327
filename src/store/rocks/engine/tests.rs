//! The engine on a disk that a test holds up, breaks and mends.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::task::{Context, Waker};

use parking_lot::Mutex as RealMutex;

use super::*;
use crate::clock::Clock;
use crate::store::batch::Action;
use crate::store::counter_budget::Bounds;
use crate::store::testing::{LOOK, TAKE, at, window};

/// A disk that remembers what it was told, fails when told to, and waits at a gate.
#[derive(Default)]
struct TestDisk {
    journal: RealMutex<Vec<u64>>,
    counters: RealMutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    fails: AtomicBool,
    would_stall: AtomicBool,
    gate: RealMutex<Option<mpsc::Receiver<()>>>,
    appending: AtomicUsize,
}

impl TestDisk {
    fn result(&self) -> Result<(), StoreError> {
        if self.fails.load(SeqCst) { Err(StoreError::new("no space left on device")) } else { Ok(()) }
    }
}

impl Disk for Arc<TestDisk> {
    fn counter<T>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, StoreError> {
        Ok(self.counters.lock().get(key).map(|value| read(value)))
    }

    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>> {
        if patience == Patience::None && self.would_stall.load(SeqCst) {
            return None;
        }
        assert_eq!(self.appending.fetch_add(1, SeqCst), 0, "one commit at a time");
        if let Some(gate) = self.gate.lock().take() {
            gate.recv().unwrap();
        }
        self.appending.fetch_sub(1, SeqCst);
        if !record.is_empty() {
            self.journal.lock().push(number);
        }
        Some(self.result())
    }

    fn write_counters(&self, changes: &[u8]) -> Result<(), StoreError> {
        self.result()?;
        for change in super::super::journal::changes(changes) {
            let change = change.unwrap();
            self.counters.lock().insert(change.key.to_vec(), change.value.to_vec());
        }
        Ok(())
    }

    fn clear_journal(&self, _number: u64) -> Result<(), StoreError> {
        self.result()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.result()
    }
}

type TestEngine = Arc<Engine<Arc<TestDisk>>>;

fn engine(durability: Durability, hot_counters: usize) -> (TestEngine, Arc<TestDisk>) {
    let disk = Arc::new(TestDisk::default());
    let (budget, timings) = (Arc::new(CounterBudget::new(Bounds::default())), Timings::new(Clock::system()));
    let table = Arc::new(Table::new(hot_counters));
    (Arc::new(Engine::new(Arc::clone(&disk), table, budget, durability, timings)), disk)
}

/// The credit left after the action on `key`, in a bucket of 1,000.
fn act(engine: &TestEngine, key: &str, action: Action) -> Result<Acted, StoreError> {
    let entry = Entry { key: 0..0, limit: window(1_000, 60), action, at: at(0) };
    engine.act(key.as_bytes(), &entry, at(0))
}

async fn hit(engine: &TestEngine, key: &str) -> Result<u64, StoreError> {
    let acted = act(engine, key, TAKE)?;
    engine.settle(acted.durable_after).await?;
    Ok(acted.outcome.left)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(future)
}

/// The blocking part of a commit ran on when its future was dropped, and leadership passed on meanwhile: the next
/// leader blocked its event loop, or appended before it.
#[test]
fn a_leader_that_leaves_keeps_leadership_until_its_commit_is_made() {
    wait(async {
        let (engine, disk) = engine(Durability::Sync, 10);
        let (open, gate) = mpsc::channel();
        *disk.gate.lock() = Some(gate);
        {
            let mut leaves = pin!(hit(&engine, "a"));
            let mut context = Context::from_waker(Waker::noop());
            while disk.appending.load(SeqCst) == 0 {
                assert!(leaves.as_mut().poll(&mut context).is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert!(engine.try_lead().is_none(), "its commit is under way");
        let stays = tokio::spawn({
            let engine = Arc::clone(&engine);
            async move { hit(&engine, "a").await }
        });
        tokio::task::yield_now().await;
        assert!(disk.journal.lock().is_empty());
        open.send(()).unwrap();
        assert_eq!(stays.await.unwrap().unwrap(), 998);
        assert_eq!(*disk.journal.lock(), [1, 2]);
    });
}

/// Drops a hit at each of its await points: later hits are answered all the same.
#[test]
fn a_hit_that_is_dropped_at_any_await_holds_nobody_up() {
    for (durability, would_stall) in [(Durability::Wal, false), (Durability::Wal, true), (Durability::Sync, false)] {
        wait(async {
            let (engine, disk) = engine(durability, 10);
            disk.would_stall.store(would_stall, SeqCst);
            for polls in 0..4 {
                {
                    let mut context = Context::from_waker(Waker::noop());
                    let mut waits = pin!(hit(&engine, "a"));
                    let mut leaves = pin!(hit(&engine, "b"));
                    for _ in 0..polls {
                        let is_over = leaves.as_mut().poll(&mut context).is_ready();
                        if is_over || waits.as_mut().poll(&mut context).is_ready() {
                            break;
                        }
                    }
                }
                hit(&engine, "c").await.unwrap();
            }
        });
    }
}

/// Refused hits of new actors stayed in the table; those of known ones took credit.
#[test]
fn while_the_disk_refuses_writes_nothing_is_changed() {
    for durability in [Durability::Wal, Durability::Sync, Durability::Lazy] {
        wait(async {
            let (engine, disk) = engine(durability, 10);
            hit(&engine, "known").await.unwrap();
            disk.fails.store(true, SeqCst);
            assert!(hit(&engine, "known").await.is_err(), "the first failure may have taken");
            assert!(!engine.health.is_well());
            let (counters, journal) = (engine.table.usage().counters, engine.write_back.journal_bytes());
            for actor in 0..1_000 {
                let refused = act(&engine, &format!("new {actor}"), TAKE);
                assert!(refused.err().unwrap().to_string().contains("no space left"));
                assert!(act(&engine, &format!("new {actor}"), LOOK).is_err(), "a look tells what a hit would be told");
                assert!(act(&engine, "known", TAKE).is_err());
                assert!(act(&engine, "known", Action::Forget).is_err());
            }
            assert_eq!(engine.table.usage().counters, counters, "what is refused leaves no trace");
            assert_eq!(engine.write_back.journal_bytes(), journal);

            disk.fails.store(false, SeqCst);
            engine.heal(|| true, || Ok(Arc::clone(&disk)));
            assert_eq!(hit(&engine, "known").await.unwrap(), 997);
            assert_eq!(hit(&engine, "new 1").await.unwrap(), 999);
        });
    }
}

/// After a failed fsync nothing since the last good one counts as written.
#[test]
fn what_a_failed_fsync_did_not_cover_is_written_again() {
    wait(async {
        let (engine, disk) = engine(Durability::Wal, 1);
        for actor in 0..3_000 {
            hit(&engine, &format!("actor {actor}")).await.unwrap();
        }
        engine.write_back().unwrap();
        disk.fails.store(true, SeqCst);
        assert!(engine.sync().is_err());
        assert_eq!(engine.table.usage().counters, 3_000, "none has left the table");
        // The disk comes back without any of it.
        let mended = Arc::new(TestDisk::default());
        engine.heal(|| true, || Ok(Arc::clone(&mended)));
        assert!(engine.health.is_well());
        assert_eq!(mended.counters.lock().len(), 3_000);
    });
}

#[test]
fn a_disk_that_is_not_mended_is_tried_again_and_hits_are_told_what_ails_it() {
    wait(async {
        let (engine, disk) = engine(Durability::Wal, 10);
        hit(&engine, "a").await.unwrap();
        disk.fails.store(true, SeqCst);
        assert!(hit(&engine, "a").await.is_err());
        engine.heal(|| false, || panic!("an unusable disk is left alone"));
        assert!(engine.check().await.unwrap_err().to_string().contains("no space left"));
        engine.heal(|| true, || Err(StoreError::new("still sick")));
        assert!(hit(&engine, "a").await.is_err());
        assert!(act(&engine, "b", TAKE).is_err());
        engine.heal(|| true, || Ok(Arc::clone(&disk)));
        assert!(hit(&engine, "a").await.is_err(), "it was opened, and fails again");
        disk.fails.store(false, SeqCst);
        engine.heal(|| true, || Ok(Arc::clone(&disk)));
        assert!(hit(&engine, "a").await.is_ok());
        engine.check().await.unwrap();
    });
}
