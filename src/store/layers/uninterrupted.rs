//! A store whose work runs to its end, even when the future that asked for it is dropped.
//!
//! Clients hang up and timeouts pass, but what was sent to a distant store is carried out there. Its answer must reach
//! those who draw conclusions from it: the memory of denials, the breaker, the counts of hits and failures, and the bound
//! of what is in flight. So what is left of the work goes on in a task of its own. Nothing is decided here.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::clock::Timestamp;
use crate::metrics::Metric;
use crate::store::actor_limits::{Followed, LimitChange, LimitPage};
use crate::store::contract::Batch;
use crate::store::contract::Store;
use crate::store::error::StoreError;
use crate::store::listing::{Listing, Page};

/// `inner`, which finishes all that it has begun.
#[derive(Debug)]
pub struct Uninterrupted<S>(Arc<S>);

impl<S> Uninterrupted<S> {
    pub fn new(inner: S) -> Self {
        Self(Arc::new(inner))
    }

    pub fn inner(&self) -> &S {
        &self.0
    }
}

/// What comes of the work, done by the task that waits for it. When that task stops halfway, a task of its own does the
/// rest, and `leave` is told of it.
struct ToItsEnd<F, L>
where
    F: Future<Output: Send> + Send + 'static,
    L: FnMut(JoinHandle<F::Output>) + Unpin,
{
    work: Option<Pin<Box<F>>>,
    is_begun: bool,
    leave: L,
}

/// Work whose result is of no use once its caller has gone.
fn to_its_end<F>(work: F) -> ToItsEnd<F, fn(JoinHandle<F::Output>)>
where
    F: Future<Output: Send> + Send + 'static,
{
    ToItsEnd::new(work, drop)
}

impl<F, L> ToItsEnd<F, L>
where
    F: Future<Output: Send> + Send + 'static,
    L: FnMut(JoinHandle<F::Output>) + Unpin,
{
    fn new(work: F, leave: L) -> Self {
        Self { work: Some(Box::pin(work)), is_begun: false, leave }
    }
}

impl<F, L> Future for ToItsEnd<F, L>
where
    F: Future<Output: Send> + Send + 'static,
    L: FnMut(JoinHandle<F::Output>) + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Taken out, so that work that panics is not gone on with.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
            self.is_begun = true;
        }
        polled
    }
}

impl<F, L> Drop for ToItsEnd<F, L>
where
    F: Future<Output: Send> + Send + 'static,
    L: FnMut(JoinHandle<F::Output>) + Unpin,
{
    fn drop(&mut self) {
        // Without a runtime the process is ending.
        if let Some(work) = self.work.take().filter(|_| self.is_begun)
            && let Ok(runtime) = Handle::try_current()
        {
            (self.leave)(runtime.spawn(work));
        }
    }
}

impl<S: Store + 'static> Store for Uninterrupted<S> {
    async fn apply(&self, batch: &mut Batch) {
        let (store, mut owned) = (Arc::clone(&self.0), std::mem::take(batch));
        let work = async move {
            store.apply(&mut owned).await;
            owned
        };
        let applied = ToItsEnd::new(work, |task| batch.leave_to(task)).await;
        *batch = applied;
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        let store = Arc::clone(&self.0);
        to_its_end(async move { store.list(listing).await }).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        let store = Arc::clone(&self.0);
        to_its_end(async move { store.approximate_len().await }).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        let store = Arc::clone(&self.0);
        to_its_end(async move { store.check().await }).await
    }

    async fn change_limit(&self, change: LimitChange, now: Timestamp) -> Result<Option<bool>, StoreError> {
        let store = Arc::clone(&self.0);
        to_its_end(async move { store.change_limit(change, now).await }).await
    }

    async fn follow_limits(&self, known: Followed) -> Result<LimitPage, StoreError> {
        let store = Arc::clone(&self.0);
        to_its_end(async move { store.follow_limits(known).await }).await
    }

    fn metrics(&self) -> Vec<Metric> {
        self.0.metrics()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.0.close().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    use futures_util::poll;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::clock::Clock;
    use crate::store::testing::{ScriptedStore, TAKE, at, window};
    use crate::store::{FailurePolicy, FallbackStore, RedisOptions, RedisStore};

    /// Long enough for a busy machine, short enough to end a hung test.
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn until(mut condition: impl FnMut() -> bool) {
        let waiting = async {
            while !condition() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap();
    }

    fn hit() -> Batch {
        let mut batch = Batch::default();
        batch.begin(at(0));
        batch.push(window(3, 60), TAKE, at(0), |key| key.push(b'a'));
        batch
    }

    #[tokio::test]
    async fn a_failure_is_counted_when_its_client_is_gone() {
        let store =
            Uninterrupted::new(FallbackStore::new(ScriptedStore::default(), FailurePolicy::Error, Clock::system()));
        store.inner().inner().is_down.store(true, Relaxed);
        let held = store.inner().inner().hold_answers.write().await;
        let mut batch = hit();
        let mut applying = Box::pin(store.apply(&mut batch));
        assert!(poll!(&mut applying).is_pending());
        drop(applying);
        drop(held);
        until(|| store.inner().failed() == 1).await;
        assert!(store.inner().is_out(at(1)));
    }

    #[tokio::test]
    async fn a_batch_comes_back_with_its_outcomes() {
        let store = Uninterrupted::new(ScriptedStore::default());
        let held = store.inner().hold_answers.write().await;
        let mut batch = hit();
        let mut applying = Box::pin(store.apply(&mut batch));
        assert!(poll!(&mut applying).is_pending());
        drop(held);
        applying.await;
        assert_eq!((batch.len(), batch.outcome(0).unwrap().left), (1, 2));
    }

    /// No client waits for as long as the store does: none of them sees the timeout that opens the breaker.
    #[tokio::test]
    async fn an_outage_is_seen_when_no_client_waits_for_it() {
        // It takes connections, and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let urls = vec![format!("redis://{}", silent.local_addr().unwrap())];
        let options = RedisOptions { urls, timeout: Duration::from_millis(100), ..RedisOptions::default() };
        let store = Uninterrupted::new(RedisStore::open(options).unwrap());
        let mut batch = Batch::default();
        let impatient = async {
            loop {
                batch = hit();
                if poll!(Box::pin(store.apply(&mut batch))).is_ready() {
                    break;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, impatient).await.unwrap();
        assert!(matches!(batch.outcome(0), Err(StoreError::Unreachable(_))), "{:?}", batch.outcome(0));
    }
}
