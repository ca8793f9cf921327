//! Memory of requests in work: their keys, entries and answers, from when a request is read until its reply is written.
//!
//! Each holder has [`OWN`] bytes, enough for requests of ordinary size. Memory beyond that comes from [`WORK_MEMORY`],
//! which all connections share. If a session gets no more memory, it answers the requests that it already has. A single
//! large request waits until others have been answered, and its holder has no other requests at that time. So a waiting
//! holder never has memory that others wait for. Only a few large requests are in work at a time, so small ones never
//! wait long for them on a thread.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::memory::{BufferMemory, WORK_MEMORY, WORK_UNIT};
use divvy_limiter::{Limiter, MAX_PART};

/// Bytes that each holder has without a permit.
const OWN: usize = 32 * 1024;
/// A request of at most this length joins a batch without a check: all of its counters fit (bytes).
pub const SMALL: usize = 2 * 1024;
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
        Self { free: Arc::clone(memory.work()), permit: None, bound: OWN }
    }

    /// Waits for the memory of a call with at most `count` requests in this many bytes; returns `None` if it needs none.
    pub async fn wait_for_call(memory: &BufferMemory, limiter: &Limiter, bytes: usize, count: usize) -> Option<Self> {
        let weight = limiter.weight_of(bytes, count);
        if weight <= OWN {
            return None;
        }
        let mut memory = Self::new(memory);
        memory.wait_for(weight).await;
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;

    use super::*;
    use divvy_telemetry::metrics::Metrics;

    fn free(memory: &RequestMemory) -> usize {
        memory.free.available_permits() * WORK_UNIT
    }

    #[test]
    fn request_memory_grows_within_the_budget_and_is_returned() {
        let budget = BufferMemory::new(0, Metrics::new());
        let mut holders: Vec<_> = (0..2 * WORK_MEMORY / MAX_PART).map(|_| RequestMemory::new(&budget)).collect();
        for memory in &mut holders {
            assert!(memory.fits(OWN), "its own part");
            let mut weight = OWN;
            while memory.fits(weight + 1) {
                weight = memory.bound;
            }
        }
        assert_eq!(free(&holders[0]), 0);
        assert!(!holders[0].fits(MAX_PART + 1), "a part is never larger");
        assert_eq!((holders[0].give_back(), holders[0].give_back()), (true, false));
        assert!(holders.last_mut().unwrap().fits(OWN + 1));
        drop(holders);
        assert_eq!(free(&RequestMemory::new(&budget)), WORK_MEMORY);
    }

    #[tokio::test]
    async fn large_request_waits_without_holding_memory() {
        let budget = BufferMemory::new(0, Metrics::new());
        let (mut one, mut other) = (RequestMemory::new(&budget), RequestMemory::new(&budget));
        assert!(one.fits(OWN + 1) && other.fits(OWN + 1));
        {
            let mut waits = pin!(other.wait_for(WORK_MEMORY + 1));
            assert!(poll!(waits.as_mut()).is_pending());
            assert_eq!(free(&one), 0, "all that is left is kept for the waiter");
            one.give_back();
            assert!(poll!(waits.as_mut()).is_ready());
        }
        assert!(other.fits(MAX_PART) && !one.fits(OWN + 1));
        {
            // If a waiting holder leaves, its place in the queue becomes free.
            let mut leaves = pin!(one.wait_for(1));
            assert!(poll!(leaves.as_mut()).is_pending());
        }
        other.give_back();
        assert_eq!(free(&one), WORK_MEMORY);
    }
}
