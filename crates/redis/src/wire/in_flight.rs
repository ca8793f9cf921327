//! A bound on the actions in flight to one Redis.
//!
//! Redis carries out one command after the other. Without a bound, its queue would grow until every batch, even the
//! first ones in the queue, exceeded its timeout. Redis would then work on results that no caller awaits.

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// Maximum number of actions in flight to Redis. At 25 µs each, Redis carries them out in less than a usual timeout.
/// They are enough to keep Redis busy over any network: with round trips of 3 ms, they allow a million actions per
/// second.
const MOST_ACTIONS: usize = 4096;

/// The actions in flight. Batches enter in order.
pub struct InFlight(Semaphore);

impl Default for InFlight {
    fn default() -> Self {
        Self(Semaphore::new(MOST_ACTIONS))
    }
}

impl InFlight {
    /// Waits until this number of actions may be sent. They are in flight until the permit is dropped. Returns `None`
    /// if there is no room in time.
    pub async fn enter(&self, actions: usize, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        let actions = u32::try_from(actions.min(MOST_ACTIONS)).unwrap_or(u32::MAX);
        // Fast path: there is room, so no timer is needed. No batch overtakes another, because a waiting batch has
        // already reserved all the room there is.
        if let Ok(permit) = self.0.try_acquire_many(actions) {
            return Some(permit);
        }
        timeout_at(deadline, self.0.acquire_many(actions)).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn batch_without_room_in_time_is_refused_and_the_largest_batch_enters() {
        let (in_flight, now) = (InFlight::default(), Instant::now());
        let most = in_flight.enter(MOST_ACTIONS - 1, now).await.unwrap();
        let last = in_flight.enter(1, now).await.unwrap();
        assert!(in_flight.enter(1, now).await.is_none());
        assert!(in_flight.enter(0, now).await.is_some(), "a batch without actions");
        drop((most, last));
        assert!(in_flight.enter(10 * MOST_ACTIONS, now).await.is_some());
    }
}
