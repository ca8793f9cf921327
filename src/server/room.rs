//! Room for requests on their way through the limiter: memory of keys, entries and answers, from when a request is read
//! until its reply is written.
//!
//! Each holder has [`FREE`] bytes of its own, enough for requests of common size. What goes beyond comes out of
//! [`WORK_MEMORY`], which all connections share. A session that gets no more answers what it has by then; a single request
//! that is large waits, with nothing in hand, until others have been answered. So a holder that waits never holds what others
//! wait for. Few large requests are in work at a time, so small ones are never far behind them on a thread.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::memory::{BufferMemory, WORK_MEMORY, WORK_UNIT};
use crate::limiter::{Limiter, MAX_PART};

/// The part that each holder has of its own (bytes).
const FREE: usize = 32 * 1024;
/// A request of fewer bytes is added to others without asking for room first: all of its counters fit (bytes).
pub const SMALL: usize = 2 * 1024;
/// Room is given in these steps (bytes).
const STEP: usize = 64 * 1024;

/// One holder's room, given back when this is dropped.
pub struct Room {
    free: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    /// The weight at which requests must be answered (bytes).
    bound: usize,
}

impl Room {
    /// No more than a holder has of its own.
    pub fn new(memory: &BufferMemory) -> Self {
        Self { free: Arc::clone(memory.work()), held: None, bound: FREE }
    }

    /// Waits for the room of a call with at most `count` requests in this many bytes; `None` if it needs none.
    pub async fn of_call(memory: &BufferMemory, limiter: &Limiter, bytes: usize, count: usize) -> Option<Self> {
        let weight = limiter.weight_of(bytes, count);
        if weight <= FREE {
            return None;
        }
        let mut room = Self::new(memory);
        room.wait_for(weight).await;
        Some(room)
    }

    /// Whether requests of this weight fit. Takes more room if there is some.
    #[inline]
    pub fn fits(&mut self, weight: usize) -> bool {
        weight <= self.bound || self.grow(weight)
    }

    /// Whether a request of this length can be added to requests of this weight at once. Otherwise they are to be answered
    /// first, and then the request [waits](Room::wait_for_request).
    pub fn admits(&mut self, limiter: &Limiter, weight: usize, bytes: usize) -> bool {
        bytes <= SMALL || self.fits(weight + limiter.weight_of(bytes, 1))
    }

    /// Waits until there is room for a request of this length. The holder has nothing in hand then.
    pub async fn wait_for_request(&mut self, limiter: &Limiter, bytes: usize) {
        self.wait_for(limiter.weight_of(bytes, 1)).await;
    }

    /// Gives all back. Whether there was any.
    #[inline]
    pub fn give_back(&mut self) -> bool {
        let has_more = self.held.is_some();
        if has_more {
            self.bound = FREE;
            self.held = None;
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
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        self.bound = (self.bound + more).min(MAX_PART);
        true
    }

    async fn wait_for(&mut self, weight: usize) {
        // Whoever waits holds nothing.
        self.give_back();
        // One that needs more than there is at all has all of it.
        let bytes = weight.min(WORK_MEMORY);
        // The semaphore is never closed, so there are permits.
        self.held = Arc::clone(&self.free).acquire_many_owned(permits(bytes)).await.ok();
        self.bound = bytes.clamp(FREE, MAX_PART);
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
    use crate::metrics::Metrics;

    fn free(room: &Room) -> usize {
        room.free.available_permits() * WORK_UNIT
    }

    #[test]
    fn room_grows_while_there_is_some_and_is_given_back() {
        let memory = BufferMemory::new(0, Metrics::new());
        let mut rooms: Vec<_> = (0..2 * WORK_MEMORY / MAX_PART).map(|_| Room::new(&memory)).collect();
        for room in &mut rooms {
            assert!(room.fits(FREE), "its own");
            let mut weight = FREE;
            while room.fits(weight + 1) {
                weight = room.bound;
            }
        }
        assert_eq!(free(&rooms[0]), 0);
        assert!(!rooms[0].fits(MAX_PART + 1), "a part is never larger");
        assert_eq!((rooms[0].give_back(), rooms[0].give_back()), (true, false));
        assert!(rooms.last_mut().unwrap().fits(FREE + 1));
        drop(rooms);
        assert_eq!(free(&Room::new(&memory)), WORK_MEMORY);
    }

    #[tokio::test]
    async fn a_large_request_waits_with_nothing_in_hand() {
        let memory = BufferMemory::new(0, Metrics::new());
        let (mut one, mut other) = (Room::new(&memory), Room::new(&memory));
        assert!(one.fits(FREE + 1) && other.fits(FREE + 1));
        {
            let mut waits = pin!(other.wait_for(WORK_MEMORY + 1));
            assert!(poll!(waits.as_mut()).is_pending());
            assert_eq!(free(&one), 0, "all that is left is kept for it");
            one.give_back();
            assert!(poll!(waits.as_mut()).is_ready());
        }
        assert!(other.fits(MAX_PART) && !one.fits(FREE + 1));
        {
            // Whoever leaves gives its place up.
            let mut leaves = pin!(one.wait_for(1));
            assert!(poll!(leaves.as_mut()).is_pending());
        }
        other.give_back();
        assert_eq!(free(&one), WORK_MEMORY);
    }
}
