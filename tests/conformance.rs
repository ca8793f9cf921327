//! The store's contract, checked for every backend: one suite, with a module for each backend. Tests of a backend may
//! share a server, so each test uses its own buckets.

mod buckets;
mod campaign;
mod clock;
mod idempotency;
mod model;
mod reservations;

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use divvy::algorithm::{
    Ask, CalendarWindow, Concurrency, CountBasis, Counter, Expiry, FixedWindow, Kind, LeakyBucket, Limit, Outcome,
    ReservationAsk, Resolution, Run, TokenBucket,
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

use self::buckets::*;
use self::clock::*;
use self::idempotency::*;
pub use self::model::{Model, expected};
use self::model::{
    about_reservation, any_sequence_agrees_with_the_bare_algorithms,
    any_sequence_of_groups_agrees_with_the_bare_algorithms, named, once, without_run,
};
use self::reservations::*;
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

fn tokens(credits: u64, refill: u64, seconds: u64) -> Limit {
    Limit::TokenBucket(TokenBucket::new(credits, refill, seconds * SECOND).unwrap())
}

fn leases(leases: u64, ttl_seconds: u32) -> Limit {
    Limit::Concurrency(Concurrency::new(leases, ttl_seconds).unwrap())
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
        tokens(1, 1, 10),
        Limit::LeakyBucket(LeakyBucket::new(4, 3, 50 * SECOND).unwrap()),
        // Its days begin twenty seconds after the tests' time.
        calendar(5, Unit::Minute, "UTC", "00:00"),
        calendar(5, Unit::Day, "Asia/Kathmandu", "12:52"),
        // The following limits count usage.
        calendar(6, Unit::Minute, "UTC", "00:00").counting(CountBasis::Used),
        tokens(5, 2, 20).counting(CountBasis::Used),
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

fn take_once(cost: u64, fingerprint: u64) -> Action {
    Action::Idempotent { ask: Ask::Take { cost }, fingerprint }
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
            share_of_a_window_is_taken_ahead_and_returned_once,
            share_of_a_bucket_lasts_until_it_could_be_full,
            share_leaves_reserved_credits_alone,
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
            idempotent_tally_counts_once_even_if_it_is_denied,
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
    counter_stays_within_its_bounds_and_expires,
]);

// These wait for windows that Redis ends.
conformance!(redis_rules, redis_cluster_rules => [
    window_in_redis_ends_on_time_and_the_next_hit_begins_a_new_one,
    reservation_in_a_window_of_redis_ends_on_time,
]);
