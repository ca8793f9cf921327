//! The store's threads: they write back, fsync, commit where no hit does, and open the database again after the disk
//! failed. Hits wait for none of them but the commits.

use std::sync::Arc;
use std::time::Duration;

use crate::store::contract::StoreError;
use crate::store::outage::Outage;
use crate::store::rocks::disk::database::Database;
use crate::store::rocks::disk::directory;
use crate::store::rocks::store_core::StoreCore;

/// How often to look whether the journal has become long.
const WRITE_BACK_INTERVAL: Duration = Duration::from_millis(50);
/// How often the write-ahead log is fsynced.
pub const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// How long an acknowledged hit may wait for its commit with [`Durability::Lazy`](crate::store::Durability::Lazy).
const LAZY_INTERVAL: Duration = Duration::from_millis(100);
/// How often to look whether the disk has failed, and whether it takes writes again.
const HEAL_INTERVAL: Duration = Duration::from_millis(200);

impl StoreCore {
    pub fn write_back_loop(&self) {
        let mut outage = Outage::of("write-backs", "counters stay in the journal");
        while !self.stopped_within(WRITE_BACK_INTERVAL) {
            // A disk that has failed is logged where it fails, and healed by another thread.
            while self.engine.health.is_well() {
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
            if !engine.health.is_well() || done == synced {
                continue;
            }
            let begun = engine.timings.now();
            let result = engine.sync();
            engine.timings.synced(begun);
            outage.note(&result);
            if result.is_ok() {
                synced = done;
            }
        }
    }

    pub fn lazy_commit_loop(&self) {
        while !self.stopped_within(LAZY_INTERVAL) {
            if let Some(leader) = self.engine.try_lead() {
                self.engine.lead(&leader);
            }
        }
    }

    pub fn heal_loop(&self) {
        while !self.stopped_within(HEAL_INTERVAL) {
            self.heal();
        }
    }

    /// Opens a database again that has failed, if the disk takes writes, and writes what it lacks.
    pub fn heal(&self) {
        let takes_writes = || directory::probe(&self.path).is_ok();
        let open = || {
            Database::open(&self.path, self.clock, Arc::clone(&self.swept))
                .map_err(|error| StoreError::new(format!("cannot reopen the database: {error}")))
        };
        self.engine.heal(takes_writes, open);
    }

    /// Sleeps for `interval`, or until the store is being closed: true then.
    pub fn stopped_within(&self, interval: Duration) -> bool {
        let mut stopping = self.stopping.lock();
        if !*stopping {
            self.stop.wait_for(&mut stopping, interval);
        }
        *stopping
    }
}
