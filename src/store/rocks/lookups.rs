//! Look-ups: records of a batch's counters that are not in the table, read before their stripes are locked.
//!
//! What RocksDB has in memory may be read at once; for the rest, one read takes place on a thread that may block. A
//! record does not change while its counter is not in the table. So what was read counts if the counter is absent before
//! and after, and no counter has left meanwhile that this one is counted with; else it is read again. Look-ups change
//! nothing: callers may leave at any time.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::disk::{Disk, Reach};
use super::engine::Engine;
use super::sync::atomic::{AtomicU32, Ordering::Relaxed};
use super::sync::run_blocking;
use super::table::{Record, Table};
use crate::algorithm::Limit;
use crate::clock::Timestamp;
use crate::store::contract::Entry;
use crate::store::error::StoreError;
use crate::store::record_key;

/// So often the records of a batch are read in advance. What has changed again by then is read under its stripe's lock.
const ROUNDS: u32 = 3;
/// In one of so many batches RocksDB is asked for what it has in memory, or in all if that is so many percent.
const TRIED_EVERY: u32 = 32;
const WORTH_PERCENT: u32 = 75;
/// So many records are read at once: their blocks are in memory until all are read.
const READ_AT_ONCE: usize = 128;
/// Threads that read at the same time. Each takes up to a megabyte.
const READERS: usize = 8;

/// Whether to ask RocksDB first for what it has in memory. What it has not, it looks for twice then.
#[derive(Debug, Default)]
pub struct InMemory {
    /// The share of records that it had lately, in percent.
    share: AtomicU32,
    batches: AtomicU32,
}

impl InMemory {
    fn is_worth_a_try(&self) -> bool {
        // Now and then, to see whether that has changed.
        let is_due = self.batches.fetch_add(1, Relaxed).is_multiple_of(TRIED_EVERY);
        is_due || self.share.load(Relaxed) >= WORTH_PERCENT
    }

    fn note(&self, found: usize, asked: usize) {
        let percent = u32::try_from(found * 100 / asked.max(1)).unwrap_or(100);
        let share = self.share.load(Relaxed);
        self.share.store((share * 7 + percent).div_ceil(8), Relaxed);
    }
}

/// Those who may read from the disk at this time.
#[derive(Debug)]
pub struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READERS)))
    }
}

/// What was looked up for a batch.
#[derive(Default)]
pub struct Lookups {
    /// In the order of the batch's entries.
    lookups: Vec<Lookup>,
    keys: Vec<u8>,
    rounds: u32,
}

/// A counter to be looked up.
struct Lookup {
    /// The entry's, in its batch.
    index: usize,
    key: Range<usize>,
    limit: Limit,
    /// The number of departures before the record was read.
    departures: u32,
    record: Option<Result<Record, StoreError>>,
}

impl Lookups {
    /// Nothing is looked up in advance: records are read under their stripes' locks.
    pub fn over() -> Self {
        Self { rounds: ROUNDS, ..Self::default() }
    }

    /// The record that was read for this entry, if it still counts now that there have been so many departures.
    pub fn take(&mut self, index: usize, departures: u32) -> Option<Result<Record, StoreError>> {
        let place = self.lookups.binary_search_by_key(&index, |lookup| lookup.index).ok()?;
        self.lookups.get_mut(place).filter(|lookup| lookup.departures == departures)?.record.take()
    }

    /// Whether records may be read in advance once more.
    pub fn may_go_on(&self) -> bool {
        self.rounds < ROUNDS
    }

    /// Replaces the look-ups by those that `entries` need. What was read and still counts is kept.
    fn begin<'a>(&mut self, table: &Table, entries: impl Iterator<Item = (usize, &'a [u8], &'a Entry)>) {
        self.rounds += 1;
        self.keys.clear();
        let mut known = std::mem::take(&mut self.lookups).into_iter().peekable();
        for (index, key, entry) in entries {
            let key = record_key::bucket(key);
            let Some(departures) = table.departures_if_absent(key) else { continue };
            while known.next_if(|known| known.index < index).is_some() {}
            let known = known.next_if(|known| known.index == index && known.departures == departures);
            let start = self.keys.len();
            self.keys.extend_from_slice(key);
            self.lookups.push(Lookup {
                index,
                key: start..self.keys.len(),
                limit: entry.limit,
                departures,
                record: known.and_then(|known| known.record),
            });
        }
    }

    fn unread(&self) -> usize {
        self.lookups.iter().filter(|lookup| lookup.record.is_none()).count()
    }
}

impl<D: Disk> Engine<D> {
    /// Looks up the counters of `entries` that are not in the table: of each the index, the key, and itself.
    pub async fn look_up<'a>(
        self: &Arc<Self>,
        lookups: &mut Lookups,
        entries: impl Iterator<Item = (usize, &'a [u8], &'a Entry)>,
        now: Timestamp,
    ) {
        lookups.begin(&self.table, entries);
        let wanted = lookups.unread();
        if wanted > 0 && self.in_memory.is_worth_a_try() {
            self.read(lookups, Reach::Memory, now);
            self.in_memory.note(wanted - lookups.unread(), wanted);
        }
        if lookups.unread() > 0 {
            let turn = Arc::clone(&self.readers.0).acquire_owned().await;
            let (engine, mut unread) = (Arc::clone(self), std::mem::take(lookups));
            let read = run_blocking(move || {
                // Over when the read is, whether or not the caller has left.
                let _turn = turn;
                engine.read(&mut unread, Reach::Disk, now);
                unread
            });
            // The runtime is shutting down: there is no other thread.
            *lookups = read.await.unwrap_or_else(Lookups::over);
        }
    }

    /// Reads what is not read yet.
    fn read(&self, Lookups { lookups, keys, .. }: &mut Lookups, reach: Reach, now: Timestamp) {
        let mut unread: Vec<_> = lookups.iter_mut().filter(|lookup| lookup.record.is_none()).collect();
        for unread in unread.chunks_mut(READ_AT_ONCE) {
            let wanted: Vec<_> = unread.iter().map(|lookup| keys.get(lookup.key.clone()).unwrap_or_default()).collect();
            let read = self.with_disk(|disk| {
                disk.counters(&wanted, reach, &mut |place, stored| {
                    if let (Some(lookup), Some(key)) = (unread.get_mut(place), wanted.get(place)) {
                        lookup.record = Some(self.decoded(key, &lookup.limit, stored, now));
                    }
                });
                Ok(())
            });
            if let Err(error) = read {
                unread.iter_mut().for_each(|lookup| lookup.record = Some(Err(error.clone())));
            }
        }
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::contract::Store;
    use crate::store::testing::{TAKE, outcomes, wait, window};
    use crate::store::{RocksOptions, RocksStore};

    #[test]
    fn memory_is_asked_first_as_long_as_it_has_most_records() {
        let in_memory = InMemory::default();
        assert!(in_memory.is_worth_a_try() && !in_memory.is_worth_a_try());
        (0..20).for_each(|_| in_memory.note(30, 30));
        assert!(in_memory.is_worth_a_try() && in_memory.is_worth_a_try());
        (0..20).for_each(|_| in_memory.note(10, 30));
        assert!(!in_memory.is_worth_a_try());
        assert_eq!((0..TRIED_EVERY).filter(|_| in_memory.is_worth_a_try()).count(), 1);
    }

    #[test]
    fn counters_that_no_memory_has_are_read_from_the_disk() {
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
            // All files are new: no block of them is in memory. Then other counters push these out.
            store.shared.engine.write_back().unwrap();
            let others: Vec<_> = (0..4_000).map(|other| format!("other {left} {other}")).collect();
            let others: Vec<_> = others.iter().map(|key| (key.as_str(), limit, TAKE)).collect();
            assert!(outcomes(&store, now, &others).iter().all(Result::is_ok));
        }
        assert!(store.shared.engine.table.usage().misses > 2_000);
        assert_eq!(store.shared.engine.damage.records(), 0);
        wait(store.close()).unwrap();
    }
}
