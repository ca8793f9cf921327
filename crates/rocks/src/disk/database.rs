//! The RocksDB database: opening, reading, writing, and its column families.
//!
//! - `default`: empty. RocksDB requires this family.
//! - `counters`: bucket key → stored value; exceptions for single actors; compactions drop expired ones.
//! - `journal`: commit number → journal record; write-backs drop the oldest.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    BottommostLevelCompaction, CStrLike, ColumnFamily, ColumnFamilyDescriptor, CompactOptions, DB, DBRecoveryMode,
    Direction, IteratorMode, PrefixRange, ReadOptions, WriteBatch, WriteOptions,
};

use super::Disk;
use super::directory;
use super::expiry_filter::Swept;
use super::open_error::OpenError;
use super::sync_mark::SyncMark;
use super::tuning::{counters_options, database_options, default_options, journal_options};
use crate::commit::journal;
use divvy_core::clock::Clock;
use divvy_store::contract::StoreError;
use divvy_store::record_key;

const COUNTERS: &str = "counters";
const JOURNAL: &str = "journal";
const DEFAULT: &str = "default";
const FAMILIES: [&str; 3] = [DEFAULT, JOURNAL, COUNTERS];

/// A counter's key and its record's value.
pub type KeyAndValue = (Box<[u8]>, Box<[u8]>);

/// An open database.
pub struct Database {
    pub(super) db: DB,
    pub(super) synced: SyncMark,
    /// The last commit in its journal when it was opened; 0 if the journal was empty.
    pub last_commit: u64,
}

impl Database {
    /// Opens the database in `path`, creating it in a new or empty directory. Its journal does not change. Compactions
    /// report to `swept` the records that they drop.
    ///
    /// After a power cut, the log may be torn or have a hole. It is recovered up to that point. If a later part had
    /// been synced, the database is damaged.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(path: &Path, clock: Clock, swept: Arc<Swept>) -> Result<Self, OpenError> {
        let content = directory::claim(path)?;
        let synced = SyncMark::open(path).map_err(|error| OpenError::unusable(path, &error))?;
        let families = || {
            [
                ColumnFamilyDescriptor::new(DEFAULT, default_options()),
                ColumnFamilyDescriptor::new(COUNTERS, counters_options(clock, Arc::clone(&swept))),
                ColumnFamilyDescriptor::new(JOURNAL, journal_options()),
            ]
        };
        let open = |mode| DB::open_cf_descriptors(&database_options(content, mode), path, families());
        let failed = |error: rocksdb::Error| open_error(path, &error);
        let (db, is_torn) = match open(DBRecoveryMode::AbsoluteConsistency) {
            Err(error) if error.kind() == rocksdb::ErrorKind::Corruption => {
                // This step changes nothing, so that a refused directory stays as it was.
                let options = database_options(content, DBRecoveryMode::PointInTime);
                let look = DB::open_cf_descriptors_read_only(&options, path, families(), false).map_err(failed)?;
                synced.check(look.latest_sequence_number(), path)?;
                drop(look);
                (open(DBRecoveryMode::PointInTime).map_err(failed)?, true)
            }
            opened => (opened.map_err(failed)?, false),
        };
        let recovered = db.latest_sequence_number();
        synced.check(recovered, path)?;
        if has_outdated_exceptions(&db).map_err(failed)? {
            return Err(OpenError::OutdatedExceptions(path.into()));
        }
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
        Ok(Self { db, synced, last_commit })
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

    pub fn path(&self) -> &Path {
        self.db.path()
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
        read_after(self.db.iterator_cf_opt(self.counters(), options, start), after)
    }

    /// Returns the key and the record of every counter at the time of the call, without the records of reservations,
    /// answers and exceptions.
    pub fn records(&self) -> impl Iterator<Item = Result<KeyAndValue, StoreError>> + use<'_> {
        let is_counter =
            |record: &Result<KeyAndValue, _>| record.as_ref().map_or(true, |(key, _)| record_key::is_counter(key));
        self.entries(&[], None).filter(is_counter)
    }

    /// Stores exceptions, or removes those without a value, in one write, with `sync` on stable storage.
    ///
    /// # Errors
    /// Fails if RocksDB refuses the write.
    pub fn write_exceptions(
        &self,
        exceptions: impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)>,
        sync: bool,
    ) -> Result<(), StoreError> {
        let (mut batch, family) = (WriteBatch::default(), self.counters());
        exceptions.for_each(|(key, value)| match value {
            Some(value) => batch.put_cf(family, key, value),
            None => batch.delete_cf(family, key),
        });
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        self.db.write_opt(batch, &options).map_err(|e| store_error("write exceptions", &e))
    }

    /// Returns a number that RocksDB keeps for the family of counters; 0 if it is unknown.
    ///
    /// # Errors
    /// Fails if RocksDB cannot read it.
    pub fn counters_number(&self, property: impl CStrLike) -> Result<u64, StoreError> {
        let number = self.db.property_int_value_cf(self.counters(), property);
        number.map(Option::unwrap_or_default).map_err(|e| store_error("measure the counters", &e))
    }

    /// Returns the size of the write-ahead log (bytes), from the files in the directory.
    pub fn wal_bytes(&self) -> io::Result<u64> {
        directory::size(self.path(), |path| path.extension().is_some_and(|extension| extension == "log"))
    }

    /// Copies everything that is written into the new directory `dir`. Files that never change are linked if the
    /// directory is on the same file system.
    pub fn checkpoint(&self, dir: &Path) -> Result<(), StoreError> {
        Checkpoint::new(&self.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(dir))
            .map_err(|e| store_error("copy the database", &e))
    }

    /// Returns a number that RocksDB keeps for the whole database; 0 if it is unknown.
    pub fn number(&self, property: impl CStrLike) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or_default()
    }

    /// Returns the sum of a number that RocksDB keeps for each column family.
    pub fn sum(&self, property: impl CStrLike + Copy) -> u64 {
        let number = |name| self.db.property_int_value_cf(self.family(name), property).ok().flatten();
        FAMILIES.into_iter().filter_map(number).sum()
    }

    /// Rewrites everything now, and drops expired counters and trimmed journal records. This includes the smallest
    /// family, because data that is only in memory keeps its write-ahead log alive, and all later ones.
    pub fn compact(&self) {
        for family in FAMILIES {
            self.db.compact_range_cf(self.family(family), None::<&[u8]>, None::<&[u8]>);
        }
    }

    /// Rewrites the counters, and drops expired ones. RocksDB's own compactions continue at the same time.
    pub fn compact_counters(&self) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        // The filter sees the lowest level only if that is also rewritten.
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.db.compact_range_cf_opt(self.counters(), None::<&[u8]>, None::<&[u8]>, &options);
    }

    pub fn stop_background_work(&self) {
        self.db.cancel_all_background_work(true);
    }

    pub(super) fn counters(&self) -> &ColumnFamily {
        self.family(COUNTERS)
    }

    pub(super) fn journal(&self) -> &ColumnFamily {
        self.family(JOURNAL)
    }

    #[expect(clippy::expect_used, reason = "open() fails unless every column family is there")]
    fn family(&self, name: &str) -> &ColumnFamily {
        self.db.cf_handle(name).expect("opened with this column family")
    }
}

/// Reads these entries, except the one with the key `after`.
fn read_after(
    entries: impl Iterator<Item = Result<KeyAndValue, rocksdb::Error>>,
    after: Option<&[u8]>,
) -> impl Iterator<Item = Result<KeyAndValue, StoreError>> {
    let is_wanted = move |entry: &Result<KeyAndValue, _>| entry.as_ref().map_or(true, |(key, _)| after != Some(key));
    entries.filter(is_wanted).map(|entry| entry.map_err(|e| store_error("read the counters", &e)))
}

/// Returns whether there are limits, blocks or allows where builds before the release of 0.2.0 kept them.
fn has_outdated_exceptions(db: &DB) -> Result<bool, rocksdb::Error> {
    let limit = db.iterator(IteratorMode::Start).next().transpose()?;
    let Some(counters) = db.cf_handle(COUNTERS) else { return Ok(limit.is_some()) };
    let first = IteratorMode::From(record_key::OUTDATED_OVERRIDES, Direction::Forward);
    let next = db.iterator_cf(counters, first).next().transpose()?;
    Ok(limit.is_some() || next.is_some_and(|(key, _)| key.starts_with(record_key::OUTDATED_OVERRIDES)))
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

pub(super) fn store_error(what: &str, error: &rocksdb::Error) -> StoreError {
    StoreError::new(format!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_of_earlier_builds_are_refused() {
        let limit = b"\x01login\0ann".to_vec();
        let block = [record_key::OUTDATED_OVERRIDES, b"block:login\0ann"].concat();
        for (family, key) in [(DEFAULT, limit), (COUNTERS, block)] {
            let dir = tempfile::tempdir().unwrap();
            let open = || Database::open(dir.path(), Clock::system(), Arc::default());
            let database = open().unwrap();
            database.db.put_cf(database.family(family), key, [0xff; 16]).unwrap();
            drop(database);
            for _ in 0..2 {
                let error = open().err().unwrap();
                assert!(matches!(&error, OpenError::OutdatedExceptions(path) if path == dir.path()), "{error}");
            }
        }
    }
}
