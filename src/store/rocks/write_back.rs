//! Write-back: brings the counters' own records up to date, and then drops the journal records that they replace.
//!
//! Counters change far more often than they are written back, so a thousand hits of one counter cost one record. No
//! answer needs a write-back: what is not written back yet is in the journal. Counters that were written are remembered
//! until an fsync has covered them, so that they can be written again should that fsync fail.

use super::disk::Disk;
use super::sync::Mutex;
use super::table::{STRIPES, Table};
use crate::store::error::StoreError;

/// Bytes of changes in one write: few, for a commit may have to wait for it.
const BYTES_PER_WRITE: usize = 16 << 10;

/// The state of the write-back: how much journal it has before it, and what it wrote that is not synced yet.
pub struct WriteBack {
    /// One write-back at a time; it holds the number of the next write.
    running: Mutex<u32>,
    journal: Mutex<Journal>,
    /// Writes that are not synced.
    unsynced: Mutex<Vec<Write>>,
}

/// Counters written together.
struct Write {
    /// Tells it from the other unsynced ones, which may hold the same counters.
    number: u32,
    /// As in a journal record.
    changes: Vec<u8>,
}

/// The journal records that the counters' own records do not replace yet.
#[derive(Debug, Clone, Copy, Default)]
struct Journal {
    /// The last commit in it.
    last: u64,
    bytes: u64,
}

impl WriteBack {
    pub fn new() -> Self {
        Self { running: Mutex::new(0), journal: Mutex::new(Journal::default()), unsynced: Mutex::new(Vec::new()) }
    }

    /// Bytes that were added to the journal and not yet made superfluous.
    pub fn journal_bytes(&self) -> u64 {
        self.journal.lock().bytes
    }

    /// Commit `number` has been appended to the journal.
    pub fn journal_grew(&self, number: u64, bytes: usize) {
        let mut journal = self.journal.lock();
        journal.last = number;
        journal.bytes += bytes as u64;
    }

    /// Writes every dirty counter, then drops the journal up to the last commit before this call.
    ///
    /// # Errors
    /// When the disk refuses a write. The journal is kept then, and the counters are dirty again.
    pub fn run<D: Disk>(&self, table: &Table, disk: &D) -> Result<(), StoreError> {
        self.run_then(table, disk, || ())
    }

    /// As [`WriteBack::run`], and then `look`, before another write-back may begin: the counters' records do not change
    /// meanwhile.
    ///
    /// # Errors
    /// Those of [`WriteBack::run`].
    pub fn run_then<D: Disk, T>(&self, table: &Table, disk: &D, look: impl FnOnce() -> T) -> Result<T, StoreError> {
        let mut next_write = self.running.lock();
        // Read at once, and under the lock: a change of a later commit may be missed by this run, and its record must
        // neither be dropped nor count as dropped.
        let journal = *self.journal.lock();
        let mut write = Write::new(&mut next_write);
        for stripe in 0..STRIPES {
            table.take_dirty(stripe, write.number, &mut write.changes);
            if write.changes.len() >= BYTES_PER_WRITE {
                self.write(std::mem::replace(&mut write, Write::new(&mut next_write)), table, disk)?;
            }
        }
        self.write(write, table, disk)?;
        if journal.bytes > 0 {
            disk.clear_journal(journal.last)?;
            self.journal.lock().bytes -= journal.bytes;
        }
        Ok(look())
    }

    fn write<D: Disk>(&self, write: Write, table: &Table, disk: &D) -> Result<(), StoreError> {
        if write.changes.is_empty() {
            return Ok(());
        }
        let written = disk.write_counters(&write.changes);
        match written {
            Ok(()) => self.unsynced.lock().push(write),
            Err(_) => table.not_written(write.number, &write.changes),
        }
        written
    }

    /// Whether an fsync is owed.
    pub fn has_unsynced(&self) -> bool {
        !self.unsynced.lock().is_empty()
    }

    /// Syncs the disk. What was written back before is safe then: its counters may leave the table.
    ///
    /// # Errors
    /// When the sync fails: nothing since the last good one counts as written, so those counters are dirty again.
    pub fn sync<D: Disk>(&self, table: &Table, disk: &D) -> Result<(), StoreError> {
        let covered = std::mem::take(&mut *self.unsynced.lock());
        let synced = disk.sync();
        for write in covered {
            match synced {
                Ok(()) => table.written(write.number, &write.changes),
                Err(_) => table.not_written(write.number, &write.changes),
            }
        }
        synced
    }

    /// The database was opened again: nothing since the last good sync counts as written. The journal was replayed.
    pub fn start_over(&self, table: &Table) {
        let _one_at_a_time = self.running.lock();
        for write in std::mem::take(&mut *self.unsynced.lock()) {
            table.not_written(write.number, &write.changes);
        }
        self.journal.lock().bytes = 0;
    }
}

impl Write {
    fn new(next: &mut u32) -> Self {
        let number = *next;
        *next = next.wrapping_add(1);
        Self { number, changes: Vec::new() }
    }
}
