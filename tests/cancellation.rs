//! Any future may be dropped at any await: the store and the limiter continue to work, and acknowledged hits are kept.
//!
//! `crates/server/src/tests/dropped_connections.rs` drops connections of the fronts in the same way, and `storms.rs` uses real clients.
//! `DIVVY_TEST_SEED` determines when the futures of the crowd are dropped.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use divvy::algorithm::{Ask, FixedWindow, Limit};
use divvy::clock::Clock;
use divvy::config::{self, Format};
use divvy::limiter::{ActiveRules, CounterNames, Intent, Limiter, Scope};
use divvy::metrics::Metrics;
use divvy::rules::Operation;
use divvy::store::key::{Prefix, Space};
use divvy::store::{
    Action, Backend, Batch, Durability, FailurePolicy, Listing, OpenError, RedisOptions, RedisStore, RocksOptions,
    RocksStore, Store,
};
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};

use crate::support::interruption::{DropMoment, WAYS, poll_then_drop};
use crate::support::{PATIENCE, RedisServer, expanded, seed};

const DURABILITIES: [Durability; 3] = [Durability::Wal, Durability::Sync, Durability::Lazy];
const CREDIT: u64 = 1_000_000_000;
const HOUR: u64 = 3_600_000_000_000;
const TASKS: usize = 64;
const ROUNDS: usize = 200;
/// More awaits than any future in these tests has.
const MANY: usize = 50;
const FEW: usize = 15;

const RULES: &str = "
[user=*] creditLimit=1000000000 resetSeconds=3600 actorField=user
[default] creditLimit=0 resetSeconds=0
";

fn open(path: &Path, durability: Durability) -> RocksStore {
    let options = RocksOptions { durability, cache_memory: 100_000, ..RocksOptions::default() };
    RocksStore::open(path, options).unwrap()
}

fn limit() -> Limit {
    Limit::FixedWindow(FixedWindow::new(CREDIT, HOUR).unwrap())
}

fn prefix() -> Prefix {
    Prefix::new(Space::Rule, [("user", "*")], &limit())
}

/// Closes the store once other threads have completed the work of dropped futures, and opens it again.
async fn reopen(store: RocksStore, path: &Path, durability: Durability) -> RocksStore {
    store.close().await.unwrap();
    drop(store);
    let options = RocksOptions { durability, ..RocksOptions::default() };
    loop {
        match RocksStore::open(path, options.clone()) {
            Err(OpenError::InUse(_)) => sleep(Duration::from_millis(5)).await,
            opened => return opened.unwrap(),
        }
    }
}

/// Takes a credit. Returns the number of credits used so far.
async fn take(store: &RocksStore, clock: &Clock, user: &str) -> u64 {
    let mut batch = Batch::default();
    batch.begin(clock.now());
    let action = Action::Ask(Ask::Take { cost: 1 });
    batch.push(limit(), action, batch.now(), |key| prefix().write_key(user, key));
    store.apply(&mut batch).await;
    CREDIT - batch.outcome(0).unwrap().left
}

/// Runs the future on several threads. Fails if it hangs.
fn wait(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async { timeout(4 * PATIENCE, future).await.expect("something waits for ever") });
    // The runtime is not dropped, because that would wait for hanging threads.
    runtime.shutdown_background();
}

/// Drops the future of `make` after every number of polls, until it completes. `go_on` must work after each.
async fn at_every_await<F: Future, G: Future<Output = ()>>(make: impl Fn() -> F, go_on: impl Fn() -> G) {
    for dropped in WAYS {
        for polls in 0..MANY {
            let ended = poll_then_drop(make(), polls, dropped).await;
            timeout(PATIENCE, go_on())
                .await
                .unwrap_or_else(|_| panic!("nothing goes on after {polls} polls ({dropped:?})"));
            if ended.is_some() {
                assert!(polls > 0);
                break;
            }
        }
    }
}

#[test]
fn store_works_wherever_its_callers_stop_waiting() {
    for durability in DURABILITIES {
        let dir = tempfile::tempdir().unwrap();
        wait(async {
            let (store, clock) = (open(dir.path(), durability), Clock::system());
            let taken = AtomicU64::new(0);
            let go_on = async || {
                let used = take(&store, &clock, "kept").await;
                assert_eq!(used, taken.fetch_add(1, Relaxed) + 1, "{durability:?}");
            };
            let listing = || Listing {
                prefix: prefix().as_bytes().into(),
                limit: limit(),
                cursor: None,
                count: 10,
                now: clock.now(),
            };
            at_every_await(|| take(&store, &clock, "dropped"), go_on).await;
            at_every_await(|| store.check(), go_on).await;
            at_every_await(|| store.list(listing()), go_on).await;
            let again = reopen(store, dir.path(), durability).await;
            assert_eq!(take(&again, &clock, "kept").await, taken.load(Relaxed) + 1, "{durability:?}");
            again.close().await.unwrap();
        });
    }
}

/// Returns a limiter of [`RULES`], with its metrics.
fn limiter_of(store: Backend) -> (Arc<Limiter>, Arc<Metrics>) {
    let metrics = Metrics::new();
    let rules = config::parse(&expanded(RULES), Format::Ini, "rules.ini").unwrap().rules;
    let policy = ActiveRules::new(rules, &metrics, CounterNames::Usual);
    (Arc::new(Limiter::new(Some(policy), store, Clock::system(), Arc::clone(&metrics))), metrics)
}

/// Asks about a user. Returns the number of credits used.
async fn ask(limiter: &Arc<Limiter>, user: &str, intent: Intent) -> u64 {
    let Ok(asked) = limiter.ask(&Scope::EVERYTHING, |builder| {
        builder.add(&[("user", user)].into_iter().collect::<Operation>(), intent, None);
        Ok::<_, Infallible>(())
    });
    CREDIT - asked.answers().await.report().verdict(0).unwrap().credit
}

#[test]
fn limiter_works_wherever_its_callers_stop_waiting() {
    for durability in DURABILITIES {
        let dir = tempfile::tempdir().unwrap();
        wait(async {
            let (limiter, _) = limiter_of(Backend::Rocks(open(dir.path(), durability)));
            let hit = async |user: &str| ask(&limiter, user, Intent::Hit).await;
            let taken = AtomicU64::new(0);
            let go_on = async || assert_eq!(hit("kept").await, taken.fetch_add(1, Relaxed) + 1, "{durability:?}");
            at_every_await(|| hit("dropped"), go_on).await;
            limiter.store().close().await.unwrap();
        });
    }
}

/// A credit that a store has taken is counted even if the caller did not wait for the answer.
#[test]
fn hits_are_counted_wherever_their_callers_stop_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start();
    let store = |options: RedisOptions| {
        Backend::redis(RedisStore::open(options).unwrap(), 0, FailurePolicy::Error, Clock::system())
    };
    let patient = RedisOptions { urls: vec![redis.url()], timeout: PATIENCE, ..RedisOptions::default() };
    for (name, store) in [
        ("redis", store(patient)),
        ("wal", Backend::Rocks(open(&dir.path().join("wal"), Durability::Wal))),
        ("sync", Backend::Rocks(open(&dir.path().join("sync"), Durability::Sync))),
    ] {
        wait(async {
            let (limiter, metrics) = limiter_of(store);
            let ask = async |intent: Intent| ask(&limiter, "ann", intent).await;
            let mut ended = 0;
            let deadline = Instant::now() + PATIENCE;
            // A fast store may answer or drop all of the hits of a round.
            while ask(Intent::Peek).await <= ended && Instant::now() < deadline {
                for dropped in WAYS {
                    // Only a few, because an fsync takes a second while the disk is busy.
                    for polls in (0..FEW).map(|polls| polls % 5) {
                        let answer = poll_then_drop(ask(Intent::Hit), polls, dropped).await;
                        ended += u64::from(answer.is_some());
                    }
                }
            }
            let counted = || metrics.hits.counted().iter().map(|counted| counted.hits).sum::<u64>();
            let agree = async {
                while ask(Intent::Peek).await != counted() {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            let agreed = timeout(PATIENCE, agree).await;
            let taken = ask(Intent::Peek).await;
            agreed.unwrap_or_else(|_| panic!("{name}: {taken} were taken, and {} counted", counted()));
            assert!(taken > ended, "{name}: {taken} were taken, and none of them by a caller that left");
            limiter.store().close().await.unwrap();
        });
    }
}

/// Many futures run at the same time. In each round, different ones wait, lead and disappear.
#[test]
fn crowd_with_many_dropped_futures_loses_no_acknowledged_hit() {
    let seed = seed();
    for durability in DURABILITIES {
        let dir = tempfile::tempdir().unwrap();
        wait(async {
            let (store, clock) = (Arc::new(open(dir.path(), durability)), Clock::system());
            let mut tasks = Vec::new();
            for task in 0..TASKS {
                let store = Arc::clone(&store);
                let mut rng = Rng::seed_from_u64(seed ^ task as u64);
                tasks.push(tokio::spawn(async move {
                    let user = format!("user-{task}");
                    let (mut asked, mut reported) = (0, 0);
                    for _ in 0..ROUNDS {
                        let polls = rng.random_range(1..4);
                        let dropped = if rng.random() { DropMoment::Waiting } else { DropMoment::Woken };
                        asked += 1;
                        if let Some(used) = poll_then_drop(take(&store, &clock, &user), polls, dropped).await {
                            reported = used;
                            assert!(used <= asked);
                        }
                    }
                    (user, reported, asked)
                }));
            }
            let mut users = Vec::new();
            for task in tasks {
                users.push(task.await.unwrap());
            }
            let used = timeout(PATIENCE, take(&store, &clock, "after")).await;
            assert_eq!(used.expect("a hit after the crowd waits for ever"), 1, "{durability:?}");
            let store = Arc::into_inner(store).unwrap();
            let again = reopen(store, dir.path(), durability).await;
            for (user, reported, asked) in users {
                let used = take(&again, &clock, &user).await;
                assert!(
                    (reported + 1..=asked + 1).contains(&used),
                    "{durability:?}: {user} got the answer {reported}, but has {used}"
                );
            }
            again.close().await.unwrap();
        });
    }
}
