//! Group commit: many connections wait for one commit, and one of them, the leader, makes it.
//!
//! There is no timer. If there is no leader, a waiting connection becomes the leader. It then passes leadership to a
//! connection that waits for the next commit. The engine decides what a commit writes.
//!
//! # Invariants
//!
//! 1. There is at most one [`Leader`]. Leadership is a value: its holder may make commits, and dropping it passes it
//!    on. A waiter may leave at any time without taking leadership with it.
//! 2. Commits are numbered and made one at a time, in order. [`Leader::begin`] opens the next commit, then the leader
//!    takes every change made so far. A change made under a stripe's lock therefore belongs to the commit that is open
//!    at that time, or is already written by the one before.
//! 3. Commit n is appended to the journal before commit n + 1. Replaying records in order ends in the newest state.
//! 4. Commit n counts as done only when every change of commits 1 to n is durable. After a failed commit, the next
//!    successful one first writes what it did not.
//! 5. A journal record is deleted only when every counter that it changes has a newer or equal record of its own, or a
//!    newer change in the journal.
//! 6. A counter leaves the table only when its own record holds its newest state, on stable storage.
//! 7. A change lies in the journal segment whose number it carries, or in the first commit after that segment.
//! 8. A group's changes are in one commit: it makes them, and a commit takes changes, behind the same gate.
//! 9. A counter's own record holds only what is committed, and on stable storage in the journal. So no crash leaves a
//!    part of a group.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, is_modeled, oneshot};
use divvy_store::StoreError;

/// With fewer waiters than this, searching for those that have left is not worthwhile.
const MIN_SWEEP: usize = 1024;

/// The waiters, the commits that they wait for, and whether there is a leader.
pub struct GroupCommit {
    open: AtomicU64,
    done: AtomicU64,
    queue: Mutex<Queue>,
}

struct Queue {
    waiters: Vec<Waiter>,
    /// The thread that waits for a number of waiters.
    gatherer: Option<(usize, Thread)>,
    /// Whether there is a leader.
    is_led: bool,
    is_closed: bool,
}

struct Waiter {
    number: u64,
    thread: ThreadId,
    release: oneshot::Sender<Message>,
}

/// The message that releases a waiter.
enum Message {
    /// The commit's result, and other waiters to release in turn.
    Committed(Result<(), StoreError>, Option<Relay>),
    Leading(Leader),
}

/// Waiters of one thread whose commit is complete. Dropping it releases them.
///
/// Waking a task of another thread takes a system call. Waking a task of the same thread takes none. So the leader
/// wakes one waiter of each thread, which wakes the others.
struct Relay {
    waiters: Vec<oneshot::Sender<Message>>,
    result: Result<(), StoreError>,
}

/// The right to make commits. Dropping it passes it on to a waiter, if there is one.
pub struct Leader {
    /// `None` once leadership has been passed on.
    group: Option<Arc<GroupCommit>>,
}

impl GroupCommit {
    /// Creates a group commit whose first commit follows number `last`.
    pub fn new(last: u64) -> Arc<Self> {
        Arc::new(Self {
            open: AtomicU64::new(last + 1),
            done: AtomicU64::new(last),
            queue: Mutex::new(Queue { waiters: Vec::new(), gatherer: None, is_led: false, is_closed: false }),
        })
    }

    /// Returns the commit that will take a change made now. Call it under the lock that guards the change.
    pub fn open(&self) -> u64 {
        self.open.load(Acquire)
    }

    /// Returns the last durable commit. All commits before it are durable, too.
    pub fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Waits until commit `number` is durable, or until this caller must lead. Then it gets the leadership.
    ///
    /// # Errors
    /// The commit has failed, or the store is closed.
    pub async fn wait_for(self: &Arc<Self>, number: u64) -> Result<Option<Leader>, StoreError> {
        let released = {
            let mut queue = self.queue.lock();
            if number <= self.done() {
                return Ok(None);
            }
            if queue.is_closed {
                return Err(closed());
            }
            if !queue.is_led {
                queue.is_led = true;
                return Ok(Some(Leader::of(self)));
            }
            queue.add(number)
        };
        match released.await {
            Ok(Message::Committed(result, relay)) => {
                drop(relay);
                result.map(|()| None)
            }
            Ok(Message::Leading(leader)) => Ok(Some(leader)),
            Err(_) => Err(closed()),
        }
    }

    /// Returns the number of waiters.
    pub fn waiting(&self) -> usize {
        self.queue.lock().waiters.len()
    }

    /// Waits for `expected` waiters, and for at most `longest`. The calling thread may block.
    pub fn gather(&self, expected: usize, longest: Duration) {
        {
            let mut queue = self.queue.lock();
            if queue.waiters.len() >= expected || is_modeled() {
                return;
            }
            queue.gatherer = Some((expected, thread::current()));
        }
        thread::park_timeout(longest);
        self.queue.lock().gatherer = None;
    }

    /// Returns the leadership, unless there is a leader.
    pub fn try_lead(self: &Arc<Self>) -> Option<Leader> {
        let mut queue = self.queue.lock();
        (!std::mem::replace(&mut queue.is_led, true)).then(|| Leader::of(self))
    }

    /// Begins a commit as [`Leader::begin`] does, for a leader whose thread has ended. No change may be made anymore.
    pub fn begin_for_absent_leader(&self) -> u64 {
        self.open.fetch_add(1, AcqRel)
    }

    /// Refuses later waiters with an error, but still serves those that are already waiting.
    pub fn close(&self) {
        self.queue.lock().is_closed = true;
    }
}

impl Queue {
    fn add(&mut self, number: u64) -> oneshot::Receiver<Message> {
        // Each time the number has doubled, waiters that have left are removed.
        if self.waiters.len() >= MIN_SWEEP && self.waiters.len().is_power_of_two() {
            self.waiters.retain(|waiter| !waiter.release.is_closed());
        }
        let (release, released) = oneshot::channel();
        self.waiters.push(Waiter { number, thread: thread::current().id(), release });
        if let Some((_, gatherer)) = self.gatherer.take_if(|(expected, _)| self.waiters.len() >= *expected) {
            gatherer.unpark();
        }
        released
    }
}

impl Relay {
    fn of(waiter: oneshot::Sender<Message>, capacity: usize, result: &Result<(), StoreError>) -> Self {
        let mut waiters = Vec::with_capacity(capacity);
        waiters.push(waiter);
        Self { waiters, result: result.clone() }
    }

    /// Lets one of the waiters release the others. If it leaves before that, the message is dropped, which releases
    /// them, too.
    fn start(mut self) {
        if let Some(first) = self.waiters.pop() {
            let _ = first.send(Message::Committed(self.result.clone(), Some(self)));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for waiter in self.waiters.drain(..) {
            // A waiter that has left needs no message.
            let _ = waiter.send(Message::Committed(self.result.clone(), None));
        }
    }
}

impl Leader {
    fn of(group: &Arc<GroupCommit>) -> Self {
        Self { group: Some(Arc::clone(group)) }
    }

    /// Opens the next commit, and returns the number of the one to make now. It has every change before this call.
    pub fn begin(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.open.fetch_add(1, AcqRel))
    }

    /// Releases the waiters for commit `number`, which is durable or has failed. Returns how many were waiting, also for
    /// later commits.
    pub fn finish(&self, number: u64, result: &Result<(), StoreError>) -> usize {
        let Some(group) = &self.group else { return 0 };
        if result.is_ok() {
            group.done.store(number, Release);
        }
        let mut relays: Vec<(ThreadId, Relay)> = Vec::new();
        let mut queue = group.queue.lock();
        let waiting = queue.waiters.len();
        for Waiter { thread, release, .. } in queue.waiters.extract_if(.., |waiter| waiter.number <= number) {
            match relays.iter_mut().find(|(of, _)| *of == thread) {
                Some((_, relay)) => relay.waiters.push(release),
                None => relays.push((thread, Relay::of(release, waiting, result))),
            }
        }
        drop(queue);
        relays.into_iter().for_each(|(_, relay)| relay.start());
        waiting
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // This is a loop and not a recursion, because a hundred thousand waiters may have left. If a waiter leaves
        // later, with the leadership in its channel, it drops the leadership there, which passes it on as well.
        let mut passing = self.group.take();
        while let Some(group) = passing.take() {
            let next = {
                let mut queue = group.queue.lock();
                let next = queue.waiters.pop();
                queue.is_led = next.is_some();
                next
            };
            if let Some(waiter) = next
                && let Err(Message::Leading(mut refused)) =
                    waiter.release.send(Message::Leading(Leader { group: Some(group) }))
            {
                passing = refused.group.take();
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::new("the store is closed")
}

#[cfg(test)]
mod tests;
