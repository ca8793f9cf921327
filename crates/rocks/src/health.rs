//! The condition of the database: whether it takes writes and can be read, and how long its commits and fsyncs take.
//!
//! A failed write to the log is final for an open RocksDB database: data that it had not synced may be lost, and it
//! takes no more writes. The engine then refuses changes, and a thread reopens the database.
//!
//! The log and the metrics report failed reads, and the health check fails for a while. Hits on the counters of a damaged
//! file are answered with errors. All others are answered as before.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::sync::Mutex;
use super::sync::atomic::AtomicU8;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_store::StoreError;
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::Histogram;

/// How long the health check fails after a failed read.
const RECENT_NS: u64 = 10 * NANOS_PER_SECOND;
static UNREADABLE: LogThrottle = LogThrottle::new();
static UNDECODABLE: LogThrottle = LogThrottle::new();
/// Upper bounds in microseconds, from a write to the page cache to a disk that is far behind.
const MICROS: [u64; 12] = [5, 10, 25, 50, 100, 500, 1_000, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// The operations that the database supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    /// Reads and writes.
    Well = 0,
    /// Reads at most. The database must be reopened.
    Broken = 1,
    /// Reads. The next commit first writes everything that the disk may lack.
    Reopened = 2,
}

/// The condition of the database, and the failure that caused it.
#[derive(Default)]
pub struct Health {
    /// The current [`Condition`], at first [`Condition::Well`].
    condition: AtomicU8,
    fault: Mutex<Option<StoreError>>,
}

impl Health {
    pub fn condition(&self) -> Condition {
        match self.condition.load(Acquire) {
            0 => Condition::Well,
            1 => Condition::Broken,
            _ => Condition::Reopened,
        }
    }

    pub fn is_well(&self) -> bool {
        self.condition() == Condition::Well
    }

    /// Returns the failure that makes writes fail; `None` while the database is well.
    #[inline]
    pub fn fault(&self) -> Option<StoreError> {
        if self.is_well() { None } else { Some(self.last_fault()) }
    }

    /// Returns the latest failure.
    #[cold]
    pub fn last_fault(&self) -> StoreError {
        let unknown = || StoreError::new("the disk failed; the database is being reopened");
        self.fault.lock().clone().unwrap_or_else(unknown)
    }

    /// Records that a write or an fsync failed.
    pub fn broke(&self, error: &StoreError) {
        *self.fault.lock() = Some(error.clone());
        self.condition.store(Condition::Broken as u8, Release);
    }

    /// Records that the database was reopened.
    pub fn reopened(&self) {
        self.condition.store(Condition::Reopened as u8, Release);
    }

    /// Records that everything is on the disk again, unless there was a failure since [`Health::reopened`].
    pub fn caught_up(&self) {
        let (reopened, well) = (Condition::Reopened as u8, Condition::Well as u8);
        if self.condition.compare_exchange(reopened, well, AcqRel, Acquire).is_ok() {
            *self.fault.lock() = None;
        }
    }
}

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
        let is_recent = last > 0 && now.since(Timestamp::from_nanos(last)) < RECENT_NS;
        if is_recent { Err(StoreError::new("some counters cannot be read: see the log")) } else { Ok(()) }
    }
}

/// Creates a histogram for the durations of commits or fsyncs.
pub fn durations() -> Histogram {
    Histogram::new(NANOS_PER_SECOND, &MICROS.map(|micros| micros * 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RocksStore;
    use crate::disk::Disk;
    use crate::journal::{self, SortedChanges};
    use divvy_core::clock::Clock;
    use divvy_store::testing::{TAKE, at, outcomes, wait, window};
    use divvy_store::{Listing, RocksOptions, Store};

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
