//! The log of outages: one line when an outage begins, and one when it ends. A full store is such an outage, too.

use crate::bounds::CounterBudget;
use crate::contract::StoreError;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::logging::Escaped;

/// Time without a full store after which the log reports that there is room. At the bound, a store becomes full again
/// and again.
const QUIET_NS: u64 = 5 * NANOS_PER_SECOND;

/// An operation that is retried, and may fail for a while.
#[derive(Debug)]
pub struct Outage {
    what: &'static str,
    effect: &'static str,
    /// Whether the last attempt failed.
    pub lasts: bool,
}

impl Outage {
    /// Creates the log. `what` names the operation, and `effect` describes divvy's behavior during an outage.
    pub fn of(what: &'static str, effect: &'static str) -> Self {
        Self { what, effect, lasts: false }
    }

    /// Records the result of an attempt. Logs it if an outage begins or ends.
    pub fn note(&mut self, result: &Result<(), StoreError>) {
        match result {
            Err(error) if !self.lasts => {
                // The error may quote the other side.
                let error = error.to_string();
                tracing::error!(error = %Escaped::error(&error), "failing: {}; {}", self.what, self.effect);
            }
            Ok(()) if self.lasts => tracing::info!("working again: {}", self.what),
            _ => {}
        }
        self.lasts = result.is_err();
    }
}

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
