//! The compaction filter, which reclaims the space of expired counters. It keeps and counts the values that it cannot read. It never
//! panics, because a panic there would end the process.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rocksdb::CompactionDecision;
use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};

use divvy_core::clock::{Clock, Timestamp};
use divvy_store::{record_key, value};

const NAME: &CStr = c"divvy.expired";

/// Counts of the records that compactions have processed since the store was opened.
#[derive(Debug, Default)]
pub struct Swept {
    /// Expired counters that were dropped.
    pub expired: AtomicU64,
    /// Values that could not be read, and were kept.
    pub unreadable: AtomicU64,
}

/// Creates a filter for each compaction, which reads the clock once.
pub struct ExpiryFilterFactory {
    pub clock: Clock,
    pub swept: Arc<Swept>,
}

impl CompactionFilterFactory for ExpiryFilterFactory {
    type Filter = ExpiryFilter;

    fn create(&mut self, _context: CompactionFilterContext) -> Self::Filter {
        ExpiryFilter { now: self.clock.now(), swept: Arc::clone(&self.swept) }
    }

    fn name(&self) -> &CStr {
        NAME
    }
}

pub struct ExpiryFilter {
    now: Timestamp,
    swept: Arc<Swept>,
}

impl CompactionFilter for ExpiryFilter {
    fn filter(&mut self, _level: u32, key: &[u8], value: &[u8]) -> CompactionDecision {
        match value::expiry(value) {
            Ok(expires) if expires <= self.now => {
                // Records of reservations and answers are not counters, and neither are exceptions.
                self.swept.expired.fetch_add(u64::from(record_key::is_counter(key)), Relaxed);
                CompactionDecision::Remove
            }
            Ok(_) => CompactionDecision::Keep,
            Err(_) => {
                self.swept.unreadable.fetch_add(1, Relaxed);
                CompactionDecision::Keep
            }
        }
    }

    fn name(&self) -> &CStr {
        NAME
    }
}
