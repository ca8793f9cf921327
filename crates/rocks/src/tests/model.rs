//! The engine on the model checker. Random schedules interleave hits, clients that leave, commits that fail,
//! write-backs, fsyncs, and a disk that breaks and is reopened.
//!
//! `make model` runs it. A failure prints a schedule that `shuttle::replay` repeats.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::{future, thread};

use crate::disk::{Disk, EachCounter, EachRecord, Patience, Reach};
use crate::engine::Engine;
use crate::group_commit::GroupCommit;
use crate::journal::{self, SortedChanges};
use crate::sync::model;
use divvy_core::algorithm::record::Content;
use divvy_core::algorithm::{Ask, Limit, Outcome, ReservationAsk, Resolution};
use divvy_store::record_key::{self, RecordSpace};
use divvy_store::testing::{TAKE, at, window};
use divvy_store::{Batch, Durability, RocksOptions, StoreError, value};

const CREDITS: u64 = 1_000;
/// Time of all hits (seconds). It is so far in the future that no window ends by the machine's clock.
const LATE: u64 = 4_000_000_000;
const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];
/// Counters that are hit only as a group. So all of them always have the same credit left.
const GROUP: [&[u8]; 3] = [b"x", b"y", b"z"];
/// Counter with [`RESERVATIONS`] reservations of [`RESERVED`] credits each. A commit uses [`USED`] of them.
const BUCKET: &[u8] = b"reserved";
const RESERVATIONS: u8 = 3;
const RESERVED: u64 = 10;
const USED: u64 = 3;

/// One write to the log.
#[derive(Debug, Clone)]
enum Write {
    Journal(u64, Vec<u8>),
    Clear(u64),
}

/// For each key, the fewest credits left in an acknowledged answer, and the number of acknowledged hits.
type Acknowledged = HashMap<&'static [u8], (u64, u64)>;
type Counters = BTreeMap<Vec<u8>, Vec<u8>>;

/// The storage, which outlives a database. The first `synced` writes of the log are on stable storage, and so are all
/// counters' own records.
#[derive(Debug, Default)]
struct Medium {
    log: Vec<Write>,
    synced: usize,
    counters: Counters,
    /// Number of writes and syncs that are still to fail.
    failures: usize,
}

/// A database on a medium. After a failed write, it rejects all others.
struct SimulatedDisk {
    medium: Arc<Mutex<Medium>>,
    is_broken: Mutex<bool>,
}

/// Returns the journal records in a log, in order.
fn journal_of(log: &[Write]) -> BTreeMap<u64, Vec<u8>> {
    let mut records = BTreeMap::new();
    for write in log {
        match write {
            Write::Journal(number, record) => {
                assert!(records.insert(*number, record.clone()).is_none(), "commit {number} was written twice");
                assert_eq!(records.last_key_value().unwrap().0, number, "commits are in order");
            }
            Write::Clear(through) => records.retain(|number, _| number > through),
        }
    }
    records
}

/// Returns the counters after a replay of the journal.
fn replay(log: &[Write], mut counters: Counters) -> Counters {
    for record in journal_of(log).values() {
        journal::each_change(record, |change| counters.extend([(change.key.to_vec(), change.value.to_vec())])).unwrap();
    }
    counters
}

impl SimulatedDisk {
    fn open(medium: &Arc<Mutex<Medium>>) -> Self {
        let mut content = medium.lock().unwrap();
        // Writes that were not synced before the failure may be lost, from any point on.
        let kept = thread_rng().gen_range(content.synced..=content.log.len());
        content.log.truncate(kept);
        Self { medium: Arc::clone(medium), is_broken: Mutex::new(false) }
    }

    /// Changes the medium by `write`, or fails.
    fn write(&self, sync: bool, write: impl FnOnce(&mut Medium)) -> Result<(), StoreError> {
        let mut broken = self.is_broken.lock().unwrap();
        if *broken {
            return Err(StoreError::new("broken before"));
        }
        let mut medium = self.medium.lock().unwrap();
        let fails = medium.failures > 0 && thread_rng().gen_bool(0.3);
        // A failed write may still have reached the disk.
        if !fails || thread_rng().gen_bool(0.5) {
            write(&mut medium);
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
    fn counters(&self, keys: &[&[u8]], reach: Reach, each: &mut EachCounter<'_>) {
        for (place, key) in keys.iter().enumerate() {
            let stored = self.medium.lock().unwrap().counters.get(*key).cloned();
            if reach == Reach::Disk || thread_rng().gen_bool(0.5) {
                each(place, Ok(stored.as_deref()));
            }
        }
    }

    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>> {
        if record.is_empty() {
            return Some(Ok(()));
        }
        if patience == Patience::None && thread_rng().gen_bool(0.3) {
            return None;
        }
        let write = Write::Journal(number, record.to_vec());
        Some(self.write(patience == Patience::Fsync, |medium| medium.log.push(write)))
    }

    fn read_journal(&self, first: u64, last: u64, each: &mut EachRecord<'_>) -> Result<(), StoreError> {
        let records = journal_of(&self.medium.lock().unwrap().log);
        records.range(first..=last).try_for_each(|(number, record)| each(*number, record))
    }

    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError> {
        self.write(false, |medium| {
            for change in changes.iter() {
                if change.value.is_empty() {
                    medium.counters.remove(change.key);
                } else {
                    medium.counters.insert(change.key.to_vec(), change.value.to_vec());
                }
            }
        })
    }

    fn clear_journal(&self, number: u64) -> Result<(), StoreError> {
        self.write(false, |medium| medium.log.push(Write::Clear(number)))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let covered = self.medium.lock().unwrap().log.len();
        // Lets other threads write during the sync.
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

#[derive(Clone)]
struct World {
    engine: Arc<Engine<SimulatedDisk>>,
    medium: Arc<Mutex<Medium>>,
    acknowledged: Arc<Mutex<Acknowledged>>,
    /// The last acknowledged request for each reservation, by its id.
    settled: Arc<Mutex<HashMap<u8, ReservationAsk>>>,
    /// The credit left in each counter, according to the first answer, by the name of the idempotent hit.
    answers: Arc<Mutex<HashMap<u8, Vec<u64>>>>,
}

impl World {
    fn new(durability: Durability, failures: usize, memory: usize) -> Self {
        let medium = Arc::new(Mutex::new(Medium { failures, ..Medium::default() }));
        let disk = SimulatedDisk::open(&medium);
        // The journal is so short that a segment has about two changes.
        let options = RocksOptions { durability, cache_memory: memory, max_journal: 600, ..RocksOptions::default() };
        let engine = Engine::new(disk, 0, &options);
        if memory > 0 {
            engine.table.noted_records();
        }
        Self {
            engine: Arc::new(engine),
            medium,
            acknowledged: Arc::default(),
            settled: Arc::default(),
            answers: Arc::default(),
        }
    }

    /// Starts a client that hits two counters, and may leave at any time.
    fn client(&self, index: usize) -> future::JoinHandle<()> {
        let client = self.clone();
        future::spawn(async move {
            for turn in 0..2 {
                client.hit(KEYS[(index + turn) % KEYS.len()]).await;
            }
        })
    }

    async fn hit(&self, key: &'static [u8]) {
        self.hit_all(&[key]).await;
    }

    /// Starts a client that hits all of [`GROUP`] as a group, and may leave at any time.
    fn group_client(&self) -> future::JoinHandle<()> {
        let client = self.clone();
        future::spawn(async move {
            for _ in 0..2 {
                client.hit_group().await;
            }
        })
    }

    async fn hit_group(&self) {
        self.hit_all(&GROUP).await;
    }

    async fn hit_all(&self, keys: &[&'static [u8]]) {
        let batch = batch(|batch| {
            for key in keys {
                batch.push(window(CREDITS, 60), TAKE, at(LATE), |out| out.extend_from_slice(key));
            }
        });
        for (key, outcome) in keys.iter().zip(self.apply(batch).await.unwrap_or_default()) {
            self.acknowledge(key, outcome.left);
        }
    }

    fn acknowledge(&self, key: &'static [u8], left: u64) {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        let (least, hits) = acknowledged.entry(key).or_insert((CREDITS, 0));
        *least = left.min(*least);
        *hits += 1;
    }

    /// Returns the outcomes of the batch, if all are acknowledged.
    async fn apply(&self, mut batch: Batch) -> Option<Vec<Outcome>> {
        self.engine.apply(&mut batch).await;
        batch.outcomes.into_iter().collect::<Result<_, _>>().ok()
    }

    /// Returns the content of the disk after a crash at this moment and a restart.
    fn crashed(&self) -> Crashed {
        let medium = self.medium.lock().unwrap();
        Crashed(replay(&medium.log, medium.counters.clone()))
    }

    /// Asserts that a crash at this moment leaves each group whole.
    fn assert_whole(&self) {
        let crashed = self.crashed();
        let [x, y, z] = GROUP.map(|key| crashed.left(key));
        assert!(x == y && y == z, "a part of a group: {x}, {y} and {z} left");
    }

    fn heal(&self) {
        let medium = Arc::clone(&self.medium);
        self.engine.heal(|| true, || Ok(SimulatedDisk::open(&medium)));
    }

    /// Waits until the disk, which fails no more, has everything. The commit of a client that has left may still fail here.
    fn recover(&self) {
        self.medium.lock().unwrap().failures = 0;
        while future::block_on(self.engine.check()).is_err() {
            self.heal();
            thread::yield_now();
        }
    }

    /// Runs clients and housekeeping at the same time. Some clients leave. Then heals the disk, and expects an answer
    /// to a last hit.
    fn run(&self) {
        let clients: Vec<_> = (0..3).map(|index| self.client(index)).collect();
        let housekeeping = {
            let engine = Arc::clone(&self.engine);
            thread::spawn(move || {
                for _ in 0..2 {
                    let _ = engine.write_back_if_due();
                    let _ = engine.sync();
                    let _ = if thread_rng().gen_bool(0.5) { engine.write_back() } else { Ok(()) };
                }
            })
        };
        let healer = {
            let world = self.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    world.heal();
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
        self.recover();
        future::block_on(self.client(0)).unwrap();
    }

    /// Asserts that the first `kept` writes of the log contain every acknowledged hit.
    fn assert_kept(&self, kept: usize) {
        let medium = self.medium.lock().unwrap();
        let counters = replay(&medium.log[..kept], medium.counters.clone());
        for (key, (least, hits)) in self.acknowledged.lock().unwrap().iter() {
            let value = counters.get(*key).unwrap_or_else(|| panic!("{key:?} is gone"));
            let left = left(value);
            assert!(left <= *least, "{key:?}: {left} left after the crash, {least} acknowledged before");
            assert!(left + hits <= CREDITS, "{key:?}: {left} left after {hits} acknowledged hits");
        }
    }

    fn written(&self) -> usize {
        self.medium.lock().unwrap().log.len()
    }

    fn synced(&self) -> usize {
        self.medium.lock().unwrap().synced
    }
}

/// Returns the credit left in a window's value.
fn left(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[8..].try_into().unwrap())
}

/// Counters and records by key, as a restart finds them.
struct Crashed(Counters);

impl Crashed {
    fn stored(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key).map(Vec::as_slice).filter(|value| !value.is_empty())
    }

    /// Returns the credit left in this bucket.
    fn left(&self, bucket: &[u8]) -> u64 {
        let state = self.stored(bucket).map(|value| value::decode(&window(CREDITS, 60), value).unwrap());
        window(CREDITS, 60).decide(state.as_ref(), Ask::Look { cost: 0 }, at(LATE)).outcome.left
    }

    fn record(&self, space: RecordSpace, id: &[u8], bucket: &[u8]) -> Option<Content> {
        let mut key = Vec::new();
        record_key::write(space, id, &mut key, |out| out.extend_from_slice(bucket));
        self.stored(&key).map(|value| value::decode_record(value).unwrap().content)
    }
}

/// Returns a batch of one group, which `push` adds.
fn batch(push: impl FnOnce(&mut Batch)) -> Batch {
    let mut batch = Batch::default();
    batch.begin(at(LATE));
    push(&mut batch);
    batch.group(0);
    batch
}

/// Appends the key of a bucket.
fn bucket(key: &'static [u8]) -> impl FnOnce(&mut Vec<u8>) -> Option<Limit> {
    move |out| {
        out.extend_from_slice(key);
        Some(window(CREDITS, 60))
    }
}

/// Returns the number of schedules, from `DIVVY_TEST_SCHEDULES`.
fn schedules() -> usize {
    std::env::var("DIVVY_TEST_SCHEDULES").map_or(2_000, |schedules| schedules.parse().unwrap())
}

/// Runs `check` under random schedules.
fn random(check: impl Fn() + Send + Sync + 'static) {
    model(|| shuttle::check_random(check, schedules()));
}

/// Runs `check` under schedules that may pause a thread for a long time while others run.
fn with_pauses(check: impl Fn() + Send + Sync + 'static) {
    model(|| shuttle::check_pct(check, schedules(), 3));
}

/// Without memory, counters are evicted as soon as possible.
#[test]
fn acknowledged_hits_survive_the_process_and_evictions() {
    for memory in [10_000, 0] {
        random(move || {
            let world = World::new(Durability::Wal, 0, memory);
            world.run();
            world.assert_kept(world.written());
        });
    }
}

/// Asserts that groups stay whole if a crash happens at any time while other hits, write-backs, commits and evictions
/// run.
fn groups_stay_whole(durability: Durability, memory: usize) {
    let world = World::new(durability, 0, memory);
    let clients = vec![world.group_client(), world.group_client(), world.client(0)];
    records_agree(&world, clients, 0, World::assert_whole);
    future::block_on(world.hit_group());
    world.assert_whole();
    world.assert_kept(world.written());
}

/// Without the gate, or if write-backs wrote uncommitted changes, a few hundred schedules would find half a group.
#[test]
fn no_crash_splits_a_group() {
    random(|| groups_stay_whole(Durability::Wal, 10_000));
    random(|| groups_stay_whole(Durability::Sync, 0));
    with_pauses(|| groups_stay_whole(Durability::Wal, 0));
}

/// Reserves, and then commits or releases, while others reserve from the same bucket.
async fn reserve_and_settle(world: World, id: u8) {
    let reserve = ReservationAsk::Reserve { credits: RESERVED, ttl_seconds: 60 };
    let commit = ReservationAsk::Commit { cost: USED, charges: false, run: None };
    world.reserve(id, reserve).await;
    world.reserve(id, if id == 0 { ReservationAsk::Release { run: None } } else { commit }).await;
}

impl World {
    async fn reserve(&self, id: u8, ask: ReservationAsk) {
        let batch = batch(|batch| {
            batch.push_reservation(ask, &[id], bucket(BUCKET));
        });
        if let Some(outcomes) = self.apply(batch).await
            && outcomes[0].resolution == Resolution::Done
        {
            self.settled.lock().unwrap().insert(id, ask);
        }
    }

    /// Asserts that after a crash at this moment, the bucket agrees with the records, and that no acknowledged change
    /// is missing.
    fn assert_reservations(&self) {
        let (settled, crashed) = (self.settled.lock().unwrap().clone(), self.crashed());
        let mut gone = 0;
        for id in 0..RESERVATIONS {
            let record = crashed.record(RecordSpace::Reservations, &[id], BUCKET);
            gone += match record {
                None => 0,
                Some(Content::Open { .. }) => RESERVED,
                Some(Content::Committed { .. }) => USED,
                Some(Content::Answer { .. }) => panic!("{id} is no reservation"),
            };
            match settled.get(&id) {
                Some(ReservationAsk::Reserve { .. }) => assert!(record.is_some() || id == 0, "{id} is lost"),
                Some(ReservationAsk::Commit { .. }) => {
                    assert!(matches!(record, Some(Content::Committed { .. })), "the commit of {id} is lost");
                }
                Some(ReservationAsk::Release { .. }) => assert_eq!(record, None, "{id} is back"),
                Some(ReservationAsk::Renew { .. }) | None => {}
            }
        }
        assert_eq!(CREDITS - crashed.left(BUCKET), gone, "the bucket and the records do not agree");
    }
}

/// Settles the reservation for all counters of [`GROUP`].
async fn settle_group(world: World, ask: ReservationAsk) {
    if let Some(outcomes) = world.settle_all(ask).await {
        let resolutions: Vec<_> = outcomes.iter().map(|outcome| outcome.resolution).collect();
        assert!(
            resolutions.iter().all(|resolution| *resolution == resolutions[0]),
            "one call decided about a part: {resolutions:?}"
        );
    }
}

impl World {
    /// Applies `ask` to one reservation for all counters of [`GROUP`]. Returns the outcomes if they are acknowledged.
    async fn settle_all(&self, ask: ReservationAsk) -> Option<Vec<Outcome>> {
        let batch = batch(|batch| {
            for key in GROUP {
                batch.push_reservation(ask, b"it", bucket(key));
            }
        });
        self.apply(batch).await
    }

    /// Asserts that after a crash at this moment, the reservation of [`GROUP`] is in one stage, and all counters have
    /// the same credit left.
    fn assert_settled_as_one(&self) {
        let crashed = self.crashed();
        let all = GROUP.map(|bucket| {
            let record = crashed.record(RecordSpace::Reservations, b"it", bucket);
            (crashed.left(bucket), record.map(|record| matches!(record, Content::Open { .. })))
        });
        assert!(all.windows(2).all(|two| two[0] == two[1]), "a part of a reservation: {all:?}");
    }
}

fn reservation_is_settled_as_one(memory: usize) {
    let world = World::new(Durability::Wal, 0, memory);
    let reserve = ReservationAsk::Reserve { credits: RESERVED, ttl_seconds: 30 };
    assert!(future::block_on(world.settle_all(reserve)).is_some());
    let asks = [
        ReservationAsk::Commit { cost: USED, charges: true, run: None },
        ReservationAsk::Commit { cost: 2 * USED, charges: true, run: None },
        ReservationAsk::Release { run: None },
        ReservationAsk::Renew { ttl_seconds: Some(50), run: None },
    ];
    let clients = asks.map(|ask| future::spawn(settle_group(world.clone(), ask))).into_iter().collect();
    records_agree(&world, clients, 0, World::assert_settled_as_one);
}

#[test]
fn one_call_settles_all_buckets_of_a_reservation() {
    random(|| reservation_is_settled_as_one(10_000));
    random(|| reservation_is_settled_as_one(0));
    with_pauses(|| reservation_is_settled_as_one(0));
}

fn reservations_agree_with_their_bucket(memory: usize, failures: usize) {
    let world = World::new(Durability::Wal, failures, memory);
    let clients = (0..RESERVATIONS).map(|id| future::spawn(reserve_and_settle(world.clone(), id))).collect();
    records_agree(&world, clients, failures, World::assert_reservations);
}

/// Hits [`GROUP`] with an idempotency key, and repeats the hit.
async fn hit_once_and_again(world: World, name: u8) {
    for _ in 0..2 {
        world.hit_once(name).await;
    }
}

impl World {
    async fn hit_once(&self, name: u8) {
        let batch = batch(|batch| {
            let take = Ask::Take { cost: USED };
            for key in GROUP {
                batch.push_idempotent(take, (&[name], 7), bucket(key));
            }
        });
        if let Some(outcomes) = self.apply(batch).await {
            let answered = outcomes.iter().map(|Outcome { left, .. }| *left).collect::<Vec<_>>();
            let mut answers = self.answers.lock().unwrap();
            let first = answers.entry(name).or_insert_with(|| answered.clone());
            assert_eq!(*first, answered, "the second answer to {name} differs");
        }
    }

    /// Asserts that after a crash at this moment, each counter agrees with its answers, a group has all of its answers
    /// or none, and no acknowledged answer is missing.
    fn assert_answers(&self) {
        let (answers, crashed) = (self.answers.lock().unwrap().clone(), self.crashed());
        let answered = GROUP.map(|bucket| {
            let answer = |name: u8| match crashed.record(RecordSpace::Answers, &[name], bucket)? {
                Content::Answer { outcome, .. } => Some(outcome.left),
                Content::Open { .. } | Content::Committed { .. } => panic!("{name} is no answer"),
            };
            let answered: Vec<_> = (0..RESERVATIONS).map(answer).collect();
            assert_eq!(CREDITS - crashed.left(bucket), USED * answered.iter().flatten().count() as u64, "{answered:?}");
            answered
        });
        for (name, first) in answers {
            let stored: Vec<_> = answered.iter().filter_map(|answered| answered[usize::from(name)]).collect();
            assert_eq!(stored, first, "the answer to {name} is lost");
        }
        let names = answered.map(|answered| answered.iter().map(Option::is_some).collect::<Vec<_>>());
        assert!(names.windows(2).all(|two| two[0] == two[1]), "a part of a group: {names:?}");
    }
}

fn answers_agree_with_their_buckets(memory: usize, failures: usize) {
    let world = World::new(Durability::Wal, failures, memory);
    let clients = (0..RESERVATIONS).map(|name| future::spawn(hit_once_and_again(world.clone(), name))).collect();
    records_agree(&world, clients, failures, World::assert_answers);
}

#[test]
fn no_crash_separates_an_answer_from_its_bucket() {
    random(|| answers_agree_with_their_buckets(10_000, 0));
    random(|| answers_agree_with_their_buckets(0, 0));
    with_pauses(|| answers_agree_with_their_buckets(0, 0));
}

#[test]
fn answers_agree_with_their_buckets_on_a_failing_disk() {
    random(|| answers_agree_with_their_buckets(0, 2));
}

/// Asserts that records agree with their buckets at any time while these clients run. Some of the clients leave.
fn records_agree(world: &World, clients: Vec<future::JoinHandle<()>>, failures: usize, assert_agree: fn(&World)) {
    let crashes = {
        let world = world.clone();
        thread::spawn(move || {
            for _ in 0..12 {
                // A failed disk lacks changes, which are written when it is reopened.
                if failures == 0 {
                    assert_agree(&world);
                }
                thread::yield_now();
            }
        })
    };
    let housekeeping = {
        let engine = Arc::clone(&world.engine);
        thread::spawn(move || {
            for _ in 0..3 {
                let _ = engine.write_back_if_due();
                let written = engine.write_back();
                assert!(failures > 0 || written.is_ok(), "{written:?}");
            }
        })
    };
    for client in clients {
        if thread_rng().gen_bool(0.3) {
            client.abort();
        }
        let _ = future::block_on(client);
        world.heal();
    }
    crashes.join().unwrap();
    housekeeping.join().unwrap();
    world.recover();
    assert_agree(world);
}

#[test]
fn no_crash_separates_a_reservation_from_its_bucket() {
    random(|| reservations_agree_with_their_bucket(10_000, 0));
    random(|| reservations_agree_with_their_bucket(0, 0));
    with_pauses(|| reservations_agree_with_their_bucket(0, 0));
}

#[test]
fn reservations_agree_with_their_bucket_on_a_failing_disk() {
    random(|| reservations_agree_with_their_bucket(0, 2));
}

/// Changes that are committed again after a disk failure also include whole groups.
#[test]
fn groups_stay_whole_on_a_failing_disk() {
    random(|| {
        let world = World::new(Durability::Wal, 2, 0);
        let clients = (0..3).map(|_| world.group_client()).collect();
        records_agree(&world, clients, 2, World::assert_whole);
        world.assert_kept(world.written());
    });
}

/// If evictions were not counted, 2,000 schedules would find one that gives credit back.
#[test]
fn counter_that_comes_and_goes_during_a_look_up_is_looked_up_again() {
    const KEY: &[u8] = b"a";
    with_pauses(|| {
        // Counters are evicted as soon as possible, because other counters of their stripe need room.
        let world = World::new(Durability::Wal, 0, 0);
        let stripe = |key: &[u8]| world.engine.table.hasher.hash(key).stripe();
        let alphabet = b"bcdefghijklmnopqrstuvwxyz".chunks(1);
        let mut others = alphabet.filter(|other| stripe(other) == stripe(KEY));
        let mut some_others = || others.by_ref().take(4).collect::<Vec<_>>();
        let come_and_go = |world: &World, others: Vec<&'static [u8]>| {
            future::block_on(world.hit(KEY));
            world.engine.write_back().unwrap();
            others.into_iter().for_each(|other| future::block_on(world.hit(other)));
        };
        come_and_go(&world, some_others());
        assert!(world.engine.table.peek(KEY).is_none(), "it has left");
        let beside = {
            let (world, others) = (world.clone(), some_others());
            thread::spawn(move || come_and_go(&world, others))
        };
        future::block_on(world.hit(KEY));
        beside.join().unwrap();
        world.assert_kept(world.written());
    });
}

#[test]
fn failing_disk_loses_nothing_acknowledged() {
    for durability in [Durability::Wal, Durability::Sync] {
        random(move || {
            let world = World::new(durability, 2, 0);
            world.run();
            world.assert_kept(world.written());
        });
    }
}

#[test]
fn acknowledged_hits_on_stable_storage_survive_a_power_cut() {
    random(|| {
        let world = World::new(Durability::Sync, 1, 0);
        world.run();
        world.assert_kept(world.synced());
    });
}

#[test]
fn leadership_is_never_lost_when_waiters_leave() {
    random(|| {
        let group = GroupCommit::new(0);
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let group = Arc::clone(&group);
                future::spawn(async move {
                    if let Ok(Some(leader)) = group.wait_for(group.open()).await {
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
