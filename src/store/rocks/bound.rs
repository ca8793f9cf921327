//! Seeing to the bounds: a thread that measures the disk, and that looks, when there is no room left, for what has
//! expired.
//!
//! [`Room`](super::Room) counts the counters that are begun, but cannot know which of them have expired since. So when
//! it is used up, all of them are counted. That, and the compaction that gives back the space of many expired ones,
//! takes a while: both are done so seldom that they take a small part of a processor. Hits never wait for any of it.

use std::time::Instant;

use super::Shared;
use super::database::Database;
use super::housekeeping::HOUSEKEEPING_INTERVAL;
use crate::store::outage::Outage;
use crate::store::{StoreError, value};

/// How many times as long as it took to look for room nobody looks again.
const PAUSE: u32 = 20;
/// Expired counters are worth a compaction when they are more than one in so many.
const WORTH_COMPACTING: u64 = 4;

/// What a look at all counters has found.
struct Survey {
    records: u64,
    live: u64,
}

impl Shared {
    pub(super) fn bound_loop(&self) {
        let mut outage = Outage::of(
            "room for counters",
            "new ones are answered as --when-full says (raise --max-counters or --max-disk)",
        );
        let mut look_at = Instant::now();
        while !self.stopped_within(HOUSEKEEPING_INTERVAL) {
            self.measure();
            if self.engine.room.is_full() && Instant::now() >= look_at {
                let begun = Instant::now();
                if let Err(error) = self.make_room() {
                    tracing::warn!(%error, "cannot look for expired counters");
                }
                look_at = Instant::now() + begun.elapsed() * PAUSE;
            }
            outage.note(&self.engine.room.state());
        }
    }

    fn measure(&self) {
        if let Ok(bytes) = self.engine.with_disk(Database::counters_bytes) {
            self.engine.room.set_disk_is_full(bytes >= self.bounds.max_disk);
        }
    }

    fn make_room(&self) -> Result<(), StoreError> {
        let supposed = self.engine.room.taken();
        // What was begun a moment ago has no record yet, and would not be counted.
        self.engine.write_back()?;
        let Some(Survey { records, live }) = self.survey()? else { return Ok(()) };
        self.engine.room.counted(supposed, live);
        if records - live > records / WORTH_COMPACTING || self.engine.room.disk_is_full() {
            self.engine.with_disk(|database| {
                database.compact_counters();
                Ok(())
            })?;
            self.measure();
        }
        Ok(())
    }

    /// Counts the counters; `None` when the store is being closed.
    fn survey(&self) -> Result<Option<Survey>, StoreError> {
        let now = self.clock.now();
        let mut survey = Survey { records: 0, live: 0 };
        let mut is_stopping = false;
        self.engine.with_disk(|database| {
            database.each_counter(&[], None, |_, stored| {
                survey.records += 1;
                // What cannot be read is never reclaimed either.
                survey.live += u64::from(value::expiry(stored).map_or(true, |expires| now < expires));
                // A database that failed waits to be closed.
                is_stopping =
                    survey.records.is_multiple_of(1024) && (*self.stopping.lock() || !self.engine.health.is_well());
                Ok(!is_stopping)
            })
        })?;
        Ok((!is_stopping).then_some(survey))
    }
}
