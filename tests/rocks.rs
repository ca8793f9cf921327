//! Compactions of the embedded store: the counters that they keep, and the space that they free.

use std::path::Path;

use divvy::algorithm::{Ask, Limit, TokenBucket};
use divvy::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy::store::key::{Space, write_client_key};
use divvy::store::{Action, Batch, RocksOptions, RocksStore, Store};

use crate::conformance::wait;
use crate::support::disk_usage;

const HOUR: u64 = 3600 * NANOS_PER_SECOND;
const MIB: u64 = 1 << 20;

fn open(path: &Path) -> RocksStore {
    let options = RocksOptions { cache_memory: 0, ..RocksOptions::default() };
    RocksStore::open(path, options).unwrap()
}

/// Returns a limit of five tokens. All of them come back after an hour.
fn hourly() -> Limit {
    Limit::TokenBucket(TokenBucket::new(5, 5, HOUR).unwrap())
}

fn push(batch: &mut Batch, key: &[u8], cost: u64, at: Timestamp) {
    let action = Action::Ask(Ask::Replay { cost, strict: false });
    batch.push(hourly(), action, at, |out| write_client_key(Space::TokenBucket, &hourly(), key, out));
}

/// Returns the tokens that `key` had before `cost` were taken at `at`, if the server's clock is at `now`.
async fn drain(store: &RocksStore, key: &[u8], cost: u64, at: Timestamp, now: Timestamp) -> u64 {
    let mut batch = Batch::default();
    batch.begin(now);
    push(&mut batch, key, cost, at);
    store.apply(&mut batch).await;
    batch.outcome(0).unwrap().before
}

fn hours_before(now: Timestamp, hours: u64) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos() - hours * HOUR)
}

#[test]
fn compaction_uses_the_servers_time_of_the_last_write() {
    wait(async {
        let dir = tempfile::tempdir().unwrap();
        let now = Clock::system().now();
        let (y2016, y2200) =
            (Timestamp::from_secs(1_456_790_400).unwrap(), Timestamp::from_secs(7_258_118_400).unwrap());
        let store = open(dir.path());
        for (key, at, written) in [
            (&b"a replay of 2016"[..], y2016, now),
            (b"a replay of 2016, two hours ago", y2016, hours_before(now, 2)),
            (b"a time to come", y2200, now),
            (b"a time to come, two hours ago", y2200, hours_before(now, 2)),
            (b"the present", now, now),
            (b"two hours ago", hours_before(now, 2), hours_before(now, 2)),
        ] {
            assert_eq!(drain(&store, key, 2, at, written).await, 5);
        }
        store.compact().unwrap();
        assert_eq!(store.expired_dropped(), 3);
        store.close().await.unwrap();
        drop(store);

        let store = open(dir.path());
        assert_eq!(drain(&store, b"a replay of 2016", 0, y2016, now).await, 3);
        assert_eq!(drain(&store, b"a replay of 2016, two hours ago", 0, y2016, now).await, 5);
        assert_eq!(drain(&store, b"a time to come", 0, y2200, now).await, 3);
        assert_eq!(drain(&store, b"a time to come, two hours ago", 0, y2200, now).await, 5);
        assert_eq!(drain(&store, b"the present", 0, now, now).await, 3);
        assert_eq!(drain(&store, b"two hours ago", 0, now, now).await, 5);
    });
}

#[test]
fn clock_set_back_between_runs_delays_a_limit_by_its_own_time_at_most() {
    const BUCKET: &[u8] = b"a client";
    let limit = Limit::TokenBucket(TokenBucket::new(5, 5, NANOS_PER_SECOND).unwrap());
    let drained = async |store: &RocksStore, now: Timestamp| {
        let mut batch = Batch::default();
        batch.begin(now);
        let drain = Action::Ask(Ask::Drain { cost: 5, strict: false });
        batch.push(limit, drain, now, |out| write_client_key(Space::TokenBucket, &limit, BUCKET, out));
        store.apply(&mut batch).await;
        batch.outcome(0).unwrap()
    };
    wait(async {
        let dir = tempfile::tempdir().unwrap();
        let now = Clock::system().now();
        let tomorrow = now.plus(24 * HOUR);
        let store = open(dir.path());
        assert_eq!(drained(&store, tomorrow).await.before, 5);
        store.close().await.unwrap();
        drop(store);
        let store = open(dir.path());
        let denied = drained(&store, now).await;
        assert_eq!((denied.before, denied.retry_ns), (0, Some(NANOS_PER_SECOND)));
        assert_eq!(drained(&store, now.plus(NANOS_PER_SECOND)).await.before, 5);
    });
}

#[test]
fn time_that_runs_backwards_does_not_shorten_a_buckets_life() {
    wait(async {
        let dir = tempfile::tempdir().unwrap();
        let now = Clock::system().now();
        let y2016 = Timestamp::from_secs(1_456_790_400).unwrap();
        let store = open(dir.path());
        assert_eq!(drain(&store, b"k", 2, now, now).await, 5);
        assert_eq!(drain(&store, b"k", 2, y2016, now).await, 3);
        store.compact().unwrap();
        store.close().await.unwrap();
        drop(store);
        assert_eq!(drain(&open(dir.path()), b"k", 0, now, now).await, 1);
    });
}

#[test]
fn space_of_a_million_expired_counters_is_freed() {
    const BATCHES: u32 = 1_000;
    wait(async {
        let dir = tempfile::tempdir().unwrap();
        let now = Clock::system().now();
        // With a small table they would have been written back and forgotten.
        let store = RocksStore::open(dir.path(), RocksOptions::default()).unwrap();
        assert_eq!(drain(&store, b"survivor", 2, now, now).await, 5);
        let written = hours_before(now, 2);
        let mut batch = Batch::default();
        for number in 0..BATCHES {
            batch.begin(written);
            (0..1_000).for_each(|actor| push(&mut batch, format!("actor-{actor}-{number}").as_bytes(), 1, written));
            store.apply(&mut batch).await;
            assert_eq!(batch.outcome(999).unwrap().before, 5);
        }
        let before = disk_usage(dir.path());
        assert!(before > 30 * MIB, "{before} bytes before");
        store.compact().unwrap();
        assert_eq!(store.expired_dropped(), 1_000 * u64::from(BATCHES));
        let after = disk_usage(dir.path());
        assert!(after < MIB, "{after} bytes of {before} after");
        assert_eq!(drain(&store, b"survivor", 0, now, now).await, 3);
    });
}
