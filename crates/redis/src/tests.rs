//! Tests of the store behind its layers.

use futures_util::poll;
use tokio::time::{sleep, timeout};

use super::*;
use divvy_core::clock::Clock;
use divvy_store::testing::{TAKE, at, window};
use divvy_store::{FailurePolicy, LayeredStore};

/// Each client leaves before the store's timeout, so no client sees the timeout that opens the breaker.
#[tokio::test]
async fn outage_is_noticed_if_no_client_waits_for_it() {
    // This server accepts connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = vec![format!("redis://{}", silent.local_addr().unwrap())];
    let options = RedisOptions { urls, timeout: Duration::from_millis(100), ..RedisOptions::default() };
    let store = LayeredStore::new(RedisStore::open(options).unwrap(), 0, FailurePolicy::Error, Clock::system());
    let mut batch = Batch::default();
    let impatient = async {
        loop {
            batch.begin(at(0));
            batch.push(window(3, 60), TAKE, at(0), |key| key.push(b'a'));
            if poll!(Box::pin(store.apply(&mut batch))).is_ready() {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), impatient).await.unwrap();
    assert!(matches!(batch.outcome(0), Err(StoreError::Unreachable(_))), "{:?}", batch.outcome(0));
}
