//! Group commit: who waits for which commit, and who makes it.
//!
//! Commits are numbered and made one at a time. A change belongs to the commit that is open when it is made; a commit
//! first opens the next one, then takes every change made so far, writes them as one journal record, and releases the
//! replies that waited. There is no timer: whoever waits and finds nobody leading leads, and hands the lead to one who
//! waits for the next; a thread may also keep it. What a commit writes, and to where, is the store's business.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

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
    waiting: Vec<(u64, oneshot::Sender<Released>)>,
    /// Somebody leads, or has been told to.
    led: bool,
    closed: bool,
}

/// What becomes of one who waits.
enum Released {
    By(Result<(), StoreError>),
    ToLead,
}

/// The right to make commits. There is one at a time; dropping it hands it on to one who waits.
pub struct Lead<'a>(&'a Commits);

/// How a wait ends.
pub enum Waited<'a> {
    /// The commit was made by somebody else, with this result.
    Committed(Result<(), StoreError>),
    /// Make it yourself.
    Lead(Lead<'a>),
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

    /// Waits until commit `number` is durable, or to lead where nobody does.
    pub async fn wait_for(&self, number: u64) -> Waited<'_> {
        let released = {
            let mut queue = self.queue.lock();
            if number <= self.done() {
                return Waited::Committed(Ok(()));
            }
            if queue.closed {
                return Waited::Committed(Err(closed()));
            }
            if !queue.led {
                queue.led = true;
                return Waited::Lead(Lead(self));
            }
            let (release, released) = oneshot::channel();
            queue.waiting.push((number, release));
            released
        };
        self.wanted.notify_one();
        match released.await {
            Ok(Released::By(result)) => Waited::Committed(result),
            Ok(Released::ToLead) => Waited::Lead(Lead(self)),
            Err(_) => Waited::Committed(Err(closed())),
        }
    }

    /// The lead, unless somebody else has it.
    pub fn try_lead(&self) -> Option<Lead<'_>> {
        let mut queue = self.queue.lock();
        (!std::mem::replace(&mut queue.led, true)).then(|| Lead(self))
    }

    /// Whoever waits from now on gets an error; those who wait already are still served.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.wanted.notify_one();
    }
}

impl Lead<'_> {
    /// For a leader that keeps the lead: waits until somebody waits for a commit. False once there is nobody left to.
    pub fn is_wanted(&self) -> bool {
        let mut queue = self.0.queue.lock();
        while queue.waiting.is_empty() && !queue.closed {
            self.0.wanted.wait(&mut queue);
        }
        !queue.waiting.is_empty()
    }

    /// Opens the next commit, and returns the number of the one to make: with all changes made before now.
    pub fn begin(&self) -> u64 {
        self.0.open.fetch_add(1, AcqRel)
    }

    /// Commit `number` was made, or failed: releases those who waited for it.
    pub fn finish(&self, number: u64, result: &Result<(), StoreError>) {
        if result.is_ok() {
            self.0.done.store(number, Release);
        }
        let released: Vec<_> = self.0.queue.lock().waiting.extract_if(.., |(wanted, _)| *wanted <= number).collect();
        for (_, release) in released {
            // Whoever waited may have hung up meanwhile.
            let _ = release.send(Released::By(result.clone()));
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        loop {
            let next = {
                let mut queue = self.0.queue.lock();
                let next = queue.waiting.pop();
                queue.led = next.is_some();
                next
            };
            // One who has hung up cannot lead.
            if next.is_none_or(|(_, release)| release.send(Released::ToLead).is_ok()) {
                return;
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::new("the store is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second lead was made and dropped at once, under the lock that its drop takes: the store hung for good when its
    /// thread asked for the lead just after the first hit had taken it.
    #[test]
    fn there_is_one_lead_and_asking_for_another_harms_nobody() {
        let commits = Commits::new();
        let lead = commits.try_lead().unwrap();
        assert!(commits.try_lead().is_none());
        lead.finish(lead.begin(), &Ok(()));
        assert!(commits.try_lead().is_none(), "still led");
        drop(lead);
        assert!(commits.try_lead().is_some());
    }
}
