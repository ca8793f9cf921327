//! Bound on expensive work at a time: requests that run on the blocking pool, or that have long replies.
//!
//! Without it, a thousand clients that send `INFO` would each occupy a thread and a reply in memory.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

/// Maximum number of large requests in work at a time, over all fronts.
pub const MAX_AT_ONCE: usize = 4;
/// Maximum number of requests of customers, who have tokens for one actor, that have a slot or wait for one.
const MAX_OF_CUSTOMERS: usize = 1;

/// The slots that all fronts share. Clones also share them.
#[derive(Debug, Clone)]
pub struct WorkSlots {
    free: Arc<Semaphore>,
    of_customers: Arc<Semaphore>,
}

impl WorkSlots {
    /// Creates this number of slots.
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), of_customers: Arc::new(Semaphore::new(MAX_OF_CUSTOMERS)) }
    }

    /// Waits for a slot, in order of arrival. Dropping the future leaves the queue.
    pub async fn take(&self) -> WorkSlot {
        WorkSlot { _permits: Some(Arc::new([acquire(&self.free).await, None])) }
    }

    /// Waits for a slot for a customer. Customers wait for each other first, so that however many requests they send, the
    /// operator's wait for at most one of them.
    pub async fn take_for_customer(&self) -> WorkSlot {
        let turn = acquire(&self.of_customers).await;
        WorkSlot { _permits: Some(Arc::new([acquire(&self.free).await, turn])) }
    }
}

/// One slot. It is free again when all of its clones are dropped.
#[derive(Debug, Clone)]
pub struct WorkSlot {
    _permits: Option<Arc<[Option<OwnedSemaphorePermit>; 2]>>,
}

/// Takes a permit. Neither semaphore is ever closed, so there is one.
async fn acquire(semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_owned().await.ok()
}

impl WorkSlot {
    /// Returns a slot for work that has its own bound, and so never waits.
    pub fn unbounded() -> Self {
        Self { _permits: None }
    }

    /// Runs `work` in its own task, which keeps the slot until the work is done. A client that disconnects neither stops the
    /// work halfway nor frees the slot while a thread is still busy.
    ///
    /// # Errors
    /// The work panicked, or the server is shutting down.
    pub async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, JoinError> {
        let slot = self.clone();
        tokio::spawn(async move {
            let done = work.await;
            drop(slot);
            done
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn request_waits_until_a_slot_is_free() {
        let slots = WorkSlots::new(1);
        let first = slots.take().await;
        let mut second = pin!(slots.take());
        assert!(poll!(second.as_mut()).is_pending());
        drop(first);
        assert!(poll!(second.as_mut()).is_ready());
    }

    #[tokio::test]
    async fn customers_occupy_one_slot_and_one_place_in_the_queue() {
        let slots = WorkSlots::new(2);
        let at_work = slots.take_for_customer().await;
        let mut customers: Vec<_> = (0..100).map(|_| Box::pin(slots.take_for_customer())).collect();
        for customer in &mut customers {
            assert!(poll!(customer.as_mut()).is_pending());
        }
        let mut operator = Box::pin(slots.take());
        let of_operator = match poll!(operator.as_mut()) {
            std::task::Poll::Ready(slot) => slot,
            std::task::Poll::Pending => panic!("a slot is free"),
        };
        let mut next = pin!(slots.take());
        assert!(poll!(next.as_mut()).is_pending());
        drop(at_work);
        assert!(poll!(next.as_mut()).is_ready(), "the customers are behind it");
        drop(of_operator);
        assert!(poll!(customers[0].as_mut()).is_ready());
    }

    #[tokio::test]
    async fn waiter_that_leaves_frees_its_place_in_the_queue() {
        let slots = WorkSlots::new(1);
        let first = slots.take().await;
        let mut third = pin!(slots.take());
        {
            let mut second = pin!(slots.take());
            assert!(poll!(second.as_mut()).is_pending());
            assert!(poll!(third.as_mut()).is_pending());
        }
        drop(first);
        assert!(poll!(third.as_mut()).is_ready(), "the waiter that left was first in the queue");
    }

    #[tokio::test]
    async fn work_without_a_waiter_keeps_its_slot_until_it_is_done() {
        let slots = WorkSlots::new(1);
        let (end, ended) = oneshot::channel::<()>();
        {
            let slot = slots.take().await;
            let mut work = pin!(slot.run(ended));
            assert!(poll!(work.as_mut()).is_pending());
        }
        let mut next = pin!(slots.take());
        tokio::task::yield_now().await;
        assert!(poll!(next.as_mut()).is_pending(), "the work still runs");
        end.send(()).unwrap();
        next.await;
    }
}
