//! The RocksDB database: how it is opened, read and written, and what its column families are for.
//!
//! - `default`: limits of single actors; RocksDB insists on it, so that every divvy can open it.
//! - `counters`: bucket key → stored value; expired ones are dropped by compactions.
//! - `journal`: commit number → journal record; write-backs drop the oldest.
//!
//! Nothing here knows of hits or of the hot table.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BottommostLevelCompaction, CStrLike, ColumnFamily, ColumnFamilyDescriptor, CompactOptions, DB, DBPinnableSlice,
    DBRecoveryMode, Direction, IngestExternalFileOptions, IteratorMode, PrefixRange, ReadOptions, ReadTier,
    SstFileWriter, WriteBatch, WriteOptions, properties,
};

use super::directory::{self, Found};
use super::expiry_filter::Swept;
use super::open_error::OpenError;
use super::stored_count::{self, StoredCount};
use super::sync_mark::SyncMark;
use super::tuning::{
    FileLength, counters_options, database_options, journal_options, limits_options, table_options, write_options,
};
use super::wal;
use super::{Disk, EachCounter, EachRecord, Patience, Reach};
use crate::clock::Clock;
use crate::store::bounds::CounterCount;
use crate::store::contract::StoreError;
use crate::store::record_key;
use crate::store::rocks::commit::journal::{self, Change};
use crate::store::rocks::commit::sorted_changes::SortedChanges;

const COUNTERS: &str = "counters";
const JOURNAL: &str = "journal";
const LIMITS: &str = "default";
const FAMILIES: [&str; 3] = [LIMITS, JOURNAL, COUNTERS];

/// A write-back's file is written as long ones are if its changes are longer than this on average (bytes).
const LONG_CHANGE: usize = 1 << 10;

/// A counter's key and its record's value.
pub type KeyAndValue = (Box<[u8]>, Box<[u8]>);

/// An open database.
pub struct Database {
    db: DB,
    synced: SyncMark,
    /// How many counters it held when it was opened; `None`: they were not counted.
    pub count: Option<CounterCount>,
    /// The number of the last commit in its journal when it was opened; 0 when there was none.
    pub last_commit: u64,
}

impl Database {
    /// Opens the database in `path`, creating it in a new or empty directory. Its journal stays as it is. Compactions
    /// tell `swept` what they drop.
    ///
    /// A log that is torn or has a hole, as a power cut leaves it, is recovered up to there, unless that part had been
    /// synced: then it is damaged.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, clock: Clock, swept: Arc<Swept>) -> Result<Self, OpenError> {
        let found = directory::claim(path)?;
        let stored = stored_count::take(path)?;
        let synced = SyncMark::open(path).map_err(|error| unusable(path, &error))?;
        let families = || {
            [
                ColumnFamilyDescriptor::new(LIMITS, limits_options()),
                ColumnFamilyDescriptor::new(COUNTERS, counters_options(clock, Arc::clone(&swept))),
                ColumnFamilyDescriptor::new(JOURNAL, journal_options()),
            ]
        };
        let open = |mode| DB::open_cf_descriptors(&database_options(found, mode), path, families());
        let failed = |error: rocksdb::Error| open_error(path, &error);
        let (db, given_up) = match open(DBRecoveryMode::AbsoluteConsistency) {
            Err(error) if error.kind() == rocksdb::ErrorKind::Corruption => {
                // A look that changes nothing: what is refused is left as it was.
                let options = database_options(found, DBRecoveryMode::PointInTime);
                let look = DB::open_cf_descriptors_read_only(&options, path, families(), false).map_err(failed)?;
                let recovered = look.latest_sequence_number();
                drop(look);
                synced.check(recovered, path)?;
                let given_up = wal::bytes_after(path, recovered).map_err(|error| unusable(path, &error))?;
                (open(DBRecoveryMode::PointInTime).map_err(failed)?, Some(given_up))
            }
            opened => (opened.map_err(failed)?, None),
        };
        let recovered = db.latest_sequence_number();
        synced.check(recovered, path)?;
        if let Err(error) = directory::remove_unfinished(path) {
            tracing::warn!(%error, "cannot remove files that a killed process left in the data directory");
        }
        // A program that changed the database since, an older divvy for one, knew nothing of the stored count.
        let count = match (found, stored) {
            (Found::Nothing, _) => Some(CounterCount { at_least: 0, at_most: 0 }),
            (Found::Database, stored) => {
                stored.filter(|stored| stored.sequence == recovered).map(|stored| stored.count)
            }
        };
        let last_commit = last_commit(&db).map_err(failed)?;
        if let Some(bytes) = given_up {
            tracing::warn!(
                bytes,
                last_commit,
                last_change = recovered,
                "the write-ahead log ends in an incomplete write, as after a power cut: everything before it is recovered"
            );
        }
        Ok(Self { db, synced, count, last_commit })
    }

    /// Writes all that is in the journal to the counters' own records, and empties it.
    ///
    /// # Errors
    /// When the journal cannot be read, or the counters cannot be written.
    pub fn settle_journal(&self) -> Result<(), StoreError> {
        self.read_journal(0, u64::MAX, &mut |_, record| {
            let mut batch = WriteBatch::default();
            journal::each_change(record, |change| {
                if change.value.is_empty() {
                    batch.delete_cf(self.counters(), change.key);
                } else {
                    batch.put_cf(self.counters(), change.key, change.value);
                }
                Ok::<_, StoreError>(())
            })?;
            self.db.write(batch).map_err(|e| store_error("write counters", &e))
        })?;
        if self.last_commit > 0 { self.clear_journal(u64::MAX) } else { Ok(()) }
    }

    /// Stores how many counters there are, for the next start. Nothing may be written or compacted afterwards.
    pub fn store_count(&self, count: CounterCount) -> Result<(), StoreError> {
        let stored = StoredCount { sequence: self.db.latest_sequence_number(), count };
        stored.write(self.path()).map_err(|e| StoreError::new(format!("cannot store the number of counters: {e}")))
    }

    pub fn path(&self) -> &Path {
        self.db.path()
    }

    /// Calls `look` with each counter whose key begins with `prefix`, in the order of their keys: those after the key
    /// `after`, or all; until it returns false.
    ///
    /// # Errors
    /// When RocksDB cannot read on, and the first of `look`'s.
    pub fn each_counter(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        mut look: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut options = ReadOptions::default();
        options.set_iterate_range(PrefixRange(prefix));
        // Listing a million counters must not push the busy ones out of the cache.
        options.fill_cache(false);
        let start = IteratorMode::From(after.unwrap_or(prefix), Direction::Forward);
        for counter in self.db.iterator_cf_opt(self.counters(), options, start) {
            let (key, value) = counter.map_err(|e| store_error("list the counters", &e))?;
            if after != Some(&*key) && !look(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a counter's record; `None` when there is none.
    pub fn counter<T>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, StoreError> {
        let stored = self.db.get_pinned_cf(self.counters(), key).map_err(|e| store_error("read a counter", &e))?;
        Ok(stored.map(|stored| read(&stored)))
    }

    /// Every counter's key and record as they are at the time of the call. Records beside counters are left out.
    pub fn records(&self) -> impl Iterator<Item = Result<KeyAndValue, StoreError>> + use<'_> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let records = self.db.iterator_cf_opt(self.counters(), options, IteratorMode::Start);
        let of_counter =
            |record: &Result<KeyAndValue, _>| record.as_ref().map_or(true, |(key, _)| !record_key::is_record(key));
        records.filter(of_counter).map(|record| record.map_err(|e| store_error("read the counters", &e)))
    }

    /// Keeps an actor's limit, with `sync` on stable storage.
    pub fn put_limit(&self, key: &[u8], value: &[u8], sync: bool) -> Result<(), StoreError> {
        let written = self.db.put_cf_opt(self.family(LIMITS), key, value, &write_options(sync));
        written.map_err(|e| store_error("keep an actor's limit", &e))
    }

    /// Forgets an actor's limit, likewise.
    pub fn delete_limit(&self, key: &[u8], sync: bool) -> Result<(), StoreError> {
        let deleted = self.db.delete_cf_opt(self.family(LIMITS), key, &write_options(sync));
        deleted.map_err(|e| store_error("remove an actor's limit", &e))
    }

    /// Forgets actors' limits, by one write.
    pub fn delete_limits(&self, keys: impl Iterator<Item = Vec<u8>>) -> Result<(), StoreError> {
        let mut batch = WriteBatch::default();
        keys.for_each(|key| batch.delete_cf(self.family(LIMITS), key));
        self.db.write_opt(batch, &write_options(false)).map_err(|e| store_error("remove limits of actors", &e))
    }

    /// Calls `look` with the actors' limits after the key `after`, or all, in the order of their keys, until it returns
    /// false.
    ///
    /// # Errors
    /// When RocksDB cannot read on, and the first of `look`'s.
    pub fn each_limit(
        &self,
        after: Option<&[u8]>,
        mut look: impl FnMut(&[u8], &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let start = after.map_or(IteratorMode::Start, |after| IteratorMode::From(after, Direction::Forward));
        for limit in self.db.iterator_cf(self.family(LIMITS), start) {
            let (key, value) = limit.map_err(|e| store_error("read the limits of actors", &e))?;
            if after != Some(&*key) && !look(&key, &value)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether a compaction is under way: what it drops can be read until it ends.
    pub fn is_compacting(&self) -> bool {
        self.number(properties::NUM_RUNNING_COMPACTIONS) > 0
    }

    /// Bytes of the files with counters.
    pub fn counters_bytes(&self) -> Result<u64, StoreError> {
        let size = self.db.property_int_value_cf(self.counters(), properties::LIVE_SST_FILES_SIZE);
        size.map(Option::unwrap_or_default).map_err(|e| store_error("measure the counters", &e))
    }

    /// Bytes of the write-ahead log, by a look at the directory.
    pub fn wal_bytes(&self) -> io::Result<u64> {
        directory::size(self.path(), |path| path.extension().is_some_and(|extension| extension == "log"))
    }

    /// Copies everything that is written by now into the new directory `dir`; files that never change are linked, where
    /// it is on the same file system.
    pub fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(dir))
            .map_err(|e| store_error("copy the database", &e))
    }

    pub fn approximate_counters(&self) -> Result<u64, StoreError> {
        self.db
            .property_int_value_cf(self.counters(), properties::ESTIMATE_NUM_KEYS)
            .map(Option::unwrap_or_default)
            .map_err(|e| store_error("count the counters", &e))
    }

    /// Whether there is any counter's record.
    pub fn has_counters(&self) -> Result<bool, StoreError> {
        Ok(self.records().next().transpose()?.is_some())
    }

    /// A number that RocksDB keeps for the whole database; 0 when it does not tell.
    pub fn number(&self, property: impl CStrLike) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or_default()
    }

    /// A number that RocksDB keeps for each column family, summed up.
    pub fn sum(&self, property: impl CStrLike + Copy) -> u64 {
        let number = |name| self.db.property_int_value_cf(self.family(name), property).ok().flatten();
        FAMILIES.into_iter().filter_map(number).sum()
    }

    /// Rewrites everything now, dropping expired counters and trimmed journal records. The smallest family is rewritten
    /// as well: what has not left memory keeps the write-ahead log alive in which it stands, and those after it.
    pub fn compact(&self) {
        for family in FAMILIES {
            self.db.compact_range_cf(self.family(family), None::<&[u8]>, None::<&[u8]>);
        }
    }

    /// Rewrites the counters, dropping expired ones, and lets RocksDB's own compactions go on meanwhile.
    pub fn compact_counters(&self) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        // The filter sees the lowest level only when that is rewritten too.
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.db.compact_range_cf_opt(self.counters(), None::<&[u8]>, None::<&[u8]>, &options);
    }

    pub fn stop_background_work(&self) {
        self.db.cancel_all_background_work(true);
    }

    fn counters(&self) -> &ColumnFamily {
        self.family(COUNTERS)
    }

    fn journal(&self) -> &ColumnFamily {
        self.family(JOURNAL)
    }

    #[expect(clippy::expect_used, reason = "open() fails unless every column family is there")]
    fn family(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("opened with this column family")
    }
}

impl Disk for Database {
    fn counters(&self, keys: &[&[u8]], reach: Reach, each: &mut EachCounter<'_>) {
        let mut give = |place, stored: Result<Option<DBPinnableSlice<'_>>, rocksdb::Error>| match stored {
            Err(error) if reach == Reach::Memory && error.kind() == rocksdb::ErrorKind::Incomplete => {}
            Err(error) => each(place, Err(store_error("read a counter", &error))),
            Ok(stored) => each(place, Ok(stored.as_deref())),
        };
        match reach {
            // One by one: for a key whose block is not in memory, RocksDB's MultiGet gives an empty value and no error.
            Reach::Memory => {
                let mut options = ReadOptions::default();
                options.set_read_tier(ReadTier::BlockCache);
                let read = |key| self.db.get_pinned_cf_opt(self.counters(), key, &options);
                keys.iter().enumerate().for_each(|(place, key)| give(place, read(key)));
            }
            Reach::Disk => {
                let read = self.db.batched_multi_get_cf(self.counters(), keys, false);
                read.into_iter().enumerate().for_each(|(place, stored)| give(place, stored));
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
        // This write is a later change than all that are there, and its fsync covers at least those and this one.
        let covered = (patience == Patience::Fsync).then(|| self.db.latest_sequence_number() + 1);
        match self.db.put_cf_opt(self.journal(), number.to_be_bytes(), record, &options) {
            Err(error) if error.kind() == rocksdb::ErrorKind::Incomplete => return None,
            Err(error) => return Some(Err(store_error("write the journal", &error))),
            Ok(()) => {}
        }
        if let Some(covered) = covered {
            self.synced.note(covered);
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
        let mut records = self.db.raw_iterator_cf_opt(self.journal(), options);
        records.seek_to_first();
        while let Some((number, record)) = records.item() {
            let number = number.first_chunk().map(|number| u64::from_be_bytes(*number));
            each(number.ok_or_else(|| StoreError::new("a journal record has no number"))?, record)?;
            records.next();
        }
        records.status().map_err(|e| store_error("read the journal", &e))
    }

    /// Writes a table file and adds it to RocksDB: that needs no log and no write buffer, and is durable at once.
    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError> {
        let failed = |e: rocksdb::Error| store_error("write counters", &e);
        let file = self.path().join(directory::WRITE_BACK_FILE);
        // What an ingestion that failed has left may be a second name of a table file: it must not be written again.
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::new(format!("cannot remove {}: {error}", file.display())));
            }
            Ok(()) | Err(_) => {}
        }
        // The index of long keys is nearly as long as they are: whole, that of each file would be in memory while a compaction
        // reads it.
        let length = if changes.average_bytes() > LONG_CHANGE { FileLength::Long } else { FileLength::Short };
        let options = table_options(length);
        let mut writer = SstFileWriter::create(&options);
        writer.open(&file).map_err(failed)?;
        for Change { key, value } in changes.iter() {
            let written = if value.is_empty() { writer.delete(key) } else { writer.put(key, value) };
            written.map_err(failed)?;
        }
        writer.finish().map_err(failed)?;
        let mut ingestion = IngestExternalFileOptions::default();
        ingestion.set_move_files(true);
        self.db.ingest_external_file_cf_opts(self.counters(), &ingestion, vec![&file]).map_err(failed)
    }

    fn clear_journal(&self, number: u64) -> Result<(), StoreError> {
        self.db
            .delete_range_cf(self.journal(), 0u64.to_be_bytes(), number.saturating_add(1).to_be_bytes())
            .map_err(|e| store_error("trim the journal", &e))
    }

    fn sync(&self) -> Result<(), StoreError> {
        let change = self.db.latest_sequence_number();
        self.db.flush_wal(true).map_err(|e| store_error("fsync the write-ahead log", &e))?;
        // Linux reports a failed write of a page once, and RocksDB's own fsyncs may have been told.
        if self.number(properties::BACKGROUND_ERRORS) > 0 {
            return Err(StoreError::new("cannot fsync the write-ahead log: RocksDB's background work has failed"));
        }
        self.synced.note(change);
        self.synced.sync();
        Ok(())
    }
}

/// The number of the last commit in the journal; 0 when it is empty.
fn last_commit(db: &DB) -> Result<u64, rocksdb::Error> {
    let Some(journal) = db.cf_handle(JOURNAL) else { return Ok(0) };
    let last = db.iterator_cf(journal, IteratorMode::End).next().transpose()?;
    Ok(last.and_then(|(number, _)| Some(u64::from_be_bytes(*number.first_chunk()?))).unwrap_or(0))
}

fn open_error(path: &Path, error: &rocksdb::Error) -> OpenError {
    let reason = error.to_string();
    let path = path.to_path_buf();
    match error.kind() {
        _ if reason.contains("While lock file") || reason.contains("lock hold by current process") => {
            OpenError::InUse(path)
        }
        _ if reason.contains("No such file") => OpenError::Damaged { path, reason },
        rocksdb::ErrorKind::Corruption => OpenError::Damaged { path, reason },
        _ => OpenError::Unusable { path, reason },
    }
}

fn unusable(path: &Path, error: &io::Error) -> OpenError {
    OpenError::Unusable { path: path.into(), reason: error.to_string() }
}

fn store_error(what: &str, error: &rocksdb::Error) -> StoreError {
    StoreError::new(format!("cannot {what}: {error}"))
}
