//! Write-back: brings the counters' own records in RocksDB up to date, and then drops the journal records that they
//! replace.
//!
//! Counters change far more often than they are written back, so a thousand hits of one counter cost one record. It is
//! never needed for an answer: what is not written back yet is in the journal.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rocksdb::WriteBatch;

use super::database::Database;
use super::table::{KeyHash, STRIPES, Table};
use crate::store::StoreError;

/// Records in one write: small, for a commit may have to wait for it.
const RECORDS_PER_WRITE: usize = 256;

/// One write-back at a time, and how much journal it has before it.
#[derive(Default)]
pub struct WriteBack {
    running: Mutex<()>,
    journal_bytes: AtomicU64,
}

/// Counters taken from the table and not yet written.
#[derive(Default)]
struct Taken {
    batch: WriteBatch,
    hashes: Vec<KeyHash>,
    keys: Vec<Vec<u8>>,
}

impl WriteBack {
    /// Bytes that were added to the journal and not yet made superfluous.
    pub fn journal_bytes(&self) -> u64 {
        self.journal_bytes.load(Relaxed)
    }

    pub fn journal_grew(&self, bytes: usize) {
        self.journal_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Writes every counter whose record is behind, then drops the journal up to commit `through`. Every change of those
    /// commits must be in the table when this is called.
    ///
    /// # Errors
    /// When RocksDB refuses a write; the journal is kept then, and the counters are written next time.
    pub fn run(&self, table: &Table, database: &Database, through: u64) -> Result<(), StoreError> {
        self.run_then(table, database, through, || ())
    }

    /// As [`WriteBack::run`], and then `look`, before another write-back may begin: the counters' records do not change
    /// meanwhile.
    ///
    /// # Errors
    /// Those of [`WriteBack::run`].
    pub fn run_then<T>(
        &self,
        table: &Table,
        database: &Database,
        through: u64,
        look: impl FnOnce() -> T,
    ) -> Result<T, StoreError> {
        let _one_at_a_time = self.running.lock();
        let bytes = self.journal_bytes();
        let mut taken = Taken::default();
        for stripe in 0..STRIPES {
            table.take_behind(stripe, |key, value, hash| {
                database.add_counter(&mut taken.batch, key, value);
                taken.hashes.push(hash);
                taken.keys.push(key.to_vec());
            });
            if taken.hashes.len() >= RECORDS_PER_WRITE {
                std::mem::take(&mut taken).write(table, database)?;
            }
        }
        taken.write(table, database)?;
        if bytes > 0 {
            database.clear_journal(through)?;
            self.journal_bytes.fetch_sub(bytes, Relaxed);
        }
        Ok(look())
    }
}

impl Taken {
    fn write(self, table: &Table, database: &Database) -> Result<(), StoreError> {
        if self.hashes.is_empty() {
            return Ok(());
        }
        let result = database.write(self.batch);
        match result {
            Ok(()) => table.written(&self.hashes),
            Err(_) => table.not_written(self.keys.iter().map(Vec::as_slice)),
        }
        result
    }
}
