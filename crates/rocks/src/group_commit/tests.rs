//! Leadership passes on when its holder leaves, and every waiter is released.

use std::pin::{Pin, pin};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use super::*;

/// Polls once. While there is a leader, this puts a waiter into the queue.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Regression test: a second leadership used to be created and dropped under the lock that its drop takes. So the store
/// hung forever if its thread asked for leadership just after the first hit had taken it.
#[test]
fn only_one_waiter_leads_and_a_second_request_is_harmless() {
    let group = GroupCommit::new(0);
    let leader = group.try_lead().unwrap();
    assert!(group.try_lead().is_none());
    leader.finish(leader.begin(), &Ok(()));
    assert!(group.try_lead().is_none(), "there still is a leader");
    drop(leader);
    assert!(group.try_lead().is_some());
}

/// Regression test: leadership used to be a message in a channel. A waiter that was dropped between the message and its
/// next poll took leadership with it, and every later hit waited forever.
#[test]
fn successor_that_leaves_before_it_is_polled_passes_leadership_on() {
    let group = GroupCommit::new(0);
    let leader = group.try_lead().unwrap();
    {
        let mut heir = pin!(group.wait_for(1));
        assert!(poll_once(heir.as_mut()).is_pending());
        drop(leader);
        assert!(group.try_lead().is_none(), "the heir has it");
    }
    assert!(group.try_lead().is_some(), "the heir has left");
}

#[test]
fn hundred_thousand_departed_waiters_are_skipped_without_recursion() {
    let group = GroupCommit::new(0);
    let leader = group.try_lead().unwrap();
    let mut stays = waiting(&group, &Arc::default());
    let left: Vec<_> = (0..100_000).map(|_| waiting(&group, &Arc::default())).collect();
    drop(left);
    // The stack is so small that recursion would end the process.
    std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(leader)).unwrap().join().unwrap();
    assert!(matches!(poll_once(stays.as_mut()), Poll::Ready(Ok(Some(_)))));
}

/// A waker that counts its calls.
#[derive(Default)]
struct Woken(AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Starts a wait, which is pending.
fn waiting(
    group: &Arc<GroupCommit>,
    woken: &Arc<Woken>,
) -> Pin<Box<impl Future<Output = Result<Option<Leader>, StoreError>> + Send + use<>>> {
    let group = Arc::clone(group);
    let mut wait = Box::pin(async move { group.wait_for(1).await });
    let waker = Waker::from(Arc::clone(woken));
    assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    wait
}

/// Regression test: waking a task of another thread takes a system call, and each hit on stable storage used to cost
/// one.
#[test]
fn commit_wakes_one_waiter_per_thread_which_wakes_the_others() {
    let group = GroupCommit::new(0);
    let leader = group.try_lead().unwrap();
    let woken = Arc::new(Woken::default());
    let wait_three_times = || (0..3).map(|_| waiting(&group, &woken)).collect::<Vec<_>>();
    let here = wait_three_times();
    let there = std::thread::scope(|scope| scope.spawn(wait_three_times).join().unwrap());
    leader.finish(leader.begin(), &Ok(()));
    assert_eq!(woken.0.load(Relaxed), 2);
    let all = here.into_iter().chain(there);
    // The last waiter is woken first.
    for mut wait in all.rev() {
        assert!(matches!(poll_once(wait.as_mut()), Poll::Ready(Ok(None))));
    }
    assert_eq!(woken.0.load(Relaxed), 6);
}

#[test]
fn waiter_that_leaves_wakes_those_it_was_responsible_for() {
    let group = GroupCommit::new(0);
    let leader = group.try_lead().unwrap();
    let woken = Arc::new(Woken::default());
    let mut waits: Vec<_> = (0..3).map(|_| waiting(&group, &woken)).collect();
    leader.finish(leader.begin(), &Err(StoreError::new("the disk is full")));
    assert_eq!(woken.0.load(Relaxed), 1);
    // The woken waiter is among these.
    waits.drain(1..).for_each(drop);
    assert_eq!(woken.0.load(Relaxed), 2);
    let stayed = poll_once(waits[0].as_mut());
    assert!(matches!(stayed, Poll::Ready(Err(error)) if error.to_string() == "the disk is full"));
}

#[test]
fn departed_waiters_do_not_accumulate_while_a_commit_hangs() {
    let group = GroupCommit::new(0);
    let _hangs = group.try_lead().unwrap();
    for _ in 0..100_000 {
        assert!(poll_once(pin!(group.wait_for(1))).is_pending());
    }
    assert!(group.queue.lock().waiters.len() <= MIN_SWEEP);
}

#[test]
fn commit_gathers_the_expected_waiters() {
    let group = GroupCommit::new(0);
    let _leader = group.try_lead().unwrap();
    group.gather(0, Duration::MAX);
    group.gather(1, Duration::ZERO);
    std::thread::scope(|scope| {
        let gathering = scope.spawn(|| group.gather(2, Duration::MAX));
        let _first = group.queue.lock().add(1);
        assert!(!gathering.is_finished());
        let _second = group.queue.lock().add(1);
        gathering.join().unwrap();
    });
}
