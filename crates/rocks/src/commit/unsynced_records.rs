//! The journal records that no fsync has covered. They are kept in memory, because a failing disk may lose them even
//! after they were written.

use super::journal;

/// Approximate size of a chunk of records. Memory is given back chunk by chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes beyond which a commit waits for an fsync.
const MAX_BYTES: usize = 48 << 20;
/// Bytes beyond which a large batch waits for an fsync before it changes anything. So commits need not wait.
const MANY_BYTES: usize = 8 << 20;

/// The records since the last fsync, in chunks.
#[derive(Debug, Default)]
pub struct UnsyncedRecords {
    /// Records are framed like staged changes: each is the value of a change without a key.
    chunks: Vec<Vec<u8>>,
    bytes: usize,
}

impl UnsyncedRecords {
    /// Adds a record, even if writing it may have failed.
    pub fn push(&mut self, record: &[u8]) {
        if record.is_empty() {
            return;
        }
        self.bytes += record.len();
        let has_room = |chunk: &Vec<u8>| chunk.len() + record.len() <= CHUNK_BYTES;
        if !self.chunks.last().is_some_and(has_room) {
            // A chunk that grows would be copied. The system provides the pages of a large chunk only as they are
            // written.
            self.chunks.push(Vec::with_capacity(CHUNK_BYTES));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            journal::stage(chunk, &[], |out| out.extend_from_slice(record));
        }
    }

    /// Returns whether a commit must wait for an fsync.
    pub fn is_full(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Returns whether large batches must wait for an fsync.
    pub fn is_long(&self) -> bool {
        self.bytes > MANY_BYTES
    }

    /// Puts back the records of a failed fsync, before those that were added since.
    pub fn put_back(&mut self, mut records: Self) {
        records.bytes += self.bytes;
        records.chunks.append(&mut self.chunks);
        *self = records;
    }

    /// Iterates over the records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().flat_map(|chunk| journal::staged(chunk).map_while(Result::ok).map(|record| record.value))
    }
}
