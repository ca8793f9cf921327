//! RocksDB's options: for the database, its column families and its files.

use std::sync::{Arc, OnceLock};

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, Cache, DBCompactionStyle, DBCompressionType, DBRecoveryMode,
    DataBlockIndexType, LogLevel, Options, UniversalCompactOptions,
};

use super::directory::Found;
use super::expiry_filter::{ExpiryFilterFactory, Swept};
use crate::clock::Clock;

const MIB: usize = 1 << 20;
/// Past so many bytes of write-ahead log RocksDB flushes what the oldest part of it is kept for.
pub const MAX_WAL_BYTES: u64 = 64 << 20;
/// Bytes of counters' files, indexes and filters kept in memory. The hot counters are in the table.
const BLOCK_CACHE_BYTES: usize = 48 * MIB;
/// Length at which a compaction begins a new file. The index of the file that it writes is in memory.
const LONG_FILE_BYTES: u64 = 16 * MIB as u64;
/// In a long file's index one of 16 keys is whole. The others leave out what they have in common with the key before.
const INDEX_RESTART_INTERVAL: i32 = 16;
/// How many files wait for a compaction.
const FILES_TO_COMPACT: i32 = 8;
/// How much more than the newest record of each counter the files may take before all are rewritten.
const MAX_SPACE_AMPLIFICATION_PERCENT: i32 = 200;
/// Cold counters see a compaction at least this often (seconds), so that expired ones do not stay for RocksDB's 30 days.
const PERIODIC_COMPACTION_SECONDS: u64 = 24 * 60 * 60;

/// How long a file of counters is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLength {
    /// That of a write-back.
    Short,
    /// What compactions make of many.
    Long,
}

pub fn database_options(found: Found, recovery: DBRecoveryMode) -> Options {
    let mut options = Options::default();
    options.create_if_missing(found == Found::Nothing);
    options.create_missing_column_families(true);
    options.set_wal_recovery_mode(recovery);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_max_background_jobs(2);
    // Column families that are hardly written must not keep old write-ahead logs alive for ever.
    options.set_max_total_wal_size(MAX_WAL_BYTES);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(4 * MIB);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options
}

pub fn counters_options(clock: Clock, swept: Arc<Swept>) -> Options {
    let mut options = table_options(FileLength::Long);
    options.set_target_file_size_base(LONG_FILE_BYTES);
    options.set_compaction_filter_factory(ExpiryFilterFactory { clock, swept });
    options.set_periodic_compaction_seconds(PERIODIC_COMPACTION_SECONDS);
    // Write-backs add sorted files, each with counters from everywhere: merging them by size rewrites a counter less
    // often than levels would.
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

/// How counters' files are written.
pub fn table_options(length: FileLength) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&block_cache());
    // With 100 million counters the filters take more than all else: they have to make do with the cache.
    table.set_cache_index_and_filter_blocks(true);
    if length == FileLength::Long {
        // Whole, a filter takes megabytes: what does not stay in the cache would be read again for a single look-up. In
        // short files, which every look-up asks, partitions would double the instructions that it takes.
        table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        table.set_partition_filters(true);
        // The cache bounds what the index takes, even of long keys.
        table.set_pin_top_level_index_and_filter(false);
        table.set_index_block_restart_interval(INDEX_RESTART_INTERVAL);
    }
    // The first hit of a new actor asks for a key that is nowhere: the bloom filter answers most of them.
    table.set_bloom_filter(10.0, false);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_format_version(6);

    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    // LZ4 would save two fifths of the files, and takes a third of the instructions of a look-up.
    options.set_compression_type(DBCompressionType::None);
    options
}

/// One for the process: a database that is opened again finds it warm. Not the LRU cache: its shards are so small that the
/// filters of short files would push one another out.
fn block_cache() -> Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(|| Cache::new_hyper_clock_cache(BLOCK_CACHE_BYTES, 0)).clone()
}

pub fn limits_options() -> Options {
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
    // With fewer RocksDB throttles writes to 16 MB/s whenever a flush falls behind.
    options.set_max_write_buffer_number(4);
    options.set_level_zero_slowdown_writes_trigger(64);
    options.set_level_zero_stop_writes_trigger(128);
    options
}
