//! The log of a full store.

use super::CounterBudget;
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::store::outage::Outage;

/// There is room again, for the log, once the store was not full for so long: at the bound that changes all the time.
const QUIET_NS: u64 = 5 * NANOS_PER_SECOND;

/// The log's lines about a full store: one when there is no room, and one when there is room again.
#[derive(Debug)]
pub struct RoomLog {
    outage: Outage,
    full_at: Timestamp,
}

impl Default for RoomLog {
    fn default() -> Self {
        let meanwhile = "new ones are answered as --when-full says (raise --max-counters or --max-disk)";
        Self { outage: Outage::of("capacity for new counters", meanwhile), full_at: Timestamp::EPOCH }
    }
}

impl RoomLog {
    /// Takes note of whether there is room at `now`.
    pub fn note(&mut self, budget: &CounterBudget, now: Timestamp) {
        if budget.is_full() {
            self.full_at = now;
            self.outage.note(&Err(budget.error.clone()));
        } else if now.since(self.full_at) >= QUIET_NS {
            self.outage.note(&Ok(()));
        }
    }
}
