//! Records of reservations and of answers to idempotent requests, in memory until they end.
//!
//! The algorithms decide the content of a record. [`shares`](super::shares) bounds the number of records.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;

#[cfg(any(test, feature = "testing"))]
use super::RecordCount;
use super::Share;
use divvy_core::algorithm::Record;
use divvy_core::clock::{MAX_STANDSTILL_NS, Timestamp};

/// Number of ends below which they are never collected. Above it, they are collected if there are more than twice as
/// many ends as records.
const FEW: usize = 64;

/// Records by key, or by a hash of it.
#[derive(Debug)]
pub struct Records<K, S = RandomState> {
    records: HashMap<K, StoredRecord, S>,
    /// Times when records may be forgotten. The end of a record may have changed since.
    ends: BinaryHeap<Reverse<(Timestamp, K)>>,
    /// Latest known time of the server's clock.
    time: Timestamp,
}

/// Returns whether the clock was set back between these times. Requests that overtake each other differ by less.
pub fn was_set_back(before: Timestamp, now: Timestamp) -> bool {
    before.since(now) > MAX_STANDSTILL_NS
}

#[derive(Debug)]
struct StoredRecord {
    record: Record,
    /// The record's share. `None` until the records that were found on opening are counted.
    share: Option<Arc<Share>>,
}

impl<K: Ord, S: Default> Default for Records<K, S> {
    fn default() -> Self {
        Self { records: HashMap::default(), ends: BinaryHeap::new(), time: Timestamp::EPOCH }
    }
}

impl<K: Hash + Ord + Clone, S: BuildHasher> Records<K, S> {
    /// Returns how many records there are.
    #[cfg(any(test, feature = "testing"))]
    pub fn count(&self) -> RecordCount {
        let mut count = RecordCount::default();
        self.records.values().for_each(|stored| count += RecordCount::of(&stored.record));
        count
    }

    /// Gives a share to each record without one.
    pub fn share(&mut self, mut share: impl FnMut(&Record) -> Arc<Share>) {
        for stored in self.records.values_mut() {
            stored.share.get_or_insert_with(|| share(&stored.record));
        }
    }

    /// Returns the record with this key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&Record>
    where
        K: std::borrow::Borrow<Q>,
    {
        Some(&self.records.get(key)?.record)
    }

    /// Sets the record with this key. It gets the share, or the share of the record that it replaces.
    pub fn set(&mut self, key: K, record: Record, share: Option<Arc<Share>>) {
        self.note_time(record.made_after());
        self.ends.push(Reverse((record.until, key.clone())));
        let stored = self.records.entry(key).or_insert(StoredRecord { record, share: None });
        stored.record = record;
        stored.share = share.or(stored.share.take());
        if self.ends.len() > 2 * self.records.len() + FEW {
            // Renewed and removed records have left ends behind.
            self.collect_ends();
        }
    }

    fn collect_ends(&mut self) {
        self.ends = self.records.iter().map(|(key, stored)| Reverse((stored.record.until, key.clone()))).collect();
    }

    /// Notes a time of the server's clock.
    pub fn note_time(&mut self, time: Timestamp) {
        self.time = self.time.max(time);
    }

    /// Removes the record with this key, and gives its share back.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
    {
        self.records.remove(key);
    }

    /// Drops expired records, as [`Records::sweep`] does. If the clock was set back, all records expire earlier by the
    /// same time. Otherwise they would fill the bound until the clock reaches its old time.
    pub fn advance(&mut self, now: Timestamp) {
        if was_set_back(self.time, now) {
            let by_ns = self.time.since(now);
            self.records.values_mut().for_each(|stored| stored.record.until = stored.record.until.minus(by_ns));
            self.collect_ends();
            self.time = now;
        }
        self.sweep(now);
    }

    /// Drops records that may be forgotten at `now`.
    pub fn sweep(&mut self, now: Timestamp) {
        self.note_time(now);
        while let Some(Reverse((end, key))) = self.ends.peek()
            && *end <= now
        {
            if self.records.get(key).is_some_and(|stored| stored.record.until <= now) {
                self.records.remove(key);
            }
            self.ends.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::RecordBudgets;
    use crate::testing::at;
    use divvy_core::algorithm::Outcome;
    use divvy_core::algorithm::record::{Content, Reservation};

    fn until(ends: u64) -> Record {
        let reservation = Reservation { credits: 1, ttl_seconds: 1, run: None };
        Record { until: at(ends), content: Content::Open { reservation, ends: at(ends), generation: 0, capacity: 9 } }
    }

    fn committed(seconds: u64) -> Record {
        let reservation = Reservation { credits: 1, ttl_seconds: 1, run: None };
        let content = Content::Committed { reservation, left: 0, owed: 0, reset_ns: 0 };
        Record { until: at(seconds + 60), content }
    }

    fn answered(seconds: u64) -> Record {
        Record::new_answer(7, Outcome::default(), false, at(seconds))
    }

    fn of(reservations: u64, answered: u64) -> RecordCount {
        RecordCount { reservations, answered }
    }

    /// Sweeps at this time, and returns the number of records left.
    fn left<K: Hash + Ord + Clone>(records: &mut Records<K>, seconds: u64) -> RecordCount {
        records.sweep(at(seconds));
        records.count()
    }

    #[test]
    fn record_expires_at_its_latest_end() {
        let mut records: Records<_> = Records::default();
        records.set(1, until(10), None);
        records.set(2, until(20), None);
        records.set(3, answered(0), None);
        records.set(1, until(30), None);
        assert_eq!((left(&mut records, 15), records.get(&1).is_some()), (of(2, 1), true));
        assert_eq!((left(&mut records, 20), records.get(&2).is_some()), (of(1, 1), false));
        assert_eq!(left(&mut records, 30), of(0, 1));
        assert_eq!((left(&mut records, 59), left(&mut records, 60), records.ends.len()), (of(0, 1), of(0, 0), 0));
    }

    #[test]
    fn renewed_and_removed_records_take_no_memory() {
        let mut records: Records<_> = Records::default();
        for end in 0..10_000 {
            records.set(1, until(end), None);
            records.set(2 + end, until(end), None);
            records.remove(&(2 + end));
            assert!(records.ends.len() <= 2 + FEW);
        }
        assert_eq!((left(&mut records, 9_998), left(&mut records, 9_999)), (of(1, 0), of(0, 0)));
    }

    #[test]
    fn record_keeps_its_share_until_it_is_dropped() {
        let budgets = RecordBudgets::new(1, 1);
        let share = || Some(budgets.found(&until(0)));
        let mut records: Records<_> = Records::default();
        records.set(1, until(10), share());
        records.set(2, until(10), None);
        records.set(1, until(20), None);
        records.share(|record| budgets.found(record));
        assert_eq!(budgets.remembered(), of(2, 0));
        records.remove(&2);
        assert_eq!(budgets.remembered(), of(1, 0));
        records.sweep(at(20));
        assert_eq!(budgets.remembered(), of(0, 0));
    }

    /// Otherwise, the bound could be exhausted for as long as the clock was set back.
    #[test]
    fn clock_that_is_set_back_keeps_no_record_longer() {
        let mut records: Records<_> = Records::default();
        records.advance(at(10_000));
        records.set(1, answered(10_000), None);
        records.set(2, until(10_030), None);
        records.set(3, committed(10_000), None);
        // The first time belongs to a request that was overtaken.
        for seconds in [9_995, 10_010, 0] {
            records.advance(at(seconds));
            assert_eq!(records.count(), of(2, 1));
        }
        assert_eq!((left(&mut records, 19), left(&mut records, 20)), (of(2, 1), of(1, 1)));
        assert_eq!((left(&mut records, 49), left(&mut records, 50)), (of(1, 1), of(0, 0)));
    }

    /// If the store is opened after the clock was set back, answers and commits show the clock's earlier time.
    #[test]
    fn records_of_a_later_clock_expire_like_new_ones() {
        let mut records: Records<_> = Records::default();
        records.set(1, answered(10_000), None);
        records.set(2, committed(9_990), None);
        records.advance(at(0));
        assert_eq!(records.count(), of(1, 1));
        assert_eq!((left(&mut records, 49), left(&mut records, 50)), (of(1, 1), of(0, 1)));
        assert_eq!((left(&mut records, 59), left(&mut records, 60)), (of(0, 1), of(0, 0)));
    }
}
