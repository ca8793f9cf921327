//! Flags for the memory and the journal of the embedded store.

use crate::store::{DEFAULT_CACHE_MEMORY, DEFAULT_MAX_JOURNAL};
use crate::units::{self, Bytes};

/// Range of the memory for counters. The maximum is more than any machine has.
const CACHE_MEMORY: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Range of the journal's size. The journal has sixteen segments, and each becomes a file of counters.
const MAX_JOURNAL: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;
/// Memory per counter, as the deprecated flag `--hot-counters` assumed it.
const BYTES_PER_COUNTER: u64 = 100;
/// Upper bound of `--hot-counters`.
const MAX_HOT_COUNTERS: u64 = 1_000_000_000;

#[derive(Debug, clap::Args)]
pub struct CacheArgs {
    /// rocksdb: memory for counters, and for writing them back. A fixed window takes about 32 bytes of it, other counters
    /// about 110 [default: 320Mi]
    #[arg(long, env = "DIVVY_CACHE_MEMORY", value_name = "BYTES", value_parser = units::bytes(CACHE_MEMORY))]
    cache_memory: Option<Bytes>,
    /// rocksdb: bytes of changes that are kept before their counters are written to their own records. A longer journal
    /// saves CPU time if the same counters change often. A start after a crash reads all of it [default: 256Mi]
    #[arg(long, env = "DIVVY_MAX_JOURNAL", value_name = "BYTES", value_parser = units::bytes(MAX_JOURNAL))]
    max_journal: Option<Bytes>,
    /// Deprecated: use --cache-memory. N counters stand for the memory that they took when this flag was added
    #[arg(long, env = "DIVVY_HOT_COUNTERS", value_name = "N", hide = true, conflicts_with = "cache_memory",
          value_parser = units::count::<u64>(1..=MAX_HOT_COUNTERS))]
    hot_counters: Option<u64>,
}

impl CacheArgs {
    /// Returns the memory for counters in bytes.
    pub fn cache_memory(&self) -> usize {
        let deprecated = || self.hot_counters.map(|counters| counters * BYTES_PER_COUNTER);
        let chosen = self.cache_memory.map(|Bytes(bytes)| bytes).or_else(deprecated);
        chosen.map_or(DEFAULT_CACHE_MEMORY, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Returns the size of the journal in bytes.
    pub fn max_journal(&self) -> u64 {
        self.max_journal.map_or(DEFAULT_MAX_JOURNAL, |Bytes(bytes)| bytes)
    }

    /// Returns the flags, and whether each was given.
    pub fn given_flags(&self) -> [(&'static str, bool); 3] {
        [
            ("--cache-memory", self.cache_memory.is_some()),
            ("--max-journal", self.max_journal.is_some()),
            ("--hot-counters", self.hot_counters.is_some()),
        ]
    }
}
