//! Enforcing the bounds: a thread that measures the disk, counts the counters while their number is unknown, and
//! forgets expired ones when there is little room left.
//!
//! The [budget](crate::store::bounds::CounterBudget) counts each counter that is made or forgotten. It does not
//! know the counters that a killed process left, and it cannot be sure about records that compactions drop. So all
//! records are counted after a kill, and whenever the bound is near. Counting, forgetting and giving disk space back
//! take time, and are done so rarely that they use a small part of a processor. Hits never wait for any of it.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rocksdb::properties;

use super::housekeeping::HOUSEKEEPING_INTERVAL;
use crate::clock::Timestamp;
use crate::store::bounds::RoomLog;
use crate::store::contract::StoreError;
use crate::store::outage::Outage;
use crate::store::rocks::commit::journal;
use crate::store::rocks::commit::sorted_changes::SortedChanges;
use crate::store::rocks::disk::Disk;
use crate::store::rocks::disk::database::Database;
use crate::store::rocks::disk::tuning::MAX_WAL_BYTES;
use crate::store::rocks::store_core::StoreCore;
use crate::store::value;

/// Pause between measurements of the disk. A flood must not write much in between.
const MEASURING_INTERVAL: Duration = Duration::from_millis(100);
/// Approximate bytes on disk of a counter that has no record yet.
const RECORD_BYTES: u64 = 48;
/// Bytes of write-ahead log in addition to `--max-disk`. RocksDB flushes old data beyond [`MAX_WAL_BYTES`], which takes
/// a moment. Beyond this allowance, the log counts like counters. The documented 192 MiB leave room for later writes.
const WAL_ALLOWANCE: u64 = MAX_WAL_BYTES + (64 << 20);
/// The pause after a scan of all counters, as a multiple of the scan's duration.
const PAUSE: u32 = 20;
/// The shorter pause while records in doubt decide whether there is room.
const PAUSE_IN_DOUBT: u32 = 2;
/// Expired counters are worth a compaction when they are more than one in this many.
const WORTH_COMPACTING: u64 = 4;
/// Expired counters that are forgotten before their records are deleted. Bounds the time that a write-back waits.
const SWEPT_AT_ONCE: usize = 16_384;
/// Records between two checks whether the store is being closed.
const CHECK_INTERVAL: u64 = 4096;

impl StoreCore {
    #[expect(clippy::disallowed_methods, reason = "paces a thread of its own")]
    pub fn bound_loop(&self) {
        let counters = &self.engine.admission.counters;
        let mut room_log = RoomLog::default();
        let mut surveys = Outage::of("counting the counters", "expired counters are not reclaimed");
        let mut next_survey = Instant::now();
        let mut settled = 0;
        loop {
            self.note_settled(&mut settled);
            if (!counters.is_counted() || self.is_room_short()) && Instant::now() >= next_survey {
                let begun = Instant::now();
                surveys.note(&self.sweep(self.clock.now(), settled));
                // Without the records in doubt there is room, and with them the store is full.
                let max = self.bounds.max_counters;
                let is_in_doubt = counters.at_least() < max && counters.at_most() >= max;
                next_survey = Instant::now() + begun.elapsed() * if is_in_doubt { PAUSE_IN_DOUBT } else { PAUSE };
            }
            self.engine.sweep_records(self.clock.now());
            room_log.note(counters, self.clock.now());
            let next = Instant::now() + HOUSEKEEPING_INTERVAL;
            while Instant::now() < next {
                self.measure();
                if self.stopped_within(MEASURING_INTERVAL) {
                    return;
                }
            }
        }
    }

    fn measure(&self) {
        let measured = self.engine.with_disk(|database| {
            let log = database.wal_bytes().map_err(|error| StoreError::new(error.to_string()))?;
            let unrecorded = u64::try_from(self.engine.table.usage().unrecorded).unwrap_or(0);
            let counters = database.counters_number(properties::LIVE_SST_FILES_SIZE)?;
            Ok(is_disk_full(
                counters.saturating_add(unrecorded.saturating_mul(RECORD_BYTES)),
                log,
                self.bounds.max_disk,
            ))
        });
        if let Ok(is_full) = measured {
            self.engine.admission.counters.disk_is_full.store(is_full, Relaxed);
        }
    }

    /// Whether a bound is near or reached.
    fn is_room_short(&self) -> bool {
        let counters = &self.engine.admission.counters;
        counters.is_nearly_full() || counters.disk_is_full.load(Relaxed)
    }

    /// Notes the number of dropped records that are really gone. A record that a running compaction drops can be read
    /// until the compaction ends.
    fn note_settled(&self, settled: &mut i64) {
        let dropped = self.engine.admission.counters.dropped();
        if self.engine.with_disk(|database| Ok(database.is_compacting())).is_ok_and(|is_compacting| !is_compacting) {
            *settled = dropped;
        }
    }

    /// Counts all counters and forgets those that have expired by `now`. At least `settled` of the records dropped so
    /// far are gone.
    ///
    /// # Errors
    /// Fails if RocksDB cannot read or write. The number of counters is then as well known as before.
    pub fn sweep(&self, now: Timestamp, mut settled: i64) -> Result<(), StoreError> {
        if self.is_room_short() {
            // Forgets expired counters that have no record yet.
            self.engine.write_back()?;
        }
        self.note_settled(&mut settled);
        let Some((records, forgotten)) = self.survey(now, settled)? else { return Ok(()) };
        if forgotten > records / WORTH_COMPACTING || self.engine.admission.counters.disk_is_full.load(Relaxed) {
            self.engine.with_disk(|database| {
                database.compact_counters();
                Ok(())
            })?;
            self.measure();
        }
        Ok(())
    }

    /// Scans all counters. Returns the number of records, and of counters that were forgotten; `None` if the store is
    /// being closed, or if the table does not know all records yet.
    ///
    /// The number is exact. While there is no write-back, the table knows the number of counters without a record, and
    /// an iterator fixes the records to scan.
    fn survey(&self, now: Timestamp, settled: i64) -> Result<Option<(u64, u64)>, StoreError> {
        let engine = &self.engine;
        if let Some(fault) = engine.admission.health.fault() {
            return Err(fault);
        }
        engine.with_disk(|database| {
            let start = || (engine.table.knows_records(), engine.table.usage(), database.records());
            let (is_known, usage, records) = engine.without_write_backs(start);
            if !is_known {
                return Ok(None);
            }
            let (mut scanned, mut forgotten) = (0u64, 0);
            let mut expired = Vec::new();
            for record in records {
                let (key, stored) = record?;
                scanned += 1;
                // Records that cannot be read are kept, as in compactions.
                if value::expiry(&stored).is_ok_and(|expires| expires <= now) {
                    expired.push(key);
                }
                if expired.len() == SWEPT_AT_ONCE {
                    forgotten += self.forget_expired(database, &std::mem::take(&mut expired), now)?;
                }
                // A database that has failed is not reopened before this ends.
                let is_over = || *self.stopping.lock() || !engine.is_well();
                if scanned.is_multiple_of(CHECK_INTERVAL) && is_over() {
                    return Ok(None);
                }
            }
            forgotten += self.forget_expired(database, &expired, now)?;
            let counters = scanned.saturating_add_signed(usage.unrecorded);
            engine.admission.counters.counted(counters, usage.begun, settled);
            Ok(Some((scanned, forgotten)))
        })
    }

    /// Forgets the expired ones of these counters, and returns their number.
    fn forget_expired(&self, database: &Database, keys: &[Box<[u8]>], now: Timestamp) -> Result<u64, StoreError> {
        let engine = &self.engine;
        let expiry = |stored: &[u8]| value::expiry(stored).ok();
        engine.without_write_backs(|| {
            let (mut forgotten, mut changes) = (0, Vec::new());
            for key in keys {
                let load = || Ok(database.counter(key, expiry)?.flatten());
                if engine.table.sweep(key, now, &engine.admission, load)? {
                    forgotten += 1;
                    journal::stage(&mut changes, key, |_| ());
                }
            }
            if forgotten > 0 {
                let deleted = database.write_counters(&SortedChanges::new(&changes));
                deleted.inspect_err(|error| engine.admission.health.broke(error))?;
            }
            Ok(forgotten)
        })
    }
}

/// Whether the disk's bound is reached by the bytes of counters in files, of counters to be written, and of the
/// write-ahead log.
fn is_disk_full(counters: u64, log: u64, max_disk: u64) -> bool {
    counters.saturating_add(log.saturating_sub(WAL_ALLOWANCE)) >= max_disk
}

#[cfg(test)]
mod tests;
