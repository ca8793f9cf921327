//! The records of reservations, and of asks that are answered once: in memory until they end, and how many there may be. What a
//! record says is the algorithms' business; who may change it meanwhile is the store's.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::error::StoreError;
use crate::algorithm::reservation::REMEMBERED_NS;
use crate::algorithm::{Answered, Reservation};
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::metrics::Metric;

/// Reservations that a store remembers unless the operator says otherwise: some 200 bytes each, in memory.
pub const DEFAULT_MAX_RESERVATIONS: u64 = 100_000;
/// Asks that a store remembers to answer once: likewise.
pub const DEFAULT_MAX_IDEMPOTENCY_KEYS: u64 = 1_000_000;

/// Actions that come in another order than their times are no further apart.
const OVERTAKING_NS: u64 = 10 * NANOS_PER_SECOND;
/// More ends than this, and more than twice as many as there are records, are not worth their memory.
const FEW: usize = 64;

/// A record: its key says which of them it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    Reservation(Reservation),
    Answered(Answered),
}

impl Record {
    /// When it may be forgotten.
    pub fn expires(&self) -> Timestamp {
        match self {
            Self::Reservation(reservation) => reservation.expires(),
            Self::Answered(answered) => answered.until,
        }
    }

    pub fn reservation(&self) -> Option<&Reservation> {
        if let Self::Reservation(reservation) = self { Some(reservation) } else { None }
    }

    pub fn answered(&self) -> Option<&Answered> {
        if let Self::Answered(answered) = self { Some(answered) } else { None }
    }
}

/// A number of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    pub reservations: u64,
    pub answered: u64,
}

impl Count {
    /// That one.
    pub fn of(record: &Record) -> Self {
        match record {
            Record::Reservation(_) => Self { reservations: 1, answered: 0 },
            Record::Answered(_) => Self { reservations: 0, answered: 1 },
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.reservations += other.reservations;
        self.answered += other.answered;
    }
}

/// Records, by what stands for their keys.
#[derive(Debug)]
pub struct Records<K> {
    records: HashMap<K, Record>,
    /// When each may be forgotten, as it was once: it may have been put off since.
    ends: BinaryHeap<Reverse<(Timestamp, K)>>,
    /// When the last answer was given that is remembered, or was.
    answered: Timestamp,
}

impl<K: Ord> Default for Records<K> {
    fn default() -> Self {
        Self { records: HashMap::default(), ends: BinaryHeap::new(), answered: Timestamp::EPOCH }
    }
}

impl<K: Hash + Ord + Clone> Records<K> {
    #[cfg_attr(
        not(any(feature = "rocksdb", test)),
        expect(dead_code, reason = "only the embedded store finds some when it is opened")
    )]
    pub fn count(&self) -> Count {
        let mut count = Count::default();
        self.records.values().for_each(|record| count += Count::of(record));
        count
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&Record>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.records.get(key)
    }

    pub fn set(&mut self, key: K, record: Record) {
        if let Record::Answered(answered) = &record {
            self.answered = self.answered.max(answered.given());
        }
        self.ends.push(Reverse((record.expires(), key.clone())));
        self.records.insert(key, record);
        if self.ends.len() > 2 * self.records.len() + FEW {
            // What was renewed, or is gone, has ends that nothing waits for.
            self.ends = self.records.iter().map(|(key, record)| Reverse((record.expires(), key.clone()))).collect();
        }
    }

    /// Returns what was there.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Count
    where
        K: std::borrow::Borrow<Q>,
    {
        self.records.remove(key).map_or(Count::default(), |record| Count::of(&record))
    }

    /// As [`Records::sweep`], when an action comes at `now`. If the clock was set back since the last answer, none is remembered
    /// for longer than one that is given now: the bound could be reached until the old clock's time comes again.
    pub fn advance(&mut self, now: Timestamp) -> Count {
        if self.answered.since(now) > OVERTAKING_NS {
            let latest = now.plus(REMEMBERED_NS);
            for (key, record) in &mut self.records {
                if let Record::Answered(answered) = record
                    && answered.until > latest
                {
                    answered.until = latest;
                    self.ends.push(Reverse((latest, key.clone())));
                }
            }
            self.answered = now;
        }
        self.sweep(now)
    }

    /// Drops what may be forgotten at `now`. Returns how many these were.
    pub fn sweep(&mut self, now: Timestamp) -> Count {
        let mut dropped = Count::default();
        while let Some(Reverse((end, key))) = self.ends.peek()
            && *end <= now
        {
            if let Some(record) = self.records.get(key).filter(|record| record.expires() <= now) {
                dropped += Count::of(record);
                self.records.remove(key);
            }
            self.ends.pop();
        }
        dropped
    }
}

/// How many records of each kind a store may have, and has.
#[derive(Debug)]
pub struct RecordBudgets {
    reservations: RecordBudget,
    answered: RecordBudget,
}

impl RecordBudgets {
    pub fn new(max_reservations: u64, max_idempotency_keys: u64) -> Self {
        let full = "the store remembers as many reservations as it may (raise --max-reservations)";
        let reservations = RecordBudget::new(max_reservations, full);
        let full = "the store remembers as many idempotency keys as it may: nothing was counted (raise --max-idempotency-keys)";
        Self { reservations, answered: RecordBudget::new(max_idempotency_keys, full) }
    }

    /// One more is remembered.
    ///
    /// # Errors
    /// When there are as many of its kind as there may be.
    pub fn begin(&self, record: &Record) -> Result<(), StoreError> {
        match record {
            Record::Reservation(_) => self.reservations.begin(),
            Record::Answered(_) => self.answered.begin(),
        }
    }

    /// So many were found, however many there may be.
    #[cfg_attr(
        not(feature = "rocksdb"),
        expect(dead_code, reason = "only the embedded store finds some when it is opened")
    )]
    pub fn found(&self, count: Count) {
        self.reservations.remembered.fetch_add(count.reservations, Relaxed);
        self.answered.remembered.fetch_add(count.answered, Relaxed);
    }

    /// So many are forgotten.
    pub fn forget(&self, count: Count) {
        self.reservations.forget(count.reservations);
        self.answered.forget(count.answered);
    }

    pub fn remembered(&self) -> Count {
        Count { reservations: self.reservations.remembered(), answered: self.answered.remembered() }
    }

    pub fn metrics(&self) -> [Metric; 6] {
        let Self { reservations, answered } = self;
        let count = self.remembered();
        [
            Metric::gauge(
                "divvy_reservations",
                "Reservations that are remembered: those that go on, and those committed lately.",
                count.reservations as f64,
            ),
            Metric::gauge("divvy_max_reservations", "Maximum number of reservations.", reservations.max as f64),
            Metric::counter(
                "divvy_reservations_refused_total",
                "Reservations and commits refused because there were as many reservations as there may be.",
                reservations.refused(),
            ),
            Metric::gauge(
                "divvy_idempotency_keys",
                "Idempotency keys that are remembered: one for each counter that was asked under the key.",
                count.answered as f64,
            ),
            Metric::gauge("divvy_max_idempotency_keys", "Maximum number of idempotency keys.", answered.max as f64),
            Metric::counter(
                "divvy_idempotency_keys_refused_total",
                "Requests refused because there were as many idempotency keys as there may be.",
                answered.refused(),
            ),
        ]
    }
}

/// Counts the records of one kind, and refuses those beyond the bound.
#[derive(Debug)]
struct RecordBudget {
    max: u64,
    remembered: AtomicU64,
    refused: AtomicU64,
    /// What those beyond it are told.
    full: &'static str,
}

impl RecordBudget {
    fn new(max: u64, full: &'static str) -> Self {
        Self { max, remembered: AtomicU64::new(0), refused: AtomicU64::new(0), full }
    }

    fn begin(&self) -> Result<(), StoreError> {
        let one_more = |remembered| (remembered < self.max).then_some(remembered + 1);
        self.remembered.fetch_update(Relaxed, Relaxed, one_more).map(drop).map_err(|_| {
            self.refused.fetch_add(1, Relaxed);
            StoreError::new(self.full)
        })
    }

    fn forget(&self, count: u64) {
        if count > 0 {
            self.remembered.fetch_sub(count, Relaxed);
        }
    }

    fn remembered(&self) -> u64 {
        self.remembered.load(Relaxed)
    }

    fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Outcome;
    use crate::algorithm::reservation::Stage;
    use crate::store::testing::at;

    fn until(ends: u64) -> Record {
        let stage = Stage::Open { until: at(ends), ends: at(ends), generation: 0 };
        Record::Reservation(Reservation { credits: 1, ttl_seconds: 1, stage })
    }

    fn answered(seconds: u64) -> Record {
        Record::Answered(Answered::new(7, Outcome::default(), false, at(seconds)))
    }

    fn of(reservations: u64, answered: u64) -> Count {
        Count { reservations, answered }
    }

    #[test]
    fn a_record_goes_when_its_latest_end_has_come() {
        let mut records = Records::default();
        records.set(1, until(10));
        records.set(2, until(20));
        records.set(3, answered(0));
        records.set(1, until(30));
        assert_eq!((records.sweep(at(15)), records.get(&1).is_some()), (of(0, 0), true));
        assert_eq!((records.sweep(at(20)), records.get(&2).is_some()), (of(1, 0), false));
        assert_eq!((records.sweep(at(30)), records.count()), (of(1, 0), of(0, 1)));
        assert_eq!((records.sweep(at(59)), records.sweep(at(60)), records.ends.len()), (of(0, 0), of(0, 1), 0));
    }

    #[test]
    fn what_is_renewed_or_gone_takes_no_memory() {
        let mut records = Records::default();
        for end in 0..10_000 {
            records.set(1, until(end));
            records.set(2 + end, until(end));
            records.remove(&(2 + end));
            assert!(records.ends.len() <= 2 + FEW);
        }
        assert_eq!(
            (records.sweep(at(9_998)), records.sweep(at(9_999)), records.count()),
            (of(0, 0), of(1, 0), of(0, 0))
        );
    }

    /// Otherwise the bound could be reached for as long as the clock was set back.
    #[test]
    fn after_the_clock_was_set_back_no_answer_is_remembered_for_longer_than_a_new_one() {
        let mut records = Records::default();
        records.set(1, answered(10_000));
        records.set(2, until(10_000));
        assert_eq!(records.advance(at(9_995)), of(0, 0));
        assert_eq!(records.advance(at(0)), of(0, 0));
        assert_eq!((records.sweep(at(59)), records.sweep(at(60)), records.count()), (of(0, 0), of(0, 1), of(1, 0)));
    }

    #[test]
    fn there_are_as_many_of_each_kind_as_there_may_be() {
        let budgets = RecordBudgets::new(2, 1);
        let begin = |record: Record| budgets.begin(&record).map_err(|error| error.to_string());
        assert!(begin(until(0)).is_ok() && begin(until(0)).is_ok() && begin(answered(0)).is_ok());
        assert!(begin(until(0)).unwrap_err().contains("--max-reservations"));
        assert!(begin(answered(0)).unwrap_err().contains("--max-idempotency-keys"));
        budgets.forget(of(1, 0));
        assert!(begin(until(0)).is_ok() && begin(answered(0)).is_err());
        assert_eq!(budgets.remembered(), of(2, 1));
    }
}
