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

fn summary(outcome: Outcome) -> (bool, u64, u64) {
    (outcome.allowed, outcome.left, outcome.reset_ns / SECOND)
}

fn credits_decrease_by_one_and_return_with_the_next_window(opened: StoreFixture) {
    wait(async {
        let limit = limit(2, 60);
        let hit = async |seconds| summary(opened.one(at(seconds), "credits", limit, TAKE).await);
        assert_eq!(hit(0).await, (true, 1, 60));
        assert_eq!(hit(10).await, (true, 0, 50));
        assert_eq!(hit(59).await, (false, 0, 1));
        assert_eq!(hit(60).await, (true, 1, 60), "a fresh window starts with its first hit");
    });
}

fn window_in_redis_ends_on_time_and_the_next_hit_begins_a_new_one(opened: StoreFixture) {
    const WINDOW: Duration = Duration::from_millis(250);
    let limit = Limit::FixedWindow(FixedWindow::new(1, WINDOW.as_nanos() as u64).unwrap());
    wait(async {
        let begin = Instant::now();
        assert_eq!(summary(opened.one(at(0), "short", limit, TAKE).await), (true, 0, 0));
        while !opened.one(at(0), "short", limit, TAKE).await.allowed {
            assert!(begin.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(begin.elapsed() >= WINDOW, "ended after {:?}", begin.elapsed());
    });
}

fn actions_on_a_bucket_in_one_batch_see_each_other(opened: StoreFixture) {
    wait(async {
        let limit = limit(3, 60);
        let actions = ["one", "other", "one", "one", "other", "one"].map(|key| (key, limit, TAKE));
        let outcomes = opened.apply(at(0), &actions).await;
        let left: Vec<_> = outcomes.iter().map(|outcome| (outcome.allowed, outcome.left)).collect();
        assert_eq!(left, [(true, 2), (true, 2), (true, 1), (true, 0), (true, 1), (false, 0)]);
    });
}

fn peek_takes_nothing(opened: StoreFixture) {
    wait(async {
        let limit = limit(2, 60);
        assert_eq!(summary(opened.one(at(0), "looking", limit, LOOK).await), (true, 2, 0));
        opened.one(at(0), "looking", limit, TAKE).await;
        let later = opened.later(5);
        for _ in 0..3 {
            assert_eq!(summary(opened.one(at(later), "looking", limit, LOOK).await), (true, 1, 60 - later));
        }
        opened.one(at(later), "looking", limit, TAKE).await;
        assert_eq!(summary(opened.one(at(later), "looking", limit, LOOK).await), (false, 0, 60 - later));
    });
}

fn forgotten_bucket_starts_anew(opened: StoreFixture) {
    wait(async {
        let limit = limit(2, 60);
        assert!(!opened.one(at(0), "forgotten", limit, Action::Forget).await.allowed, "nothing to forget");
        opened.one(at(0), "forgotten", limit, TAKE).await;
        assert!(opened.one(at(1), "forgotten", limit, Action::Forget).await.allowed);
        assert!(!opened.one(at(1), "forgotten", limit, Action::Forget).await.allowed, "already forgotten");
        assert_eq!(summary(opened.one(at(2), "forgotten", limit, TAKE).await), (true, 1, 60));
        let is_over = opened.later(60) > 0;
        let forgotten = opened.one(at(62), "forgotten", limit, Action::Forget).await;
        assert_eq!(forgotten.allowed, !is_over, "its window was over, if time can be passed");
    });
}

fn cost_is_taken_completely_or_not_at_all(opened: StoreFixture) {
    wait(async {
        let limit = limit(10, 60);
        let take = |cost| Action::Ask(Ask::Take { cost });
        assert_eq!(summary(opened.one(at(0), "cost", limit, take(7)).await), (true, 3, 60));
        assert_eq!(summary(opened.one(at(0), "cost", limit, take(4)).await), (false, 3, 60));
        assert_eq!(summary(opened.one(at(0), "cost", limit, take(3)).await), (true, 0, 60));
        assert_eq!(summary(opened.one(at(0), "cost", limit, take(0)).await), (true, 0, 60));
    });
}

fn debt_makes_the_balance_negative_and_is_refunded(opened: StoreFixture) {
    wait(async {
        let ask = async |limit, ask| {
            let Outcome { allowed, left, owed, .. } = opened.one(at(0), "debt", limit, Action::Ask(ask)).await;
            (allowed, left, owed)
        };
        for (_, limit) in reservable(opened.buckets) {
            let all = limit.capacity();
            opened.one(at(0), "debt", limit, Action::Forget).await;
            assert_eq!(ask(limit, Ask::Refund { cost: 1 }).await, (true, all, 0), "{limit:?}: nothing was taken");
            assert_eq!(ask(limit, Ask::Overdraw { cost: all + 3 }).await, (true, 0, 3), "{limit:?}");
            assert_eq!(ask(limit, Ask::Overdraw { cost: 1 }).await, (false, 0, 3), "{limit:?}");
            assert_eq!(ask(limit, Ask::Charge { cost: 4 }).await, (false, 0, 7), "{limit:?}");
            assert_eq!(ask(limit, Ask::Refund { cost: 7 }).await, (true, 0, 0), "{limit:?}");
            assert_eq!(ask(limit, Ask::Charge { cost: u64::MAX }).await.1, 0, "{limit:?}");
            assert!(ask(limit, Ask::Look { cost: 1 }).await.2 >= 1 << 52, "{limit:?}");
            assert_eq!(ask(limit, Ask::Refund { cost: u64::MAX }).await, (true, all, 0), "{limit:?}");
            assert!(!opened.one(at(0), "debt", limit, Action::Forget).await.allowed, "{limit:?}: like a fresh one");
        }
    });
}

fn concurrent_hits_share_the_credits_exactly(opened: StoreFixture) {
    const CREDITS: u64 = 1000;
    let opened = Arc::new(opened);
    let runtime = Runtime::new().unwrap();
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let opened = Arc::clone(&opened);
            runtime.spawn(async move {
                let mut allowed = 0;
                for _ in 0..100 {
                    allowed += u64::from(opened.one(at(0), "concurrent", limit(CREDITS, 60), TAKE).await.allowed);
                }
                allowed
            })
        })
        .collect();
    let allowed: u64 = clients.into_iter().map(|client| runtime.block_on(client).unwrap()).sum();
    assert_eq!(allowed, CREDITS);
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
            let borrowed: Vec<_> = named.iter().map(|(key, limit, action)| (key.as_str(), *limit, *action)).collect();
            let outcomes = runtime.block_on(opened.apply(now, &borrowed));
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
fn usage_under_another_limit_is_no_debt(opened: StoreFixture) {
    if opened.buckets != Buckets::ByPassedTime {
        return;
    }
    wait(async {
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
                let commit = ReservationAsk::Commit { cost, charges: true, run: made.run };
                let settled = opened.one(now, &key, of(0), Action::Reservation(commit)).await;
                assert_eq!((settled.left, settled.owed, settled.resolution), (0, owed, Resolution::Done), "{kind:?}");
            }
        }
    });
}

/// The holder of an earlier run gets no later run's credits, and leaves it as it is.
fn settlement_concerns_its_own_run_of_a_name(opened: StoreFixture) {
    wait(async {
        for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 3) {
            let key = format!("runs {place}#name");
            let about = async |ask| {
                let outcome = opened.one(at(0), &key, limit, Action::Reservation(ask)).await;
                (outcome.resolution, outcome.run)
            };
            let look = async || {
                let (bucket, _) = key.split_once('#').unwrap();
                opened.one(at(0), bucket, limit, Action::Ask(Ask::Look { cost: 0 })).await.left
            };
            let reserve = || about(ReservationAsk::Reserve { credits: 2, ttl_seconds: LONG });
            let commit =
                |cost, charges, run| async move { about(ReservationAsk::Commit { cost, charges, run }).await.0 };
            let (made, first) = reserve().await;
            assert_eq!((made, first.is_some()), (Resolution::Done, true), "{limit:?}");
            assert_eq!(reserve().await, (Resolution::Repeated, first));
            assert_eq!(about(ReservationAsk::Release { run: first }).await.0, Resolution::Done);
            let (made, second) = reserve().await;
            assert!(made == Resolution::Done && second.is_some() && second != first, "{limit:?}");
            let left = look().await;
            assert_eq!(about(ReservationAsk::Release { run: first }).await.0, Resolution::Gone);
            assert_eq!(about(ReservationAsk::Renew { ttl_seconds: Some(9), run: first }).await.0, Resolution::Gone);
            assert_eq!(commit(1, false, first).await, Resolution::Gone);
            assert_eq!(look().await, left, "{limit:?}: its credits are still set aside");
            assert_eq!(
                about(ReservationAsk::Renew { ttl_seconds: None, run: second }).await,
                (Resolution::Done, second)
            );
            assert_eq!(commit(1, true, first).await, Resolution::Late);
            assert_eq!(look().await, left - 1, "{limit:?}: the late cost counts in addition");
            assert_eq!(commit(2, true, second).await, Resolution::Done);
            assert_eq!(commit(2, true, second).await, Resolution::Repeated);
            assert_eq!(commit(1, false, first).await, Resolution::Gone, "the answer is of another run");
            assert_eq!(look().await, left - 1, "{limit:?}");
        }
        let key = "runs of a lease#name";
        let limit = Limit::Concurrency(Concurrency::new(1, 60).unwrap());
        let about = async |ask| opened.one(at(0), key, limit, Action::Reservation(ask)).await;
        let reserve = || about(ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 });
        let first = reserve().await.run;
        assert_eq!(
            about(ReservationAsk::Commit { cost: 0, charges: true, run: first }).await.resolution,
            Resolution::Done
        );
        let second = reserve().await.run;
        assert_eq!(about(ReservationAsk::Release { run: first }).await.resolution, Resolution::Gone);
        assert_eq!(about(ReservationAsk::Release { run: second }).await.resolution, Resolution::Done);
        reserve().await;
        assert_eq!(
            about(ReservationAsk::Release { run: None }).await.resolution,
            Resolution::Done,
            "whichever has the name"
        );
    });
}

/// A stack's rules have windows of different lengths. Once one of them is over, its reservation is.
fn reservation_that_is_over_in_one_bucket_is_made_anew_in_all(opened: StoreFixture) {
    wait(async {
        let lease = Limit::Concurrency(Concurrency::new(1, 60).unwrap());
        let large = Limit::TokenBucket(TokenBucket::new(19, 1, 6_000 * SECOND).unwrap());
        let group = async |asks: [ReservationAsk; 2]| {
            let asks = asks.map(Action::Reservation);
            let members = [("{next} lease#a", lease, asks[0]), ("{next} large#a", large, asks[1])];
            let outcomes = opened.apply_groups(at(0), &[&members]).await;
            [&outcomes[0], &outcomes[1]].map(|outcome| (outcome.resolution, outcome.run))
        };
        let reserve = async || {
            let reserve = |credits| ReservationAsk::Reserve { credits, ttl_seconds: 60 };
            group([reserve(1), reserve(4)]).await
        };
        let commit = async |[lease, large]: [(Resolution, Option<Run>); 2]| {
            let commit = |cost, run| ReservationAsk::Commit { cost, charges: true, run };
            group([commit(0, lease.1), commit(3, large.1)]).await.map(|(resolution, _)| resolution)
        };
        let left = async || opened.one(at(0), "{next} large", large, LOOK).await.left;

        let first = reserve().await;
        assert_eq!(reserve().await, first.map(|(_, run)| (Resolution::Repeated, run)));
        opened.one(at(0), "{next} lease", lease, Action::Forget).await;
        let second = reserve().await;
        assert_eq!(second.map(|(resolution, _)| resolution), [Resolution::Done; 2]);
        assert!(first[0].1 != second[0].1 && first[1].1 != second[1].1, "{first:?} {second:?}");
        assert_eq!(left().await, 15, "the credits are set aside once");
        let release = Action::Reservation(ReservationAsk::Release { run: first[1].1 });
        assert_eq!(opened.one(at(0), "{next} large#a", large, release).await.resolution, Resolution::Gone);
        assert_eq!(commit(first).await, [Resolution::Late; 2]);
        assert_eq!(left().await, 12);
        assert_eq!(commit(second).await, [Resolution::Done; 2]);
        assert_eq!(left().await, 13);

        // The lease is free after its commit, and the other bucket still knows the commit.
        let third = reserve().await;
        assert_eq!(third.map(|(resolution, _)| resolution), [Resolution::Done; 2]);
        assert_eq!(left().await, 9);
        assert_eq!(commit(third).await, [Resolution::Done; 2]);
        assert_eq!(left().await, 10);
    });
}

fn reserved_credits_are_not_available_to_others(opened: StoreFixture) {
    wait(async {
        for (place, limit) in reservable(opened.buckets) {
            let (bucket, all) = (format!("reserved {place}"), limit.capacity());
            let (one, other) = (format!("{bucket}#one"), format!("{bucket}#other"));
            let about = async |key: &str, action| {
                let Outcome { allowed, before, left, owed, resolution, .. } =
                    opened.one(at(0), key, limit, action).await;
                (allowed, before, left, owed, resolution)
            };
            let ask = async |ask| {
                let (allowed, before, left, owed, _) = about(&bucket, Action::Ask(ask)).await;
                (allowed, before, left, owed)
            };
            assert_eq!(about(&one, reserve(all, LONG)).await, (true, all, 0, 0, Resolution::Done), "{limit:?}");
            assert_eq!(ask(Ask::Take { cost: 1 }).await, (false, 0, 0, 0), "{limit:?}");
            assert_eq!(ask(Ask::Look { cost: 1 }).await, (false, 0, 0, 0), "{limit:?}");
            assert_eq!(ask(Ask::Overdraw { cost: 1 }).await, (false, 0, 0, 0), "{limit:?}");
            assert_eq!(ask(Ask::Drain { cost: 1, strict: false }).await, (false, 0, 0, 0), "{limit:?}");
            assert_eq!(ask(Ask::Replay { cost: 1, strict: true }).await, (false, 0, 0, 0), "{limit:?}");
            assert_eq!(about(&other, reserve(1, LONG)).await, (false, 0, 0, 0, Resolution::Done), "{limit:?}");
            assert_eq!(ask(Ask::Charge { cost: 2 }).await, (false, 0, 0, 2), "{limit:?}");
            assert_eq!(ask(Ask::Refund { cost: 9 }).await, (true, 0, 0, 0), "{limit:?}");
            let reported = opened.one(at(0), &bucket, limit, LOOK).await;
            assert!(
                reported.retry_ns.is_some_and(|retry_ns| retry_ns > 0 && retry_ns == reported.reset_ns),
                "{limit:?}: {reported:?}"
            );
            assert_eq!(about(&one, RELEASE).await, (true, 0, all, 0, Resolution::Done), "{limit:?}");
            assert_eq!(ask(Ask::Take { cost: all }).await, (true, all, 0, 0), "{limit:?}");
            assert!(opened.one(at(0), &bucket, limit, Action::Forget).await.allowed, "{limit:?}");
        }
    });
}

fn commit_counts_usage_once_and_is_remembered(opened: StoreFixture) {
    wait(async {
        for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2) {
            let (bucket, all) = (format!("committed {place}"), limit.capacity());
            let about = async |id: &str, action| {
                let key = format!("{bucket}#{id}");
                let Outcome { allowed, left, owed, resolution, .. } = opened.one(at(0), &key, limit, action).await;
                (allowed, left, owed, resolution)
            };
            let gone = async |left, resolution| (false, left, 0, resolution);
            assert_eq!(about("a", reserve(2, 900)).await, (true, all - 2, 0, Resolution::Done), "{limit:?}");
            assert_eq!(about("a", reserve(2, 900)).await, (true, all - 2, 0, Resolution::Repeated), "{limit:?}");
            assert_eq!(about("a", reserve(1, 900)).await, gone(all - 2, Resolution::Different).await, "{limit:?}");
            assert_eq!(about("a", reserve(2, 901)).await, gone(all - 2, Resolution::Different).await, "{limit:?}");
            assert_eq!(about("a", commit(1)).await, (true, all - 1, 0, Resolution::Done), "{limit:?}");
            assert_eq!(about("b", reserve(1, 900)).await, (true, all - 2, 0, Resolution::Done), "{limit:?}");
            assert_eq!(
                about("a", commit(1)).await,
                (true, all - 1, 0, Resolution::Repeated),
                "{limit:?}: the first answer"
            );
            assert_eq!(about("a", RELEASE).await, gone(all - 2, Resolution::Gone).await, "{limit:?}");
            assert_eq!(about("a", renew(900)).await, gone(all - 2, Resolution::Gone).await, "{limit:?}");
            assert_eq!(about("a", reserve(2, 900)).await, (true, all - 2, 0, Resolution::Repeated), "{limit:?}");
            assert_eq!(
                about("b", commit(all + 3)).await,
                (true, 0, 4, Resolution::Done),
                "{limit:?}: more than was reserved"
            );
            let unless = Action::Reservation(ReservationAsk::Commit { cost: 1, charges: false, run: None });
            assert_eq!(about("c", unless).await, (false, 0, 4, Resolution::Gone), "{limit:?}");
            assert_eq!(about("c", commit(1)).await, (true, 0, 5, Resolution::Late), "{limit:?}");
            assert_eq!(about("c", commit(7)).await, (true, 0, 5, Resolution::Repeated), "{limit:?}");
            assert_eq!(about("c", reserve(2, 7)).await, (true, 0, 5, Resolution::Repeated), "{limit:?}: it is over");
        }
    });
}

fn batch_reserves_and_commits_in_order(opened: StoreFixture) {
    wait(async {
        let limit = limit(9, 6000);
        let asks = [
            ("order#a", reserve(4, LONG)),
            ("order", TAKE),
            ("order#b", reserve(5, LONG)),
            ("order#a", commit(2)),
            ("order#b", reserve(5, LONG)),
            ("order", Action::Forget),
            ("order#b", RELEASE),
            ("order#a", commit(3)),
            ("order", TAKE),
        ];
        let asks = asks.map(|(key, action)| (key, limit, action));
        let reported = opened
            .apply(at(0), &asks)
            .await
            .into_iter()
            .map(|reported| (reported.allowed, reported.left, reported.resolution));
        let expected = [
            (true, 5, Resolution::Done),
            (true, 4, Resolution::Done),
            (false, 4, Resolution::Done),
            (true, 6, Resolution::Done),
            (true, 1, Resolution::Done),
            (true, 0, Resolution::Done),
            (false, 9, Resolution::Gone),
            (true, 6, Resolution::Repeated),
            (true, 8, Resolution::Done),
        ];
        assert_eq!(reported.collect::<Vec<_>>(), expected);
    });
}

fn reservation_from_before_a_reset_frees_nothing_after_it(opened: StoreFixture) {
    wait(async {
        for (place, limit) in reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2) {
            let (bucket, all) = (format!("reset {place}"), limit.capacity());
            let about = async |nanos, id: &str, action| {
                let key = format!("{bucket}#{id}");
                let Outcome { allowed, left, resolution, .. } =
                    opened.one(at(0).plus(nanos), &key, limit, action).await;
                (allowed, left, resolution)
            };
            let forget = async || opened.one(at(0), &bucket, limit, Action::Forget).await.allowed;
            about(0, "a", reserve(2, LONG)).await;
            assert!(forget().await, "{limit:?}: something was reserved");
            assert!(!forget().await, "{limit:?}");
            assert_eq!(about(1, "b", reserve(all, LONG)).await, (true, 0, Resolution::Done), "{limit:?}");
            assert_eq!(about(1, "a", renew(LONG)).await, (false, 0, Resolution::Gone), "{limit:?}");
            assert_eq!(about(1, "a", RELEASE).await, (false, 0, Resolution::Gone), "{limit:?}");
            assert_eq!(about(1, "a", commit(1)).await, (true, 0, Resolution::Late), "{limit:?}");
            assert_eq!(about(1, "b", commit(0)).await, (true, all - 1, Resolution::Done), "{limit:?}");
            // In one batch at the same time, with the name of an earlier reservation: this is a different reservation.
            let (x, y) = (format!("{bucket}#x"), format!("{bucket}#y"));
            let asks = [
                (bucket.as_str(), Action::Forget),
                (&x, reserve(1, LONG)),
                (&y, reserve(1, LONG)),
                (&bucket, Action::Forget),
                (&x, reserve(1, LONG)),
                (&y, RELEASE),
                (&x, reserve(1, LONG)),
            ];
            let reported = opened.apply(at(0), &asks.map(|(key, action)| (key, limit, action))).await;
            let resolutions: Vec<_> =
                reported.iter().skip(4).map(|reported| (reported.left, reported.resolution)).collect();
            let left = all - 1;
            assert_eq!(
                resolutions,
                [(left, Resolution::Done), (left, Resolution::Gone), (left, Resolution::Repeated)],
                "{limit:?}"
            );
        }
    });
}

fn group_reserves_from_all_buckets_or_none(opened: StoreFixture) {
    wait(async {
        let (small, large) = (limit(2, 6000), Limit::TokenBucket(TokenBucket::new(9, 1, 6_000 * SECOND).unwrap()));
        let group = async |id: &str, credits, taken| {
            let (of_small, of_large) = (format!("{{reserve}} small#{id}"), format!("{{reserve}} large#{id}"));
            let asks = [
                (of_small.as_str(), small, reserve(credits, LONG)),
                (of_large.as_str(), large, reserve(4, LONG)),
                ("{reserve} taken", large, Action::Ask(Ask::Take { cost: taken })),
                ("{reserve} looked at", large, LOOK),
            ];
            let outcomes = opened.apply_groups(at(0), &[&asks]).await;
            outcomes
                .into_iter()
                .map(|reported| (reported.allowed, reported.left, reported.resolution))
                .collect::<Vec<_>>()
        };
        let done = |allowed, left| (allowed, left, Resolution::Done);
        assert_eq!(group("a", 1, 3).await, [done(true, 1), done(true, 5), done(true, 6), done(true, 9)]);
        assert_eq!(group("b", 2, 3).await, [done(false, 1), done(true, 5), done(true, 6), done(true, 9)], "no room");
        assert_eq!(group("b", 1, 7).await, [done(true, 1), done(true, 5), done(false, 6), done(true, 9)], "a hit");
        let (again, other) = (group("a", 1, 0).await, group("a", 2, 0).await);
        assert_eq!(again[..2], [(true, 1, Resolution::Repeated), (true, 5, Resolution::Repeated)]);
        assert_eq!(
            other[..2],
            [(false, 1, Resolution::Different), (true, 5, Resolution::Done)],
            "the others have no answer"
        );
        let gone = opened.one(at(0), "{reserve} large#b", large, RELEASE).await;
        assert_eq!(
            (gone.allowed, gone.resolution),
            (false, Resolution::Gone),
            "a denied request leaves nothing behind"
        );
        let freed = opened.one(at(0), "{reserve} large#a", large, RELEASE).await;
        assert_eq!((freed.left, freed.resolution), (9, Resolution::Done));
    });
}

/// This test needs a store that can pass time.
fn reservation_ends_with_its_ttl_or_its_window(opened: StoreFixture) {
    wait(async {
        let tokens = Limit::TokenBucket(TokenBucket::new(4, 1, 6_000 * SECOND).unwrap());
        let one = async |seconds, key: &str, limit, action| opened.one(at(seconds), key, limit, action).await;
        assert_eq!(one(0, "ends#a", tokens, reserve(3, 5)).await.session, at(5));
        assert_eq!(one(0, "ends#b", tokens, reserve(1, 8)).await.session, at(8));
        let denied = one(2, "ends", tokens, Action::Ask(Ask::Take { cost: 2 })).await;
        assert_eq!((denied.left, denied.reset_ns, denied.retry_ns), (0, 3 * SECOND, Some(3 * SECOND)));
        let denied = one(2, "ends", tokens, Action::Ask(Ask::Take { cost: 4 })).await;
        assert_eq!((denied.reset_ns, denied.retry_ns), (3 * SECOND, Some(6 * SECOND)));
        let longer = one(4, "ends#b", tokens, renew(9)).await;
        assert_eq!((longer.session, longer.resolution), (at(13), Resolution::Done));
        assert_eq!(one(4, "ends#b", tokens, renew(1)).await.session, at(13), "never shorter");
        assert!(one(5, "ends", tokens, Action::Ask(Ask::Take { cost: 3 })).await.allowed);
        assert_eq!(one(5, "ends#a", tokens, RELEASE).await.resolution, Resolution::Gone);
        assert_eq!(one(5, "ends#a", tokens, commit(1)).await.resolution, Resolution::Late);
        assert_eq!(one(14, "ends#b", tokens, renew(9)).await.resolution, Resolution::Gone);
        // A minute later, the commit is forgotten.
        assert_eq!(one(64, "ends#a", tokens, commit(1)).await.resolution, Resolution::Repeated);
        assert_eq!(one(65, "ends#a", tokens, commit(1)).await.resolution, Resolution::Late);

        let window = limit(5, 60);
        assert_eq!(one(0, "window#a", window, reserve(2, 100)).await.session, at(60), "with the window that it begins");
        assert_eq!(summary(one(50, "window", window, TAKE).await), (true, 2, 10));
        assert_eq!(one(50, "window#a", window, renew(50)).await.session, at(60));
        assert_eq!(summary(one(60, "window", window, TAKE).await), (true, 4, 60));
    });
}

/// Leases are held under any change of the limit, and still exist after the store is reopened.
fn leases_are_held_until_they_are_freed_or_expire(opened: StoreFixture) {
    let limit = |leases, ttl_seconds| Limit::Concurrency(Concurrency::new(leases, ttl_seconds).unwrap());
    let three = limit(3, 5_000);
    wait(async {
        let about = async |opened: &StoreFixture, key: &str, limit, action| {
            let Outcome { allowed, left, owed, resolution, .. } = opened.one(at(0), key, limit, action).await;
            (allowed, left, owed, resolution)
        };
        for (key, left) in [("leases#a", 2), ("leases#b", 1), ("leases#c", 0)] {
            assert_eq!(about(&opened, key, three, reserve(1, 5_000)).await, (true, left, 0, Resolution::Done));
        }
        let denied = opened.one(at(0), "leases#d", three, reserve(1, 5_000)).await;
        assert!(!denied.allowed && denied.retry_ns.is_some(), "when the first one ends: {denied:?}");
        assert_eq!(about(&opened, "leases#a", three, reserve(1, 9)).await, (true, 0, 0, Resolution::Repeated));
        assert_eq!(about(&opened, "leases#a", three, reserve(2, 5_000)).await, (false, 0, 0, Resolution::Different));
        assert_eq!(about(&opened, "leases", limit(2, 60), LOOK).await, (false, 0, 1, Resolution::Done));
        assert_eq!(about(&opened, "leases", limit(4, 60), LOOK).await, (true, 1, 0, Resolution::Done));
        opened.store.close().await.unwrap();
        let Some(opened) = opened.reopen() else { return };
        assert_eq!(about(&opened, "leases", three, LOOK).await, (false, 0, 0, Resolution::Done));
        assert_eq!(about(&opened, "leases#a", three, RELEASE).await, (true, 1, 0, Resolution::Done));
        assert_eq!(about(&opened, "leases#a", three, RELEASE).await, (false, 1, 0, Resolution::Gone));
        assert_eq!(about(&opened, "leases#b", three, commit(1_000)).await, (true, 2, 0, Resolution::Done));
        let kept = opened
            .one(at(0), "leases#c", three, Action::Reservation(ReservationAsk::Renew { ttl_seconds: None, run: None }))
            .await;
        assert!(kept.session.since(at(0)) >= 5_000 * SECOND, "{kept:?}");
        assert_eq!(about(&opened, "leases#c", three, RELEASE).await, (true, 3, 0, Resolution::Done));
        assert!(!opened.one(at(0), "leases", three, Action::Forget).await.allowed);
    });
}

/// Waits for windows that Redis ends.
fn reservation_in_a_window_of_redis_ends_on_time(opened: StoreFixture) {
    let limit = limit(3, 6000);
    wait(async {
        let begin = Instant::now();
        let reserved = opened.one(at(0), "ends#a", limit, reserve(3, 1)).await;
        let lasts_ns = reserved.session.since(at(0));
        assert!(reserved.allowed && (900_000_000..=2 * SECOND).contains(&lasts_ns), "{lasts_ns}");
        let denied = opened.one(at(0), "ends", limit, TAKE).await;
        assert!(!denied.allowed && denied.retry_ns.is_some_and(|retry_ns| retry_ns <= 2 * SECOND), "{denied:?}");
        assert_eq!(denied.retry_ns, Some(denied.reset_ns));
        let never = opened.one(at(0), "ends", limit, Action::Ask(Ask::Take { cost: 4 })).await;
        assert_eq!(never.retry_ns, None);
        while !opened.one(at(0), "ends", limit, TAKE).await.allowed {
            assert!(begin.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(begin.elapsed() >= Duration::from_secs(1), "ended after {:?}", begin.elapsed());
        assert_eq!(summary(opened.one(at(0), "ends", limit, LOOK).await), (true, 2, 6000), "in the same window");
        assert_eq!(opened.one(at(0), "ends#a", limit, RELEASE).await.resolution, Resolution::Gone);
    });
}

fn concurrent_reservations_never_exceed_the_limit(opened: StoreFixture) {
    const CREDITS: u64 = 40;
    let (opened, limit) = (Arc::new(opened), Limit::TokenBucket(TokenBucket::new(CREDITS, 1, 6_000 * SECOND).unwrap()));
    let runtime = Runtime::new().unwrap();
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let opened = Arc::clone(&opened);
            runtime.spawn(async move {
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
            })
        })
        .collect();
    let used: u64 = clients.into_iter().map(|client| runtime.block_on(client).unwrap()).sum();
    assert!((1..=CREDITS).contains(&used));
    assert_eq!(runtime.block_on(opened.one(at(0), "crowd", limit, LOOK)).left, CREDITS - used);
}

fn concurrent_groups_take_from_all_buckets_or_none(opened: StoreFixture) {
    const CLIENTS: u64 = 16;
    let (of_all, of_one) = (limit(500, 6_000), Limit::TokenBucket(TokenBucket::new(40, 1, 6_000 * SECOND).unwrap()));
    let opened = Arc::new(opened);
    let runtime = Runtime::new().unwrap();
    let bucket = |client: u64| format!("{{together}} {client}");
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (opened, of_this) = (Arc::clone(&opened), bucket(client));
            runtime.spawn(async move {
                let mut allowed = 0;
                for _ in 0..60 {
                    // The entries may have either order, because the store locks them in a fixed one.
                    let mut group = [("{together} all", of_all, TAKE), (of_this.as_str(), of_one, TAKE)];
                    group.rotate_left(client as usize % 2);
                    let outcomes = opened.apply_groups(at(0), &[&group]).await;
                    allowed += u64::from(outcomes.iter().all(|outcome| outcome.allowed));
                }
                allowed
            })
        })
        .collect();
    let allowed: Vec<u64> = clients.into_iter().map(|client| runtime.block_on(client).unwrap()).collect();
    assert_eq!(allowed.iter().sum::<u64>(), 500);
    let left = |bucket: &str, limit| runtime.block_on(opened.one(at(0), bucket, limit, LOOK)).left;
    assert_eq!(left("{together} all", of_all), 0);
    for (client, allowed) in (0..CLIENTS).zip(allowed) {
        assert_eq!(left(&bucket(client), of_one), 40 - allowed, "a denied group takes from no counter");
    }
}

fn closing_keeps_usage(opened: StoreFixture) {
    let mut limits = limits(opened.buckets);
    // Only reservations take leases.
    limits.retain(|limit| limit.kind() != Kind::Concurrency);
    let keys: Vec<_> = (0..limits.len()).map(|place| format!("closing {place}")).collect();
    let keys = || keys.iter().map(String::as_str);
    let ask = |action| keys().zip(&limits).map(|(key, limit)| (key, *limit, action)).collect::<Vec<_>>();
    wait(async {
        let mut model = Model::default();
        for (seconds, action) in [(0, TAKE), (4, TAKE), (4, Action::Ask(Ask::Drain { cost: 2, strict: true }))] {
            let now = at(opened.later(seconds));
            let outcomes = opened.apply(now, &ask(action)).await;
            for ((key, limit, action), outcome) in ask(action).into_iter().zip(outcomes) {
                assert_eq!(outcome, expected(&mut model, key.to_owned(), limit, action, now), "{limit:?}");
            }
        }
        assert_eq!(model.buckets.len(), limits.len(), "every limit has a state");
        opened.store.close().await.unwrap();
        let Some(reopened) = opened.reopen() else { return };
        for seconds in [8, 12, 30] {
            let now = at(reopened.later(seconds));
            let outcomes = reopened.apply(now, &ask(TAKE)).await;
            for ((key, limit, action), outcome) in ask(TAKE).into_iter().zip(outcomes) {
                assert_eq!(outcome, expected(&mut model, key.to_owned(), limit, action, now), "{limit:?}");
            }
        }
    });
}

fn closing_keeps_reservations(opened: StoreFixture) {
    wait(async {
        for (place, limit) in reservable(opened.buckets) {
            let key = format!("kept {place}#it");
            assert!(opened.one(at(0), &key, limit, reserve(1, LONG)).await.allowed, "{limit:?}");
        }
        opened.store.close().await.unwrap();
        let Some(reopened) = opened.reopen() else { return };
        for (place, limit) in reservable(reopened.buckets) {
            let (bucket, all) = (format!("kept {place}"), limit.capacity());
            assert_eq!(reopened.one(at(0), &bucket, limit, LOOK).await.left, all - 1, "{limit:?}");
            let committed = reopened.one(at(0), &format!("{bucket}#it"), limit, commit(0)).await;
            assert_eq!((committed.resolution, committed.left), (Resolution::Done, all), "{limit:?}");
        }
    });
}

fn take_once(cost: u64, fingerprint: u64) -> Action {
    Action::Idempotent { ask: Ask::Take { cost }, fingerprint }
}

fn idempotent_request_is_taken_once_and_its_answer_repeated(opened: StoreFixture) {
    wait(async {
        let is_one = |limit: &Limit| limit.capacity() > 2 && limit.kind() != Kind::Concurrency;
        let limits = limits(opened.buckets).into_iter().filter(is_one);
        for (place, limit) in limits.enumerate() {
            let (bucket, all) = (format!("once {place}"), limit.capacity());
            let (one, other) = (format!("{bucket}#one"), format!("{bucket}#other"));
            let ask = async |key: &str, action| opened.one(at(0), key, limit, action).await;
            let left = async || ask(&bucket, LOOK).await.left;
            let first = ask(&one, take_once(1, 7)).await;
            assert_eq!(
                (first.allowed, first.before, first.left, first.resolution),
                (true, all, all - 1, Resolution::Done),
                "{limit:?}"
            );
            ask(&bucket, Action::Ask(Ask::Take { cost: 1 })).await;
            let again = Outcome { resolution: Resolution::Repeated, ..first };
            assert_eq!((ask(&one, take_once(1, 7)).await, left().await), (again, all - 2), "{limit:?}");
            // Another request with the same idempotency key.
            let different = ask(&one, take_once(2, 8)).await;
            assert_eq!(
                (different.allowed, different.resolution, left().await),
                (false, Resolution::Different, all - 2),
                "{limit:?}"
            );
            // A denial is an answer, too.
            let denied = ask(&other, take_once(all, 7)).await;
            assert_eq!((denied.allowed, denied.resolution), (false, Resolution::Done), "{limit:?}");
            // A reset clears the counter, and keeps the answers.
            assert!(ask(&bucket, Action::Forget).await.allowed, "{limit:?}");
            let repeated = Outcome { resolution: Resolution::Repeated, ..denied };
            assert_eq!((ask(&other, take_once(all, 7)).await, left().await), (repeated, all), "{limit:?}");
            assert_eq!((ask(&one, take_once(1, 7)).await, left().await), (again, all), "{limit:?}");
            let later = at(opened.later(59));
            assert_eq!(opened.one(later, &one, limit, take_once(1, 7)).await, again, "{limit:?}");
            if opened.buckets == Buckets::ByPassedTime {
                let later = opened.one(at(60), &one, limit, take_once(1, 7)).await;
                assert_eq!((later.resolution, later.left), (Resolution::Done, all - 1), "{limit:?}");
            }
        }
    });
}

/// A reservation and an idempotent request may have the same name.
fn batch_keeps_idempotent_requests_and_reservations_of_the_same_name_apart(opened: StoreFixture) {
    let limit = limit(10, 1_000);
    let charge = Action::Idempotent { ask: Ask::Charge { cost: 4 }, fingerprint: 1 };
    let refund = Action::Idempotent { ask: Ask::Refund { cost: 3 }, fingerprint: 1 };
    let asked = [
        ("once order#a", take_once(2, 1)),
        ("once order#a", reserve(3, LONG)),
        ("once order#a", take_once(2, 1)),
        ("once order#a", take_once(2, 2)),
        ("once order#b", charge),
        ("once order#b", charge),
        ("once order#c", refund),
        ("once order#c", refund),
        ("once order#a", commit(0)),
        ("once order", LOOK),
    ];
    let asked = asked.map(|(key, action)| (key, limit, action));
    let reported = wait(opened.apply(at(0), &asked))
        .into_iter()
        .map(|outcome| (outcome.allowed, outcome.left, outcome.resolution));
    assert_eq!(
        reported.collect::<Vec<_>>(),
        [
            (true, 8, Resolution::Done),
            (true, 5, Resolution::Done),
            (true, 8, Resolution::Repeated),
            (false, 5, Resolution::Different),
            (true, 1, Resolution::Done),
            (true, 1, Resolution::Repeated),
            (true, 4, Resolution::Done),
            (true, 4, Resolution::Repeated),
            (true, 7, Resolution::Done),
            (true, 7, Resolution::Done),
        ]
    );
}

fn repeated_group_takes_nothing_and_repeated_denial_stays_denied(opened: StoreFixture) {
    let (small, large) = (limit(3, 1_000), limit(100, 1_000));
    let (a, b, c) = ("{g}a#x", "{g}b#x", "{g}c#x");
    let (once, look) = (take_once(2, 1), ("{g}b", large, LOOK));
    wait(async {
        let ask = async |group: &[(&str, Limit, Action)]| {
            let reported = opened.apply_groups(at(0), &[group]).await;
            reported.into_iter().map(|outcome| (outcome.allowed, outcome.left, outcome.resolution)).collect::<Vec<_>>()
        };
        let left = async || opened.one(at(0), look.0, look.1, look.2).await.left;
        let both = [(a, small, once), (b, large, once)];
        assert_eq!(ask(&both).await, [(true, 1, Resolution::Done), (true, 98, Resolution::Done)]);
        assert_eq!(ask(&both).await, [(true, 1, Resolution::Repeated), (true, 98, Resolution::Repeated)]);
        // With another key, the group is denied: the small limit denies, and the other member is held back.
        let other = [("{g}a#y", small, once), ("{g}b#y", large, once)];
        assert_eq!(ask(&other).await, [(false, 1, Resolution::Done), (true, 98, Resolution::Done)]);
        assert!(opened.one(at(0), "{g}a", small, Action::Forget).await.allowed);
        opened.one(at(0), "{g}b", large, TAKE).await;
        assert_eq!(ask(&other).await, [(false, 1, Resolution::Repeated), (true, 98, Resolution::Repeated)]);
        // The group no longer contains the member that denied. The other one was never taken, so it is taken now.
        assert_eq!(ask(&[("{g}b#y", large, once)]).await, [(true, 95, Resolution::Done)]);
        assert_eq!(ask(&[("{g}b#y", large, once)]).await, [(true, 95, Resolution::Repeated)]);
        // Only the new member is taken. The other answers are repeated.
        let more = [(a, small, once), (b, large, once), (c, small, once)];
        assert_eq!(
            ask(&more).await,
            [(true, 1, Resolution::Repeated), (true, 98, Resolution::Repeated), (true, 1, Resolution::Done)]
        );
        // Another request with the same key as one member changes none of them.
        let different = [("{g}a#z", small, once), (b, large, take_once(3, 2))];
        assert_eq!(ask(&different).await[1], (false, 95, Resolution::Different));
        assert_eq!(ask(&[("{g}a#z", small, take_once(3, 3))]).await, [(true, 0, Resolution::Done)]);
        assert_eq!(left().await, 95);
    });
}

fn denied_group_repeats_its_first_answer_after_a_charge(opened: StoreFixture) {
    let (short, long) = (limit(3, 1_000), limit(100, 100_000));
    let once = take_once(2, 1);
    wait(async {
        let ask = async |name: &str| {
            let (of_short, of_long) = (format!("{{again}} short#{name}"), format!("{{again}} long#{name}"));
            opened.apply_groups(at(0), &[&[(&of_short, short, once), (&of_long, long, once)]]).await
        };
        assert!(ask("x").await.iter().all(|outcome| outcome.allowed));
        let denied = ask("y").await;
        assert_eq!(denied.iter().map(|outcome| outcome.allowed).collect::<Vec<_>>(), [false, true]);
        let charge = Action::Ask(Ask::Charge { cost: 500 });
        assert_eq!(opened.one(at(0), "{again} long", long, charge).await.left, 0);
        for _ in 0..2 {
            let repeated = denied.iter().map(|outcome| Outcome { resolution: Resolution::Repeated, ..*outcome });
            assert_eq!(ask("y").await, repeated.collect::<Vec<_>>());
        }
        assert_eq!(opened.one(at(0), "{again} long", long, LOOK).await.owed, 402);
        assert_eq!(opened.one(at(0), "{again} short", short, LOOK).await.left, 1);
    });
}

fn reservation_of_several_buckets_is_settled_by_the_first_call(opened: StoreFixture) {
    const CLIENTS: u64 = 8;
    let limits = reservable(opened.buckets).filter(|(_, limit)| limit.capacity() > 2).collect::<Vec<_>>();
    let opened = Arc::new(opened);
    let runtime = Runtime::new().unwrap();
    let settle = async |opened: &StoreFixture, round: usize, id: &str, action| {
        let keys: Vec<_> = limits.iter().map(|(place, _)| format!("{{settled {round}}} {place}#{id}")).collect();
        let group: Vec<_> = keys.iter().zip(&limits).map(|(key, (_, limit))| (key.as_str(), *limit, action)).collect();
        opened.apply_groups(at(0), &[&group]).await
    };
    for round in 0..5 {
        runtime.block_on(async {
            assert!(settle(&opened, round, "a", reserve(1, LONG)).await.iter().all(|outcome| outcome.allowed));
            assert!(settle(&opened, round, "b", reserve(1, LONG)).await.iter().all(|outcome| outcome.allowed));
        });
        let resolutions: Vec<_> = std::thread::scope(|scope| {
            let client = |client: u64| {
                let (opened, settle) = (Arc::clone(&opened), &settle);
                let of_client = move || {
                    wait(async {
                        let committed = settle(&opened, round, "a", commit(client)).await;
                        let released = settle(&opened, round, "b", RELEASE).await;
                        [committed, released].map(|outcomes| {
                            let resolutions: Vec<_> = outcomes.iter().map(|outcome| outcome.resolution).collect();
                            assert!(
                                resolutions.iter().all(|resolution| *resolution == resolutions[0]),
                                "one decided about a part: {resolutions:?}"
                            );
                            resolutions[0]
                        })
                    })
                };
                scope.spawn(of_client)
            };
            let clients: Vec<_> = (0..CLIENTS).map(client).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for (call, rest) in [(0, Resolution::Repeated), (1, Resolution::Gone)] {
            let resolutions: Vec<_> = resolutions.iter().map(|resolutions| resolutions[call]).collect();
            assert_eq!(
                resolutions.iter().filter(|resolution| **resolution == Resolution::Done).count(),
                1,
                "{resolutions:?}"
            );
            assert!(
                resolutions.iter().all(|resolution| [Resolution::Done, rest].contains(resolution)),
                "{resolutions:?}"
            );
        }
        let used: Vec<_> = runtime.block_on(async {
            let mut used = Vec::new();
            for (place, limit) in &limits {
                let reported = opened.one(at(0), &format!("{{settled {round}}} {place}"), *limit, LOOK).await;
                used.push(limit.capacity() - reported.left + reported.owed);
            }
            used
        });
        assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
    }
    // If a bucket was forgotten, its commit is late. The others are settled nevertheless.
    wait(async {
        settle(&opened, 9, "a", reserve(1, LONG)).await;
        opened.one(at(0), "{settled 9} 0", limits[0].1, Action::Forget).await;
        let unless = Action::Reservation(ReservationAsk::Commit { cost: 1, charges: false, run: None });
        let resolutions = settle(&opened, 9, "a", unless).await.into_iter().map(|outcome| outcome.resolution);
        let expected = (0..limits.len()).map(|place| if place == 0 { Resolution::Gone } else { Resolution::Done });
        assert_eq!(resolutions.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    });
}

fn concurrent_equal_idempotent_requests_are_taken_once(opened: StoreFixture) {
    const CLIENTS: u64 = 16;
    let limit = limit(1_000, 10_000);
    let opened = Arc::new(opened);
    let runtime = Runtime::new().unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let opened = Arc::clone(&opened);
            runtime.spawn(async move {
                let mut first = 0;
                for name in 0..20 {
                    let outcome = opened.one(at(0), &format!("same#{name}"), limit, take_once(1, 1)).await;
                    first += u64::from(outcome.resolution == Resolution::Done);
                }
                first
            })
        })
        .collect();
    let first: u64 = clients.into_iter().map(|client| runtime.block_on(client).unwrap()).sum();
    assert_eq!((first, runtime.block_on(opened.one(at(0), "same", limit, LOOK)).left), (20, 980));
}

fn closing_keeps_idempotent_answers(opened: StoreFixture) {
    let ask = take_once(2, u64::MAX);
    wait(async {
        let limit = limit(10, 10_000);
        let first = opened.one(at(0), "kept#it", limit, ask).await;
        opened.store.close().await.unwrap();
        let Some(reopened) = opened.reopen() else { return };
        let again = reopened.one(at(0), "kept#it", limit, ask).await;
        assert_eq!(again, Outcome { resolution: Resolution::Repeated, ..first });
        assert_eq!(reopened.one(at(0), "kept", limit, LOOK).await.left, 8);
    });
}

macro_rules! conformance {
    ($backend:ident: $($case:ident),* $(,)?) => {
        mod $backend {
            $(
                #[test]
                fn $case() {
                    super::$case(super::$backend());
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
            closing_keeps_reservations,
            leases_are_held_until_they_are_freed_or_expire,
            idempotent_request_is_taken_once_and_its_answer_repeated,
            batch_keeps_idempotent_requests_and_reservations_of_the_same_name_apart,
            repeated_group_takes_nothing_and_repeated_denial_stays_denied,
            concurrent_equal_idempotent_requests_are_taken_once,
            closing_keeps_idempotent_answers,
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
