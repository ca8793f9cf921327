//! The budget for the buffers of all connections.
//!
//! Each buffer has [`FREE`] bytes that do not count: enough for clients that send requests of ordinary size and read
//! the replies. Memory beyond that, for example for large unfinished requests and unread replies, comes from one budget
//! that all connections share. This module does not allocate that memory. It only keeps the books.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Semaphore;

use divvy_telemetry::metrics::{Bound, Metrics};

/// Bytes of each buffer that do not count toward the budget.
pub const FREE: usize = 32 * 1024;
/// Maximum memory of all requests in work, beyond the part that each holder has of its own (bytes).
pub const WORK_MEMORY: usize = 8 * 1024 * 1024;
/// Work memory that one permit of its semaphore stands for (bytes).
pub const WORK_UNIT: usize = 1024;

/// Returns the part of a buffer of this capacity that counts toward the budget (bytes).
pub fn counted(capacity: usize) -> usize {
    capacity.saturating_sub(FREE)
}

/// The budget. Requests in work have a separate budget. They wait for memory of that budget, and are not refused.
pub struct BufferMemory {
    limit: usize,
    used: AtomicUsize,
    work: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl BufferMemory {
    /// Creates a budget of `limit` bytes.
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

    /// Returns a share of the budget, empty at first.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { memory: Arc::clone(self), held: 0 }
    }

    fn update_gauge(&self, held: usize, before: usize) {
        let change = i64::try_from(held).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(i64::MAX);
        self.metrics.limits.buffer_memory.add(change);
    }
}

/// A part of the budget. Dropping it gives the memory back.
pub struct Share {
    memory: Arc<BufferMemory>,
    held: usize,
}

/// The budget does not suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetExceeded;

impl Share {
    /// Returns the size of the share (bytes).
    pub fn held(&self) -> usize {
        self.held
    }

    /// Changes the size of the share. Shrinking always succeeds.
    ///
    /// # Errors
    /// [`BudgetExceeded`]: the share keeps its size.
    pub fn resize(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        if bytes > self.held {
            let more = bytes - self.held;
            let fits = |used: usize| used.checked_add(more).filter(|used| *used <= self.memory.limit);
            if self.memory.used.try_update(Relaxed, Relaxed, fits).is_err() {
                self.memory.metrics.limits.reached(Bound::BufferMemory);
                return Err(BudgetExceeded);
            }
        } else if bytes < self.held {
            self.memory.used.fetch_sub(self.held - bytes, Relaxed);
        } else {
            return Ok(());
        }
        self.memory.update_gauge(bytes, self.held);
        self.held = bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // Shrinking always succeeds.
        let _ = self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_are_returned() {
        let memory = BufferMemory::new(100, Metrics::new());
        let (mut one, mut other) = (memory.share(), memory.share());
        assert_eq!(one.resize(60), Ok(()));
        assert_eq!(other.resize(41), Err(BudgetExceeded));
        assert_eq!(other.resize(40), Ok(()));
        assert_eq!(one.resize(61), Err(BudgetExceeded));
        assert_eq!(memory.used.load(Relaxed), 100, "a refusal changes nothing");
        assert_eq!(one.resize(10), Ok(()));
        assert_eq!(other.resize(90), Ok(()));
        assert_eq!(other.resize(usize::MAX), Err(BudgetExceeded));
        drop(other);
        assert_eq!(memory.used.load(Relaxed), 10);
        drop(one);
        assert_eq!(memory.used.load(Relaxed), 0);
    }
}
