//! The records of reservations, and of asks that are answered once: in memory until they end. The algorithms decide what a
//! record says, the store who may change it, and [`shares`] how many there may be.
//!
//! [`shares`]: super::shares

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

#[cfg(test)]
use super::RecordCount;
use super::Share;
use crate::algorithm::Record;
use crate::clock::{MAX_STANDSTILL_NS, Timestamp};

/// More ends than this, and more than twice as many as there are records, are not worth their memory.
const FEW: usize = 64;

/// Records, by what stands for their keys.
#[derive(Debug)]
pub struct Records<K> {
    records: HashMap<K, Kept>,
    /// When each may be forgotten, as it was once: it may have been put off since.
    ends: BinaryHeap<Reverse<(Timestamp, K)>>,
    /// The latest time of the server's clock that was seen.
    time: Timestamp,
}

/// Whether the clock was set back between these times. Requests that overtake each other are no further apart.
pub fn was_set_back(before: Timestamp, now: Timestamp) -> bool {
    before.since(now) > MAX_STANDSTILL_NS
}

#[derive(Debug)]
struct Kept {
    record: Record,
    /// `None` until the records that were found are counted.
    share: Option<Arc<Share>>,
}

impl<K: Ord> Default for Records<K> {
    fn default() -> Self {
        Self { records: HashMap::default(), ends: BinaryHeap::new(), time: Timestamp::EPOCH }
    }
}

impl<K: Hash + Ord + Clone> Records<K> {
    #[cfg(test)]
    pub fn count(&self) -> RecordCount {
        let mut count = RecordCount::default();
        self.records.values().for_each(|kept| count += RecordCount::of(&kept.record));
        count
    }

    /// Gives each record a share that has none.
    #[cfg_attr(
        not(any(feature = "rocksdb", test)),
        expect(dead_code, reason = "only the embedded store finds some when it is opened")
    )]
    pub fn share(&mut self, mut share: impl FnMut(&Record) -> Arc<Share>) {
        for kept in self.records.values_mut() {
            kept.share.get_or_insert_with(|| share(&kept.record));
        }
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&Record>
    where
        K: std::borrow::Borrow<Q>,
    {
        Some(&self.records.get(key)?.record)
    }

    /// Puts the record in the place of the one with this key, whose share it keeps, or there with a share of its own.
    pub fn set(&mut self, key: K, record: Record, share: Option<Arc<Share>>) {
        self.note_time(record.made_after());
        self.ends.push(Reverse((record.until, key.clone())));
        let kept = self.records.entry(key).or_insert(Kept { record, share: None });
        kept.record = record;
        kept.share = share.or(kept.share.take());
        if self.ends.len() > 2 * self.records.len() + FEW {
            // What was renewed, or is gone, has ends that nothing waits for.
            self.collect_ends();
        }
    }

    fn collect_ends(&mut self) {
        self.ends = self.records.iter().map(|(key, kept)| Reverse((kept.record.until, key.clone()))).collect();
    }

    /// Notes a time of the server's clock.
    pub fn note_time(&mut self, time: Timestamp) {
        self.time = self.time.max(time);
    }

    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: std::borrow::Borrow<Q>,
    {
        self.records.remove(key);
    }

    /// Drops expired records, like [`Records::sweep`]. If the clock was set back, all records expire as much earlier. Otherwise
    /// they would fill the bound until the old clock's time comes again.
    pub fn advance(&mut self, now: Timestamp) {
        if was_set_back(self.time, now) {
            let by_ns = self.time.since(now);
            self.records.values_mut().for_each(|kept| kept.record.until = kept.record.until.minus(by_ns));
            self.collect_ends();
            self.time = now;
        }
        self.sweep(now);
    }

    /// Drops what may be forgotten at `now`.
    pub fn sweep(&mut self, now: Timestamp) {
        self.note_time(now);
        while let Some(Reverse((end, key))) = self.ends.peek()
            && *end <= now
        {
            if self.records.get(key).is_some_and(|kept| kept.record.until <= now) {
                self.records.remove(key);
            }
            self.ends.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Outcome;
    use crate::algorithm::record::{Content, Reservation};
    use crate::store::bounds::RecordBudgets;
    use crate::store::testing::at;

    fn until(ends: u64) -> Record {
        let reservation = Reservation { credits: 1, ttl_seconds: 1 };
        Record { until: at(ends), content: Content::Open { reservation, ends: at(ends), generation: 0 } }
    }

    fn committed(seconds: u64) -> Record {
        let reservation = Reservation { credits: 1, ttl_seconds: 1 };
        let content = Content::Committed { reservation, left: 0, owed: 0, reset_ns: 0 };
        Record { until: at(seconds + 60), content }
    }

    fn answered(seconds: u64) -> Record {
        Record::new_answer(7, Outcome::default(), false, at(seconds))
    }

    fn of(reservations: u64, answered: u64) -> RecordCount {
        RecordCount { reservations, answered }
    }

    /// How many there are once those are dropped that may be forgotten by then.
    fn left<K: Hash + Ord + Clone>(records: &mut Records<K>, seconds: u64) -> RecordCount {
        records.sweep(at(seconds));
        records.count()
    }

    #[test]
    fn a_record_goes_when_its_latest_end_has_come() {
        let mut records = Records::default();
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
    fn what_is_renewed_or_gone_takes_no_memory() {
        let mut records = Records::default();
        for end in 0..10_000 {
            records.set(1, until(end), None);
            records.set(2 + end, until(end), None);
            records.remove(&(2 + end));
            assert!(records.ends.len() <= 2 + FEW);
        }
        assert_eq!((left(&mut records, 9_998), left(&mut records, 9_999)), (of(1, 0), of(0, 0)));
    }

    #[test]
    fn a_record_keeps_its_share_until_it_goes() {
        let budgets = RecordBudgets::new(1, 1);
        let share = || Some(budgets.found(&until(0)));
        let mut records = Records::default();
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

    /// Otherwise the bound could be reached for as long as the clock was set back.
    #[test]
    fn clock_that_is_set_back_keeps_no_record_longer() {
        let mut records = Records::default();
        records.advance(at(10_000));
        records.set(1, answered(10_000), None);
        records.set(2, until(10_030), None);
        records.set(3, committed(10_000), None);
        // The first is a request that was overtaken.
        for seconds in [9_995, 10_010, 0] {
            records.advance(at(seconds));
            assert_eq!(records.count(), of(2, 1));
        }
        assert_eq!((left(&mut records, 19), left(&mut records, 20)), (of(2, 1), of(1, 1)));
        assert_eq!((left(&mut records, 49), left(&mut records, 50)), (of(1, 1), of(0, 0)));
    }

    /// When the store was opened after the clock was set back, answers and commits tell its former time.
    #[test]
    fn records_of_a_later_clock_end_as_new_ones_do() {
        let mut records = Records::default();
        records.set(1, answered(10_000), None);
        records.set(2, committed(9_990), None);
        records.advance(at(0));
        assert_eq!(records.count(), of(1, 1));
        assert_eq!((left(&mut records, 49), left(&mut records, 50)), (of(1, 1), of(0, 1)));
        assert_eq!((left(&mut records, 59), left(&mut records, 60)), (of(0, 1), of(0, 0)));
    }
}
