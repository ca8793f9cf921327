//! Failed reads. The log and the metrics report them, and the health check fails for a while.
//!
//! Hits on the counters of a damaged file are answered with errors. All others are answered as before.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_store::contract::StoreError;
use divvy_telemetry::logging::{Escaped, LogThrottle};

/// How long the health check fails after a failed read.
const RECENT_NS: u64 = 10 * NANOS_PER_SECOND;

static UNREADABLE: LogThrottle = LogThrottle::new();
static UNDECODABLE: LogThrottle = LogThrottle::new();

/// Reads that failed.
#[derive(Debug, Default)]
pub struct Damage {
    /// Number of failed reads since the start.
    pub reads: AtomicU64,
    /// Time of the last failed read (nanoseconds since the Unix epoch); 0 before the first.
    last: AtomicU64,
    /// Number of times that a damaged record was read since the start.
    pub records: AtomicU64,
}

impl Damage {
    /// Notes that RocksDB could not read at `now`, because of a damaged block or a failing disk.
    pub fn note_read(&self, error: &StoreError, now: Timestamp) {
        self.reads.fetch_add(1, Relaxed);
        self.last.fetch_max(now.as_nanos(), Relaxed);
        let error = error.to_string();
        UNREADABLE.say(|more| {
            tracing::error!(
                error = %Escaped::error(&error),
                more,
                "cannot read counters: hits on them are answered with an error (check the disk, restore a backup)"
            );
        });
    }

    /// Notes a record that was read and cannot be decoded.
    pub fn note_record(&self, key: &[u8], error: &StoreError) {
        self.records.fetch_add(1, Relaxed);
        UNDECODABLE.say(|more| {
            tracing::error!(key = %Escaped::new(key), %error, more, "a record is damaged: hits on its counter are answered with an error");
        });
    }

    /// Checks whether records could be read recently.
    ///
    /// # Errors
    /// RocksDB could not read a record in the ten seconds before `now`.
    pub fn check(&self, now: Timestamp) -> Result<(), StoreError> {
        let last = self.last.load(Relaxed);
        if last > 0 && now.since(Timestamp::from_nanos(last)) < RECENT_NS {
            return Err(StoreError::new("some counters cannot be read: see the log"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RocksStore;
    use crate::commit::journal;
    use crate::commit::sorted_changes::SortedChanges;
    use crate::disk::Disk;
    use divvy_core::clock::Clock;
    use divvy_store::RocksOptions;
    use divvy_store::contract::Listing;
    use divvy_store::contract::Store;
    use divvy_store::testing::{TAKE, at, outcomes, wait, window};

    #[test]
    fn store_is_unhealthy_for_ten_seconds_after_a_failed_read() {
        let damage = Damage::default();
        assert!(damage.check(at(0)).is_ok());
        damage.note_read(&StoreError::new("block checksum mismatch"), at(5));
        assert_eq!([5, 14, 15].map(|second| damage.check(at(second)).is_ok()), [false, false, true]);
        damage.note_record(b"key", &StoreError::new("of 3 bytes"));
        assert!(damage.check(at(20)).is_ok(), "one record is not the disk");
        assert_eq!((damage.reads.load(Relaxed), damage.records.load(Relaxed)), (1, 1));
    }

    #[test]
    fn listing_skips_only_damaged_records() {
        let dir = tempfile::tempdir().unwrap();
        let store = RocksStore::open(dir.path(), RocksOptions::default()).unwrap();
        let (limit, now) = (window(5, 60), Clock::system().now());
        let outcomes = outcomes(&store, now, &[("rule-a", limit, TAKE), ("rule-c", limit, TAKE)]);
        assert!(outcomes.iter().all(Result::is_ok));
        let mut change = Vec::new();
        journal::stage(&mut change, b"rule-b", |out| out.extend_from_slice(b"bad"));
        store.core.engine.with_disk(|database| database.write_counters(&SortedChanges::new(&change))).unwrap();
        let listing = Listing { prefix: b"rule-".as_slice().into(), limit, cursor: None, count: 10, now };
        let page = wait(store.list(listing)).unwrap();
        let actors: Vec<_> = page.buckets.iter().map(|listed| listed.actor.as_slice()).collect();
        assert_eq!(actors, [b"a", b"c"]);
        assert_eq!(store.core.engine.damage.records.load(Relaxed), 1);
        wait(store.close()).unwrap();
    }
}
