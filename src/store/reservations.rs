//! The records of reservations, in memory until they end, and how many there may be. What a record says is the algorithms'
//! business; who may change it meanwhile is the store's.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::error::StoreError;
use crate::algorithm::Reservation;
use crate::clock::Timestamp;
use crate::metrics::Metric;

/// Reservations that a store remembers unless the operator says otherwise: some 200 bytes each, in memory.
pub const DEFAULT_MAX_RESERVATIONS: u64 = 100_000;

/// More ends than this, and more than twice as many as there are records, are not worth their memory.
const FEW: usize = 64;

/// Records, by what stands for their keys.
#[derive(Debug)]
pub struct Reservations<K> {
    records: HashMap<K, Reservation>,
    /// When each may be forgotten, as it was once: it may have been put off since.
    ends: BinaryHeap<Reverse<(Timestamp, K)>>,
}

impl<K: Ord> Default for Reservations<K> {
    fn default() -> Self {
        Self { records: HashMap::default(), ends: BinaryHeap::new() }
    }
}

impl<K: Hash + Ord + Clone> Reservations<K> {
    #[cfg_attr(
        not(feature = "rocksdb"),
        expect(dead_code, reason = "only the embedded store finds some when it is opened")
    )]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&Reservation>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.records.get(key)
    }

    pub fn set(&mut self, key: K, record: Reservation) {
        self.ends.push(Reverse((record.expires(), key.clone())));
        self.records.insert(key, record);
        if self.ends.len() > 2 * self.records.len() + FEW {
            // What was renewed, or is gone, has ends that nothing waits for.
            self.ends = self.records.iter().map(|(key, record)| Reverse((record.expires(), key.clone()))).collect();
        }
    }

    /// Whether it was there.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: std::borrow::Borrow<Q>,
    {
        self.records.remove(key).is_some()
    }

    /// Drops what may be forgotten at `now`. Returns how many these were.
    pub fn sweep(&mut self, now: Timestamp) -> u64 {
        let mut dropped = 0;
        while let Some(Reverse((end, key))) = self.ends.peek()
            && *end <= now
        {
            if self.records.get(key).is_some_and(|record| record.expires() <= now) {
                self.records.remove(key);
                dropped += 1;
            }
            self.ends.pop();
        }
        dropped
    }
}

/// Counts the reservations of a store, and refuses those beyond the bound.
#[derive(Debug)]
pub struct ReservationBudget {
    max: u64,
    remembered: AtomicU64,
    refused: AtomicU64,
}

impl ReservationBudget {
    pub fn new(max: u64) -> Self {
        Self { max, remembered: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// One more is remembered.
    ///
    /// # Errors
    /// When there are as many as there may be.
    pub fn begin(&self) -> Result<(), StoreError> {
        let one_more = |remembered| (remembered < self.max).then_some(remembered + 1);
        self.remembered.fetch_update(Relaxed, Relaxed, one_more).map(drop).map_err(|_| {
            self.refused.fetch_add(1, Relaxed);
            StoreError::new("the store remembers as many reservations as it may (raise --max-reservations)")
        })
    }

    #[cfg_attr(
        not(feature = "rocksdb"),
        expect(dead_code, reason = "only the embedded store finds some when it is opened")
    )]
    /// So many were found, however many there may be.
    pub fn found(&self, count: u64) {
        self.remembered.fetch_add(count, Relaxed);
    }

    /// So many are forgotten.
    pub fn forget(&self, count: u64) {
        self.remembered.fetch_sub(count, Relaxed);
    }

    pub fn remembered(&self) -> u64 {
        self.remembered.load(Relaxed)
    }

    pub fn metrics(&self) -> [Metric; 3] {
        [
            Metric::gauge(
                "divvy_reservations",
                "Reservations that are remembered: those that go on, and those committed lately.",
                self.remembered() as f64,
            ),
            Metric::gauge("divvy_max_reservations", "Maximum number of reservations.", self.max as f64),
            Metric::counter(
                "divvy_reservations_refused_total",
                "Reservations and commits refused because there were as many reservations as there may be.",
                self.refused.load(Relaxed),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::reservation::Stage;
    use crate::store::testing::at;

    fn until(ends: u64) -> Reservation {
        Reservation { credits: 1, ttl_seconds: 1, stage: Stage::Open { ends: at(ends), generation: 0 } }
    }

    #[test]
    fn a_record_goes_when_its_latest_end_has_come() {
        let mut records = Reservations::default();
        records.set(1, until(10));
        records.set(2, until(20));
        records.set(1, until(30));
        assert_eq!((records.sweep(at(15)), records.get(&1).is_some()), (0, true));
        assert_eq!((records.sweep(at(20)), records.get(&2).is_some()), (1, false));
        assert_eq!((records.sweep(at(30)), records.records.len(), records.ends.len()), (1, 0, 0));
    }

    #[test]
    fn what_is_renewed_or_gone_takes_no_memory() {
        let mut records = Reservations::default();
        for end in 0..10_000 {
            records.set(1, until(end));
            records.set(2 + end, until(end));
            records.remove(&(2 + end));
            assert!(records.ends.len() <= 2 + FEW);
        }
        assert_eq!((records.sweep(at(9_998)), records.sweep(at(9_999)), records.records.len()), (0, 1, 0));
    }

    #[test]
    fn there_are_as_many_as_there_may_be() {
        let budget = ReservationBudget::new(2);
        assert!(budget.begin().is_ok() && budget.begin().is_ok());
        assert!(budget.begin().unwrap_err().to_string().contains("--max-reservations"));
        budget.forget(1);
        assert!(budget.begin().is_ok());
        assert_eq!(budget.remembered(), 2);
    }
}
