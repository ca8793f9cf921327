//! The number of counters in the table, and their memory.

use super::Table;
use super::stripe::Stripe;
use crate::sync::atomic::Ordering::Relaxed;

/// Sums over all stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Counters in the table.
    pub counters: u64,
    pub bytes: u64,
    /// Actions that needed no look-up in RocksDB.
    pub hits: u64,
    /// Actions on counters that had to be looked up.
    pub misses: u64,
    /// Number of counters without a record in RocksDB, minus the records without a counter. The sum of this and the
    /// number of records is the number of counters. It is exact if records are known and no write-back runs.
    pub unrecorded: i64,
}

impl Table {
    /// Adds up the stripes, one after the other.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            usage.counters += stripe.slots.len() as u64;
            usage.bytes += stripe.bytes() as u64;
            usage.hits += stripe.acted - stripe.loaded;
            usage.misses += stripe.loaded;
            usage.unrecorded += stripe.unrecorded;
        }
        usage
    }

    /// Returns the memory for counters that can be evicted (bytes).
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Returns the memory beyond that, for counters whose records are not current (bytes).
    pub fn excess(&self) -> usize {
        self.excess.load(Relaxed)
    }

    /// Gives back memory beyond the bound, as far as records are current.
    pub fn give_back(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            if stripe.counted_excess > 0 {
                stripe.give_back(&self.marks);
                self.count_excess(&mut stripe);
            }
        }
    }

    /// Counts the memory that the stripe, which the caller holds, takes beyond its bound.
    pub(super) fn count_excess(&self, stripe: &mut Stripe) {
        let excess = stripe.excess();
        let counted = std::mem::replace(&mut stripe.counted_excess, excess);
        // The sum of all stripes is never less than the part of one.
        match excess.checked_sub(counted) {
            Some(0) => {}
            Some(more) => drop(self.excess.fetch_add(more, Relaxed)),
            None => drop(self.excess.fetch_sub(counted - excess, Relaxed)),
        }
    }
}
