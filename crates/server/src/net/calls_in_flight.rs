//! Calls in flight by key: at most one call at a time has a key. Another call with the key waits its turn or is refused.
//!
//! The end of a call wakes only the next one, even if thousands wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    /// Enters a call, unless another call has its key.
    pub fn try_enter(&self, key: CallKey) -> Option<CallGuard> {
        let (mut guard, permit) = self.queue(key);
        guard.permit = Some(permit.try_acquire_owned().ok()?);
        Some(guard)
    }

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

    /// Returns the number of keys that calls hold or wait for.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.turns.lock().len()
    }

    /// Returns the number of calls, counted once for each of their keys.
    #[cfg(test)]
    pub fn guard_count(&self) -> usize {
        self.turns.lock().values().map(|turn| turn.guards).sum()
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
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_util::{FutureExt, poll};

    use super::*;

    fn keys(text: &str) -> Vec<CallKey> {
        text.split(' ').map(|key| Arc::from(key.as_bytes())).collect()
    }

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn end_of_a_call_wakes_only_the_next_one() {
        const WAITERS: usize = 1_000;
        let calls = CallsInFlight::default();
        let mut guards = calls.enter(keys("a")).now_or_never().unwrap();
        let woken = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..WAITERS).map(|_| Box::pin(calls.enter(keys("a")))).collect();
        for waiter in &mut waiting {
            assert!(waiter.as_mut().poll(&mut context).is_pending());
        }
        for (count, mut waiter) in (1..).zip(waiting) {
            drop(std::mem::take(&mut guards));
            assert_eq!(woken.0.load(Relaxed), count, "in their order");
            let Poll::Ready(next) = waiter.as_mut().poll(&mut context) else { panic!("it is its turn") };
            guards = next;
        }
        drop(guards);
        assert_eq!((woken.0.load(Relaxed), calls.count()), (WAITERS, 0));
    }

    #[test]
    fn second_call_with_the_key_of_a_call_in_flight_is_refused() {
        let calls = CallsInFlight::default();
        let enter = |text: &str| calls.try_enter(Arc::from(text.as_bytes()));
        let guard = enter("a").unwrap();
        assert!(enter("a").is_none() && enter("b").is_some());
        drop(guard);
        assert!(enter("a").is_some());
        assert_eq!(calls.count(), 0);
    }

    #[tokio::test]
    async fn waiter_that_leaves_passes_its_turn_on() {
        let calls = CallsInFlight::default();
        let first = calls.enter(keys("a b")).await;
        let mut third = pin!(calls.enter(keys("b a")));
        {
            let mut second = pin!(calls.enter(keys("a")));
            assert!(poll!(second.as_mut()).is_pending());
            assert!(poll!(third.as_mut()).is_pending());
            drop(first);
            // The call was woken, and is dropped before it runs.
        }
        assert!(poll!(third.as_mut()).is_ready());
        assert_eq!(calls.count(), 0);
    }

    #[tokio::test]
    async fn calls_with_several_keys_do_not_wait_for_each_other_in_a_circle() {
        let in_flight = CallsInFlight::default();
        let mut calls: Vec<Pin<Box<_>>> =
            ["a b", "b a", "b c a", "c b", "a a"].map(|text| Box::pin(in_flight.enter(keys(text)))).into();
        while !calls.is_empty() {
            let before = calls.len();
            let mut waiting = Vec::new();
            for mut call in calls {
                // A call that has all of its keys ends at once.
                match poll!(call.as_mut()) {
                    Poll::Ready(guards) => drop(guards),
                    Poll::Pending => waiting.push(call),
                }
            }
            calls = waiting;
            assert!(calls.len() < before, "one of them can go on");
        }
        assert_eq!(in_flight.count(), 0);
    }
}
