//! Flags for the memory and the journal of the embedded store.

use crate::store::{DEFAULT_CACHE_MEMORY, DEFAULT_MAX_JOURNAL};
use crate::units::{self, Bytes};

/// Range of the memory for counters. The maximum is more than any machine has.
const CACHE_MEMORY: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Range of the journal's size. The journal has sixteen segments, and each becomes a file of counters.
const MAX_JOURNAL: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;

#[derive(Debug, clap::Args)]
pub struct CacheArgs {
    /// rocksdb: memory for counters. A fixed window takes about 32 bytes of it, other counters about 110 [default:
    /// 320Mi]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes(CACHE_MEMORY))]
    cache_memory: Option<Bytes>,
    /// rocksdb: maximum size of the journal of changes. A longer one saves CPU time if the same counters change often.
    /// A start after a crash reads all of it [default: 256Mi]
    #[arg(long, value_name = "BYTES", value_parser = units::bytes(MAX_JOURNAL))]
    max_journal: Option<Bytes>,
}

impl CacheArgs {
    /// Returns the memory for counters in bytes.
    pub fn cache_memory(&self) -> usize {
        self.cache_memory.map_or(DEFAULT_CACHE_MEMORY, |Bytes(bytes)| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Returns the size of the journal in bytes.
    pub fn max_journal(&self) -> u64 {
        self.max_journal.map_or(DEFAULT_MAX_JOURNAL, |Bytes(bytes)| bytes)
    }

    /// Returns the flags, and whether each was given.
    pub fn given_flags(&self) -> [(&'static str, bool); 2] {
        [("--cache-memory", self.cache_memory.is_some()), ("--max-journal", self.max_journal.is_some())]
    }
}
