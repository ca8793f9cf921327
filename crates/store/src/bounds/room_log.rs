//! The log of a full store.

use super::CounterBudget;
use crate::outage::Outage;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Time without a full store after which the log reports that there is room. At the bound, a store becomes full again
/// and again.
const QUIET_NS: u64 = 5 * NANOS_PER_SECOND;

/// Logs one line when the store gets full, and one when there is room again.
#[derive(Debug)]
pub struct RoomLog {
    outage: Outage,
    full_at: Timestamp,
}

impl Default for RoomLog {
    fn default() -> Self {
        let effect = "new ones are answered as --when-full says (raise --max-counters or --max-disk)";
        Self { outage: Outage::of("capacity for new counters", effect), full_at: Timestamp::EPOCH }
    }
}

impl RoomLog {
    /// Notes whether there is room at `now`.
    pub fn note(&mut self, budget: &CounterBudget, now: Timestamp) {
        if budget.is_full() {
            self.full_at = now;
            self.outage.note(&Err(budget.error.clone()));
        } else if now.distance(self.full_at) >= QUIET_NS {
            self.outage.note(&Ok(()));
        }
    }
}
