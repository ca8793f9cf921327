//! The journal records that no fsync has covered. They are kept in memory, because a disk that fails may lose them
//! although they were written.

use super::journal;
use crate::store::rocks::sync::Mutex;

/// Approximate size of a chunk of records. Memory is given back chunk by chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes beyond which a commit waits for an fsync.
const MAX_BYTES: usize = 48 << 20;
/// Bytes beyond which a large batch waits for an fsync before it changes anything, so that commits need not wait.
const MANY_BYTES: usize = 8 << 20;

/// The records since the last fsync.
#[derive(Debug, Default)]
pub struct UnsyncedRecords {
    records: Mutex<Records>,
}

/// Journal records in chunks.
#[derive(Debug, Default)]
pub struct Records {
    /// Records are framed like staged changes: each is the value of a change without a key.
    chunks: Vec<Vec<u8>>,
    bytes: usize,
}

impl UnsyncedRecords {
    /// Adds a record, which may have failed to be written.
    pub fn push(&self, record: &[u8]) {
        if !record.is_empty() {
            self.records.lock().push(record);
        }
    }

    /// Whether a commit has to wait for an fsync.
    pub fn is_full(&self) -> bool {
        self.records.lock().bytes > MAX_BYTES
    }

    /// Whether large batches have to wait for an fsync.
    pub fn is_long(&self) -> bool {
        self.records.lock().bytes > MANY_BYTES
    }

    /// Takes all records. An fsync that begins now covers those that were written.
    pub fn take(&self) -> Records {
        std::mem::take(&mut self.records.lock())
    }

    /// Puts back the records of a failed fsync, before those that were added since.
    pub fn put_back(&self, mut records: Records) {
        let mut now = self.records.lock();
        records.bytes += now.bytes;
        records.chunks.append(&mut now.chunks);
        *now = records;
    }
}

impl Records {
    fn push(&mut self, record: &[u8]) {
        self.bytes += record.len();
        let has_room = |chunk: &Vec<u8>| chunk.len() + record.len() <= CHUNK_BYTES;
        if !self.chunks.last().is_some_and(has_room) {
            // A chunk that grew would be copied. The system provides its pages only as they are written.
            self.chunks.push(Vec::with_capacity(CHUNK_BYTES));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            journal::stage(chunk, &[], |out| out.extend_from_slice(record));
        }
    }

    /// The records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().flat_map(|chunk| journal::staged(chunk).map_while(Result::ok).map(|record| record.value))
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_order_even_after_a_failed_fsync() {
        let unsynced = UnsyncedRecords::default();
        let record = |n: usize| vec![n as u8; 300 << 10];
        (0..10).for_each(|n| unsynced.push(&record(n)));
        let covered = unsynced.take();
        unsynced.push(&[]);
        (10..12).for_each(|n| unsynced.push(&record(n)));
        unsynced.put_back(covered);
        assert!(unsynced.take().iter().eq((0..12).map(record).collect::<Vec<_>>().iter()));
        assert!(unsynced.take().iter().next().is_none());
    }

    #[test]
    fn there_is_a_bound() {
        let unsynced = UnsyncedRecords::default();
        (0..=48).for_each(|_| unsynced.push(&vec![0; 1 << 20]));
        assert!(unsynced.is_full());
        unsynced.take();
        assert!(!unsynced.is_full());
    }
}
