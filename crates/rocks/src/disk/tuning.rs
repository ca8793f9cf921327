//! RocksDB's options: for the database, its column families and its files, and the compaction filter, which reclaims the space of
//! expired counters.
//!
//! Reads evaluate a bucket's own state, so no outcome depends on a compaction. The filter keeps and counts the values
//! that it cannot read. It never panics, because a panic there would end the process.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, CompactionDecision, DBCompactionStyle, DBCompressionType,
    DBRecoveryMode, DataBlockIndexType, LogLevel, Options, UniversalCompactOptions,
};

use super::directory::Content;
use divvy_core::clock::{Clock, Timestamp};
use divvy_store::{record_key, value};

const MIB: usize = 1 << 20;
/// Size of the write-ahead log beyond which RocksDB flushes the data that needs its oldest part (bytes).
pub const MAX_WAL_BYTES: u64 = 64 << 20;
/// Memory for the files, indexes and filters of counters (bytes). The hot counters are in the table.
const BLOCK_CACHE_BYTES: usize = 48 * MIB;
/// A compaction begins a new file at this length. RocksDB builds the index of a file in memory, in two copies. With
/// long keys, each copy is about as long as the file.
const COMPACTED_FILE_BYTES: u64 = 8 * MIB as u64;
/// Length of the blocks of long keys, and of the blocks of their index (bytes). The index has a key for each block.
const LONG_KEY_BLOCK_BYTES: usize = 256 << 10;
/// In a partitioned index, one key in this many is complete. The others omit the prefix that they share with the key
/// before.
const INDEX_RESTART_INTERVAL: i32 = 16;
/// Number of files that start a compaction.
const FILES_TO_COMPACT: i32 = 8;
/// Space that the files may take beyond the newest record of each counter before all are rewritten.
const MAX_SPACE_AMPLIFICATION_PERCENT: i32 = 200;
/// Interval at which even cold counters are compacted (seconds). By default, expired counters would stay for 30 days.
const PERIODIC_COMPACTION_SECONDS: u64 = 24 * 60 * 60;
const NAME: &CStr = c"divvy.expired";

/// Content of a file of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileContent {
    /// The changes of a write-back.
    WriteBack,
    /// The changes of a write-back with long keys. With blocks of the usual size, the index would be about as long as
    /// the keys. It is in memory while the file is written, and while a compaction reads it.
    LongKeys,
    /// The counters of many write-backs.
    Compacted,
}

pub fn database_options(content: Content, recovery: DBRecoveryMode) -> Options {
    let mut options = Options::default();
    options.create_if_missing(content == Content::Nothing);
    options.create_missing_column_families(true);
    options.set_wal_recovery_mode(recovery);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_max_background_jobs(2);
    // Column families that are rarely written must not keep old write-ahead logs alive forever.
    options.set_max_total_wal_size(MAX_WAL_BYTES);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(4 * MIB);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

pub fn counters_options(clock: Clock, swept: Arc<Swept>) -> Options {
    let mut options = table_options(FileContent::Compacted);
    options.set_target_file_size_base(COMPACTED_FILE_BYTES);
    options.set_compaction_filter_factory(ExpiryFilterFactory { clock, swept });
    options.set_periodic_compaction_seconds(PERIODIC_COMPACTION_SECONDS);
    // Write-backs add sorted files, each with counters from the whole key range. Merging them by size rewrites a
    // counter less often than levels would.
    options.set_compaction_style(DBCompactionStyle::Universal);
    let mut universal = UniversalCompactOptions::default();
    universal.set_max_size_amplification_percent(MAX_SPACE_AMPLIFICATION_PERCENT);
    options.set_universal_compaction_options(&universal);
    options.set_level_zero_file_num_compaction_trigger(FILES_TO_COMPACT);
    // Only restored journals are written through memory.
    options.set_write_buffer_size(8 * MIB);
    options.set_level_zero_slowdown_writes_trigger(8 * FILES_TO_COMPACT);
    options.set_level_zero_stop_writes_trigger(16 * FILES_TO_COMPACT);
    options
}

/// Returns the options for writing files of counters.
pub fn table_options(content: FileContent) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&block_cache());
    // With 100 million counters, the filters take more memory than anything else, so the cache bounds them.
    table.set_cache_index_and_filter_blocks(true);
    if content == FileContent::LongKeys {
        table.set_block_size(LONG_KEY_BLOCK_BYTES);
        table.set_metadata_block_size(LONG_KEY_BLOCK_BYTES);
    }
    if content != FileContent::WriteBack {
        // A whole filter takes megabytes. If it did not stay in the cache, a single look-up would read it again. In
        // ordinary write-backs, which every look-up reads, partitions would double the instructions.
        table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        table.set_partition_filters(true);
        // The cache bounds the memory of the index, even with long keys.
        table.set_pin_top_level_index_and_filter(false);
        table.set_index_block_restart_interval(INDEX_RESTART_INTERVAL);
    }
    // The first hit of a new actor looks for a key that does not exist. The bloom filter answers most of these
    // look-ups.
    table.set_bloom_filter(10.0, false);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_format_version(6);

    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    // LZ4 would save two fifths of the space, and take a third of the instructions of a look-up.
    options.set_compression_type(DBCompressionType::None);
    options
}

/// Returns the cache of the process, which stays warm when a database is reopened. It is not an LRU cache, whose shards
/// are so small that the filters of short files would evict each other.
fn block_cache() -> Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(|| Cache::new_hyper_clock_cache(BLOCK_CACHE_BYTES, 0)).clone()
}

pub fn default_options() -> Options {
    let mut options = Options::default();
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(4 * MIB);
    options
}

pub fn journal_options() -> Options {
    let mut options = Options::default();
    // Records are packed already.
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(8 * MIB);
    // With fewer buffers, RocksDB throttles writes to 16 MB/s whenever a flush falls behind.
    options.set_max_write_buffer_number(4);
    options.set_level_zero_slowdown_writes_trigger(64);
    options.set_level_zero_stop_writes_trigger(128);
    options
}

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
