//! The number of counters, in a small file while the database is closed.
//!
//! The file is written after everything else, and removed before the database is opened again. So a killed process does
//! not leave one. It also names the database's last change: if something else has changed the database since, the
//! counters are counted again. Earlier versions ignore the file.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use super::directory;
use super::open_error::OpenError;
use crate::files;
use crate::store::bounds::CounterCount;

pub const FILE: &str = "DIVVY-COUNTERS";
/// The layout of the file: `version sequence at-least at-most`, in digits.
const VERSION: u64 = 1;
/// Maximum size, which is more than four numbers take.
const MAX_BYTES: u64 = 1024;

/// The content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCount {
    /// RocksDB's sequence number of the last change.
    pub sequence: u64,
    pub count: CounterCount,
}

impl StoredCount {
    /// Writes the file to stable storage.
    pub fn write(self, data_dir: &Path) -> io::Result<()> {
        let Self { sequence, count: CounterCount { at_least, at_most } } = self;
        directory::replace_file(data_dir, FILE, &format!("{VERSION} {sequence} {at_least} {at_most}\n"))
    }

    fn parse(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> = text.trim_end().split(' ').map(str::parse).collect();
        let [VERSION, sequence, at_least, at_most] = numbers.ok()?[..] else { return None };
        (at_least <= at_most).then_some(Self { sequence, count: CounterCount { at_least, at_most } })
    }
}

/// Reads the file and removes it permanently; `None` if it does not exist or cannot be decoded.
pub fn take(data_dir: &Path) -> Result<Option<StoredCount>, OpenError> {
    let path = data_dir.join(FILE);
    let text = match files::read(&path, MAX_BYTES) {
        Ok(text) => String::from_utf8(text).unwrap_or_default(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // In the worst case, the counters are counted again.
        Err(_) => String::new(),
    };
    let removed = fs::remove_file(&path).and_then(|()| File::open(data_dir)?.sync_all());
    removed.map_err(|error| OpenError::unusable(data_dir, &error))?;
    Ok(StoredCount::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_count_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(take(dir.path()).unwrap(), None);
        let stored = StoredCount { sequence: 7, count: CounterCount { at_least: 40, at_most: 50 } };
        stored.write(dir.path()).unwrap();
        assert_eq!(take(dir.path()).unwrap(), Some(stored));
        assert_eq!(take(dir.path()).unwrap(), None);
    }

    #[test]
    fn invalid_count_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        for text in [&b""[..], b"2 7 40 50\n", b"1 7 50 40\n", b"1 7 40\n", b"1 7 40 50 60\n", b"1 7 -1 50\n", b"\xff"]
        {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert_eq!(take(dir.path()).unwrap(), None, "{text:?}");
            assert!(!dir.path().join(FILE).exists());
        }
    }
}
