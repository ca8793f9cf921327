//! The budget for the memory of all connections' buffers.
//!
//! Each buffer has [`FREE`] bytes of its own: enough for clients that send requests of common size and read the replies.
//! What goes beyond, large unfinished requests and unread replies, comes out of one budget that all
//! connections share. Nothing here allocates: this is book-keeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

use crate::metrics::{Limit, Metrics};

/// What a buffer may hold without asking (bytes).
pub const FREE: usize = 32 * 1024;
/// Bound on the memory of all requests in work, beyond the part that each holder has of its own (bytes).
pub const WORK_MEMORY: usize = 8 * 1024 * 1024;
/// Work memory that one permit of its semaphore stands for (bytes).
pub const WORK_UNIT: usize = 1024;

/// The account.
pub struct BufferMemory {
    limit: usize,
    used: AtomicUsize,
    /// The memory of requests in work, which wait for it and are never refused.
    work: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl BufferMemory {
    /// All connections together may hold `limit` bytes beyond what is free.
    pub fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            work: Arc::new(Semaphore::new(WORK_MEMORY / WORK_UNIT)),
            metrics,
        })
    }

    /// Returns the semaphore that hands out [`WORK_MEMORY`], one permit for each [`WORK_UNIT`].
    pub fn work(&self) -> &Arc<Semaphore> {
        &self.work
    }

    fn show(&self, held: usize, before: usize) {
        let change = i64::try_from(held).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX);
        self.metrics.limits.buffer_memory.add(change);
    }

    /// A holder's share, empty at first.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { memory: Arc::clone(self), held: 0 }
    }
}

/// What one holder has of the account; given back when this is dropped.
pub struct Share {
    memory: Arc<BufferMemory>,
    held: usize,
}

/// The account is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedUp;

impl Share {
    /// How much it is (bytes).
    pub fn held(&self) -> usize {
        self.held
    }

    /// Makes this share so many bytes, instead of what it was.
    ///
    /// # Errors
    /// [`UsedUp`]: it is as it was. To hold less always succeeds.
    pub fn resize(&mut self, bytes: usize) -> Result<(), UsedUp> {
        if bytes > self.held {
            let more = bytes - self.held;
            let fits = |used: usize| used.checked_add(more).filter(|used| *used <= self.memory.limit);
            if self.memory.used.try_update(Relaxed, Relaxed, fits).is_err() {
                self.memory.metrics.limits.reached(Limit::BufferMemory);
                return Err(UsedUp);
            }
        } else if bytes < self.held {
            self.memory.used.fetch_sub(self.held - bytes, Relaxed);
        } else {
            return Ok(());
        }
        self.memory.show(bytes, self.held);
        self.held = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // To hold less always succeeds.
        let _ = self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_account_and_give_back_what_they_held() {
        let memory = BufferMemory::new(100, Metrics::new());
        let (mut one, mut other) = (memory.share(), memory.share());
        assert_eq!(one.resize(60), Ok(()));
        assert_eq!(other.resize(41), Err(UsedUp));
        assert_eq!(other.resize(40), Ok(()));
        assert_eq!(one.resize(61), Err(UsedUp));
        assert_eq!(memory.used.load(Relaxed), 100, "what is refused changes nothing");
        assert_eq!(one.resize(10), Ok(()));
        assert_eq!(other.resize(90), Ok(()));
        assert_eq!(other.resize(usize::MAX), Err(UsedUp));
        drop(other);
        assert_eq!(memory.used.load(Relaxed), 10);
        drop(one);
        assert_eq!(memory.used.load(Relaxed), 0);
    }
}
