use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{sleep, timeout};

use super::*;
use crate::testing::{ScriptedStore, TAKE, at, window};

/// Deadline that is long enough for a busy machine, and ends a hung test.
const PATIENCE: Duration = Duration::from_secs(30);

async fn until(mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap();
}

fn layered<S: Store + 'static>(store: S) -> LayeredStore<S> {
    LayeredStore::new(store, 0, FailurePolicy::Error, Clock::system())
}

fn hit() -> Batch {
    let mut batch = Batch::default();
    batch.begin(at(0));
    batch.push(window(3, 60), TAKE, at(0), |key| key.push(b'a'));
    batch
}

#[tokio::test]
async fn failure_counts_after_its_client_has_gone() {
    let store = layered(ScriptedStore::default());
    store.inner().is_down.store(true, Relaxed);
    let held = store.inner().hold_answers.write().await;
    let mut batch = hit();
    let mut applying = Box::pin(store.apply(&mut batch));
    assert!(poll!(&mut applying).is_pending());
    drop(applying);
    drop(held);
    until(|| store.0.fallback.failed.load(Relaxed) == 1).await;
    assert!(store.0.fallback.is_out(at(1)));
}

#[tokio::test]
async fn batch_returns_with_its_outcomes() {
    let store = layered(ScriptedStore::default());
    let held = store.inner().hold_answers.write().await;
    let mut batch = hit();
    let mut applying = Box::pin(store.apply(&mut batch));
    assert!(poll!(&mut applying).is_pending());
    drop(held);
    applying.await;
    assert_eq!((batch.len(), batch.outcome(0).unwrap().left), (1, 2));
}
