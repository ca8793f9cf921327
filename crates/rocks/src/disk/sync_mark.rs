//! A mark that says how much of the write-ahead log is on stable storage, in a small file next to the database.
//!
//! After a power cut, the log may end early, but not before this mark, because synced data does not vanish. The mark is
//! written after a successful fsync, so it never claims too much. A missing, torn or old mark claims less.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use siphasher::sip::SipHasher13;

use super::open_error::OpenError;
use divvy_core::files;

pub const SYNCED_FILE: &str = "DIVVY-SYNCED";
/// First bytes of the file: its kind, and the version of its layout.
const MAGIC: &[u8; 8] = b"DIVSYNC1";
const WORD: usize = size_of::<u64>();
/// The magic, RocksDB's sequence number and a checksum of both, little-endian.
const LENGTH: usize = 3 * WORD;

/// The mark of one data directory.
pub struct SyncMark {
    file: File,
    /// RocksDB's sequence number of the last change that was known to be synced when the file was opened.
    sequence: Option<u64>,
}

impl SyncMark {
    /// Opens the mark in the data directory `path`. Makes an empty one if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.join(SYNCED_FILE);
        let sequence = match files::read(&path, LENGTH as u64) {
            Ok(bytes) => bytes.first_chunk().and_then(decode),
            Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::FileTooLarge].contains(&error.kind()) => None,
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path)?;
        let is_unreadable = sequence.is_none() && file.metadata()?.len() > 0;
        if is_unreadable {
            tracing::warn!(file = %path.display(), "the sync marker is damaged: missing parts of the write-ahead log cannot be detected");
        }
        Ok(Self { file, sequence })
    }

    /// Checks that a database with every change up to `recovered` has all changes that were synced when the mark was
    /// opened.
    ///
    /// # Errors
    /// [`OpenError::Damaged`] if some are missing.
    pub fn check(&self, recovered: u64, path: &Path) -> Result<(), OpenError> {
        match self.sequence {
            Some(synced) if synced > recovered => Err(OpenError::Damaged {
                path: path.into(),
                reason: format!(
                    "the write-ahead log is complete up to change {recovered}, but changes up to {synced} had been synced \
                     to the disk; to serve the rest anyway, remove the file {SYNCED_FILE} in it"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Records that every change up to `sequence` is on stable storage. If the mark cannot be written, it stays behind,
    /// which is safe.
    pub fn note(&self, sequence: u64) {
        let _ = self.file.write_all_at(&encode(sequence), 0);
    }

    /// Forces the mark itself to stable storage.
    pub fn sync(&self) {
        let _ = self.file.sync_data();
    }
}

fn encode(sequence: u64) -> Vec<u8> {
    [*MAGIC, sequence.to_le_bytes(), checksum(sequence)].concat()
}

fn decode(bytes: &[u8; LENGTH]) -> Option<u64> {
    let [magic, sequence, sum] = bytes.as_chunks::<WORD>().0 else { return None };
    let sequence_read = u64::from_le_bytes(*sequence);
    (magic == MAGIC && *sum == checksum(sequence_read)).then_some(sequence_read)
}

fn checksum(sequence: u64) -> [u8; WORD] {
    let mut hasher = SipHasher13::new();
    hasher.write(MAGIC);
    hasher.write(&sequence.to_le_bytes());
    hasher.finish().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_reads_back_and_the_last_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mark = SyncMark::open(dir.path()).unwrap();
        assert_eq!(mark.sequence, None);
        mark.note(u64::MAX);
        mark.note(7);
        assert_eq!(SyncMark::open(dir.path()).unwrap().sequence, Some(7));
    }

    #[test]
    fn damaged_mark_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let whole: [u8; LENGTH] = encode(123_456).try_into().unwrap();
        for at in 0..LENGTH {
            let mut bytes = whole;
            bytes[at] ^= 0x10;
            std::fs::write(dir.path().join(SYNCED_FILE), bytes).unwrap();
            assert_eq!(SyncMark::open(dir.path()).unwrap().sequence, None, "byte {at}");
            std::fs::write(dir.path().join(SYNCED_FILE), &whole[..at]).unwrap();
            assert_eq!(SyncMark::open(dir.path()).unwrap().sequence, None, "the first {at} bytes");
        }
    }
}
