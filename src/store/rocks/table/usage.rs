//! The number of counters in the table, and the memory that they take.

use super::Table;
use super::stripe::Stripe;
use crate::store::rocks::sync::atomic::Ordering::Relaxed;

/// What the table holds, and how it served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub counters: u64,
    pub bytes: u64,
    /// Actions that needed no look-up in RocksDB.
    pub hits: u64,
    /// Actions on counters that had to be looked up.
    pub misses: u64,
}

/// The number of counters, as the table sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Counters without a record in RocksDB, less records without a counter.
    pub unrecorded: i64,
    /// Counters that were made since the start, less those that were forgotten.
    pub begun: i64,
}

impl Table {
    /// With the number of records in RocksDB this makes the number of counters: exactly, if records are known and no
    /// write-back runs.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            tally.unrecorded += stripe.unrecorded;
            tally.begun += stripe.begun;
        }
        tally
    }

    /// A look at every stripe in turn.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            usage.counters += stripe.len() as u64;
            usage.bytes += stripe.bytes() as u64;
            usage.hits += stripe.acted - stripe.loaded;
            usage.misses += stripe.loaded;
        }
        usage
    }

    /// What the counters may take, if they can be evicted (bytes).
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// How much more they take, because their records are not current (bytes).
    pub fn excess(&self) -> usize {
        self.excess.load(Relaxed)
    }

    /// Gives back what exceeds the memory, as far as records are current.
    pub fn give_back(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            if stripe.counted_excess > 0 {
                stripe.give_back(&self.marks);
                self.count_excess(&mut stripe);
            }
        }
    }

    /// Counts what the stripe, which the caller holds, takes beyond its memory.
    pub(super) fn count_excess(&self, stripe: &mut Stripe) {
        let excess = stripe.excess();
        let counted = std::mem::replace(&mut stripe.counted_excess, excess);
        // What all stripes have counted is never less than what one has.
        match excess.checked_sub(counted) {
            Some(0) => {}
            Some(more) => drop(self.excess.fetch_add(more, Relaxed)),
            None => drop(self.excess.fetch_sub(counted - excess, Relaxed)),
        }
    }
}
