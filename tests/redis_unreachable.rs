//! A Redis that does not answer, from the store's point of view: errors arrive in time, nothing is counted twice, and
//! the store finds Redis again.

use std::time::{Duration, Instant};

use divvy::algorithm::{Limit, Outcome};
use divvy::store::{RedisStore, StoreError};

use crate::conformance::{TAKE, wait};
use crate::redis::{apply, one, open, take, window};
use crate::support::redis::{Proxy, RedisServer, TIMEOUT, free_port};

const SECOND: u64 = 1_000_000_000;
/// How much longer than its timeout a batch may take on a machine that runs all tests at once.
const SLACK: Duration = Duration::from_millis(700);

#[test]
fn missing_redis_is_an_error_at_once_and_is_found_when_it_starts() {
    let port = free_port();
    let store = open(vec![format!("redis://:secret@127.0.0.1:{port}")]);
    wait(async {
        let limit = window(5, 600 * SECOND);
        let start = Instant::now();
        for _ in 0..1000 {
            let error = one(&store, "a", limit, TAKE).await.unwrap_err().to_string();
            assert!(error.contains(&format!("127.0.0.1:{port}")) && !error.contains("secret"), "{error}");
        }
        assert!(start.elapsed() < TIMEOUT + SLACK, "a thousand errors took {:?}", start.elapsed());
        let _server = RedisServer::start_with(port, &["--requirepass", "secret"]);
        recover(&store, limit).await;
    });
}

#[test]
fn killed_redis_causes_errors_in_time_and_an_empty_one_counts_anew() {
    let mut server = RedisServer::start();
    let store = open(vec![server.url()]);
    wait(async {
        let limit = window(5, 600 * SECOND);
        assert_eq!(one(&store, "a", limit, take(4)).await.unwrap().left, 1);
        server.kill();
        for _ in 0..20 {
            assert!(timed(one(&store, "a", limit, TAKE)).await.is_err());
        }
        server.restart();
        assert_eq!(recover(&store, limit).await.left, 4);
    });
}

#[test]
fn connection_that_breaks_while_idle_causes_no_error() {
    let server = RedisServer::start();
    let store = open(vec![server.url()]);
    // Connections are driven by the thread that uses them, as in the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = window(20, 600 * SECOND);
        for left in (0..20).rev() {
            assert_eq!(one(&store, "a", limit, TAKE).await.unwrap().left, left);
            server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
            // Gives the end of the connection time to be noticed.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

/// Redis may have carried the batch out, so it is not sent again.
#[test]
fn hit_whose_answer_is_lost_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port);
    let store = open(vec![proxy.url()]);
    wait(async {
        let limit = window(10, 600 * SECOND);
        assert_eq!(one(&store, "a", limit, TAKE).await.unwrap().left, 9);
        proxy.lose_next_answer();
        assert!(one(&store, "a", limit, TAKE).await.is_err());
        assert_eq!(recover(&store, limit).await.left, 7);
    });
}

#[test]
fn hung_redis_causes_errors_in_time_and_counts_nothing_twice_afterwards() {
    let server = RedisServer::start();
    let store = open(vec![server.url()]);
    wait(async {
        let limit = window(1000, 600 * SECOND);
        one(&store, "a", limit, TAKE).await.unwrap();
        server.signal("-STOP");
        let mut asked = 1;
        for _ in 0..10 {
            let outcomes = timed(async { at_once(&store, limit).await }).await;
            assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
            asked += outcomes.len() as u64;
        }
        server.signal("-CONT");
        let left = recover(&store, limit).await.left;
        let taken = 1000 - left;
        assert!((2..=asked + 1).contains(&taken), "{taken} taken, {asked} asked");
        assert_eq!(one(&store, "a", limit, TAKE).await.unwrap().left, left - 1);
    });
}

#[test]
fn long_outage_costs_the_timeout_only_occasionally() {
    const HITS: u32 = 1000;
    let server = RedisServer::start();
    let store = open(vec![server.url()]);
    wait(async {
        let limit = window(10, 600 * SECOND);
        one(&store, "a", limit, TAKE).await.unwrap();
        server.signal("-STOP");
        let start = Instant::now();
        for _ in 0..HITS {
            let error = one(&store, "a", limit, TAKE).await.unwrap_err().to_string();
            assert!(error.contains("did not answer") || error.contains("cannot connect"), "{error}");
        }
        assert!(start.elapsed() < TIMEOUT * HITS / 20, "{HITS} hits waited {:?}", start.elapsed());
        server.signal("-CONT");
        recover(&store, limit).await;
    });
}

/// Applies several batches at once.
async fn at_once(store: &RedisStore, limit: Limit) -> Vec<Result<Outcome, StoreError>> {
    let pair = [("a", limit, TAKE), ("b", limit, TAKE)];
    let (a, b, c) = tokio::join!(one(store, "a", limit, TAKE), one(store, "a", limit, TAKE), apply(store, &pair));
    [vec![a, b], c].concat()
}

/// Returns the future's result, which must be available within the store's timeout.
pub async fn timed<T>(future: impl Future<Output = T>) -> T {
    let start = Instant::now();
    let result = future.await;
    assert!(start.elapsed() < TIMEOUT + SLACK, "answered after {:?}", start.elapsed());
    result
}

/// Sends hits until one is answered, and returns its outcome.
pub async fn recover(store: &RedisStore, limit: Limit) -> Outcome {
    let mut first = None;
    for _ in 0..400 {
        match timed(one(store, "a", limit, TAKE)).await {
            Ok(outcome) => {
                first = Some(outcome);
                break;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    first.expect("Redis answers, but the store does not find it again")
}
