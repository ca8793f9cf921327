//! Small files next to the database: the key that seals ids, and the sync mark.
//!
//! The store's [`SealKey`] is created once, and copied into every backup. Its file contains the layout's number, the key, and a
//! checksum of both.
//!
//! The sync mark says how much of the write-ahead log is on stable storage. After a power cut, the log may end early, but not
//! before this mark, because synced data does not vanish. The mark is written after a successful fsync, so it never claims too
//! much. A missing, torn or old mark claims less.

use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use siphasher::{sip, sip128};

use super::directory::{self, OpenError};
use divvy_core::files;
use divvy_store::{SealKey, StoreError};

pub const SEAL_FILE: &str = "DIVVY-SEAL";
/// Version of the file's layout, which is `version key check`.
const VERSION: &str = "1";
/// Maximum size, which is more than the three fields take.
const MAX_BYTES: u64 = 1024;
pub const SYNCED_FILE: &str = "DIVVY-SYNCED";
/// First bytes of the file: its kind, and the version of its layout.
const MAGIC: &[u8; 8] = b"DIVSYNC1";
const WORD: usize = size_of::<u64>();
/// The magic, RocksDB's sequence number and a checksum of both, little-endian.
const LENGTH: usize = 3 * WORD;

/// Reads the key. If the directory has no key, or a damaged one, creates a new key on stable storage.
///
/// # Errors
/// The file cannot be read or written, or the system provides no random bytes.
pub fn read_or_make_seal_key(data_dir: &Path) -> Result<SealKey, OpenError> {
    let unusable = |reason: String| OpenError::unusable(data_dir, &format_args!("{SEAL_FILE}: {reason}"));
    let stored = match files::read(&data_dir.join(SEAL_FILE), MAX_BYTES) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => None,
        Err(error) if error.kind() == ErrorKind::NotFound => return make(data_dir).map_err(unusable),
        Err(error) => return Err(unusable(error.to_string())),
    };
    if let Some(key) = stored {
        return Ok(key);
    }
    tracing::error!(
        file = %data_dir.join(SEAL_FILE).display(),
        "the key for reservation ids is damaged: a new one replaces it, and earlier reservations expire on their own"
    );
    make(data_dir).map_err(unusable)
}

/// Writes the key into a data directory or a backup, on stable storage.
///
/// # Errors
/// The file cannot be written.
pub fn write_seal_key(key: SealKey, dir: &Path) -> io::Result<()> {
    directory::replace_file(dir, SEAL_FILE, &to_text(key))
}

fn make(data_dir: &Path) -> Result<SealKey, String> {
    let key = SealKey::random().map_err(|error: StoreError| error.to_string())?;
    write_seal_key(key, data_dir).map_err(|error| error.to_string())?;
    Ok(key)
}

fn to_text(key: SealKey) -> String {
    let content = format!("{VERSION} {}", key.to_text());
    let check = check(&content);
    format!("{content} {check:016x}\n")
}

fn parse(text: &[u8]) -> Option<SealKey> {
    let text = std::str::from_utf8(text).ok()?;
    let key = text.strip_prefix(VERSION)?.split(' ').nth(1).and_then(SealKey::parse)?;
    (to_text(key) == text).then_some(key)
}

/// Returns a checksum that detects damage. It need not detect forgery, because anyone who can write the file can read
/// the key.
fn check(content: &str) -> u64 {
    sip128::SipHasher13::new_with_keys(0, 0).hash(content.as_bytes()).h1
}

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
    let mut hasher = sip::SipHasher13::new();
    hasher.write(MAGIC);
    hasher.write(&sequence.to_le_bytes());
    hasher.finish().to_le_bytes()
}

#[cfg(test)]
mod stored_seal_key_tests {
    use std::fs;

    use super::*;

    fn read(dir: &Path) -> SealKey {
        read_or_make_seal_key(dir).unwrap()
    }

    #[test]
    fn key_is_made_once_and_is_the_same_in_a_copy() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = read(dir.path());
        assert_eq!(read(dir.path()), key);
        write_seal_key(key, copy.path()).unwrap();
        assert_eq!(read(copy.path()), key);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn other_users_cannot_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        read(dir.path());
        assert_eq!(fs::metadata(dir.path().join(SEAL_FILE)).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn damaged_key_is_replaced_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(SEAL_FILE);
        let key = read(dir.path());
        let text = fs::read(&file).unwrap();
        for place in 0..text.len() {
            let mut damaged = text.clone();
            damaged[place] ^= 1;
            assert_eq!(parse(&damaged), None, "at {place}");
        }
        for damaged in [&text[..text.len() - 1], b"", &[0; 51], &[b'x'; 2048]] {
            fs::write(&file, damaged).unwrap();
            let new = read(dir.path());
            assert_ne!(new, key);
            assert_eq!(read(dir.path()), new);
        }
    }

    #[test]
    fn file_that_cannot_be_read_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(SEAL_FILE)).unwrap();
        let error = read_or_make_seal_key(dir.path()).unwrap_err().to_string();
        assert!(error.contains(SEAL_FILE), "{error}");
        assert!(dir.path().join(SEAL_FILE).is_dir());
    }
}

#[cfg(test)]
mod sync_mark_tests {
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
