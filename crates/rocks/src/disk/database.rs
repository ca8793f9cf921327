//! The RocksDB database: opening, reading, writing, and its column families.
//!
//! - `default`: empty. RocksDB requires this family.
//! - `counters`: bucket key → stored value; exceptions for single actors; compactions drop expired ones.
//! - `journal`: commit number → journal record; write-backs drop the oldest.
//!
//! Exceptions for single actors are among the counters' records, under a tag of their own, and not in a family of their own. So the
//! compaction filter drops those that a killed server left and that have expired since, restoring a backup reads and checks them with
//! everything else, and a start reads them as one range of keys. An exception's key consists of the tag, its owner, a zero byte and the actor.
//! A value consists of its expiry (nanoseconds since 1970, little-endian; all bits set means never) and its text.
//!
//! Reads evaluate a bucket's own state, so no outcome depends on a compaction.

use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::compaction_filter::CompactionFilter;
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};
use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, CStrLike, Cache, ColumnFamily,
    ColumnFamilyDescriptor, CompactOptions, CompactionDecision, DB, DBCompactionStyle, DBCompressionType,
    DBPinnableSlice, DBRecoveryMode, DataBlockIndexType, Direction, IngestExternalFileOptions, IteratorMode, LogLevel,
    Options, PrefixRange, ReadOptions, ReadTier, SstFileWriter, UniversalCompactOptions, WriteBatch, WriteOptions,
    properties,
};

use super::directory::{self, OpenError, SyncMark};
use super::{Disk, EachCounter, EachRecord, Patience, Reach};
use crate::journal::{self, Change, SortedChanges};
use divvy_core::clock::{Clock, Timestamp};
use divvy_store::{
    EXCEPTIONS_PER_PAGE, Exception, ExceptionChange, ExceptionCursor, ExceptionPage, StoreError, record_key, value,
};

/// The family of counters, exceptions, and records of reservations and answers.
pub const COUNTERS: &str = "counters";
const JOURNAL: &str = "journal";
/// The empty family.
pub const DEFAULT: &str = "default";
/// All families. Even in the smallest one, data that is only in memory keeps its write-ahead log alive, and all later ones.
pub const FAMILIES: [&str; 3] = [DEFAULT, JOURNAL, COUNTERS];

/// Name of the filter that drops expired counters.
const FILTER_NAME: &CStr = c"divvy.expired";
const MIB: usize = 1 << 20;
/// Size of the write-ahead log beyond which RocksDB flushes the data that needs its oldest part (bytes).
pub const MAX_WAL_BYTES: u64 = 64 << 20;
/// Memory for the files, indexes and filters of counters (bytes). The hot counters are in the table.
const BLOCK_CACHE_BYTES: usize = 48 * MIB;
/// The cache of the process, which stays warm when a database is reopened. It is not an LRU cache, whose shards are so small
/// that the filters of short files would evict each other.
static BLOCK_CACHE: LazyLock<Cache> = LazyLock::new(|| Cache::new_hyper_clock_cache(BLOCK_CACHE_BYTES, 0));
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

/// A counter's key and its record's value.
pub type KeyAndValue = (Box<[u8]>, Box<[u8]>);
/// Average length of changes above which the keys of a write-back count as long (bytes).
const LONG_CHANGE: usize = 1 << 10;

/// An open database.
pub struct Database {
    db: DB,
    synced: SyncMark,
    /// RocksDB's sequence number of the last change that an fsync of the journal has covered; 0 before the first fsync.
    covered: AtomicU64,
    /// The last commit in its journal when it was opened; 0 if the journal was empty.
    pub last_commit: u64,
}

impl Database {
    /// Opens the database in `path`, creating it in a new or empty directory. Its journal does not change. It compacts nothing
    /// before [`Database::start_compactions`]. Compactions report to `swept` the records that they drop.
    ///
    /// After a power cut, the log may be torn or have a hole. It is recovered up to that point. If a later part had
    /// been synced, the database is damaged.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, clock: Clock, swept: Arc<Swept>) -> Result<Self, OpenError> {
        directory::claim(path)?;
        let is_new = !directory::has_database(path);
        let synced = SyncMark::open(path).map_err(|error| OpenError::unusable(path, &error))?;
        let families = || {
            [
                ColumnFamilyDescriptor::new(DEFAULT, Options::default()),
                ColumnFamilyDescriptor::new(COUNTERS, counters_options(clock, Arc::clone(&swept))),
                ColumnFamilyDescriptor::new(JOURNAL, journal_options()),
            ]
        };
        let open = |mode| DB::open_cf_descriptors(&database_options(is_new, mode), path, families());
        let failed = |error: rocksdb::Error| open_error(path, &error);
        let (db, is_torn) = match open(DBRecoveryMode::AbsoluteConsistency) {
            Err(error) if error.kind() == rocksdb::ErrorKind::Corruption => {
                // This step changes nothing, so that a refused directory stays as it was.
                let options = database_options(is_new, DBRecoveryMode::PointInTime);
                let look = DB::open_cf_descriptors_read_only(&options, path, families(), false).map_err(failed)?;
                synced.check(look.latest_sequence_number(), path)?;
                drop(look);
                (open(DBRecoveryMode::PointInTime).map_err(failed)?, true)
            }
            opened => (opened.map_err(failed)?, false),
        };
        let recovered = db.latest_sequence_number();
        synced.check(recovered, path)?;
        if let Err(error) = directory::remove_unfinished(path) {
            tracing::warn!(%error, "cannot remove files that a killed process left in the data directory");
        }
        let last_commit = last_commit(&db).map_err(failed)?;
        if is_torn {
            tracing::warn!(
                last_commit,
                last_change = recovered,
                "the write-ahead log ends in an incomplete write, as after a power cut: everything before it is recovered"
            );
        }
        Ok(Self { db, synced, covered: AtomicU64::new(0), last_commit })
    }

    /// Starts the compactions in the background. They would take a third of the processors' time from a replay.
    ///
    /// # Errors
    /// RocksDB cannot write its file of options.
    pub fn start_compactions(&self) -> Result<(), StoreError> {
        [COUNTERS, JOURNAL].into_iter().try_for_each(|family| {
            let set = self.db.set_options_cf(self.family(family), &[("disable_auto_compactions", "false")]);
            set.map_err(|e| store_error("start compactions", &e))
        })
    }

    /// Writes the changes in the journal to the counters' own records, and empties the journal.
    ///
    /// # Errors
    /// The journal cannot be read, or the counters cannot be written.
    pub fn settle_journal(&self) -> Result<(), StoreError> {
        self.read_journal(0, u64::MAX, &mut |_, record| {
            let mut batch = WriteBatch::default();
            journal::each_change(record, |change| {
                if change.value.is_empty() {
                    batch.delete_cf(self.family(COUNTERS), change.key);
                } else {
                    batch.put_cf(self.family(COUNTERS), change.key, change.value);
                }
            })?;
            self.db.write(batch).map_err(|e| store_error("write counters", &e))
        })?;
        if self.last_commit > 0 { self.clear_journal(u64::MAX) } else { Ok(()) }
    }

    /// Iterates over the counters, the records of reservations and answers, and the exceptions whose keys begin with `prefix`, in the order
    /// of their keys. Begins after the key `after`.
    pub fn entries<'a>(
        &'a self,
        prefix: &[u8],
        after: Option<&'a [u8]>,
    ) -> impl Iterator<Item = Result<KeyAndValue, StoreError>> + use<'a> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(PrefixRange(prefix));
        // A listing of a million counters must not evict the busy ones from the cache.
        options.fill_cache(false);
        let start = IteratorMode::From(after.unwrap_or(prefix), Direction::Forward);
        let entries = self.db.iterator_cf_opt(self.family(COUNTERS), options, start);
        let is_wanted =
            move |entry: &Result<KeyAndValue, _>| entry.as_ref().map_or(true, |(key, _)| after != Some(&**key));
        entries.filter(is_wanted).map(|entry| entry.map_err(|e| store_error("read the counters", &e)))
    }

    /// Returns the key and the record of every counter at the time of the call, without the records of reservations,
    /// answers and exceptions.
    pub fn records(&self) -> impl Iterator<Item = Result<KeyAndValue, StoreError>> + use<'_> {
        let is_counter =
            |record: &Result<KeyAndValue, _>| record.as_ref().map_or(true, |(key, _)| record_key::is_counter(key));
        self.entries(&[], None).filter(is_counter)
    }

    /// Stores changes of exceptions in one write, on stable storage if `sync` is set. Otherwise, a removed exception may return
    /// after a power cut.
    ///
    /// # Errors
    /// Fails if RocksDB refuses the write.
    pub fn write_exceptions(&self, changes: &[ExceptionChange], sync: bool) -> Result<(), StoreError> {
        let (mut batch, family) = (WriteBatch::default(), self.family(COUNTERS));
        for change in changes {
            match &change.value {
                Some(exception) => batch.put_cf(family, exception_key(change), exception_value(exception)),
                None => batch.delete_cf(family, exception_key(change)),
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.db.write_opt(batch, &options).map_err(|e| store_error("write exceptions", &e))
    }

    /// Reads the page of exceptions after `known`, in the order of their keys. The page is empty if `known` covers all of
    /// them.
    pub fn read_exceptions(&self, known: &ExceptionCursor) -> Result<ExceptionPage, StoreError> {
        let after = match known {
            ExceptionCursor::Nothing => None,
            ExceptionCursor::Key(key) => Some(&**key),
            ExceptionCursor::All | ExceptionCursor::Change { .. } => {
                return Ok(ExceptionPage::nothing(ExceptionCursor::All));
            }
        };
        let mut stored = self.entries(record_key::EXCEPTIONS, after);
        let changes = stored.by_ref().take(EXCEPTIONS_PER_PAGE).map(|record| {
            let (key, value) = record?;
            decode_exception(&key, &value)
                .ok_or_else(|| StoreError::new("the record of an actor's limit or block is malformed"))
        });
        let changes: Vec<_> = changes.collect::<Result<_, _>>()?;
        let is_last = stored.next().is_none();
        let known = match changes.last() {
            Some(last) if !is_last => ExceptionCursor::Key(exception_key(last).into()),
            _ => ExceptionCursor::All,
        };
        Ok(ExceptionPage { changes, known, starts_over: after.is_none(), is_last })
    }

    /// Copies everything that is written into the new directory `dir`. Files that never change are linked if the
    /// directory is on the same file system.
    pub fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(dir))
            .map_err(|e| store_error("copy the database", &e))
    }

    /// Returns a number that RocksDB keeps for the family, or in any family for the whole database; 0 if it is unknown.
    pub fn number(&self, family: &str, property: impl CStrLike) -> u64 {
        self.db.property_int_value_cf(self.family(family), property).ok().flatten().unwrap_or_default()
    }

    /// Returns the sum of a number that RocksDB keeps for each column family.
    pub fn sum(&self, property: impl CStrLike + Copy) -> u64 {
        FAMILIES.into_iter().map(|name| self.number(name, property)).sum()
    }

    /// Rewrites these families, and drops expired counters and trimmed journal records. RocksDB's own compactions continue at the
    /// same time.
    pub fn compact(&self, families: &[&str]) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        // The filter sees the lowest level only if that is also rewritten.
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        for family in families {
            self.db.compact_range_cf_opt(self.family(family), None::<&[u8]>, None::<&[u8]>, &options);
        }
    }

    pub fn stop_background_work(&self) {
        self.db.cancel_all_background_work(true);
    }

    #[expect(clippy::expect_used, reason = "open() fails unless every column family is there")]
    fn family(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("opened with this column family")
    }
}

/// Returns the number of the last commit in the journal; 0 if it is empty.
fn last_commit(db: &DB) -> Result<u64, rocksdb::Error> {
    let Some(journal) = db.cf_handle(JOURNAL) else { return Ok(0) };
    let last = db.iterator_cf(journal, IteratorMode::End).next().transpose()?;
    Ok(last.and_then(|(number, _)| Some(u64::from_be_bytes(*number.first_chunk()?))).unwrap_or(0))
}

fn open_error(path: &Path, error: &rocksdb::Error) -> OpenError {
    let reason = error.to_string();
    if reason.contains("While lock file") || reason.contains("lock hold by current process") {
        OpenError::InUse(path.into())
    } else if reason.contains("No such file") || error.kind() == rocksdb::ErrorKind::Corruption {
        OpenError::damaged(path, error)
    } else {
        OpenError::unusable(path, error)
    }
}

fn store_error(what: &str, error: &rocksdb::Error) -> StoreError {
    StoreError::new(format!("cannot {what}: {error}"))
}

impl Disk for Database {
    fn counters(&self, keys: &[&[u8]], reach: Reach, each: &mut EachCounter<'_>) {
        let mut give = |position, stored: Result<Option<DBPinnableSlice<'_>>, rocksdb::Error>| match stored {
            Err(error) if reach == Reach::Memory && error.kind() == rocksdb::ErrorKind::Incomplete => {}
            Err(error) => each(position, Err(store_error("read a counter", &error))),
            Ok(stored) => each(position, Ok(stored.as_deref())),
        };
        match reach {
            // The records are read one by one, because RocksDB's MultiGet returns an empty value and no error for a key
            // whose block is not in memory.
            Reach::Memory => {
                let mut options = ReadOptions::default();
                options.set_read_tier(ReadTier::BlockCache);
                let read = |key| self.db.get_pinned_cf_opt(self.family(COUNTERS), key, &options);
                keys.iter().enumerate().for_each(|(position, key)| give(position, read(key)));
            }
            Reach::Disk => {
                let read = self.db.batched_multi_get_cf(self.family(COUNTERS), keys, false);
                read.into_iter().enumerate().for_each(|(position, stored)| give(position, stored));
            }
        }
    }

    fn append_journal(&self, number: u64, record: &[u8], patience: Patience) -> Option<Result<(), StoreError>> {
        if record.is_empty() {
            return Some(Ok(()));
        }
        let mut options = WriteOptions::default();
        options.set_sync(patience == Patience::Fsync);
        options.set_no_slowdown(patience == Patience::None);
        // This write comes after all others, so its fsync covers at least those and the write itself.
        let covered = self.db.latest_sequence_number() + 1;
        match self.db.put_cf_opt(self.family(JOURNAL), number.to_be_bytes(), record, &options) {
            Err(error) if error.kind() == rocksdb::ErrorKind::Incomplete => return None,
            Err(error) => return Some(Err(store_error("write the journal", &error))),
            Ok(()) => {}
        }
        if patience == Patience::Fsync {
            self.covered.store(covered, Relaxed);
        }
        Some(Ok(()))
    }

    fn read_journal(&self, first: u64, last: u64, each: &mut EachRecord<'_>) -> Result<(), StoreError> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_iterate_lower_bound(first.to_be_bytes());
        if let Some(after) = last.checked_add(1) {
            options.set_iterate_upper_bound(after.to_be_bytes());
        }
        let mut records = self.db.raw_iterator_cf_opt(self.family(JOURNAL), options);
        records.seek_to_first();
        while let Some((number, record)) = records.item() {
            let number = number.first_chunk().map(|number| u64::from_be_bytes(*number));
            each(number.ok_or_else(|| StoreError::new("a journal record has no number"))?, record)?;
            records.next();
        }
        records.status().map_err(|e| store_error("read the journal", &e))
    }

    /// Writes a table file and adds it to RocksDB, without a log or a write buffer. The changes are durable at once.
    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError> {
        let failed = |e: rocksdb::Error| store_error("write counters", &e);
        let file = self.db.path().join(directory::WRITE_BACK_FILE);
        // A failed ingestion may have left a second name of a table file, which must not be overwritten.
        directory::remove_file(&file)
            .map_err(|error| StoreError::new(format!("cannot remove {}: {error}", file.display())))?;
        let has_long_keys = changes.average_bytes() > LONG_CHANGE;
        let options = table_options(if has_long_keys { FileContent::LongKeys } else { FileContent::WriteBack });
        let mut writer = SstFileWriter::create(&options);
        writer.open(&file).map_err(failed)?;
        for Change { key, value } in changes.iter() {
            let written = if value.is_empty() { writer.delete(key) } else { writer.put(key, value) };
            written.map_err(failed)?;
        }
        writer.finish().map_err(failed)?;
        let mut ingestion = IngestExternalFileOptions::default();
        ingestion.set_move_files(true);
        self.db.ingest_external_file_cf_opts(self.family(COUNTERS), &ingestion, vec![&file]).map_err(failed)
    }

    fn clear_journal(&self, number: u64) -> Result<(), StoreError> {
        self.db
            .delete_range_cf(self.family(JOURNAL), 0u64.to_be_bytes(), number.saturating_add(1).to_be_bytes())
            .map_err(|e| store_error("trim the journal", &e))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let change = self.db.latest_sequence_number();
        self.db.flush_wal(true).map_err(|e| store_error("fsync the write-ahead log", &e))?;
        // Linux reports a failed write of a page only once, and may have reported it to one of RocksDB's own fsyncs.
        if self.number(DEFAULT, properties::BACKGROUND_ERRORS) > 0 {
            return Err(StoreError::new("cannot fsync the write-ahead log: RocksDB's background work has failed"));
        }
        self.synced.note(change);
        self.synced.sync();
        Ok(())
    }

    fn note_synced(&self) {
        match self.covered.load(Relaxed) {
            0 => {}
            covered => self.synced.note(covered),
        }
    }
}

fn exception_key(ExceptionChange { owner, actor, .. }: &ExceptionChange) -> Vec<u8> {
    [record_key::EXCEPTIONS, owner.as_bytes(), &[0], actor.as_bytes()].concat()
}

fn exception_value(exception: &Exception) -> Vec<u8> {
    let expires = exception.expires().unwrap_or(Timestamp::MAX).as_nanos();
    [expires.to_le_bytes().as_slice(), exception.to_text().as_bytes()].concat()
}

/// Reads the exception with this key and value.
pub fn decode_exception(key: &[u8], value: &[u8]) -> Option<ExceptionChange> {
    let named = std::str::from_utf8(key.strip_prefix(record_key::EXCEPTIONS)?).ok()?;
    let (owner, actor) = named.split_once('\0')?;
    let (expires, text) = value.split_first_chunk()?;
    let expires = Timestamp::from_nanos(u64::from_le_bytes(*expires));
    let expires = (expires != Timestamp::MAX).then_some(expires);
    let exception = Exception::from_text(owner, std::str::from_utf8(text).ok()?, expires)?;
    Some(ExceptionChange { owner: owner.to_owned(), actor: actor.to_owned(), value: Some(exception) })
}

/// Content of a file of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileContent {
    /// The changes of a write-back.
    WriteBack,
    /// The changes of a write-back with long keys. With blocks of the usual size, the index would be about as long as
    /// the keys. It is in memory while the file is written, and while a compaction reads it.
    LongKeys,
    /// The counters of many write-backs.
    Compacted,
}

fn database_options(is_new: bool, recovery: DBRecoveryMode) -> Options {
    let mut options = Options::default();
    options.create_if_missing(is_new);
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

fn counters_options(clock: Clock, swept: Arc<Swept>) -> Options {
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
    options.set_disable_auto_compactions(true);
    options.set_level_zero_slowdown_writes_trigger(8 * FILES_TO_COMPACT);
    options.set_level_zero_stop_writes_trigger(16 * FILES_TO_COMPACT);
    options
}

/// Returns the options for writing files of counters.
fn table_options(content: FileContent) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&BLOCK_CACHE);
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

fn journal_options() -> Options {
    let mut options = Options::default();
    // Records are packed already.
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(8 * MIB);
    // With fewer buffers, RocksDB throttles writes to 16 MB/s whenever a flush falls behind.
    options.set_max_write_buffer_number(4);
    options.set_level_zero_slowdown_writes_trigger(64);
    options.set_level_zero_stop_writes_trigger(128);
    options.set_disable_auto_compactions(true);
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

/// Creates a filter for each compaction, which reads the clock once. It keeps and counts the values that it cannot read. It never
/// panics, because a panic there would end the process.
struct ExpiryFilterFactory {
    clock: Clock,
    swept: Arc<Swept>,
}

impl CompactionFilterFactory for ExpiryFilterFactory {
    type Filter = ExpiryFilter;

    fn create(&mut self, _context: CompactionFilterContext) -> Self::Filter {
        ExpiryFilter { now: self.clock.now(), swept: Arc::clone(&self.swept) }
    }

    fn name(&self) -> &CStr {
        FILTER_NAME
    }
}

/// Reclaims the space of expired counters.
struct ExpiryFilter {
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
        FILTER_NAME
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn record_reads_back(label in "[a-z0-9_-]{1,9}", actor in ".{0,20}", credits: u64, expires in prop::option::of(0..u64::MAX)) {
            let ends = expires.map(Timestamp::from_nanos);
            let exceptions = [("limit", Exception::limit(credits, ends)), ("block", Exception::by_hand(Some(&actor), ends))];
            for (kind, exception) in exceptions {
                let change = ExceptionChange {
                    owner: format!("{kind}:{label}"),
                    actor: actor.clone(),
                    value: Some(exception.clone()),
                };
                let (key, value) = (exception_key(&change), exception_value(&exception));
                prop_assert_eq!(decode_exception(&key, &value), Some(change));
            }
        }

        #[test]
        fn foreign_bytes_are_not_an_exception(
            name in prop::collection::vec(any::<u8>(), 0..9), value in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            prop_assert!(decode_exception(&name, &value).is_none());
            prop_assert!(decode_exception(&[record_key::EXCEPTIONS, &name].concat(), &value).is_none());
        }
    }
}
