//! Group commit: who waits for which commit, and the loop that commits.
//!
//! Commits are numbered and run one at a time. A change belongs to the commit that is open when it is made; a commit
//! first opens the next one, then takes every change made so far, writes them as one journal record, and releases the
//! replies that waited. There is no timer: the next commit starts when the last has ended and somebody waits. What a
//! commit writes, and to where, is the store's business.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::store::StoreError;

/// The queue of those who wait for a commit.
pub struct Commits {
    open: AtomicU64,
    /// Every commit up to this one is durable.
    done: AtomicU64,
    queue: Mutex<Queue>,
    wanted: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<(u64, oneshot::Sender<Result<(), StoreError>>)>,
    closed: bool,
}

impl Commits {
    pub fn new() -> Self {
        Self { open: AtomicU64::new(1), done: AtomicU64::new(0), queue: Mutex::default(), wanted: Condvar::new() }
    }

    /// The commit that will take a change made now. Read it under the lock that guards the change.
    pub fn open(&self) -> u64 {
        self.open.load(Acquire)
    }

    /// Every commit up to this one is durable.
    pub fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Waits until commit `number` is durable.
    ///
    /// # Errors
    /// The commit's, or that the store is closed.
    pub async fn wait_for(&self, number: u64) -> Result<(), StoreError> {
        let released = {
            let mut queue = self.queue.lock();
            if number <= self.done() {
                return Ok(());
            }
            if queue.closed {
                return Err(closed());
            }
            let (release, released) = oneshot::channel();
            queue.waiting.push((number, release));
            released
        };
        self.wanted.notify_one();
        released.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Runs `commit` with the number of each commit, until [`Commits::close`]: as soon as somebody waits, and at the
    /// latest `interval` after the last one, if there is an interval.
    pub fn run(&self, interval: Option<Duration>, mut commit: impl FnMut(u64) -> Result<(), StoreError>) {
        loop {
            let closing = self.wait_until_wanted(interval);
            let number = self.open.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            let result = commit(number);
            if result.is_ok() {
                self.done.store(number, Release);
            }
            self.release(number, &result);
            if closing && self.queue.lock().waiting.is_empty() {
                return;
            }
        }
    }

    /// Lets [`Commits::run`] make a last commit and return; whoever waits afterwards gets an error.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.wanted.notify_all();
    }

    /// True when the store is being closed.
    fn wait_until_wanted(&self, interval: Option<Duration>) -> bool {
        let mut queue = self.queue.lock();
        while queue.waiting.is_empty() && !queue.closed {
            match interval {
                None => self.wanted.wait(&mut queue),
                Some(interval) if self.wanted.wait_for(&mut queue, interval).timed_out() => break,
                Some(_) => {}
            }
        }
        queue.closed
    }

    fn release(&self, number: u64, result: &Result<(), StoreError>) {
        let released: Vec<_> = self.queue.lock().waiting.extract_if(.., |(wanted, _)| *wanted <= number).collect();
        for (_, release) in released {
            // Whoever waited may have hung up meanwhile.
            let _ = release.send(result.clone());
        }
    }
}

fn closed() -> StoreError {
    StoreError::new("the store is closed")
}
