//! The engine on a disk that a test stops, breaks and repairs.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::task::{Context, Waker};

use futures_util::FutureExt;
use parking_lot::Mutex as RealMutex;

use super::*;
use crate::disk::{EachCounter, EachRecord, Patience, Reach};
use crate::journal::{self, SortedChanges};
use divvy_core::algorithm::Outcome;
use divvy_store::Action;
use divvy_store::key::{Prefix, Space};
use divvy_store::testing::{LOOK, TAKE, at, window};

/// Memory for all counters of a test.
const MEMORY: usize = 10 << 20;

/// A disk that records its writes, fails on demand, and waits at a gate.
#[derive(Default)]
struct TestDisk {
    journal: RealMutex<BTreeMap<u64, Vec<u8>>>,
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
    fn counters(&self, keys: &[&[u8]], _reach: Reach, each: &mut EachCounter<'_>) {
        let counters = self.counters.lock();
        keys.iter().enumerate().for_each(|(place, key)| each(place, Ok(counters.get(*key).map(Vec::as_slice))));
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
            self.journal.lock().insert(number, record.to_vec());
        }
        Some(self.result())
    }

    fn read_journal(&self, first: u64, last: u64, each: &mut EachRecord<'_>) -> Result<(), StoreError> {
        let records = self.journal.lock().clone();
        records.range(first..=last).try_for_each(|(number, record)| each(*number, record))
    }

    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError> {
        self.result()?;
        for change in changes.iter() {
            self.counters.lock().insert(change.key.to_vec(), change.value.to_vec());
        }
        Ok(())
    }

    fn clear_journal(&self, number: u64) -> Result<(), StoreError> {
        self.journal.lock().retain(|kept, _| *kept > number);
        self.result()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.result()
    }
}

type TestEngine = Arc<Engine<Arc<TestDisk>>>;

fn engine(durability: Durability, memory: usize) -> (TestEngine, Arc<TestDisk>) {
    engine_with_journal(durability, memory, 1 << 20)
}

fn engine_with_journal(durability: Durability, memory: usize, max_bytes: u64) -> (TestEngine, Arc<TestDisk>) {
    let disk = Arc::new(TestDisk::default());
    (engine_on(&disk, durability, memory, max_bytes), disk)
}

/// Returns an engine that starts on `disk` as another engine left it.
fn engine_on(disk: &Arc<TestDisk>, durability: Durability, memory: usize, max_bytes: u64) -> TestEngine {
    let last_commit = disk.journal.lock().last_key_value().map_or(0, |(number, _)| *number);
    let options = RocksOptions { durability, cache_memory: memory, max_journal: max_bytes, ..RocksOptions::default() };
    Arc::new(Engine::new(Arc::clone(disk), last_commit, &options))
}

fn started_on(disk: &Arc<TestDisk>) -> TestEngine {
    engine_on(disk, Durability::Wal, MEMORY, 1 << 20)
}

/// The result of an action on a counter.
struct ActionResult {
    outcome: Outcome,
    durable_after: u64,
}

/// Applies the action to the counter of `key`, with a limit of 1,000 credits.
fn act(engine: &TestEngine, key: &str, action: Action) -> Result<ActionResult, StoreError> {
    let entry = Entry::new(0..0, window(1_000, 60), action, at(0));
    apply(engine, key.as_bytes(), &entry)
}

fn apply(engine: &TestEngine, key: &[u8], entry: &Entry) -> Result<ActionResult, StoreError> {
    let mut lookups = Lookups::exhausted();
    let load = |evictions| engine.record_for((0, key, entry), at(0), &mut lookups, evictions);
    let acted = engine.table.act(key, entry, at(0), load)?;
    let (outcome, durable_after) = acted.expect("a counter that is not in the table is read");
    Ok(ActionResult { outcome, durable_after })
}

async fn hit(engine: &TestEngine, key: &str) -> Result<u64, StoreError> {
    let acted = act(engine, key, TAKE)?;
    engine.wait_until_durable(acted.durable_after).await?;
    Ok(acted.outcome.left)
}

/// Regression test: a commit waited a turn of the event loop for others, even if there had been none. While a flood was
/// being denied, a turn took long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lone_hit_is_committed_at_once() {
    let (engine, _) = engine(Durability::Wal, MEMORY);
    assert!(matches!(hit(&engine, "alice").now_or_never(), Some(Ok(999))));
}

/// Regression test: when the future of a commit was dropped, the commit's blocking part continued, but leadership
/// passed on. So the next leader blocked its event loop, or appended its record first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_that_leaves_keeps_leadership_until_its_commit_is_made() {
    let (engine, disk) = engine(Durability::Sync, MEMORY);
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
    assert!(engine.table.commits.try_lead().is_none(), "its commit is under way");
    let stays = tokio::spawn({
        let engine = Arc::clone(&engine);
        async move { hit(&engine, "a").await }
    });
    tokio::task::yield_now().await;
    assert!(disk.journal.lock().is_empty());
    open.send(()).unwrap();
    assert_eq!(stays.await.unwrap().unwrap(), 998);
    assert!(disk.journal.lock().keys().eq(&[1, 2]));
}

/// Drops a hit at each of its await points. Later hits must still be answered. If another caller leads at first, the hit inherits
/// leadership. On stable storage, it then waits for others, because one is waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hit_dropped_at_any_await_delays_no_other_hit() {
    let stores = [(Durability::Wal, false), (Durability::Wal, true), (Durability::Sync, false)];
    for ((durability, would_stall), inherits) in stores.into_iter().flat_map(|store| [(store, false), (store, true)]) {
        let (engine, disk) = engine(durability, MEMORY);
        disk.would_stall.store(would_stall, SeqCst);
        for polls in 0..4 {
            {
                let mut context = Context::from_waker(Waker::noop());
                let mut waits = pin!(hit(&engine, "a"));
                let mut leaves = pin!(hit(&engine, "b"));
                if inherits {
                    // The last hit may have its answer just before its leader ends.
                    let leader = loop {
                        match engine.table.commits.try_lead() {
                            Some(leader) => break leader,
                            None => tokio::task::yield_now().await,
                        }
                    };
                    assert!(waits.as_mut().poll(&mut context).is_pending());
                    assert!(leaves.as_mut().poll(&mut context).is_pending());
                    drop(leader);
                }
                for _ in 0..polls {
                    if leaves.as_mut().poll(&mut context).is_ready() || waits.as_mut().poll(&mut context).is_ready() {
                        break;
                    }
                }
            }
            hit(&engine, "c").await.unwrap();
        }
    }
}

/// Regression test: refused hits of new actors stayed in the table, and refused hits of known actors took credit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_changes_while_the_disk_refuses_writes() {
    for durability in [Durability::Wal, Durability::Sync, Durability::Lazy] {
        let (engine, disk) = engine(durability, MEMORY);
        hit(&engine, "known").await.unwrap();
        disk.fails.store(true, SeqCst);
        assert!(hit(&engine, "known").await.is_err(), "the first failure may have taken");
        assert!(!engine.is_well());
        let (counters, journal) = (engine.table.usage().counters, engine.journal_bytes());
        for actor in 0..1_000 {
            let refused = act(&engine, &format!("new {actor}"), TAKE);
            assert!(refused.err().unwrap().to_string().contains("no space left"));
            assert!(act(&engine, &format!("new {actor}"), LOOK).is_err(), "a look reports the same error as a hit");
            assert!(act(&engine, "known", TAKE).is_err());
            assert!(act(&engine, "known", Action::Forget).is_err());
        }
        assert_eq!(engine.table.usage().counters, counters, "a refused hit leaves no trace");
        assert_eq!(engine.journal_bytes(), journal);

        disk.fails.store(false, SeqCst);
        engine.heal(|| true, || Ok(Arc::clone(&disk)));
        assert_eq!(hit(&engine, "known").await.unwrap(), 997);
        assert_eq!(hit(&engine, "new 1").await.unwrap(), 999);
    }
}

/// Returns the keys in all journal records, and the credit left in each key's last change.
fn journaled(disk: &TestDisk) -> BTreeMap<Vec<u8>, u64> {
    let mut left = BTreeMap::new();
    for record in disk.journal.lock().values() {
        let left_in = |value: &[u8]| u64::from_le_bytes(*value.last_chunk().unwrap());
        journal::each_change(record, |change| left.extend([(change.key.to_vec(), left_in(change.value))])).unwrap();
    }
    left
}

/// After a failed fsync, no change since the last successful one counts as written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_after_the_last_good_fsync_are_committed_again() {
    let (engine, disk) = engine(Durability::Wal, MEMORY);
    hit(&engine, "synced").await.unwrap();
    engine.sync().unwrap();
    for actor in 0..3_000 {
        hit(&engine, &format!("actor {}", actor % 1_000)).await.unwrap();
    }
    disk.fails.store(true, SeqCst);
    assert!(engine.sync().is_err());
    // The disk returns without any of these changes.
    let mended = Arc::new(TestDisk::default());
    engine.heal(|| true, || Ok(Arc::clone(&mended)));
    assert!(engine.is_well());
    let journaled = journaled(&mended);
    assert_eq!(journaled.len(), 1_000, "synced changes are not written again");
    assert!(journaled.values().all(|left| *left == 997), "counters have their current state");
}

/// Memory keeps the change of a commit that failed, and answers later hits from it. So the disk gets it, too, even if no
/// hit changes its counter again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_failed_commit_are_committed_again() {
    for durability in [Durability::Wal, Durability::Sync, Durability::Lazy] {
        let (engine, disk) = engine(durability, MEMORY);
        disk.fails.store(true, SeqCst);
        assert!(hit(&engine, "failed").await.is_err());
        // The disk returns without the change.
        let mended = Arc::new(TestDisk::default());
        engine.heal(|| true, || Ok(Arc::clone(&mended)));
        assert_eq!(hit(&engine, "other").await.unwrap(), 999);
        assert_eq!(act(&engine, "failed", LOOK).unwrap().outcome.left, 999);
        let journaled = journaled(&mended);
        assert_eq!(journaled.get("failed".as_bytes()), Some(&999), "{durability:?}");
    }
}

/// A counter that is written back may leave the table, and returns unchanged. Other counters stay even if the table is
/// full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_leave_the_table_once_they_are_written_back() {
    const ACTORS: u64 = 10_000;
    let (engine, disk) = engine(Durability::Wal, 0);
    for actor in 0..ACTORS {
        hit(&engine, &format!("actor {actor}")).await.unwrap();
    }
    assert_eq!(engine.table.usage().counters, ACTORS, "no counter is written back");
    engine.write_back_at(at(0)).unwrap();
    assert_eq!(disk.counters.lock().len() as u64, ACTORS);
    assert!(disk.journal.lock().is_empty() && engine.journal_bytes() == 0);
    for actor in 0..ACTORS {
        assert_eq!(hit(&engine, &format!("actor {actor}")).await.unwrap(), 998, "actor {actor}");
    }
    let usage = engine.table.usage();
    assert!(usage.misses > ACTORS * 3 / 4, "{usage:?}");
    engine.write_back_at(at(0)).unwrap();
    for actor in 0..ACTORS {
        hit(&engine, &format!("new actor {actor}")).await.unwrap();
    }
    let usage = engine.table.usage();
    assert!(usage.counters < ACTORS * 5 / 4, "the new counters have evicted the others: {usage:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_journal_is_written_back_in_pieces_without_counters_that_changed_since() {
    const MAX_JOURNAL: u64 = 64 << 10;
    let (engine, disk) = engine_with_journal(Durability::Wal, MEMORY, MAX_JOURNAL);
    hit(&engine, "early").await.unwrap();
    for turn in 0..5_000 {
        hit(&engine, &format!("often {}", turn % 10)).await.unwrap();
        while engine.write_back_if_due().unwrap() {}
        assert!(engine.journal_bytes() <= MAX_JOURNAL);
    }
    let written = disk.counters.lock().clone();
    assert_eq!(written.len(), 1, "counters that change all the time stay in the journal: {:?}", written.keys());
    assert!(written.contains_key(&b"early"[..]));
    assert!(journaled(&disk).iter().filter(|(key, _)| key.starts_with(b"often")).all(|(_, left)| *left == 500));
}

/// Regression test: a counter was skipped because it had changed again, although that change was not committed. Its
/// last committed change was dropped with the segment, so a crash would have lost that change. The uncommitted state
/// must not be written either, because it may be one part of a group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncommitted_change_does_not_replace_a_committed_one() {
    let (engine, disk) = engine(Durability::Wal, MEMORY);
    hit(&engine, "a").await.unwrap();
    engine.close_segment();
    hit(&engine, "b").await.unwrap();
    act(&engine, "a", TAKE).unwrap();
    assert!(engine.write_back_oldest().unwrap());
    assert!(!journaled(&disk).contains_key(&b"a"[..]), "its segment is dropped");
    let written = disk.counters.lock().get(&b"a"[..]).cloned().unwrap();
    assert_eq!(u64::from_le_bytes(*written.last_chunk().unwrap()), 999);
}

/// If no thread writes back, commits do it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_keep_the_journal_within_its_bound() {
    const MAX_JOURNAL: u64 = 4 << 10;
    let (engine, disk) = engine_with_journal(Durability::Wal, MEMORY, MAX_JOURNAL);
    for actor in 0..1_000 {
        hit(&engine, &format!("actor {actor}")).await.unwrap();
        assert!(engine.journal_bytes() <= MAX_JOURNAL + 100);
    }
    // Their windows ended long ago, so they are forgotten, except for a few in the stripe of the waiting commit.
    let written = disk.counters.lock().values().filter(|value| !value.is_empty()).count();
    assert!(written < 20 && engine.table.counters.count() < 500, "{written}");
}

/// Regression test: commits waited for the write-backs that large batches had made due, and so did small batches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_room_ahead_leaves_no_work_for_commits() {
    let (engine, _) = engine_with_journal(Durability::Wal, MEMORY, 64 << 10);
    for actor in 0.. {
        if engine.is_write_back_due() {
            break;
        }
        hit(&engine, &format!("actor {actor}")).await.unwrap();
    }
    engine.unsynced.lock().push(&vec![0; 9 << 20]);
    assert!(engine.unsynced.lock().is_long());
    engine.make_room_ahead().await;
    assert!(!engine.is_write_back_due() && !engine.unsynced.lock().is_long());
}

/// Regression test: only the journal's length bounded these counters. With a small table and a long journal, they took
/// many times the table's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dirty_counters_are_written_back_before_they_exceed_twice_the_cache_memory() {
    const MEMORY: usize = 2 << 20;
    let (engine, _) = engine_with_journal(Durability::Wal, MEMORY, 1 << 30);
    for is_helped in [true, false] {
        for actor in 0..200_000 {
            let acted = act(&engine, &format!("{is_helped} {actor}"), TAKE).unwrap();
            if actor % 500 == 0 {
                engine.wait_until_durable(acted.durable_after).await.unwrap();
                while is_helped && engine.write_back_if_due().unwrap() {}
            }
        }
        let usage = engine.table.usage();
        assert!(usage.bytes < 2 * MEMORY as u64, "{usage:?}");
        assert!(usage.bytes > MEMORY as u64 / 2, "{usage:?}");
        assert!(engine.journal_bytes() > 1 << 20, "only as much as necessary is written back");
    }
}

/// Regression test: the first hit waited until the journal and the table were within the smaller bounds, and so did the
/// last commit of a store that was closed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_waits_until_a_start_with_smaller_bounds_has_written_back() {
    const SMALL: usize = 1 << 20;
    const MAX_JOURNAL: u64 = 64 << 10;
    let disk = Arc::default();
    let before = engine_on(&disk, Durability::Wal, 64 << 20, 64 << 20);
    for actor in 0..100_000 {
        act_within(&before, &format!("actor {actor}"), 1_000, TAKE);
    }
    before.commit_rest().unwrap();
    drop(before);

    let after = engine_on(&disk, Durability::Wal, SMALL, MAX_JOURNAL);
    after.replay().unwrap();
    assert!(after.table.excess() > 2 * SMALL && after.journal_bytes() > 20 * MAX_JOURNAL);
    assert!(matches!(hit(&after, "alice").now_or_never(), Some(Ok(999))), "it waits for nothing");
    after.make_room_ahead().await;
    after.commit_rest().unwrap();
    assert!(disk.counters.lock().is_empty(), "nothing was written back");

    while after.write_back_if_due().unwrap() {}
    assert!(after.journal_bytes() <= MAX_JOURNAL && !after.is_write_back_due(), "{}", after.journal_bytes());
    assert!(after.table.usage().bytes < 2 * SMALL as u64, "{:?}", after.table.usage());
    for actor in 0..5_000 {
        hit(&after, &format!("later {actor}")).await.unwrap();
        assert!(after.journal_bytes() <= MAX_JOURNAL + 100, "the bound is in force again");
    }
}

/// Applies `action` to the counter of `actor` under a limit of `credits` a minute. The key has the store's format.
fn act_within(engine: &TestEngine, actor: &str, credits: u64, action: Action) -> ActionResult {
    let limit = window(credits, 60);
    let mut key = Vec::new();
    Prefix::new(Space::Rule, [], &limit).write_key(actor, &mut key);
    apply(engine, &key, &Entry::new(0..0, limit, action, at(0))).unwrap()
}

/// Several threads divide the journal among them, here five portions. The last change of each counter must still win.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_restores_the_newest_state_of_every_counter() {
    const ACTORS: u64 = 2_000;
    let name = |actor: u64| format!("{actor:-<1000}");
    let (before, disk) = engine_with_journal(Durability::Wal, MEMORY, 64 << 20);
    for commit in 1..=50 {
        let acted = (0..ACTORS).filter(|actor| actor % commit == 0).flat_map(|actor| {
            [1_000, 2_000].map(|credits| act_within(&before, &name(actor), credits, TAKE).durable_after)
        });
        let last = acted.max().unwrap();
        before.wait_until_durable(last).await.unwrap();
    }
    let journal: usize = disk.journal.lock().values().map(Vec::len).sum();
    assert!(journal > 16 << 20, "{journal}");
    let after = engine_on(&disk, Durability::Wal, MEMORY, 64 << 20);
    after.replay().unwrap();
    for actor in 0..ACTORS {
        for credits in [1_000, 2_000] {
            let left = |engine| act_within(engine, &name(actor), credits, LOOK).outcome.left;
            assert_eq!(left(&after), left(&before), "actor {actor} of {credits}");
        }
    }
}

/// A later version may have written such a change, so none of it may be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_change_is_stored_unaltered() {
    let (before, disk) = engine(Durability::Wal, MEMORY);
    before.wait_until_durable(act_within(&before, "a", 1_000, TAKE).durable_after).await.unwrap();
    let (mut record, mut staged) = (Vec::new(), Vec::new());
    for number in 0..100 {
        journal::stage(&mut staged, format!("unknown {number}").as_bytes(), |out| out.extend_from_slice(b"value"));
    }
    Packer::default().pack(&staged, &mut record);
    disk.journal.lock().insert(7, record);
    let after = started_on(&disk);
    after.replay().unwrap();
    assert_eq!(disk.counters.lock().len(), 100);
    assert!(disk.counters.lock().iter().all(|(key, value)| key.starts_with(b"unknown ") && value == b"value"));
    assert_eq!(act_within(&after, "a", 1_000, TAKE).outcome.left, 998);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_journal_prevents_the_start() {
    let (before, disk) = engine(Durability::Wal, MEMORY);
    before.wait_until_durable(act_within(&before, "a", 1_000, TAKE).durable_after).await.unwrap();
    let (mut staged, mut damaged) = (Vec::new(), Vec::new());
    journal::stage(&mut staged, b"long", |out| out.resize(4 << 20, 0));
    Packer::default().pack(&staged, &mut damaged);
    damaged.pop();
    // More portions than wait for the threads.
    disk.journal.lock().extend((100..112).map(|number| (number, damaged.clone())));
    let refused = started_on(&disk).replay().unwrap_err();
    assert_eq!(refused.to_string(), "a journal record does not consist of whole changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_disk_is_retried_and_hits_report_its_error() {
    let (engine, disk) = engine(Durability::Wal, MEMORY);
    hit(&engine, "a").await.unwrap();
    disk.fails.store(true, SeqCst);
    assert!(hit(&engine, "a").await.is_err());
    engine.heal(|| false, || panic!("an unusable disk is left alone"));
    assert!(engine.check().await.unwrap_err().to_string().contains("no space left"));
    engine.heal(|| true, || Err(StoreError::new("still sick")));
    assert!(hit(&engine, "a").await.is_err());
    assert!(act(&engine, "b", TAKE).is_err());
    engine.heal(|| true, || Ok(Arc::clone(&disk)));
    assert!(hit(&engine, "a").await.is_err(), "the disk was reopened, and fails again");
    disk.fails.store(false, SeqCst);
    engine.heal(|| true, || Ok(Arc::clone(&disk)));
    assert!(hit(&engine, "a").await.is_ok());
    engine.check().await.unwrap();
}
