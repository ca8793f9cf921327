//! The store's contract, checked for every backend: one suite, with a module for each backend. Tests of a backend may
//! share a server, so each test uses its own buckets.

mod campaign;
mod clock;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use divvy::algorithm::record::Replay;
use divvy::algorithm::{
    Ask, CalendarWindow, Concurrency, CountBasis, Decision, FixedWindow, Kind, LeakyBucket, Limit, Outcome, Record,
    RecordChange, ReservationAsk, Resolution, Run, State, TokenBucket,
};
use divvy::calendar::{Calendar, Unit, time_of_day};
use divvy::clock::{Clock, Timestamp};
use divvy::store::key::{Prefix, Space};
use divvy::store::record_key::{self, RecordSpace};
use divvy::store::{
    Action, Backend, Batch, FailurePolicy, MemoryStore, RedisOptions, RedisStore, RocksOptions, RocksStore, Store,
};
use proptest::prelude::*;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use self::clock::{
    clock_set_back_keeps_no_answer_longer, clock_set_back_keeps_no_commit_longer,
    clock_set_back_never_extends_a_wait_beyond_the_limit,
};
use crate::support::{PATIENCE, RedisCluster, RedisServer};

const SECOND: u64 = 1_000_000_000;

/// A store, its directory, and a way to close and reopen it.
pub struct StoreFixture {
    pub store: Backend,
    pub dir: Option<TempDir>,
    reopen: Option<fn(Option<&TempDir>) -> Backend>,
    buckets: Buckets,
}

/// The kind of buckets in a suite.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Buckets {
    /// Buckets that belong to no rule. Every store decides on them by the times of the actions.
    ByPassedTime,
    /// Buckets of rules in Redis. Redis's own clock ends their fixed windows, and tests cannot change it. Therefore no
    /// time passes between actions, the parts of cases about later times are skipped, and the rest of a window counts
    /// as the whole window.
    OfRules,
}

impl StoreFixture {
    fn new(store: Backend) -> Self {
        Self { store, dir: None, reopen: None, buckets: Buckets::ByPassedTime }
    }

    /// Returns `seconds` if time can be passed.
    fn later(&self, seconds: u64) -> u64 {
        if self.buckets == Buckets::ByPassedTime { seconds } else { 0 }
    }

    /// Reopens the same buckets; `None` if they are lost.
    fn reopen(self) -> Option<Self> {
        let Self { store, dir, reopen, buckets } = self;
        drop(store);
        let store = reopen?(dir.as_ref());
        Some(Self { store, dir, reopen, buckets })
    }

    /// Applies the actions as one batch.
    async fn apply(&self, now: Timestamp, actions: &[(&str, Limit, Action)]) -> Vec<Outcome> {
        let alone: Vec<_> = actions.chunks(1).collect();
        self.apply_groups(now, &alone).await
    }

    /// Applies groups of actions as one batch. An action with a record names bucket and record: `bucket#record`.
    async fn apply_groups(&self, now: Timestamp, groups: &[&[(&str, Limit, Action)]]) -> Vec<Outcome> {
        let mut batch = Batch::default();
        // Redis uses its own clock for buckets of rules.
        let is_in_redis = matches!(self.store, Backend::Redis(_));
        batch.begin(if is_in_redis { Clock::system().now() } else { now });
        for group in groups {
            let first = batch.len();
            for (key, limit, action) in *group {
                let (bucket, record) = split_key(key, *action);
                let write_bucket = |out: &mut Vec<u8>| match self.buckets {
                    Buckets::ByPassedTime => out.extend_from_slice(bucket.as_bytes()),
                    Buckets::OfRules => {
                        Prefix::new(Space::Rule, [("suite", "conformance")], &identifying_limit(*limit))
                            .write_key(bucket, out);
                    }
                };
                batch.push(dated(*limit, now), *action, now, |out| match record {
                    Some((space, id)) => record_key::write(space, id.as_bytes(), out, write_bucket),
                    None => write_bucket(out),
                });
            }
            batch.group(first);
        }
        self.store.apply(&mut batch).await;
        let outcome = |(index, (_, limit, action)): (usize, &(&str, Limit, Action))| {
            let outcome = batch.outcome(index).unwrap();
            if self.buckets == Buckets::OfRules { whole_window(outcome, limit, *action, now) } else { outcome }
        };
        groups.iter().copied().flatten().enumerate().map(outcome).collect()
    }

    async fn apply_named(&self, now: Timestamp, actions: &[(String, Limit, Action)]) -> Vec<Outcome> {
        let borrowed: Vec<_> = actions.iter().map(|(key, limit, action)| (key.as_str(), *limit, *action)).collect();
        self.apply(now, &borrowed).await
    }

    async fn one(&self, now: Timestamp, key: &str, limit: Limit, action: Action) -> Outcome {
        self.apply(now, &[(key, limit, action)]).await[0]
    }
}

/// Splits the key of an action that has a record into the names of the bucket and the record.
fn split_key(key: &str, action: Action) -> (&str, Option<(RecordSpace, &str)>) {
    if let Some(space) = action.record_space() {
        let (bucket, record) = key.rsplit_once('#').unwrap();
        return (bucket, Some((space, record)));
    }
    (key, None)
}

/// Returns the outcome as it was at the beginning of its window, which began at most one test's duration ago. A
/// reservation that ends with the window then ends at `begun`.
fn whole_window(mut outcome: Outcome, limit: &Limit, action: Action, begun: Timestamp) -> Outcome {
    let Limit::FixedWindow(FixedWindow { window_ns, .. }) = limit else { return outcome };
    if matches!(action, Action::Reservation(_)) && outcome.session > Timestamp::EPOCH {
        let left_ns = outcome.session.since(Clock::system().now());
        let is_whole = left_ns >= window_ns.get().saturating_sub(PATIENCE.as_secs() * SECOND);
        outcome.session = if is_whole { begun.plus(window_ns.get()) } else { begun.plus(left_ns) };
    }
    let window_ns = window_ns.get();
    let begin = window_ns.saturating_sub(PATIENCE.as_secs() * SECOND);
    let whole = |left_ns| if (begin..window_ns).contains(&left_ns) { window_ns } else { left_ns };
    outcome.retry_ns = outcome.retry_ns.map(whole);
    outcome.reset_ns = whole(outcome.reset_ns);
    outcome
}

pub fn memory() -> StoreFixture {
    StoreFixture::new(Backend::Memory(MemoryStore::default()))
}

pub fn rocks() -> StoreFixture {
    let dir = tempfile::tempdir().unwrap();
    let store = open_rocks(dir.path(), 1 << 20);
    StoreFixture { dir: Some(dir), reopen: Some(reopen_rocks), ..StoreFixture::new(store) }
}

/// Opens a store with a table so small that most counters are evicted and read back.
pub fn rocks_evicting() -> StoreFixture {
    let dir = tempfile::tempdir().unwrap();
    let store = open_rocks(dir.path(), 1);
    StoreFixture { dir: Some(dir), reopen: Some(reopen_rocks), ..StoreFixture::new(store) }
}

fn reopen_rocks(dir: Option<&TempDir>) -> Backend {
    open_rocks(dir.unwrap().path(), 1 << 20)
}

/// Returns a server that all tests share, with different buckets.
pub fn redis() -> StoreFixture {
    static SERVER: LazyLock<RedisServer> = LazyLock::new(RedisServer::start);
    let open = |_: Option<&TempDir>| open_redis(vec![SERVER.url()]);
    StoreFixture { reopen: Some(open), ..StoreFixture::new(open(None)) }
}

/// Opens a store for rules' counters in Redis, where fixed windows use Divvy's script.
pub fn redis_rules() -> StoreFixture {
    StoreFixture { buckets: Buckets::OfRules, ..redis() }
}

pub fn redis_cluster_rules() -> StoreFixture {
    StoreFixture { buckets: Buckets::OfRules, ..redis_cluster() }
}

pub fn redis_cluster() -> StoreFixture {
    static CLUSTER: LazyLock<RedisCluster> = LazyLock::new(RedisCluster::start);
    let open = |_: Option<&TempDir>| open_redis(CLUSTER.urls());
    StoreFixture { reopen: Some(open), ..StoreFixture::new(open(None)) }
}

/// Opens a store that waits longer for Redis than a real server would, because all tests run at the same time.
fn open_redis(urls: Vec<String>) -> Backend {
    let options = RedisOptions { urls, timeout: PATIENCE, ..RedisOptions::default() };
    Backend::redis(RedisStore::open(options).unwrap(), 0, FailurePolicy::Error, Clock::system())
}

pub fn open_rocks(path: &Path, cache_memory: usize) -> Backend {
    let options = RocksOptions { cache_memory, ..RocksOptions::default() };
    Backend::Rocks(RocksStore::open(path, options).unwrap())
}

/// Waits for a future. No timer is needed, because the tests' times are parameters.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    Runtime::new().unwrap().block_on(future)
}

pub fn limit(credits: u64, seconds: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(credits, seconds * SECOND).unwrap())
}

fn calendar(credits: u64, unit: Unit, zone: &str, reset_at: &str) -> Limit {
    let calendar = Calendar::new(unit, zone, time_of_day(reset_at).unwrap()).unwrap();
    Limit::CalendarWindow(CalendarWindow::new(credits, calendar.id()).unwrap())
}

/// Returns the limit for a request at `now`.
pub fn dated(limit: Limit, now: Timestamp) -> Limit {
    let Limit::CalendarWindow(window) = limit else { return limit };
    Limit::CalendarWindow(Calendar::of(window.calendar).unwrap().dated(window, now))
}

/// Returns the limit with another number of credits, for the same counters.
fn resized(limit: Limit, credits: u64) -> Limit {
    let one = NonZeroU64::new(credits).unwrap();
    match (limit, limit.rate()) {
        (Limit::CalendarWindow(window), _) => Limit::CalendarWindow(CalendarWindow { credits: one, ..window }),
        (limit, Some((refill, time_ns))) => {
            Limit::new(limit.kind(), credits, refill, time_ns).unwrap().counting(limit.count_basis())
        }
        (Limit::Concurrency(limit), None) => Limit::Concurrency(Concurrency { leases: credits, ..limit }),
        (limit, None) => panic!("{limit:?}"),
    }
}

/// Returns the limit that identifies its counters, regardless of later changes.
fn identifying_limit(limit: Limit) -> Limit {
    match limit.count_basis() {
        CountBasis::LeftOf(credits) => resized(limit, credits.get()),
        CountBasis::Used => resized(limit, 1),
    }
}

/// Returns limits of every algorithm. Some algorithms have two, whose buckets the store must distinguish. Windows that
/// Redis ends do not end during a test.
fn limits(buckets: Buckets) -> Vec<Limit> {
    let windows = match buckets {
        Buckets::ByPassedTime => [limit(5, 60), limit(3, 10)],
        Buckets::OfRules => [limit(5, 6000), limit(3, 1000)],
    };
    let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::FixedWindow);
    let others = others.map(|kind| Limit::new(kind, 6, 2, 45 * SECOND).unwrap());
    let extra = [
        Limit::TokenBucket(TokenBucket::new(1, 1, 10 * SECOND).unwrap()),
        Limit::LeakyBucket(LeakyBucket::new(4, 3, 50 * SECOND).unwrap()),
        // Its days begin twenty seconds after the tests' time.
        calendar(5, Unit::Minute, "UTC", "00:00"),
        calendar(5, Unit::Day, "Asia/Kathmandu", "12:52"),
        // The following limits count usage.
        calendar(6, Unit::Minute, "UTC", "00:00").counting(CountBasis::Used),
        Limit::TokenBucket(TokenBucket::new(5, 2, 20 * SECOND).unwrap()).counting(CountBasis::Used),
    ];
    windows.into_iter().chain(others).chain(extra).collect()
}

pub fn at(seconds: u64) -> Timestamp {
    // Far ahead of the system's clock, so that no compaction treats the test's counters as expired.
    Timestamp::from_secs(4_000_000_000 + seconds).unwrap()
}

pub const TAKE: Action = Action::Ask(Ask::Take { cost: 1 });
pub const LOOK: Action = Action::Ask(Ask::Look { cost: 1 });

const FORGET: Action = Action::Forget;

fn take(cost: u64) -> Action {
    Action::Ask(Ask::Take { cost })
}

/// The expected outcome of a step: whether it is allowed, the credits left and owed, and the outcome of its record.
#[derive(Debug, Clone, Copy)]
struct Answer {
    allowed: bool,
    left: u64,
    owed: u64,
    resolution: Resolution,
    /// Seconds until the reset.
    reset: Option<u64>,
}

impl Answer {
    fn new(allowed: bool, resolution: Resolution, left: u64) -> Self {
        Self { allowed, left, owed: 0, resolution, reset: None }
    }

    fn owing(self, owed: u64) -> Self {
        Self { owed, ..self }
    }

    fn reset(self, seconds: u64) -> Self {
        Self { reset: Some(seconds), ..self }
    }
}

fn allowed(left: u64) -> Answer {
    Answer::new(true, Resolution::Done, left)
}

fn denied(left: u64) -> Answer {
    Answer::new(false, Resolution::Done, left)
}

fn repeated(left: u64) -> Answer {
    Answer::new(true, Resolution::Repeated, left)
}

fn different(left: u64) -> Answer {
    Answer::new(false, Resolution::Different, left)
}

fn gone(left: u64) -> Answer {
    Answer::new(false, Resolution::Gone, left)
}

fn late(left: u64) -> Answer {
    Answer::new(true, Resolution::Late, left)
}

impl StoreFixture {
    fn assert_answer(&self, limit: Limit, action: Action, outcome: Outcome, expected: Answer, step: &str) {
        let found = (outcome.allowed, outcome.left, outcome.owed, outcome.resolution);
        let Answer { allowed, left, owed, resolution, reset } = expected;
        assert_eq!(found, (allowed, left, owed, resolution), "{step}: {action:?} of {limit:?}");
        if let Some(seconds) = reset {
            // Without a time that passes, each window counts as a whole one.
            let is_whole = self.buckets == Buckets::OfRules && seconds > 0;
            let seconds = if is_whole { limit.rate().unwrap().1 / SECOND } else { seconds };
            assert_eq!(outcome.reset_ns / SECOND, seconds, "{step}: the reset after {action:?} of {limit:?}");
        }
    }

    /// Takes the steps one after the other: a time in seconds, the key, the action and its answer. If no time can be passed, all
    /// are taken at once.
    async fn follow(&self, limit: Limit, steps: &[(u64, &str, Action, Answer)]) {
        for (number, (seconds, key, action, expected)) in steps.iter().enumerate() {
            let outcome = self.one(at(self.later(*seconds)), key, limit, *action).await;
            self.assert_answer(limit, *action, outcome, *expected, &format!("{key}, step {number}"));
        }
    }

    /// Takes the steps as one batch.
    async fn follow_batch(&self, limit: Limit, steps: &[(&str, Action, Answer)]) {
        let actions: Vec<_> = steps.iter().map(|(key, action, _)| (*key, limit, *action)).collect();
        let outcomes = self.apply(at(0), &actions).await;
        for (number, ((key, action, expected), outcome)) in steps.iter().zip(outcomes).enumerate() {
            self.assert_answer(limit, *action, outcome, *expected, &format!("{key}, action {number}"));
        }
    }

    /// Takes the steps as one group.
    async fn follow_group(&self, name: &str, steps: &[(&str, Limit, Action, Answer)]) {
        let members: Vec<_> = steps.iter().map(|(key, limit, action, _)| (*key, *limit, *action)).collect();
        let outcomes = self.apply_groups(at(0), &[&members]).await;
        for ((key, limit, action, expected), outcome) in steps.iter().zip(outcomes) {
            self.assert_answer(*limit, *action, outcome, *expected, &format!("{name}: {key}"));
        }
    }
}

async fn credits_decrease_by_one_and_return_with_the_next_window(opened: StoreFixture) {
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
async fn await_next_credit(opened: &StoreFixture, key: &str, limit: Limit, begin: Instant) -> Duration {
    while !opened.one(at(0), key, limit, TAKE).await.allowed {
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    begin.elapsed()
}

async fn window_in_redis_ends_on_time_and_the_next_hit_begins_a_new_one(opened: StoreFixture) {
    const WINDOW: Duration = Duration::from_millis(250);
    let limit = Limit::FixedWindow(FixedWindow::new(1, WINDOW.as_nanos() as u64).unwrap());
    let begin = Instant::now();
    opened.follow(limit, &[(0, "short", TAKE, allowed(0))]).await;
    let elapsed = await_next_credit(&opened, "short", limit, begin).await;
    assert!(elapsed >= WINDOW, "ended after {elapsed:?}");
}

async fn actions_on_a_bucket_in_one_batch_see_each_other(opened: StoreFixture) {
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

async fn peek_takes_nothing(opened: StoreFixture) {
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

async fn forgotten_bucket_starts_anew(opened: StoreFixture) {
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

async fn cost_is_taken_completely_or_not_at_all(opened: StoreFixture) {
    let steps = [
        (0, "cost", take(7), allowed(3).reset(60)),
        (0, "cost", take(4), denied(3).reset(60)),
        (0, "cost", take(3), allowed(0).reset(60)),
        (0, "cost", take(0), allowed(0).reset(60)),
    ];
    opened.follow(limit(10, 60), &steps).await;
}

async fn debt_makes_the_balance_negative_and_is_refunded(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets) {
        let (all, key) = (limit.capacity(), &*format!("debt {place}"));
        let steps = [
            // Nothing was taken.
            (0, key, Action::Ask(Ask::Refund { cost: 1 }), allowed(all)),
            (0, key, Action::Ask(Ask::Overdraw { cost: all + 3 }), allowed(0).owing(3)),
            (0, key, Action::Ask(Ask::Overdraw { cost: 1 }), denied(0).owing(3)),
            (0, key, Action::Ask(Ask::Charge { cost: 4 }), denied(0).owing(7)),
            (0, key, Action::Ask(Ask::Refund { cost: 7 }), allowed(0)),
        ];
        opened.follow(limit, &steps).await;
        assert_eq!(
            opened.one(at(0), key, limit, Action::Ask(Ask::Charge { cost: u64::MAX })).await.left,
            0,
            "{limit:?}"
        );
        assert!(opened.one(at(0), key, limit, LOOK).await.owed >= 1 << 52, "{limit:?}");
        let refund = Action::Ask(Ask::Refund { cost: u64::MAX });
        // It is then like a fresh one.
        opened.follow(limit, &[(0, key, refund, allowed(all)), (0, key, FORGET, denied(0))]).await;
    }
}

/// Runs clients at the same time. Returns the sum of their results.
async fn sum_of_clients<F: Future<Output = u64> + Send + 'static>(clients: u64, client: impl Fn(u64) -> F) -> u64 {
    let clients: Vec<_> = (0..clients).map(|number| tokio::spawn(client(number))).collect();
    let mut sum = 0;
    for client in clients {
        sum += client.await.unwrap();
    }
    sum
}

async fn concurrent_hits_share_the_credits_exactly(opened: StoreFixture) {
    const CREDITS: u64 = 1000;
    let opened = Arc::new(opened);
    let client = |_| {
        let opened = Arc::clone(&opened);
        async move {
            let mut allowed = 0;
            for _ in 0..100 {
                allowed += u64::from(opened.one(at(0), "concurrent", limit(CREDITS, 60), TAKE).await.allowed);
            }
            allowed
        }
    };
    assert_eq!(sum_of_clients(16, client).await, CREDITS);
}

fn any_sequence_agrees_with_the_bare_algorithms(open: &dyn Fn() -> StoreFixture) {
    let opened = open();
    let action = prop_oneof![
        4 => (0u64..4).prop_map(|cost| Action::Ask(Ask::Take { cost })),
        1 => (0u64..4).prop_map(|cost| Action::Ask(Ask::Look { cost })),
        2 => Just(Action::Ask(Ask::Show)),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Overdraw { cost })),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Charge { cost })),
        1 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Count { cost })),
        2 => (0u64..9).prop_map(|cost| Action::Ask(Ask::Refund { cost })),
        2 => (0u64..4, any::<bool>()).prop_map(|(cost, strict)| Action::Ask(Ask::Drain { cost, strict })),
        1 => (0u64..4, any::<bool>()).prop_map(|(cost, strict)| Action::Ask(Ask::Replay { cost, strict })),
        1 => Just(Action::Forget),
        6 => about_reservation(opened.buckets).prop_map(Action::Reservation),
        6 => once(),
    ];
    // There are two buckets per limit, so that all cases together stay below the number of buckets at which the memory
    // store drops full ones. That would shift the refills of drained token buckets, which the model ignores.
    let which = (0..limits(opened.buckets).len(), prop::option::weighted(0.3, 1u64..12));
    let actions = prop::collection::vec((0u8..2, which, action, 0u8..3), 1..24);
    let batches = prop::collection::vec((0u64..40, actions), 1..12);
    let runtime = Runtime::new().unwrap();
    let cases = AtomicU64::new(0);
    proptest!(ProptestConfig::with_cases(46), |(batches in batches)| {
        let case = cases.fetch_add(1, Relaxed);
        let mut model = Model::default();
        let mut now = at(0);
        for (pause, actions) in batches {
            now = now.plus(opened.later(pause) * SECOND);
            let named: Vec<_> = actions
                .iter()
                .map(|(key, (which, credits), action, id)| {
                    // The limit may change while the counter stays.
                    let limit = limits(opened.buckets)[*which];
                    let limit = credits.map_or(limit, |credits| resized(limit, credits));
                    named(format!("{case}:{key}:{which}"), limit, *action, *id)
                })
                .collect();
            let outcomes = runtime.block_on(opened.apply_named(now, &named));
            for ((key, limit, action), outcome) in named.into_iter().zip(outcomes) {
                prop_assert_eq!(without_run(outcome), expected(&mut model, key, limit, action, now));
            }
        }
    });
}

/// Generates requests to reservations. If time can be passed, some reservations end before their windows.
fn about_reservation(buckets: Buckets) -> impl Strategy<Value = ReservationAsk> {
    let longest = if buckets == Buckets::ByPassedTime { 1 } else { 10_000 };
    let ttl_seconds = move || prop_oneof![Just(longest), longest..longest + 40];
    prop_oneof![
        4 => (1u64..4, ttl_seconds()).prop_map(|(credits, ttl_seconds)| ReservationAsk::Reserve { credits, ttl_seconds }),
        2 => (0u64..5, any::<bool>()).prop_map(|(cost, charges)| ReservationAsk::Commit { cost, charges, run: None }),
        1 => Just(ReservationAsk::Release { run: None }),
        1 => prop::option::of(ttl_seconds()).prop_map(|ttl_seconds| ReservationAsk::Renew { ttl_seconds, run: None }),
    ]
}

/// Generates idempotent requests, some of them equal.
fn once() -> impl Strategy<Value = Action> {
    (0u8..10, any::<bool>(), 0u64..4).prop_map(|(kind, strict, cost)| {
        let ask = match kind {
            0..4 => Ask::Take { cost },
            4 => Ask::Look { cost },
            5 => Ask::Overdraw { cost },
            6 => Ask::Charge { cost },
            7 => Ask::Refund { cost },
            8 => Ask::Drain { cost, strict },
            _ => Ask::Replay { cost, strict },
        };
        Action::Idempotent { ask, fingerprint: u64::MAX - cost / 3 }
    })
}

/// Returns the action on that bucket, with this record if the action has one. Logs have no reservations, and only
/// reservations take leases.
fn named(bucket: String, limit: Limit, action: Action, id: u8) -> (String, Limit, Action) {
    match (action, limit) {
        (Action::Ask(Ask::Show), _) => (bucket, limit, action),
        (Action::Reservation(_), Limit::SlidingLog(_))
        | (Action::Ask(_) | Action::Idempotent { .. }, Limit::Concurrency(_)) => (bucket, limit, LOOK),
        (Action::Reservation(_) | Action::Idempotent { .. }, _) => (format!("{bucket}#{id}"), limit, action),
        _ => (bucket, limit, action),
    }
}

/// The expected content of the store.
#[derive(Debug, Clone, Default)]
pub struct Model {
    buckets: HashMap<String, State>,
    /// Records by bucket and reservation.
    records: HashMap<String, Record>,
    /// Answers by bucket and idempotency key.
    answers: HashMap<String, Record>,
    /// Generation of the last request to a reservation.
    generation: u64,
}

impl Model {
    fn set(&mut self, bucket: &str, limit: &Limit, ask: Ask, state: Option<State>, now: Timestamp) {
        // A refund may have returned all credits.
        let is_full = |state: &State| matches!(ask, Ask::Refund { .. }) && limit.lifetime_ns(state, now) == 0;
        match state {
            Some(state) if is_full(&state) => drop(self.buckets.remove(bucket)),
            Some(state) => drop(self.buckets.insert(bucket.to_owned(), state)),
            None => {}
        }
    }
}

/// Applies an action to the model. An action with a record names bucket and record: `bucket#record`.
pub fn expected(model: &mut Model, key: String, limit: Limit, action: Action, now: Timestamp) -> Outcome {
    let limit = dated(limit, now);
    match action {
        Action::Ask(ask) => {
            let decision = limit.decide(model.buckets.get(&key), ask, now);
            model.set(&key, &limit, ask, decision.state, now);
            decision.outcome
        }
        Action::Idempotent { ask, fingerprint } => {
            let (name, _) = split_key(&key, action);
            let (bucket, record) = (model.buckets.get(name), model.answers.get(&key));
            let (Decision { outcome, state }, record) =
                limit.decide_idempotent(bucket, record, (ask, fingerprint), now);
            model.set(name, &limit, ask, state, now);
            if let RecordChange::Set(answered) = record {
                model.answers.insert(key, answered);
            }
            outcome
        }
        Action::Forget => {
            // A bucket that is equivalent to a fresh one may stay.
            let held = model.buckets.get(&key).is_some_and(|state| limit.lifetime_ns(state, now) > 0);
            if held {
                model.buckets.remove(&key);
            }
            Outcome { allowed: held, ..Outcome::default() }
        }
        Action::Reservation(ask) => reserved(model, key, limit, now, |bucket, record, generation| {
            limit.decide_reservation(bucket, record, ask, generation, now)
        }),
    }
}

/// Applies a decision about a reservation to the model.
fn reserved(
    model: &mut Model,
    key: String,
    limit: Limit,
    now: Timestamp,
    decide: impl FnOnce(Option<&State>, Option<&Record>, u64) -> (Decision, RecordChange),
) -> Outcome {
    let (name, _) = split_key(&key, RELEASE);
    model.generation += 1;
    let (Decision { outcome, state }, record) =
        decide(model.buckets.get(name), model.records.get(&key), model.generation);
    match state {
        Some(state) if limit.lifetime_ns(&state, now) == 0 => drop(model.buckets.remove(name)),
        Some(state) => drop(model.buckets.insert(name.to_owned(), state)),
        None => {}
    }
    match record {
        RecordChange::Keep => {}
        RecordChange::Set(record) => drop(model.records.insert(key, record)),
        RecordChange::Clear => drop(model.records.remove(&key)),
    }
    without_run(outcome)
}

fn any_sequence_of_groups_agrees_with_the_bare_algorithms(open: &dyn Fn() -> StoreFixture) {
    let opened = open();
    let limits = limits(opened.buckets);
    let ttl_seconds = if opened.buckets == Buckets::ByPassedTime { 9 } else { 10_000 };
    let ask = (0u64..4, 0..6, 0u8..4).prop_map(move |(cost, kind, id)| {
        let fingerprint = u64::from(cost == 3);
        let action = match kind {
            3 => Action::Idempotent { ask: Ask::Take { cost }, fingerprint },
            4 if cost > 0 => Action::Idempotent { ask: Ask::Look { cost }, fingerprint },
            5 => Action::Idempotent { ask: Ask::Overdraw { cost }, fingerprint },
            0 if id == 0 => Action::Ask(Ask::Count { cost }),
            0 => Action::Ask(Ask::Overdraw { cost }),
            1 if cost > 0 => Action::Ask(Ask::Look { cost }),
            2 if cost > 0 => Action::Reservation(ReservationAsk::Reserve { credits: cost, ttl_seconds }),
            _ => Action::Ask(Ask::Take { cost }),
        };
        (action, id)
    });
    // One entry per bucket.
    let group = prop::collection::btree_map((0u8..2, 0..limits.len()), ask, 1..5);
    let batches = prop::collection::vec((0u64..40, prop::collection::vec(group, 1..8)), 1..12);
    let runtime = Runtime::new().unwrap();
    let cases = AtomicU64::new(0);
    proptest!(ProptestConfig::with_cases(64), |(batches in batches)| {
        let case = cases.fetch_add(1, Relaxed);
        let mut model = Model::default();
        let mut now = at(0);
        for (pause, groups) in batches {
            now = now.plus(opened.later(pause) * SECOND);
            // All buckets are in one slot of a cluster.
            let name = |((key, which), (action, id))| {
                named(format!("{{groups {case}}}:{key}:{which}"), limits[which], action, id)
            };
            let groups: Vec<Vec<_>> = groups.into_iter().map(|group| group.into_iter().map(name).collect()).collect();
            let borrowed: Vec<Vec<(&str, _, _)>> = groups
                .iter()
                .map(|group| group.iter().map(|(key, limit, action)| (key.as_str(), *limit, *action)).collect())
                .collect();
            let borrowed: Vec<_> = borrowed.iter().map(Vec::as_slice).collect();
            let mut outcomes = runtime.block_on(opened.apply_groups(now, &borrowed)).into_iter();
            for group in groups {
                for expected in expected_together(&mut model, group, now) {
                    let outcome = outcomes.next();
                    // If another request had the same idempotency key, the other outcomes have no meaning.
                    if expected.is_some() {
                        prop_assert_eq!(outcome.map(without_run), expected);
                    }
                }
            }
        }
    });
}

fn expected_together(model: &mut Model, group: Vec<(String, Limit, Action)>, now: Timestamp) -> Vec<Option<Outcome>> {
    let mut after = model.clone();
    let decide =
        |model: &mut _, (key, limit, action): &(String, _, _)| expected(model, key.clone(), *limit, *action, now);
    let mut outcomes: Vec<_> = group.iter().map(|entry| decide(&mut after, entry)).collect();
    // If one part of a reservation is made, all parts are: those that their buckets still know, too.
    let wanted = |(_, _, action): &(String, Limit, Action)| match *action {
        Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds }) => Some((credits, ttl_seconds)),
        _ => None,
    };
    let has_part = |outcomes: &[Outcome], resolution| {
        group.iter().zip(outcomes).any(|(entry, outcome)| wanted(entry).is_some() && outcome.resolution == resolution)
    };
    if outcomes.iter().all(|outcome| outcome.allowed)
        && has_part(&outcomes, Resolution::Done)
        && has_part(&outcomes, Resolution::Repeated)
    {
        after = model.clone();
        for (entry, outcome) in group.iter().zip(&mut outcomes) {
            let (key, limit, _) = entry;
            *outcome = match wanted(entry) {
                Some(wanted) if outcome.resolution == Resolution::Repeated => {
                    let limit = dated(*limit, now);
                    reserved(&mut after, key.clone(), limit, now, |bucket, record, generation| {
                        limit.decide_next_run(bucket, record, wanted, generation, now)
                    })
                }
                _ => decide(&mut after, entry),
            };
        }
    }
    let differs = |((_, _, action), outcome): (&(_, _, Action), &Outcome)| {
        matches!(action, Action::Idempotent { .. }) && outcome.resolution == Resolution::Different
    };
    if group.iter().zip(&outcomes).any(differs) {
        return outcomes
            .into_iter()
            .map(|outcome| Some(outcome).filter(|it| it.resolution == Resolution::Different))
            .collect();
    }
    if outcomes.iter().all(|outcome| outcome.allowed) {
        *model = after;
        return outcomes.into_iter().map(Some).collect();
    }
    let known = |model: &Model, (key, _, action): &(String, _, _)| match action {
        Action::Idempotent { fingerprint, .. } => Replay::find(model.answers.get(key), *fingerprint, now),
        _ => Replay::None,
    };
    let was_denied = group.iter().any(|entry| matches!(known(model, entry), Replay::Answered(first) if !first.allowed));
    let held_back = |(entry, decided): ((String, Limit, Action), Outcome)| {
        match known(model, &entry) {
            Replay::Answered(outcome) => return outcome,
            Replay::HeldBack(outcome) if decided.allowed || was_denied => return outcome,
            _ => {}
        }
        let (key, limit, action) = entry;
        let (cost, once) = match action {
            Action::Idempotent { fingerprint, .. } if !decided.allowed => {
                model.answers.insert(key, Record::new_answer(fingerprint, decided, false, now));
                return decided;
            }
            _ if !decided.allowed => return decided,
            Action::Ask(Ask::Take { cost } | Ask::Look { cost }) => (cost, None),
            Action::Ask(Ask::Overdraw { .. }) => (1, None),
            Action::Ask(Ask::Count { .. }) => (0, None),
            Action::Reservation(ReservationAsk::Reserve { credits, .. }) => (credits, None),
            Action::Idempotent { ask: Ask::Overdraw { .. }, fingerprint } => (1, Some(fingerprint)),
            Action::Idempotent { ask: Ask::Take { cost } | Ask::Look { cost }, fingerprint } => {
                (cost, Some(fingerprint))
            }
            _ => panic!("{action:?}"),
        };
        let (bucket, _) = split_key(&key, action);
        let look = expected(model, bucket.to_owned(), limit, Action::Ask(Ask::Look { cost }), now);
        if let Some(fingerprint) = once {
            model.answers.insert(key, Record::new_answer(fingerprint, look, true, now));
        }
        look
    };
    group.into_iter().zip(outcomes).map(held_back).map(Some).collect()
}

/// Returns the outcome without the run, which differs from store to store.
fn without_run(outcome: Outcome) -> Outcome {
    Outcome { run: None, ..outcome }
}

fn reserve(credits: u64, ttl_seconds: u32) -> Action {
    Action::Reservation(ReservationAsk::Reserve { credits, ttl_seconds })
}

fn commit(cost: u64) -> Action {
    Action::Reservation(ReservationAsk::Commit { cost, charges: true, run: None })
}

fn renew(ttl_seconds: u32) -> Action {
    Action::Reservation(ReservationAsk::Renew { ttl_seconds: Some(ttl_seconds), run: None })
}

const RELEASE: Action = Action::Reservation(ReservationAsk::Release { run: None });
/// Longer than any window in these tests.
const LONG: u32 = 100_000;

/// Returns limits of every algorithm whose credits can be reserved completely.
fn reservable(buckets: Buckets) -> impl Iterator<Item = (String, Limit)> {
    let is_one = |limit: &Limit| !matches!(limit, Limit::SlidingLog(_) | Limit::Concurrency(_));
    let limits = limits(buckets).into_iter().filter(is_one).enumerate();
    limits.map(|(place, limit)| (place.to_string(), limit))
}

/// A rule's counter whose actor has limits of its own, which end.
async fn usage_under_another_limit_is_no_debt(opened: StoreFixture) {
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

/// Returns requests about a run of a reservation.
fn commit_of(run: Option<Run>, cost: u64) -> Action {
    Action::Reservation(ReservationAsk::Commit { cost, charges: true, run })
}

fn commit_if_open(run: Option<Run>, cost: u64) -> Action {
    Action::Reservation(ReservationAsk::Commit { cost, charges: false, run })
}

fn release_of(run: Option<Run>) -> Action {
    Action::Reservation(ReservationAsk::Release { run })
}

fn renew_of(run: Option<Run>, ttl_seconds: Option<u32>) -> Action {
    Action::Reservation(ReservationAsk::Renew { ttl_seconds, run })
}

/// The holder of an earlier run gets no later run's credits, and leaves it as it is.
async fn settlement_concerns_its_own_run_of_a_name(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 3) {
        let (bucket, all) = (&*format!("runs {place}"), limit.capacity());
        let key = &*format!("{bucket}#name");
        let reserve = reserve(2, LONG);
        let made = async || {
            let made = opened.one(at(0), key, limit, reserve).await;
            assert_eq!((made.resolution, made.run.is_some()), (Resolution::Done, true), "{limit:?}");
            made.run
        };
        let first = made().await;
        assert_eq!(opened.one(at(0), key, limit, reserve).await.run, first, "{limit:?}");
        opened.follow(limit, &[(0, key, reserve, repeated(all - 2)), (0, key, release_of(first), allowed(all))]).await;
        let second = made().await;
        assert_ne!(second, first, "{limit:?}");
        let steps = [
            (0, key, release_of(first), gone(all - 2)),
            (0, key, renew_of(first, Some(9)), gone(all - 2)),
            (0, key, commit_if_open(first, 1), gone(all - 2)),
            // Its credits are still set aside, and the late cost counts in addition.
            (0, key, renew_of(second, None), allowed(all - 2)),
            (0, key, commit_of(first, 1), late(all - 3)),
            (0, key, commit_of(second, 2), allowed(all - 3)),
            (0, key, commit_of(second, 2), repeated(all - 3)),
            // The answer is of another run.
            (0, key, commit_if_open(first, 1), gone(all - 3)),
            (0, bucket, LOOK, allowed(all - 3)),
        ];
        opened.follow(limit, &steps).await;
    }
    let key = "runs of a lease#name";
    let limit = Limit::Concurrency(Concurrency::new(1, 60).unwrap());
    let reserve = async || opened.one(at(0), key, limit, reserve(1, 60)).await.run;
    let first = reserve().await;
    opened.follow(limit, &[(0, key, commit_of(first, 0), allowed(1))]).await;
    let second = reserve().await;
    opened.follow(limit, &[(0, key, release_of(first), gone(0)), (0, key, release_of(second), allowed(1))]).await;
    reserve().await;
    // Whichever has the name.
    opened.follow(limit, &[(0, key, RELEASE, allowed(1))]).await;
}

/// A stack's rules have windows of different lengths. Once one of them is over, its reservation is.
async fn reservation_that_is_over_in_one_bucket_is_made_anew_in_all(opened: StoreFixture) {
    let lease = Limit::Concurrency(Concurrency::new(1, 60).unwrap());
    let large = Limit::TokenBucket(TokenBucket::new(19, 1, 6_000 * SECOND).unwrap());
    let group = async |actions: [Action; 2]| {
        let members = [("{next} lease#a", lease, actions[0]), ("{next} large#a", large, actions[1])];
        let outcomes = opened.apply_groups(at(0), &[&members]).await;
        [&outcomes[0], &outcomes[1]].map(|outcome| (outcome.resolution, outcome.run))
    };
    let reserve = async || group([reserve(1, 60), reserve(4, 60)]).await;
    let commit = async |[lease, large]: [(Resolution, Option<Run>); 2]| {
        group([commit_of(lease.1, 0), commit_of(large.1, 3)]).await.map(|(resolution, _)| resolution)
    };
    let left = async || opened.one(at(0), "{next} large", large, LOOK).await.left;

    let first = reserve().await;
    assert_eq!(reserve().await, first.map(|(_, run)| (Resolution::Repeated, run)));
    opened.one(at(0), "{next} lease", lease, FORGET).await;
    let second = reserve().await;
    assert_eq!(second.map(|(resolution, _)| resolution), [Resolution::Done; 2]);
    assert!(first[0].1 != second[0].1 && first[1].1 != second[1].1, "{first:?} {second:?}");
    assert_eq!(left().await, 15, "the credits are set aside once");
    opened.follow(large, &[(0, "{next} large#a", release_of(first[1].1), gone(15))]).await;
    assert_eq!((commit(first).await, left().await), ([Resolution::Late; 2], 12));
    assert_eq!((commit(second).await, left().await), ([Resolution::Done; 2], 13));

    // The lease is free after its commit, and the other bucket still knows the commit.
    let third = reserve().await;
    assert_eq!((third.map(|(resolution, _)| resolution), left().await), ([Resolution::Done; 2], 9));
    assert_eq!((commit(third).await, left().await), ([Resolution::Done; 2], 10));
}

async fn reserved_credits_are_not_available_to_others(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets) {
        let (bucket, all) = (&*format!("reserved {place}"), limit.capacity());
        let (one, other) = (&*format!("{bucket}#one"), &*format!("{bucket}#other"));
        let made = opened.one(at(0), one, limit, reserve(all, LONG)).await;
        assert_eq!((made.allowed, made.before, made.left), (true, all, 0), "{limit:?}");
        for ask in [
            Ask::Take { cost: 1 },
            Ask::Look { cost: 1 },
            Ask::Overdraw { cost: 1 },
            Ask::Drain { cost: 1, strict: false },
            Ask::Replay { cost: 1, strict: true },
        ] {
            let outcome = opened.one(at(0), bucket, limit, Action::Ask(ask)).await;
            assert_eq!((outcome.allowed, outcome.before, outcome.left), (false, 0, 0), "{ask:?} of {limit:?}");
        }
        let steps = [
            (0, other, reserve(1, LONG), denied(0)),
            (0, bucket, Action::Ask(Ask::Charge { cost: 2 }), denied(0).owing(2)),
            (0, bucket, Action::Ask(Ask::Refund { cost: 9 }), allowed(0)),
        ];
        opened.follow(limit, &steps).await;
        let reported = opened.one(at(0), bucket, limit, LOOK).await;
        assert!(
            reported.retry_ns.is_some_and(|retry_ns| retry_ns > 0 && retry_ns == reported.reset_ns),
            "{limit:?}: {reported:?}"
        );
        let steps =
            [(0, one, RELEASE, allowed(all)), (0, bucket, take(all), allowed(0)), (0, bucket, FORGET, allowed(0))];
        opened.follow(limit, &steps).await;
    }
}

async fn commit_counts_usage_once_and_is_remembered(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2) {
        let all = limit.capacity();
        let [a, b, c] = ["a", "b", "c"].map(|id| format!("committed {place}#{id}"));
        let (a, b, c) = (&*a, &*b, &*c);
        let steps = [
            (0, a, reserve(2, 900), allowed(all - 2)),
            (0, a, reserve(2, 900), repeated(all - 2)),
            (0, a, reserve(1, 900), different(all - 2)),
            (0, a, reserve(2, 901), different(all - 2)),
            (0, a, commit(1), allowed(all - 1)),
            (0, b, reserve(1, 900), allowed(all - 2)),
            // The first answer is repeated.
            (0, a, commit(1), repeated(all - 1)),
            (0, a, RELEASE, gone(all - 2)),
            (0, a, renew(900), gone(all - 2)),
            (0, a, reserve(2, 900), repeated(all - 2)),
            // More than was reserved.
            (0, b, commit(all + 3), allowed(0).owing(4)),
            (0, c, commit_if_open(None, 1), gone(0).owing(4)),
            (0, c, commit(1), late(0).owing(5)),
            (0, c, commit(7), repeated(0).owing(5)),
            // It is over.
            (0, c, reserve(2, 7), repeated(0).owing(5)),
        ];
        opened.follow(limit, &steps).await;
    }
}

async fn batch_reserves_and_commits_in_order(opened: StoreFixture) {
    let steps = [
        ("order#a", reserve(4, LONG), allowed(5)),
        ("order", TAKE, allowed(4)),
        ("order#b", reserve(5, LONG), denied(4)),
        ("order#a", commit(2), allowed(6)),
        ("order#b", reserve(5, LONG), allowed(1)),
        ("order", FORGET, allowed(0)),
        ("order#b", RELEASE, gone(9)),
        ("order#a", commit(3), repeated(6)),
        ("order", TAKE, allowed(8)),
    ];
    opened.follow_batch(limit(9, 6000), &steps).await;
}

async fn reservation_from_before_a_reset_frees_nothing_after_it(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2) {
        let (bucket, all) = (&*format!("reset {place}"), limit.capacity());
        let [a, b, x, y] = ["a", "b", "x", "y"].map(|id| format!("{bucket}#{id}"));
        let steps = [
            (0, &*a, reserve(2, LONG), allowed(all - 2)),
            (0, bucket, FORGET, allowed(0)),
            (0, bucket, FORGET, denied(0)),
        ];
        opened.follow(limit, &steps).await;
        // A nanosecond later.
        for (key, action, resolution, left) in [
            (&b, reserve(all, LONG), Resolution::Done, 0),
            (&a, renew(LONG), Resolution::Gone, 0),
            (&a, RELEASE, Resolution::Gone, 0),
            (&a, commit(1), Resolution::Late, 0),
            (&b, commit(0), Resolution::Done, all - 1),
        ] {
            let outcome = opened.one(at(0).plus(1), key, limit, action).await;
            assert_eq!((outcome.resolution, outcome.left), (resolution, left), "{action:?} of {limit:?}");
        }
        // In one batch at the same time, with the name of an earlier reservation: this is a different reservation.
        let steps = [
            (bucket, FORGET, allowed(0)),
            (&x, reserve(1, LONG), allowed(all - 1)),
            (&y, reserve(1, LONG), allowed(all - 2)),
            (bucket, FORGET, allowed(0)),
            (&x, reserve(1, LONG), allowed(all - 1)),
            (&y, RELEASE, gone(all - 1)),
            (&x, reserve(1, LONG), repeated(all - 1)),
        ];
        opened.follow_batch(limit, &steps).await;
    }
}

async fn group_reserves_from_all_buckets_or_none(opened: StoreFixture) {
    let (small, large) = (limit(2, 6000), Limit::TokenBucket(TokenBucket::new(9, 1, 6_000 * SECOND).unwrap()));
    let group = async |id: &str, credits, taken, answers: &[Answer]| {
        let (of_small, of_large) = (format!("{{reserve}} small#{id}"), format!("{{reserve}} large#{id}"));
        let members = [
            (&*of_small, small, reserve(credits, LONG)),
            (&of_large, large, reserve(4, LONG)),
            ("{reserve} taken", large, take(taken)),
            ("{reserve} looked at", large, LOOK),
        ];
        let outcomes = opened.apply_groups(at(0), &[&members]).await;
        for (((key, limit, action), outcome), expected) in members.into_iter().zip(outcomes).zip(answers) {
            opened.assert_answer(limit, action, outcome, *expected, key);
        }
    };
    group("a", 1, 3, &[allowed(1), allowed(5), allowed(6), allowed(9)]).await;
    // No room, and a hit that is denied.
    group("b", 2, 3, &[denied(1), allowed(5), allowed(6), allowed(9)]).await;
    group("b", 1, 7, &[allowed(1), allowed(5), denied(6), allowed(9)]).await;
    group("a", 1, 0, &[repeated(1), repeated(5)]).await;
    // The other members have no answer.
    group("a", 2, 0, &[different(1), allowed(5)]).await;
    // A denied request leaves nothing behind.
    let steps = [(0, "{reserve} large#b", RELEASE, gone(5)), (0, "{reserve} large#a", RELEASE, allowed(9))];
    opened.follow(large, &steps).await;
}

/// This test needs a store that can pass time.
async fn reservation_ends_with_its_ttl_or_its_window(opened: StoreFixture) {
    let tokens = Limit::TokenBucket(TokenBucket::new(4, 1, 6_000 * SECOND).unwrap());
    let one = async |seconds, key: &str, limit, action| opened.one(at(seconds), key, limit, action).await;
    assert_eq!(one(0, "ends#a", tokens, reserve(3, 5)).await.session, at(5));
    assert_eq!(one(0, "ends#b", tokens, reserve(1, 8)).await.session, at(8));
    let outcome = one(2, "ends", tokens, take(2)).await;
    assert_eq!((outcome.left, outcome.reset_ns, outcome.retry_ns), (0, 3 * SECOND, Some(3 * SECOND)));
    let outcome = one(2, "ends", tokens, take(4)).await;
    assert_eq!((outcome.reset_ns, outcome.retry_ns), (3 * SECOND, Some(6 * SECOND)));
    let longer = one(4, "ends#b", tokens, renew(9)).await;
    assert_eq!((longer.session, longer.resolution), (at(13), Resolution::Done));
    assert_eq!(one(4, "ends#b", tokens, renew(1)).await.session, at(13), "never shorter");
    assert!(one(5, "ends", tokens, take(3)).await.allowed);
    for (seconds, key, action, resolution) in [
        (5, "ends#a", RELEASE, Resolution::Gone),
        (5, "ends#a", commit(1), Resolution::Late),
        (14, "ends#b", renew(9), Resolution::Gone),
        // A minute later, the commit is forgotten.
        (64, "ends#a", commit(1), Resolution::Repeated),
        (65, "ends#a", commit(1), Resolution::Late),
    ] {
        assert_eq!(one(seconds, key, tokens, action).await.resolution, resolution, "{key} at {seconds}");
    }
    let window = limit(5, 60);
    assert_eq!(one(0, "window#a", window, reserve(2, 100)).await.session, at(60), "with the window that it begins");
    opened.follow(window, &[(50, "window", TAKE, allowed(2).reset(10))]).await;
    assert_eq!(one(50, "window#a", window, renew(50)).await.session, at(60));
    opened.follow(window, &[(60, "window", TAKE, allowed(4).reset(60))]).await;
}

/// Leases are held under any change of the limit, and still exist after the store is reopened.
async fn leases_are_held_until_they_are_freed_or_expire(opened: StoreFixture) {
    let limit = |leases, ttl_seconds| Limit::Concurrency(Concurrency::new(leases, ttl_seconds).unwrap());
    let three = limit(3, 5_000);
    let steps = [
        (0, "leases#a", reserve(1, 5_000), allowed(2)),
        (0, "leases#b", reserve(1, 5_000), allowed(1)),
        (0, "leases#c", reserve(1, 5_000), allowed(0)),
        (0, "leases#a", reserve(1, 9), repeated(0)),
        (0, "leases#a", reserve(2, 5_000), different(0)),
    ];
    opened.follow(three, &steps).await;
    let outcome = opened.one(at(0), "leases#d", three, reserve(1, 5_000)).await;
    assert!(!outcome.allowed && outcome.retry_ns.is_some(), "when the first one ends: {outcome:?}");
    opened.follow(limit(2, 60), &[(0, "leases", LOOK, denied(0).owing(1))]).await;
    opened.follow(limit(4, 60), &[(0, "leases", LOOK, allowed(1))]).await;
    opened.store.close().await.unwrap();
    let Some(opened) = opened.reopen() else { return };
    let steps = [
        (0, "leases", LOOK, denied(0)),
        (0, "leases#a", RELEASE, allowed(1)),
        (0, "leases#a", RELEASE, gone(1)),
        (0, "leases#b", commit(1_000), allowed(2)),
    ];
    opened.follow(three, &steps).await;
    let kept = opened.one(at(0), "leases#c", three, renew_of(None, None)).await;
    assert!(kept.session.since(at(0)) >= 5_000 * SECOND, "{kept:?}");
    opened.follow(three, &[(0, "leases#c", RELEASE, allowed(3)), (0, "leases", FORGET, denied(0))]).await;
}

/// Waits for windows that Redis ends.
async fn reservation_in_a_window_of_redis_ends_on_time(opened: StoreFixture) {
    let limit = limit(3, 6000);
    let begin = Instant::now();
    let reserved = opened.one(at(0), "ends#a", limit, reserve(3, 1)).await;
    let lasts_ns = reserved.session.since(at(0));
    assert!(reserved.allowed && (900_000_000..=2 * SECOND).contains(&lasts_ns), "{lasts_ns}");
    let outcome = opened.one(at(0), "ends", limit, TAKE).await;
    assert!(!outcome.allowed && outcome.retry_ns.is_some_and(|retry_ns| retry_ns <= 2 * SECOND), "{outcome:?}");
    assert_eq!(outcome.retry_ns, Some(outcome.reset_ns));
    assert_eq!(opened.one(at(0), "ends", limit, take(4)).await.retry_ns, None);
    let elapsed = await_next_credit(&opened, "ends", limit, begin).await;
    assert!(elapsed >= Duration::from_secs(1), "ended after {elapsed:?}");
    // In the same window.
    opened.follow(limit, &[(0, "ends", LOOK, allowed(2).reset(6000)), (0, "ends#a", RELEASE, gone(2))]).await;
}

async fn concurrent_reservations_never_exceed_the_limit(opened: StoreFixture) {
    const CREDITS: u64 = 40;
    let (opened, limit) = (Arc::new(opened), Limit::TokenBucket(TokenBucket::new(CREDITS, 1, 6_000 * SECOND).unwrap()));
    let client = |client| {
        let opened = Arc::clone(&opened);
        async move {
            let mut used = 0;
            for turn in 0..20 {
                let key = format!("crowd#{client} {turn}");
                if opened.one(at(0), &key, limit, reserve(3, 60)).await.allowed {
                    let action = if turn % 2 == 0 { commit(1) } else { RELEASE };
                    let ended = opened.one(at(0), &key, limit, action).await;
                    assert_eq!((ended.resolution, ended.owed), (Resolution::Done, 0));
                    used += u64::from(turn % 2 == 0);
                }
            }
            used
        }
    };
    let used = sum_of_clients(16, client).await;
    assert!((1..=CREDITS).contains(&used));
    assert_eq!(opened.one(at(0), "crowd", limit, LOOK).await.left, CREDITS - used);
}

async fn concurrent_groups_take_from_all_buckets_or_none(opened: StoreFixture) {
    const CLIENTS: u64 = 16;
    let (of_all, of_one) = (limit(500, 6_000), Limit::TokenBucket(TokenBucket::new(40, 1, 6_000 * SECOND).unwrap()));
    let opened = Arc::new(opened);
    let bucket = |client: u64| format!("{{together}} {client}");
    let client = |client| {
        let (opened, of_this) = (Arc::clone(&opened), bucket(client));
        async move {
            let mut allowed = 0;
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
        }
    };
    assert_eq!(sum_of_clients(CLIENTS, client).await, 500);
    assert_eq!(opened.one(at(0), "{together} all", of_all, LOOK).await.left, 0);
}

async fn closing_keeps_usage(opened: StoreFixture) {
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

async fn closing_keeps_reservations_and_idempotent_answers(opened: StoreFixture) {
    for (place, limit) in reservable(opened.buckets) {
        let key = format!("kept {place}#it");
        assert!(opened.one(at(0), &key, limit, reserve(1, LONG)).await.allowed, "{limit:?}");
    }
    let (once, window) = (take_once(2, u64::MAX), limit(10, 10_000));
    let first = opened.one(at(0), "kept once#it", window, once).await;
    opened.store.close().await.unwrap();
    let Some(reopened) = opened.reopen() else { return };
    for (place, limit) in reservable(reopened.buckets) {
        let (bucket, all) = (&*format!("kept {place}"), limit.capacity());
        let look = if all > 1 { allowed(all - 1) } else { denied(0) };
        let steps = [(0, bucket, LOOK, look), (0, &*format!("{bucket}#it"), commit(0), allowed(all))];
        reopened.follow(limit, &steps).await;
    }
    let again = reopened.one(at(0), "kept once#it", window, once).await;
    assert_eq!(again, Outcome { resolution: Resolution::Repeated, ..first });
    assert_eq!(reopened.one(at(0), "kept once", window, LOOK).await.left, 8);
}

fn take_once(cost: u64, fingerprint: u64) -> Action {
    Action::Idempotent { ask: Ask::Take { cost }, fingerprint }
}

async fn idempotent_request_is_taken_once_and_its_answer_repeated(opened: StoreFixture) {
    let is_one = |limit: &Limit| limit.capacity() > 2 && limit.kind() != Kind::Concurrency;
    for (place, limit) in limits(opened.buckets).into_iter().filter(is_one).enumerate() {
        let (bucket, all) = (&*format!("once {place}"), limit.capacity());
        let (one, other) = (&*format!("{bucket}#one"), &*format!("{bucket}#other"));
        let ask = async |key: &str, action| opened.one(at(0), key, limit, action).await;
        let left = async || ask(bucket, LOOK).await.left;
        let first = ask(one, take_once(1, 7)).await;
        assert_eq!((first.allowed, first.before, first.left), (true, all, all - 1), "{limit:?}");
        ask(bucket, TAKE).await;
        let again = Outcome { resolution: Resolution::Repeated, ..first };
        assert_eq!((ask(one, take_once(1, 7)).await, left().await), (again, all - 2), "{limit:?}");
        // Another request with the same idempotency key.
        opened.follow(limit, &[(0, one, take_once(2, 8), different(all - 2))]).await;
        // A denial is an answer, too.
        let refused = ask(other, take_once(all, 7)).await;
        assert_eq!((refused.allowed, refused.resolution), (false, Resolution::Done), "{limit:?}");
        // A reset clears the counter, and keeps the answers.
        assert!(ask(bucket, FORGET).await.allowed, "{limit:?}");
        let refused_again = Outcome { resolution: Resolution::Repeated, ..refused };
        assert_eq!((ask(other, take_once(all, 7)).await, left().await), (refused_again, all), "{limit:?}");
        assert_eq!((ask(one, take_once(1, 7)).await, left().await), (again, all), "{limit:?}");
        let later = at(opened.later(59));
        assert_eq!(opened.one(later, one, limit, take_once(1, 7)).await, again, "{limit:?}");
        if opened.buckets == Buckets::ByPassedTime {
            opened.follow(limit, &[(60, one, take_once(1, 7), allowed(all - 1))]).await;
        }
    }
}

/// A reservation and an idempotent request may have the same name.
async fn batch_keeps_idempotent_requests_and_reservations_of_the_same_name_apart(opened: StoreFixture) {
    let charge = Action::Idempotent { ask: Ask::Charge { cost: 4 }, fingerprint: 1 };
    let refund = Action::Idempotent { ask: Ask::Refund { cost: 3 }, fingerprint: 1 };
    let steps = [
        ("once order#a", take_once(2, 1), allowed(8)),
        ("once order#a", reserve(3, LONG), allowed(5)),
        ("once order#a", take_once(2, 1), repeated(8)),
        ("once order#a", take_once(2, 2), different(5)),
        ("once order#b", charge, allowed(1)),
        ("once order#b", charge, repeated(1)),
        ("once order#c", refund, allowed(4)),
        ("once order#c", refund, repeated(4)),
        ("once order#a", commit(0), allowed(7)),
        ("once order", LOOK, allowed(7)),
    ];
    opened.follow_batch(limit(10, 1_000), &steps).await;
}

async fn repeated_group_takes_nothing_and_repeated_denial_stays_denied(opened: StoreFixture) {
    let (small, large) = (limit(3, 1_000), limit(100, 1_000));
    let (a, b, c) = ("{g}a#x", "{g}b#x", "{g}c#x");
    let once = take_once(2, 1);
    let denied_again = Answer { allowed: false, ..repeated(1) };
    opened.follow_group("both", &[(a, small, once, allowed(1)), (b, large, once, allowed(98))]).await;
    opened.follow_group("both", &[(a, small, once, repeated(1)), (b, large, once, repeated(98))]).await;
    // With another key, the group is denied: the small limit denies, and the other member is held back.
    let (other_a, other_b) = (("{g}a#y", small, once), ("{g}b#y", large, once));
    let with = |(key, limit, action), answer| (key, limit, action, answer);
    opened.follow_group("other", &[with(other_a, denied(1)), with(other_b, allowed(98))]).await;
    assert!(opened.one(at(0), "{g}a", small, FORGET).await.allowed);
    opened.one(at(0), "{g}b", large, TAKE).await;
    opened.follow_group("other", &[with(other_a, denied_again), with(other_b, repeated(98))]).await;
    // The group no longer contains the member that denied. The other one was never taken, so it is taken now.
    opened.follow_group("rest", &[with(other_b, allowed(95))]).await;
    opened.follow_group("rest", &[with(other_b, repeated(95))]).await;
    // Only the new member is taken. The other answers are repeated.
    let more = [(a, small, once, repeated(1)), (b, large, once, repeated(98)), (c, small, once, allowed(1))];
    opened.follow_group("more", &more).await;
    // Another request with the same key as one member changes none of them.
    let outcomes = opened.apply_groups(at(0), &[&[("{g}a#z", small, once), (b, large, take_once(3, 2))]]).await;
    assert_eq!((outcomes[1].resolution, outcomes[1].left), (Resolution::Different, 95));
    opened.follow_group("z", &[("{g}a#z", small, take_once(3, 3), allowed(0))]).await;
    assert_eq!(opened.one(at(0), "{g}b", large, LOOK).await.left, 95);
}

async fn denied_group_repeats_its_first_answer_after_a_charge(opened: StoreFixture) {
    let (short, long) = (limit(3, 1_000), limit(100, 100_000));
    let once = take_once(2, 1);
    let ask = async |name: &str| {
        let (of_short, of_long) = (format!("{{again}} short#{name}"), format!("{{again}} long#{name}"));
        opened.apply_groups(at(0), &[&[(&of_short, short, once), (&of_long, long, once)]]).await
    };
    assert!(ask("x").await.iter().all(|outcome| outcome.allowed));
    let refused = ask("y").await;
    assert_eq!(refused.iter().map(|outcome| outcome.allowed).collect::<Vec<_>>(), [false, true]);
    let charge = Action::Ask(Ask::Charge { cost: 500 });
    assert_eq!(opened.one(at(0), "{again} long", long, charge).await.left, 0);
    for _ in 0..2 {
        let again = refused.iter().map(|outcome| Outcome { resolution: Resolution::Repeated, ..*outcome });
        assert_eq!(ask("y").await, again.collect::<Vec<_>>());
    }
    opened.follow(long, &[(0, "{again} long", LOOK, denied(0).owing(402))]).await;
    opened.follow(short, &[(0, "{again} short", LOOK, allowed(1))]).await;
}

/// Settles a reservation of buckets with all these limits. All of them must have the same resolution.
async fn settle(opened: &StoreFixture, limits: &[(String, Limit)], round: u64, id: &str, action: Action) -> Resolution {
    let resolutions = settle_each(opened, limits, round, id, action).await;
    assert!(resolutions.iter().all(|one| *one == resolutions[0]), "one decided about a part: {resolutions:?}");
    resolutions[0]
}

async fn settle_each(
    opened: &StoreFixture,
    limits: &[(String, Limit)],
    round: u64,
    id: &str,
    action: Action,
) -> Vec<Resolution> {
    let keys: Vec<_> = limits.iter().map(|(place, _)| format!("{{settled {round}}} {place}#{id}")).collect();
    let group: Vec<_> = keys.iter().zip(limits).map(|(key, (_, limit))| (key.as_str(), *limit, action)).collect();
    let outcomes = opened.apply_groups(at(0), &[&group]).await;
    outcomes.into_iter().map(|outcome| outcome.resolution).collect()
}

async fn reservation_of_several_buckets_is_settled_by_the_first_call(opened: StoreFixture) {
    const CLIENTS: u64 = 8;
    let limits = reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2).collect::<Vec<_>>();
    let (opened, limits) = (Arc::new(opened), Arc::new(limits));
    for round in 0..5 {
        for id in ["a", "b"] {
            assert_eq!(settle(&opened, &limits, round, id, reserve(1, LONG)).await, Resolution::Done);
        }
        // Each client commits another cost, and releases the other reservation. The sum counts both kinds of winners.
        let client = |client| {
            let (opened, limits) = (Arc::clone(&opened), Arc::clone(&limits));
            async move {
                let committed = settle(&opened, &limits, round, "a", commit(client)).await;
                let released = settle(&opened, &limits, round, "b", RELEASE).await;
                assert!([Resolution::Done, Resolution::Repeated].contains(&committed), "{committed:?}");
                assert!([Resolution::Done, Resolution::Gone].contains(&released), "{released:?}");
                u64::from(committed == Resolution::Done) + 100 * u64::from(released == Resolution::Done)
            }
        };
        assert_eq!(sum_of_clients(CLIENTS, client).await, 101, "one commit and one release");
        let mut used = Vec::new();
        for (place, limit) in limits.iter() {
            let reported = opened.one(at(0), &format!("{{settled {round}}} {place}"), *limit, LOOK).await;
            used.push(limit.capacity() - reported.left + reported.owed);
        }
        assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
    }
    // If a bucket was forgotten, its commit is late. The others are settled nevertheless.
    settle(&opened, &limits, 9, "a", reserve(1, LONG)).await;
    opened.one(at(0), "{settled 9} 0", limits[0].1, FORGET).await;
    let resolutions = settle_each(&opened, &limits, 9, "a", commit_if_open(None, 1)).await;
    let expected = (0..limits.len()).map(|place| if place == 0 { Resolution::Gone } else { Resolution::Done });
    assert_eq!(resolutions, expected.collect::<Vec<_>>());
}

async fn concurrent_equal_idempotent_requests_are_taken_once(opened: StoreFixture) {
    let limit = limit(1_000, 10_000);
    let opened = Arc::new(opened);
    let client = |_| {
        let opened = Arc::clone(&opened);
        async move {
            let mut first = 0;
            for name in 0..20 {
                let outcome = opened.one(at(0), &format!("same#{name}"), limit, take_once(1, 1)).await;
                first += u64::from(outcome.resolution == Resolution::Done);
            }
            first
        }
    };
    let first = sum_of_clients(16, client).await;
    assert_eq!((first, opened.one(at(0), "same", limit, LOOK).await.left), (20, 980));
}

macro_rules! conformance {
    ($backend:ident: $($case:ident),* $(,)?) => {
        mod $backend {
            $(
                #[test]
                fn $case() {
                    super::wait(super::$case(super::$backend()));
                }
            )*

            #[test]
            fn any_sequence_agrees_with_the_bare_algorithms() {
                super::any_sequence_agrees_with_the_bare_algorithms(&super::$backend);
            }

            #[test]
            fn any_sequence_of_groups_agrees_with_the_bare_algorithms() {
                super::any_sequence_of_groups_agrees_with_the_bare_algorithms(&super::$backend);
            }
        }
    };
    ($($backend:ident),* => $more:tt) => { $( conformance! { @each $backend $more } )* };
    (@each $backend:ident [$($more:ident),* $(,)?]) => {
        conformance! {
            $backend:
            actions_on_a_bucket_in_one_batch_see_each_other,
            peek_takes_nothing,
            forgotten_bucket_starts_anew,
            cost_is_taken_completely_or_not_at_all,
            debt_makes_the_balance_negative_and_is_refunded,
            concurrent_hits_share_the_credits_exactly,
            concurrent_groups_take_from_all_buckets_or_none,
            closing_keeps_usage,
            usage_under_another_limit_is_no_debt,
            settlement_concerns_its_own_run_of_a_name,
            reservation_that_is_over_in_one_bucket_is_made_anew_in_all,
            reserved_credits_are_not_available_to_others,
            commit_counts_usage_once_and_is_remembered,
            batch_reserves_and_commits_in_order,
            reservation_from_before_a_reset_frees_nothing_after_it,
            group_reserves_from_all_buckets_or_none,
            concurrent_reservations_never_exceed_the_limit,
            leases_are_held_until_they_are_freed_or_expire,
            idempotent_request_is_taken_once_and_its_answer_repeated,
            batch_keeps_idempotent_requests_and_reservations_of_the_same_name_apart,
            repeated_group_takes_nothing_and_repeated_denial_stays_denied,
            concurrent_equal_idempotent_requests_are_taken_once,
            closing_keeps_reservations_and_idempotent_answers,
            denied_group_repeats_its_first_answer_after_a_charge,
            reservation_of_several_buckets_is_settled_by_the_first_call,
            $($more),*
        }
    };
}

conformance!(memory, rocks, rocks_evicting, redis, redis_cluster => [
    credits_decrease_by_one_and_return_with_the_next_window,
    reservation_ends_with_its_ttl_or_its_window,
    clock_set_back_never_extends_a_wait_beyond_the_limit,
    clock_set_back_keeps_no_answer_longer,
    clock_set_back_keeps_no_commit_longer,
]);

// These wait for windows that Redis ends.
conformance!(redis_rules, redis_cluster_rules => [
    window_in_redis_ends_on_time_and_the_next_hit_begins_a_new_one,
    reservation_in_a_window_of_redis_ends_on_time,
]);
