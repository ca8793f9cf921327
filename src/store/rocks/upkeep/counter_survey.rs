//! Keeping the bounds: a thread that measures the disk, counts the counters when their number is unknown, and forgets
//! those that have expired once there is little room left.
//!
//! The [budget](crate::store::bounds::CounterBudget) counts each counter that is made or forgotten, but not those that a killed process
//! left, and it cannot be sure about the records that compactions drop. So all records are counted, by a look at each,
//! after a kill and whenever the bound is near. Counting, forgetting and giving back the disk's space take a while: they
//! are done so seldom that they take a small part of a processor. Hits never wait for any of it.

use std::time::{Duration, Instant};

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

/// How often the disk is measured: a flood must not write much in between.
const MEASURING_INTERVAL: Duration = Duration::from_millis(100);
/// What a counter without a record will take on disk, about.
const RECORD_BYTES: u64 = 48;
/// Bytes of write-ahead log beside `--max-disk`. RocksDB flushes what keeps more of it than [`MAX_WAL_BYTES`], which takes
/// a moment; beyond this the log counts as the counters do. The documented 192 MiB leave room for what comes until then.
const WAL_ALLOWANCE: u64 = MAX_WAL_BYTES + (64 << 20);
/// The pause after a scan of all counters, as a multiple of the scan's duration.
const PAUSE: u32 = 20;
/// As long as some records are in doubt that decide whether there is room, the pause is shorter.
const PAUSE_IN_DOUBT: u32 = 2;
/// Expired counters are worth a compaction when they are more than one in so many.
const WORTH_COMPACTING: u64 = 4;
/// Expired counters that are forgotten before their records are deleted: it bounds how long a write-back waits.
const SWEPT_AT_ONCE: usize = 16_384;
/// Counters that are looked at before a look at whether the store is being closed.
const LOOKED_AT_AT_ONCE: u64 = 4096;

/// What a look at all counters has found.
#[derive(Debug, Clone, Copy, Default)]
struct Survey {
    records: u64,
    forgotten: u64,
}

impl StoreCore {
    #[expect(clippy::disallowed_methods, reason = "paces a thread of its own")]
    pub fn bound_loop(&self) {
        let mut room_log = RoomLog::default();
        let mut surveys = Outage::of("counting the counters", "expired counters are not reclaimed");
        let mut look_at = Instant::now();
        let mut settled = 0;
        loop {
            self.note_settled(&mut settled);
            if self.wants_survey() && Instant::now() >= look_at {
                let begun = Instant::now();
                surveys.note(&self.sweep(self.clock.now(), settled));
                let pause = if self.is_room_in_doubt() { PAUSE_IN_DOUBT } else { PAUSE };
                look_at = Instant::now() + begun.elapsed() * pause;
            }
            self.engine.sweep_records(self.clock.now());
            room_log.note(&self.engine.budget, self.clock.now());
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
            let unrecorded = u64::try_from(self.engine.table.tally().unrecorded).unwrap_or(0);
            let counters = database.counters_bytes()?.saturating_add(unrecorded.saturating_mul(RECORD_BYTES));
            Ok(is_disk_full(counters, log, self.bounds.max_disk))
        });
        if let Ok(is_full) = measured {
            self.engine.budget.set_disk_is_full(is_full);
        }
    }

    fn wants_survey(&self) -> bool {
        !self.engine.budget.is_counted() || self.engine.budget.is_nearly_full() || self.engine.budget.disk_is_full()
    }

    /// Whether there would be no room if no record in doubt had been a counter's latest.
    fn is_room_in_doubt(&self) -> bool {
        self.engine.budget.at_least() < self.bounds.max_counters
            && self.engine.budget.at_most() >= self.bounds.max_counters
    }

    /// Notes how many dropped records are really gone. A record that a running compaction drops is still there to be
    /// read until the compaction ends.
    fn note_settled(&self, settled: &mut i64) {
        let dropped = self.engine.budget.dropped();
        if self.engine.with_disk(|database| Ok(database.is_compacting())).is_ok_and(|is_compacting| !is_compacting) {
            *settled = dropped;
        }
    }

    /// Counts all counters and forgets those that have expired by `now`. At least `settled` of the records dropped so far
    /// are gone.
    ///
    /// # Errors
    /// When RocksDB cannot read or write; the number of counters is as well known as before then.
    pub fn sweep(&self, now: Timestamp, mut settled: i64) -> Result<(), StoreError> {
        if self.engine.budget.is_nearly_full() || self.engine.budget.disk_is_full() {
            // Forgets those that have expired and have no record yet.
            self.engine.write_back()?;
        }
        self.note_settled(&mut settled);
        let survey = self.survey(now, settled)?;
        let Some(Survey { records, forgotten }) = survey else { return Ok(()) };
        if forgotten > records / WORTH_COMPACTING || self.engine.budget.disk_is_full() {
            self.engine.with_disk(|database| {
                database.compact_counters();
                Ok(())
            })?;
            self.measure();
        }
        Ok(())
    }

    /// Looks at all counters; `None` when the store is being closed, or not all records are known yet.
    ///
    /// The number is exact: while no write-back runs, the table tells how many counters have no record and an iterator
    /// fixes which records are looked at.
    fn survey(&self, now: Timestamp, settled: i64) -> Result<Option<Survey>, StoreError> {
        let engine = &self.engine;
        if let Some(fault) = engine.health.fault() {
            return Err(fault);
        }
        engine.with_disk(|database| {
            let look = || (engine.table.knows_records(), engine.table.tally(), database.records());
            let (is_known, tally, records) = engine.write_back.pause(look);
            if !is_known {
                return Ok(None);
            }
            let mut survey = Survey::default();
            let mut expired = Vec::new();
            for record in records {
                let (key, stored) = record?;
                survey.records += 1;
                // What cannot be read is kept, as by compactions.
                if value::expiry(&stored).is_ok_and(|expires| expires <= now) {
                    expired.push(key);
                }
                if expired.len() == SWEPT_AT_ONCE {
                    survey.forgotten += self.sweep_some(database, &std::mem::take(&mut expired), now)?;
                }
                // A database that has failed waits for this to end before it is opened again.
                let is_over = || *self.stopping.lock() || !engine.health.is_well();
                if survey.records.is_multiple_of(LOOKED_AT_AT_ONCE) && is_over() {
                    return Ok(None);
                }
            }
            survey.forgotten += self.sweep_some(database, &expired, now)?;
            engine.budget.counted(survey.records.saturating_add_signed(tally.unrecorded), tally.begun, settled);
            Ok(Some(survey))
        })
    }

    /// Forgets those of the counters that have expired; returns how many.
    fn sweep_some(&self, database: &Database, keys: &[Box<[u8]>], now: Timestamp) -> Result<u64, StoreError> {
        let engine = &self.engine;
        let expiry = |stored: &[u8]| value::expiry(stored).ok();
        engine.write_back.pause(|| {
            let (mut forgotten, mut changes) = (0, Vec::new());
            for key in keys {
                let load = || Ok(database.counter(key, expiry)?.flatten());
                if engine.sweep(key, now, load)? {
                    forgotten += 1;
                    journal::stage(&mut changes, key, |_| ());
                }
            }
            let sorted = SortedChanges::new(&changes);
            let deleted = if sorted.is_empty() { Ok(()) } else { database.write_counters(&sorted) };
            deleted.inspect_err(|error| engine.health.broke(error)).map(|()| forgotten)
        })
    }
}

/// Whether the disk's bound is reached, by the bytes that the counters take in files, or will take, and by those of the
/// write-ahead log.
fn is_disk_full(counters: u64, log: u64, max_disk: u64) -> bool {
    counters.saturating_add(log.saturating_sub(WAL_ALLOWANCE)) >= max_disk
}

#[cfg(test)]
mod tests;
