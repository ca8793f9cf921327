//! Look-ups of records for a batch: which records are needed, and whether they are still current when they are used.
//!
//! A record does not change while its counter is not in the table. So a record is current if its counter was absent
//! before the read and is absent now, and if no counter of its eviction group has left the table in between.

use std::ops::Range;

use super::{CounterRecord, Table};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use divvy_core::algorithm::Limit;
use divvy_store::{Entry, StoreError, record_key};

/// Maximum number of times that a batch's records are read in advance. After that, records that are outdated are read
/// under their stripes' locks.
const ROUNDS: u32 = 3;
/// RocksDB is asked for the records that are in its memory in one of `TRIED_EVERY` batches, and in every batch while at
/// least `WORTH_PERCENT` of them are.
const TRIED_EVERY: u32 = 32;
const WORTH_PERCENT: u32 = 75;

/// Decides whether to ask RocksDB first only for records in its memory. If it does, RocksDB searches twice for the
/// records that are not.
#[derive(Debug, Default)]
pub struct CacheYield {
    /// Recent share of the records that were in memory (percent).
    percent: AtomicU32,
    batches: AtomicU32,
}

impl CacheYield {
    pub fn is_worth_a_try(&self) -> bool {
        // An occasional attempt detects a change.
        let is_due = self.batches.fetch_add(1, Relaxed).is_multiple_of(TRIED_EVERY);
        is_due || self.percent.load(Relaxed) >= WORTH_PERCENT
    }

    pub fn note(&self, found: usize, wanted: usize) {
        let percent = u32::try_from(found * 100 / wanted.max(1)).unwrap_or(100);
        let before = self.percent.load(Relaxed);
        self.percent.store((before * 7 + percent).div_ceil(8), Relaxed);
    }
}

/// The look-ups of one batch.
#[derive(Default)]
pub struct Lookups {
    /// The look-ups, in the order of the batch's entries.
    pub lookups: Vec<Lookup>,
    pub keys: Vec<u8>,
    rounds: u32,
}

/// A counter to look up.
pub struct Lookup {
    /// The entry's index in its batch.
    index: usize,
    pub key: Range<usize>,
    pub limit: Limit,
    /// The number of evictions before the record was read.
    evictions: u32,
    pub record: Option<Result<CounterRecord, StoreError>>,
}

impl Lookups {
    /// Returns look-ups that have used up their rounds, so that records are read under their stripes' locks.
    pub fn exhausted() -> Self {
        Self { rounds: ROUNDS, ..Self::default() }
    }

    /// Takes the record that was read for this entry, if it is still current after this number of evictions.
    pub fn take(&mut self, index: usize, evictions: u32) -> Option<Result<CounterRecord, StoreError>> {
        let position = self.lookups.binary_search_by_key(&index, |lookup| lookup.index).ok()?;
        self.lookups.get_mut(position).filter(|lookup| lookup.evictions == evictions)?.record.take()
    }

    /// Returns whether records may be read in advance once more.
    pub fn may_go_on(&self) -> bool {
        self.rounds < ROUNDS
    }

    /// Replaces the look-ups with those that `entries` need, and keeps records that are still current.
    pub fn begin<'a>(&mut self, table: &Table, entries: impl Iterator<Item = (usize, &'a [u8], &'a Entry)>) {
        self.rounds += 1;
        self.keys.clear();
        let mut earlier = std::mem::take(&mut self.lookups).into_iter().peekable();
        for (index, key, entry) in entries {
            let key = record_key::bucket(key);
            let Some(evictions) = table.evictions_if_absent(key) else { continue };
            while earlier.next_if(|earlier| earlier.index < index).is_some() {}
            let current = earlier.next_if(|earlier| earlier.index == index && earlier.evictions == evictions);
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            self.lookups.push(Lookup {
                index,
                key: start..self.keys.len(),
                limit: entry.limit,
                evictions,
                record: current.and_then(|lookup| lookup.record),
            });
        }
    }

    /// Returns the number of records that have not been read yet.
    pub fn unread(&self) -> usize {
        self.lookups.iter().filter(|lookup| lookup.record.is_none()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RocksStore;
    use divvy_core::clock::Clock;
    use divvy_store::testing::{TAKE, outcomes, wait, window};
    use divvy_store::{RocksOptions, Store};

    #[test]
    fn memory_is_searched_first_while_it_has_most_records() {
        let cache = CacheYield::default();
        assert!(cache.is_worth_a_try() && !cache.is_worth_a_try());
        (0..20).for_each(|_| cache.note(30, 30));
        assert!(cache.is_worth_a_try() && cache.is_worth_a_try());
        (0..20).for_each(|_| cache.note(10, 30));
        assert!(!cache.is_worth_a_try());
        assert_eq!((0..TRIED_EVERY).filter(|_| cache.is_worth_a_try()).count(), 1);
    }

    #[test]
    fn counters_missing_from_memory_are_read_from_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        // The table keeps only what is not written back.
        let options = RocksOptions { cache_memory: 0, ..RocksOptions::default() };
        let store = RocksStore::open(dir.path(), options).unwrap();
        let (limit, now) = (window(100, 600), Clock::system().now());
        let keys: Vec<_> = (0..2_000).map(|actor| format!("actor {actor}")).collect();
        let hits: Vec<_> = keys.iter().map(|key| (key.as_str(), limit, TAKE)).collect();
        for left in [99, 98, 97] {
            let lefts: Vec<_> = outcomes(&store, now, &hits).into_iter().map(|outcome| outcome.unwrap().left).collect();
            assert!(lefts.iter().all(|of_one| *of_one == left), "{left}: {lefts:?}");
            // All files are new, so none of their blocks is in memory. Then other counters evict these.
            store.core.engine.write_back().unwrap();
            let others: Vec<_> = (0..4_000).map(|other| format!("other {left} {other}")).collect();
            let others: Vec<_> = others.iter().map(|key| (key.as_str(), limit, TAKE)).collect();
            assert!(outcomes(&store, now, &others).iter().all(Result::is_ok));
        }
        assert!(store.core.engine.table.usage().misses > 2_000);
        assert_eq!(store.core.engine.damage.records.load(Relaxed), 0);
        wait(store.close()).unwrap();
    }
}
