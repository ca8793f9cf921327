//! The store's threads: they write back, fsync, commit changes that no hit waits for, and reopen the database after a
//! disk failure. Hits wait only for commits.

use std::sync::Arc;
use std::time::Duration;

use crate::disk::database::Database;
use crate::disk::directory;
use crate::store_core::StoreCore;
use divvy_store::contract::StoreError;
use divvy_store::outage::Outage;

/// Pause between checks whether a write-back is due.
const WRITE_BACK_INTERVAL: Duration = Duration::from_millis(50);
/// Pause between fsyncs of the write-ahead log.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// Time that an acknowledged hit may wait for its commit with [`Durability::Lazy`](divvy_store::Durability::Lazy).
const LAZY_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between checks whether the disk has failed, and whether it takes writes again.
const HEAL_INTERVAL: Duration = Duration::from_millis(200);

impl StoreCore {
    pub fn write_back_loop(&self) {
        let mut outage = Outage::of("write-backs", "counters stay in the journal");
        while !self.stopped_within(WRITE_BACK_INTERVAL) {
            // Another thread logs the failure of a disk, and recovers from it.
            while self.engine.is_well() {
                let written = self.engine.write_back_if_due();
                let is_more = matches!(written, Ok(true));
                outage.note(&written.map(drop));
                if !is_more {
                    break;
                }
            }
        }
    }

    pub fn sync_loop(&self) {
        let engine = &self.engine;
        let mut synced = 0;
        let mut outage = Outage::of("fsyncs", "acknowledged hits are not on stable storage");
        while !self.stopped_within(HOUSEKEEPING_INTERVAL) {
            let done = engine.done();
            if !engine.is_well() || done == synced {
                continue;
            }
            let begun = engine.timings.now();
            let result = engine.sync();
            engine.timings.fsyncs.observe(engine.timings.now().since(begun), 1);
            outage.note(&result);
            if result.is_ok() {
                synced = done;
            }
        }
    }

    pub fn lazy_commit_loop(&self) {
        while !self.stopped_within(LAZY_INTERVAL) {
            self.engine.commit_unless_led();
        }
    }

    pub fn heal_loop(&self) {
        while !self.stopped_within(HEAL_INTERVAL) {
            self.heal();
        }
    }

    /// Reopens a database that has failed, if the disk takes writes, and commits the changes that it lacks.
    pub fn heal(&self) {
        let takes_writes = || directory::probe(&self.path).is_ok();
        let open = || {
            Database::open(&self.path, self.clock, Arc::clone(&self.swept))
                .map_err(|error| StoreError::new(format!("cannot reopen the database: {error}")))
        };
        self.engine.heal(takes_writes, open);
    }

    /// Sleeps for `interval`, or until the store is being closed. Returns whether it is being closed.
    pub fn stopped_within(&self, interval: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stop.wait_for(&mut stopping, interval);
        }
        *stopping
    }
}
