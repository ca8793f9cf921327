//! A filter in front of a table. It knows at once that most of the absent entries are absent.
//!
//! It is a counting Bloom filter with one hash function: Fan, Cao, Almeida and Broder, "Summary Cache", 2000.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// Number of counters. A tenth of them are in use with 100,000 entries, and six tenths with a million.
const COUNTERS: usize = 1 << 20;

/// The filter. From the first entry on, it takes one byte for each of its [`COUNTERS`].
#[derive(Debug, Default)]
pub struct CountingFilter(OnceLock<Box<[AtomicU8]>>);

impl CountingFilter {
    /// Returns whether there may be an entry with this hash.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.counter(hash).is_some_and(|counter| counter.load(Relaxed) > 0)
    }

    /// Adds an entry. Call this before the table has it.
    pub fn add(&self, hash: u64) {
        self.0.get_or_init(|| std::iter::repeat_with(AtomicU8::default).take(COUNTERS).collect());
        if let Some(counter) = self.counter(hash) {
            counter.update(Relaxed, Relaxed, |count| count.saturating_add(1));
        }
    }

    /// Removes an entry, which is no longer to be found.
    pub fn remove(&self, hash: u64) {
        if let Some(counter) = self.counter(hash) {
            // A full counter does not know the number of its entries anymore.
            counter.update(Relaxed, Relaxed, |count| if count == u8::MAX { count } else { count.saturating_sub(1) });
        }
    }

    /// Returns the counter of this hash. `None` if there has never been an entry.
    #[inline]
    fn counter(&self, hash: u64) -> Option<&AtomicU8> {
        self.0.get()?.get(hash as usize % COUNTERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filter_never_denies_an_entry(changes in prop::collection::vec((prop::bool::ANY, 0..4u64, 0..3u64), 0..50)) {
            let (filter, mut entries) = (CountingFilter::default(), Vec::new());
            for (adds, low, high) in changes {
                // Hashes that differ in their high bits share a counter.
                let hash = low + high * COUNTERS as u64;
                if adds {
                    filter.add(hash);
                    entries.push(hash);
                } else if let Some(place) = entries.iter().position(|known| *known == hash) {
                    entries.swap_remove(place);
                    filter.remove(hash);
                }
                for low in 0..4 {
                    let is_there = entries.iter().any(|hash| hash % COUNTERS as u64 == low);
                    prop_assert_eq!(filter.may_contain(low), is_there);
                }
            }
        }
    }

    #[test]
    fn entry_is_found_while_another_of_its_counter_comes_and_goes() {
        let filter = CountingFilter::default();
        let (entry, other) = (7, 7 + COUNTERS as u64);
        filter.add(entry);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        filter.add(other);
                        filter.remove(other);
                    }
                });
            }
            for _ in 0..100_000 {
                assert!(filter.may_contain(entry));
            }
        });
    }

    #[test]
    fn full_counter_stays_full() {
        let filter = CountingFilter::default();
        assert!(!filter.may_contain(7));
        (0..300).for_each(|_| filter.add(7));
        (0..299).for_each(|_| filter.remove(7));
        assert!(filter.may_contain(7));
    }
}
