//! Work at a time: a bound on expensive requests, which run on the blocking pool or have long replies; and calls in flight by key.
//!
//! Without the bound, a thousand clients that send `INFO` would each occupy a thread and a reply in memory. At most one call at a
//! time has a key: another one waits its turn or is refused. The end of a call wakes only the next one, even if thousands wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinError;

/// Maximum number of large requests in work at a time, over all fronts, and maximum number of operators' changes. Scrapes of
/// the metrics and the live page have slots of their own.
pub const MAX_AT_ONCE: usize = 4;
/// Maximum number of requests of customers, who have tokens for one actor, that have a slot or wait for one.
const MAX_OF_CUSTOMERS: usize = 1;

/// Slots for work of one kind. Clones share them.
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

/// Bytes that identify what a call changes, for example a reservation or an idempotent request.
pub type CallKey = Arc<[u8]>;

/// The keys that calls hold or wait for. Clones share them.
#[derive(Clone, Default)]
pub struct CallsInFlight {
    turns: Arc<Mutex<HashMap<CallKey, Turn>>>,
}

/// The turn of the calls with one key.
struct Turn {
    /// A semaphore with one permit. It wakes its waiters in order, and passes a wake-up on if the waiter is gone.
    permit: Arc<Semaphore>,
    /// Number of guards, including those of waiting calls.
    guards: usize,
}

/// A call that holds a key or waits for it. Dropping the guard lets the next call with the key continue.
#[must_use]
pub struct CallGuard {
    calls: CallsInFlight,
    key: CallKey,
    permit: Option<OwnedSemaphorePermit>,
}

impl CallsInFlight {
    /// Waits until no other call has any of these keys, and enters. All calls acquire keys in the same order, so they cannot
    /// wait for each other in a circle.
    pub async fn enter(&self, mut keys: Vec<CallKey>) -> Vec<CallGuard> {
        keys.sort_unstable();
        keys.dedup();
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            let (mut guard, permit) = self.queue(key);
            // The semaphore is never closed, so there is a permit.
            guard.permit = permit.acquire_owned().await.ok();
            guards.push(guard);
        }
        guards
    }

    /// Returns a guard without a permit, and the semaphore to get one from.
    fn queue(&self, key: CallKey) -> (CallGuard, Arc<Semaphore>) {
        let mut turns = self.turns.lock();
        let turn =
            turns.entry(Arc::clone(&key)).or_insert_with(|| Turn { permit: Arc::new(Semaphore::new(1)), guards: 0 });
        turn.guards += 1;
        (CallGuard { calls: self.clone(), key, permit: None }, Arc::clone(&turn.permit))
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        // Wakes the next call.
        drop(self.permit.take());
        let mut turns = self.calls.turns.lock();
        if let Entry::Occupied(mut turn) = turns.entry(Arc::clone(&self.key)) {
            turn.get_mut().guards -= 1;
            if turn.get().guards == 0 {
                turn.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests;
