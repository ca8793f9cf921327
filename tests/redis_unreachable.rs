//! A Redis that does not answer, from the store's point of view: errors arrive in time, nothing is counted twice, and
//! the store finds Redis again.

use std::time::{Duration, Instant};

use divvy::algorithm::{Limit, Outcome};
use divvy::store::RedisStore;

use crate::conformance::{TAKE, wait};
use crate::redis::{one, open, window};
use crate::support::redis::TIMEOUT;
use crate::support::{Proxy, RedisServer};

const SECOND: u64 = 1_000_000_000;
/// How much longer than its timeout a batch may take on a machine that runs all tests at once.
const SLACK: Duration = Duration::from_millis(700);

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
