//! The engine on the model checker: every interleaving of hits, clients that leave, commits that fail, write-backs,
//! fsyncs, and a disk that breaks and is opened again, as far as random schedules reach.
//!
//! `make model` runs it. A failure prints a schedule that `shuttle::replay` repeats.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{future, thread};

use super::commit::{GroupCommit, Waited};
use super::disk::{Disk, Patience};
use super::engine::Engine;
use super::journal;
use super::table::Table;
use super::timings::Timings;
use crate::clock::Clock;
use crate::store::batch::Entry;
use crate::store::counter_budget::{Bounds, CounterBudget};
use crate::store::error::StoreError;
use crate::store::rocks_options::Durability;
use crate::store::testing::{TAKE, at, window};

const CREDITS: u64 = 1_000;
const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];

/// One write to the log.
#[derive(Debug, Clone)]
enum Write {
    Journal(u64, Vec<u8>),
    Counters(Vec<u8>),
    Clear(u64),
}

/// What outlives a database: its log, of which a part is on stable storage.
#[derive(Debug, Default)]
struct Medium {
    log: Vec<Write>,
    synced: usize,
    /// Writes and syncs still to fail.
    failures: usize,
}

/// A database on a medium. After a failed write it takes no more.
struct SimulatedDisk {
    medium: Arc<Mutex<Medium>>,
    is_broken: Mutex<bool>,
}

type Counters = BTreeMap<Vec<u8>, Vec<u8>>;

/// The counters after a replay of the log, then of the journal.
fn replay(log: &[Write]) -> Counters {
    let (mut counters, mut records) = (Counters::new(), BTreeMap::new());
    for write in log {
        match write {
            Write::Journal(number, record) => {
                assert!(records.insert(*number, record.clone()).is_none(), "commit {number} was written twice");
                assert_eq!(records.last_key_value().unwrap().0, number, "commits are in order");
            }
            Write::Counters(changes) => apply(&mut counters, changes),
            Write::Clear(through) => records.retain(|number, _| number > through),
        }
    }
    records.values().for_each(|record| apply(&mut counters, record));
    counters
}

fn apply(counters: &mut Counters, changes: &[u8]) {
    for change in journal::changes(changes) {
        let change = change.unwrap();
        counters.insert(change.key.to_vec(), change.value.to_vec());
    }
}

impl SimulatedDisk {
    fn open(medium: &Arc<Mutex<Medium>>) -> Self {
        let mut content = medium.lock().unwrap();
        // What was not synced before the failure may be gone, from any point on.
        let kept = thread_rng().gen_range(content.synced..=content.log.len());
        content.log.truncate(kept);
        let replayed = replay(&content.log);
        let mut changes = Vec::new();
        for (key, value) in &replayed {
            journal::append(&mut changes, key, value);
        }
        content.log.extend([Write::Counters(changes), Write::Clear(u64::MAX)]);
        Self { medium: Arc::clone(medium), is_broken: Mutex::new(false) }
    }

    fn write(&self, write: Write, sync: bool) -> Result<(), StoreError> {
        let mut broken = self.is_broken.lock().unwrap();
        if *broken {
            return Err(StoreError::new("broken before"));
        }
        let mut medium = self.medium.lock().unwrap();
        let fails = medium.failures > 0 && thread_rng().gen_bool(0.3);
        // A write that fails may have reached the log all the same.
        if !fails || thread_rng().gen_bool(0.5) {
            medium.log.push(write);
        }
        if fails {
            medium.failures -= 1;
            *broken = true;
            return Err(StoreError::new("broken now"));
        }
        if sync {
            medium.synced = medium.log.len();
        }
        Ok(())
    }
}

impl Disk for SimulatedDisk {
    fn counter<T>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, StoreError> {
        let medium = self.medium.lock().unwrap();
        let mut counters = Counters::new();
        for write in &medium.log {
            if let Write::Counters(changes) = write {
                apply(&mut counters, changes);
            }
        }
        Ok(counters.get(key).map(|value| read(value)))
    }

    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>> {
        if record.is_empty() {
            return Some(Ok(()));
        }
        if patience == Patience::None && thread_rng().gen_bool(0.3) {
            return None;
        }
        Some(self.write(Write::Journal(number, record.to_vec()), patience == Patience::Fsync))
    }

    fn write_counters(&self, changes: &[u8]) -> Result<(), StoreError> {
        self.write(Write::Counters(changes.to_vec()), false)
    }

    fn clear_journal(&self, number: u64) -> Result<(), StoreError> {
        self.write(Write::Clear(number), false)
    }

    fn sync(&self) -> Result<(), StoreError> {
        let covered = self.medium.lock().unwrap().log.len();
        // Others write meanwhile.
        thread::yield_now();
        let mut broken = self.is_broken.lock().unwrap();
        let mut medium = self.medium.lock().unwrap();
        if *broken || (medium.failures > 0 && thread_rng().gen_bool(0.3)) {
            medium.failures = medium.failures.saturating_sub(1);
            *broken = true;
            return Err(StoreError::new("the sync failed"));
        }
        medium.synced = medium.synced.max(covered);
        Ok(())
    }
}

struct World {
    engine: Arc<Engine<SimulatedDisk>>,
    medium: Arc<Mutex<Medium>>,
    /// By key: the fewest credits left in an acknowledged answer.
    acknowledged: Arc<Mutex<HashMap<&'static [u8], u64>>>,
}

impl World {
    fn new(durability: Durability, failures: usize, capacity: usize) -> Self {
        let medium = Arc::new(Mutex::new(Medium { failures, ..Medium::default() }));
        let disk = SimulatedDisk::open(&medium);
        let engine = Engine::new(
            disk,
            Arc::new(Table::new(capacity)),
            Arc::new(CounterBudget::new(Bounds::default())),
            durability,
            Timings::new(Clock::system()),
        );
        Self { engine: Arc::new(engine), medium, acknowledged: Arc::default() }
    }

    /// One client that hits two counters, and may leave at any time.
    fn client(&self, index: usize) -> future::JoinHandle<()> {
        let (engine, acknowledged) = (Arc::clone(&self.engine), Arc::clone(&self.acknowledged));
        future::spawn(async move {
            for turn in 0..2 {
                let key = KEYS[(index + turn) % KEYS.len()];
                let entry = Entry { key: 0..0, limit: window(CREDITS, 60), action: TAKE, at: at(0) };
                let Ok(acted) = engine.act(key, &entry, at(0)) else { continue };
                let settled =
                    if acted.durable_after > engine.done() { engine.settle(acted.durable_after).await } else { Ok(()) };
                if settled.is_ok() {
                    let mut acknowledged = acknowledged.lock().unwrap();
                    let least = acknowledged.entry(key).or_insert(CREDITS);
                    *least = acted.outcome.left.min(*least);
                }
            }
        })
    }

    fn heal(&self) {
        let medium = Arc::clone(&self.medium);
        self.engine.heal(|| true, || Ok(SimulatedDisk::open(&medium)));
    }

    /// Runs clients, of which some leave, and housekeeping beside them; then the disk is well again and a last hit has to
    /// be answered.
    fn run(&self) {
        let clients: Vec<_> = (0..3).map(|index| self.client(index)).collect();
        let housekeeping = {
            let engine = Arc::clone(&self.engine);
            thread::spawn(move || {
                for _ in 0..2 {
                    let _ = engine.write_back();
                    let _ = engine.sync();
                }
            })
        };
        let healer = {
            let (engine, medium) = (Arc::clone(&self.engine), Arc::clone(&self.medium));
            thread::spawn(move || {
                for _ in 0..2 {
                    engine.heal(|| true, || Ok(SimulatedDisk::open(&medium)));
                    thread::yield_now();
                }
            })
        };
        for client in clients {
            if thread_rng().gen_bool(0.4) {
                client.abort();
            }
            let _ = future::block_on(client);
        }
        housekeeping.join().unwrap();
        healer.join().unwrap();
        self.medium.lock().unwrap().failures = 0;
        // A commit whose client has left may fail only now.
        while future::block_on(self.engine.check()).is_err() {
            self.heal();
            thread::yield_now();
        }
        future::block_on(self.client(0)).unwrap();
    }

    /// What was acknowledged is in the first `kept` writes of the log.
    fn assert_kept(&self, kept: usize) {
        let counters = replay(&self.medium.lock().unwrap().log[..kept]);
        for (key, least) in self.acknowledged.lock().unwrap().iter() {
            let value = counters.get(*key).unwrap_or_else(|| panic!("{key:?} is gone"));
            let left = u64::from_le_bytes(value[8..].try_into().unwrap());
            assert!(left <= *least, "{key:?}: {left} left after the crash, {least} acknowledged before");
        }
    }

    fn written(&self) -> usize {
        self.medium.lock().unwrap().log.len()
    }

    fn synced(&self) -> usize {
        self.medium.lock().unwrap().synced
    }
}

/// Runs `check` under as many random schedules as `DIVVY_TEST_SCHEDULES` says.
fn random(check: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("DIVVY_TEST_SCHEDULES").map_or(2_000, |schedules| schedules.parse().unwrap());
    shuttle::check_random(check, schedules);
}

#[test]
fn what_is_acknowledged_survives_the_process() {
    random(|| {
        let world = World::new(Durability::Wal, 0, 6);
        world.run();
        world.assert_kept(world.written());
    });
}

#[test]
fn counters_that_leave_the_table_come_back_as_they_were() {
    random(|| {
        // One counter a stripe: the others are evicted as soon as they may be.
        let world = World::new(Durability::Wal, 0, 1);
        world.run();
        world.assert_kept(world.written());
    });
}

#[test]
fn a_disk_that_fails_costs_nothing_that_was_acknowledged() {
    for durability in [Durability::Wal, Durability::Sync] {
        random(move || {
            let world = World::new(durability, 2, 1);
            world.run();
            world.assert_kept(world.written());
        });
    }
}

#[test]
fn what_is_acknowledged_on_stable_storage_survives_the_power() {
    random(|| {
        let world = World::new(Durability::Sync, 1, 2);
        world.run();
        world.assert_kept(world.synced());
    });
}

#[test]
fn leadership_is_never_lost_when_waiters_leave() {
    random(|| {
        let group = GroupCommit::new();
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let group = Arc::clone(&group);
                future::spawn(async move {
                    if let Waited::Leading(leader) = group.wait_for(group.open()).await {
                        future::yield_now().await;
                        leader.finish(leader.begin(), &Ok(()));
                    }
                })
            })
            .collect();
        for waiter in waiters {
            if thread_rng().gen_bool(0.5) {
                waiter.abort();
            }
            let _ = future::block_on(waiter);
        }
        assert!(group.try_lead().is_some(), "no waiter is left, and there still is a leader");
    });
}
