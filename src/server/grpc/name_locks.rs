//! Locks by name: calls about the same name run one after the other, first come, first served. The end of one wakes the next
//! one only, even if thousands wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The names that calls hold or wait for.
#[derive(Default)]
pub struct NameLocks {
    /// A semaphore of one permit is a lock that wakes its waiters in turn, and passes a wake-up on if the waiter is gone.
    names: Mutex<HashMap<Arc<[u8]>, Name>>,
}

struct Name {
    lock: Arc<Semaphore>,
    /// Guards of it, those that wait included.
    guards: usize,
}

/// One name, held or waited for; given up when this is dropped.
pub struct NameGuard {
    all: Arc<NameLocks>,
    name: Arc<[u8]>,
    permit: Option<OwnedSemaphorePermit>,
}

impl NameLocks {
    /// Waits until no other call holds any of these names, and holds them. All calls take names in the same order, so that no
    /// two of them wait for each other.
    pub async fn lock(self: &Arc<Self>, mut names: Vec<Arc<[u8]>>) -> Vec<NameGuard> {
        names.sort_unstable();
        names.dedup();
        let mut held = Vec::with_capacity(names.len());
        for name in names {
            let (mut guard, lock) = self.guard(name);
            // The semaphore is never closed, so there is a permit.
            guard.permit = lock.acquire_owned().await.ok();
            held.push(guard);
        }
        held
    }

    fn guard(self: &Arc<Self>, name: Arc<[u8]>) -> (NameGuard, Arc<Semaphore>) {
        let mut names = self.names.lock();
        let known =
            names.entry(Arc::clone(&name)).or_insert_with(|| Name { lock: Arc::new(Semaphore::new(1)), guards: 0 });
        known.guards += 1;
        let lock = Arc::clone(&known.lock);
        (NameGuard { all: Arc::clone(self), name, permit: None }, lock)
    }

    /// How many names are held or waited for.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.names.lock().len()
    }
}

impl Drop for NameGuard {
    fn drop(&mut self) {
        // Wakes the next one.
        drop(self.permit.take());
        let mut names = self.all.names.lock();
        if let Entry::Occupied(mut known) = names.entry(Arc::clone(&self.name)) {
            known.get_mut().guards -= 1;
            if known.get().guards == 0 {
                known.remove();
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

    fn names(text: &str) -> Vec<Arc<[u8]>> {
        text.split(' ').map(|name| Arc::from(name.as_bytes())).collect()
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn the_end_of_a_call_wakes_the_next_one_only() {
        const WAITERS: usize = 1_000;
        let locks = Arc::new(NameLocks::default());
        let mut held = locks.lock(names("a")).now_or_never().unwrap();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..WAITERS).map(|_| Box::pin(locks.lock(names("a")))).collect();
        for waiter in &mut waiting {
            assert!(waiter.as_mut().poll(&mut context).is_pending());
        }
        for (count, mut waiter) in (1..).zip(waiting) {
            drop(std::mem::take(&mut held));
            assert_eq!(woken.0.load(Relaxed), count, "in their order");
            let Poll::Ready(guards) = waiter.as_mut().poll(&mut context) else { panic!("it is its turn") };
            held = guards;
        }
        drop(held);
        assert_eq!((woken.0.load(Relaxed), locks.count()), (WAITERS, 0));
    }

    #[tokio::test]
    async fn a_waiter_that_is_gone_passes_its_turn_on() {
        let locks = Arc::new(NameLocks::default());
        let first = locks.lock(names("a b")).await;
        let mut third = pin!(locks.lock(names("b a")));
        {
            let mut second = pin!(locks.lock(names("a")));
            assert!(poll!(second.as_mut()).is_pending());
            assert!(poll!(third.as_mut()).is_pending());
            drop(first);
            // It was woken, and is gone before it runs.
        }
        assert!(poll!(third.as_mut()).is_ready());
        assert_eq!(locks.count(), 0);
    }

    #[tokio::test]
    async fn calls_with_several_names_do_not_wait_for_each_other_in_a_circle() {
        let locks = Arc::new(NameLocks::default());
        let mut calls: Vec<Pin<Box<_>>> =
            ["a b", "b a", "b c a", "c b", "a a"].map(|text| Box::pin(locks.lock(names(text)))).into();
        while !calls.is_empty() {
            let before = calls.len();
            let mut waiting = Vec::new();
            for mut call in calls {
                // Whoever has all of its names gives them back at once.
                match poll!(call.as_mut()) {
                    Poll::Ready(guards) => drop(guards),
                    Poll::Pending => waiting.push(call),
                }
            }
            calls = waiting;
            assert!(calls.len() < before, "one of them can go on");
        }
        assert_eq!(locks.count(), 0);
    }
}
