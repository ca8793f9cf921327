//! Expired counters in the table, after a compaction has dropped their records.

use super::Table;
use super::slot::{Slot, Tags};
use divvy_core::clock::Timestamp;

impl Table {
    /// Forgets counters that had expired by `now`, if their records were current. A compaction of all counters that
    /// began later has dropped these records. A counter with a later change is left to its write-back.
    pub fn forget_expired(&self, now: Timestamp) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            let is_expired = |slot: &Slot| {
                slot.is_live() && slot.expires() <= now.as_nanos() && self.marks.is_clean(slot.tags().mark)
            };
            for index in stripe.slots.find_all(is_expired) {
                let tags = stripe.slots.at(index).tags();
                stripe.clear(index, Tags { recorded: false, ..tags });
            }
        }
    }
}
