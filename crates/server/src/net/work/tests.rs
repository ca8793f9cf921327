use super::*;
use futures_util::{FutureExt, poll};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use tokio::sync::oneshot;

impl CallsInFlight {
    /// Returns the number of keys that calls hold or wait for.
    pub fn count(&self) -> usize {
        self.turns.lock().len()
    }

    /// Returns the number of calls, counted once for each of their keys.
    pub fn guard_count(&self) -> usize {
        self.turns.lock().values().map(|turn| turn.guards).sum()
    }
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
