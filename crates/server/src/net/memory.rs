//! Memory of connections: the budget for their buffers, the memory of requests in work, and buffers that are used again.
//!
//! Each buffer has [`FREE`] bytes that do not count: enough for clients that send requests of ordinary size and read
//! the replies. Memory beyond that, for example for large unfinished requests and unread replies, comes from one budget
//! that all connections share. It does not allocate that memory. It only keeps the books.
//!
//! Requests in work have memory for their keys, entries and answers, from when they are read until their replies are
//! written. Each holder has [`OWN`] bytes, enough for requests of ordinary size. Memory beyond that comes from
//! [`WORK_MEMORY`], which all connections share. If a session gets no more memory, it answers the requests that it already
//! has. A single large request waits until others have been answered, and its holder has no other requests at that time. So a
//! waiting holder never has memory that others wait for. Only a few large requests are in work at a time, so small ones never
//! wait long for them on a thread.
//!
//! A connection that waits for its client holds no buffers: the connections of a thread share them, in a [`Pool`]. Otherwise, ten
//! thousand clients that have each sent one burst would keep gigabytes. Recently used memory is also likely to be in the
//! processor's caches. Each pool has a bound per item and a bound in total.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::LocalKey;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use divvy_limiter::{Limiter, MAX_PART};
use divvy_telemetry::metrics::{Bound, Metrics};

/// Bytes of each buffer that do not count toward the budget.
pub const FREE: usize = 32 * 1024;
/// Maximum memory of all requests in work, beyond the part that each holder has of its own (bytes).
const WORK_MEMORY: usize = 8 * 1024 * 1024;
/// Work memory that one permit of its semaphore stands for (bytes).
const WORK_UNIT: usize = 1024;

/// Returns the part of a buffer of this capacity that counts toward the budget (bytes).
pub fn counted(capacity: usize) -> usize {
    capacity.saturating_sub(FREE)
}

/// The budget. Requests in work have a separate budget. They wait for memory of that budget, and are not refused.
pub struct BufferMemory {
    limit: usize,
    used: AtomicUsize,
    /// Hands out [`WORK_MEMORY`], one permit for each [`WORK_UNIT`].
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

    /// Returns a share of the budget, empty at first.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { memory: Arc::clone(self), held: 0 }
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
    /// Changes the size of the share. Shrinking always succeeds.
    ///
    /// # Errors
    /// [`BudgetExceeded`]: the share keeps its size.
    pub fn resize(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        if bytes > self.held {
            let more = bytes - self.held;
            let fits = |used: usize| used.checked_add(more).filter(|used| *used <= self.memory.limit);
            if self.memory.used.try_update(Relaxed, Relaxed, fits).is_err() {
                self.memory.metrics.limits.reached.count(Bound::BufferMemory);
                return Err(BudgetExceeded);
            }
        } else if bytes < self.held {
            self.memory.used.fetch_sub(self.held - bytes, Relaxed);
        } else {
            return Ok(());
        }
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.memory.metrics.limits.buffer_memory.add(signed(bytes) - signed(self.held));
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

/// Bytes that each holder has without a permit.
const OWN: usize = 32 * 1024;
/// A request of at most this length joins a batch without a check: all of its counters fit (bytes).
pub const SMALL: usize = 2 * 1024;
/// A small call with at most this number of requests needs no permit for memory.
const FEW: usize = 4;
/// Memory is allotted in steps of this size (bytes).
const STEP: usize = 64 * 1024;

/// One holder's memory for requests in work. Dropping it gives the memory back.
pub struct RequestMemory {
    free: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    /// Weight at which the requests must be answered (bytes).
    bound: usize,
}

impl RequestMemory {
    /// Returns a holder's own part.
    pub fn new(memory: &BufferMemory) -> Self {
        Self { free: Arc::clone(&memory.work), permit: None, bound: OWN }
    }

    /// Waits for the memory of a call with at most `count` requests in this many bytes; returns `None` if it needs none.
    pub async fn wait_for_call(memory: &BufferMemory, limiter: &Limiter, bytes: usize, count: usize) -> Option<Self> {
        let is_small = bytes <= SMALL && count <= FEW;
        let weight = if is_small { 0 } else { limiter.weight_of(bytes, count) };
        if weight <= OWN {
            return None;
        }
        let mut memory = Self::new(memory);
        // Boxed: few calls wait, and the future of each would otherwise include the size.
        Box::pin(memory.wait_for(weight)).await;
        Some(memory)
    }

    /// Returns whether requests of this weight fit, after taking more memory if there is some.
    #[inline]
    pub fn fits(&mut self, weight: usize) -> bool {
        weight <= self.bound || self.grow(weight)
    }

    /// Returns whether a request of this length can join requests of this weight now. If not, answer those requests
    /// first, and then [wait](RequestMemory::wait_for_request).
    pub fn admits(&mut self, limiter: &Limiter, weight: usize, bytes: usize) -> bool {
        bytes <= SMALL || self.fits(weight + limiter.weight_of(bytes, 1))
    }

    /// Lets other tasks run, and waits until a request of this length fits. The holder must have no other requests.
    pub async fn wait_for_request(&mut self, limiter: &Limiter, bytes: usize) {
        // Without this, large requests in a row would keep the thread from all other connections.
        tokio::task::yield_now().await;
        self.wait_for(limiter.weight_of(bytes, 1)).await;
    }

    /// Gives back all memory but the holder's own part. Returns whether there was any.
    #[inline]
    pub fn give_back(&mut self) -> bool {
        let has_more = self.permit.is_some();
        if has_more {
            self.bound = OWN;
            self.permit = None;
        }
        has_more
    }

    #[cold]
    fn grow(&mut self, weight: usize) -> bool {
        if weight > MAX_PART {
            return false;
        }
        let more = (weight - self.bound).next_multiple_of(STEP);
        let Ok(permit) = Arc::clone(&self.free).try_acquire_many_owned(permits(more)) else { return false };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        self.bound = (self.bound + more).min(MAX_PART);
        true
    }

    async fn wait_for(&mut self, weight: usize) {
        // A holder that waits has no memory that others could use.
        self.give_back();
        // A request that needs more memory than exists gets all of it.
        let bytes = weight.min(WORK_MEMORY);
        // The semaphore is never closed, so there are permits.
        self.permit = Arc::clone(&self.free).acquire_many_owned(permits(bytes)).await.ok();
        self.bound = bytes.clamp(OWN, MAX_PART);
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(WORK_UNIT)).unwrap_or(u32::MAX)
}

/// Maximum memory of an item that is kept (bytes).
pub const MAX_ITEM: usize = 256 * 1024;
/// Maximum memory of all items in a pool (bytes).
const MAX_HELD: usize = 4 * 1024 * 1024;

/// A type with a pool on each thread.
pub trait Pooled: Default + 'static {
    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>>;

    /// Returns the memory that the item holds (bytes).
    fn held(&self) -> usize;
}

/// The unused items of one thread.
pub struct Pool<T> {
    kept: Vec<T>,
    /// Memory of all items (bytes).
    held: usize,
}

impl<T: Pooled> Pool<T> {
    pub const fn new() -> Self {
        Self { kept: Vec::new(), held: 0 }
    }

    fn take(&mut self) -> T {
        let item = self.kept.pop().unwrap_or_default();
        self.held = self.held.saturating_sub(item.held());
        item
    }

    fn give(&mut self, item: T) {
        let held = item.held();
        if held <= MAX_ITEM && self.held + held <= MAX_HELD {
            self.held += held;
            self.kept.push(item);
        }
    }
}

/// Takes an item out of the pool, or creates one.
pub fn take<T: Pooled>() -> T {
    T::pool().with_borrow_mut(Pool::take)
}

/// Returns an item to the pool, ready for the next use. Drops it if it is too large or the pool is full.
pub fn give<T: Pooled>(item: T) {
    T::pool().with_borrow_mut(|pool| pool.give(item));
}

/// Declares a pool for a type. `held` computes the memory of an item.
macro_rules! pooled {
    ($type:ty, $held:expr) => {
        impl $crate::net::memory::Pooled for $type {
            fn pool() -> &'static std::thread::LocalKey<std::cell::RefCell<$crate::net::memory::Pool<Self>>> {
                thread_local! {
                    static KEPT: std::cell::RefCell<$crate::net::memory::Pool<$type>> =
                        const { std::cell::RefCell::new($crate::net::memory::Pool::new()) };
                }
                &KEPT
            }

            fn held(&self) -> usize {
                let held: fn(&Self) -> usize = $held;
                held(self)
            }
        }
    };
}
pub(crate) use pooled;

#[cfg(test)]
mod tests;
