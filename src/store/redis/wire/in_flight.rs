//! How much one Redis is asked at a time.
//!
//! Redis does one thing after the other. Without a bound, more than it can do would queue up in it until every batch,
//! the queue's first ones too, ran into its timeout, while Redis went on to do work whose result was no longer awaited.

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// Actions on their way to Redis at once. It does them in less than a usual timeout, 25 µs each, and they are enough to
/// keep it busy over any network: at 3 ms a round trip, a million a second.
const MOST_ACTIONS: usize = 4096;

/// Batches get in one after the other, in the order in which they came.
pub struct InFlight(Semaphore);

impl Default for InFlight {
    fn default() -> Self {
        Self(Semaphore::new(MOST_ACTIONS))
    }
}

impl InFlight {
    /// Waits until so many actions more may be sent; `None` when there is no room for them in time. They are in flight
    /// until the permit is dropped.
    pub async fn enter(&self, actions: usize, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        let actions = u32::try_from(actions.min(MOST_ACTIONS)).unwrap_or(u32::MAX);
        // As a rule there is room, and no timer is needed. No batch overtakes another: one that waits has been given all
        // room that there is.
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
    async fn who_finds_no_room_in_time_is_sent_away_and_the_largest_batch_gets_in() {
        let (in_flight, now) = (InFlight::default(), Instant::now());
        let most = in_flight.enter(MOST_ACTIONS - 1, now).await.unwrap();
        let last = in_flight.enter(1, now).await.unwrap();
        assert!(in_flight.enter(1, now).await.is_none());
        assert!(in_flight.enter(0, now).await.is_some(), "what takes nothing from Redis");
        drop((most, last));
        assert!(in_flight.enter(10 * MOST_ACTIONS, now).await.is_some());
    }
}
