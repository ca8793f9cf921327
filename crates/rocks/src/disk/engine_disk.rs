//! The database as the engine's disk.

use rocksdb::{
    DBPinnableSlice, IngestExternalFileOptions, ReadOptions, ReadTier, SstFileWriter, WriteOptions, properties,
};

use super::database::{Database, store_error};
use super::directory;
use super::tuning::{FileContent, table_options};
use super::{Disk, EachCounter, EachRecord, Patience, Reach};
use crate::commit::journal::Change;
use crate::commit::sorted_changes::SortedChanges;
use divvy_store::contract::StoreError;

/// Average length of changes above which the keys of a write-back count as long (bytes).
const LONG_CHANGE: usize = 1 << 10;

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
                let read = |key| self.db.get_pinned_cf_opt(self.counters(), key, &options);
                keys.iter().enumerate().for_each(|(position, key)| give(position, read(key)));
            }
            Reach::Disk => {
                let read = self.db.batched_multi_get_cf(self.counters(), keys, false);
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

    /// Writes a table file and adds it to RocksDB, without a log or a write buffer. The changes are durable at once.
    fn write_counters(&self, changes: &SortedChanges<'_>) -> Result<(), StoreError> {
        let failed = |e: rocksdb::Error| store_error("write counters", &e);
        let file = self.path().join(directory::WRITE_BACK_FILE);
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
        // Linux reports a failed write of a page only once, and may have reported it to one of RocksDB's own fsyncs.
        if self.number(properties::BACKGROUND_ERRORS) > 0 {
            return Err(StoreError::new("cannot fsync the write-ahead log: RocksDB's background work has failed"));
        }
        self.synced.note(change);
        self.synced.sync();
        Ok(())
    }
}
