//! The store's [`SealKey`], in a small file that is created once and copied into every backup.
//!
//! The file contains the layout's number, the key, and a checksum of both.

use std::io::{self, ErrorKind};
use std::path::Path;

use siphasher::sip128::SipHasher13;

use super::directory;
use super::open_error::OpenError;
use divvy_core::files;
use divvy_store::contract::StoreError;
use divvy_store::seal::SealKey;

pub const FILE: &str = "DIVVY-SEAL";
/// Version of the file's layout, which is `version key check`.
const VERSION: &str = "1";
/// Maximum size, which is more than the three fields take.
const MAX_BYTES: u64 = 1024;

/// Reads the key. If the directory has no key, or a damaged one, creates a new key on stable storage.
///
/// # Errors
/// The file cannot be read or written, or the system provides no random bytes.
pub fn read_or_make(data_dir: &Path) -> Result<SealKey, OpenError> {
    let unusable = |reason: String| OpenError::unusable(data_dir, &format_args!("{FILE}: {reason}"));
    let stored = match files::read(&data_dir.join(FILE), MAX_BYTES) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => None,
        Err(error) if error.kind() == ErrorKind::NotFound => return make(data_dir).map_err(unusable),
        Err(error) => return Err(unusable(error.to_string())),
    };
    if let Some(key) = stored {
        return Ok(key);
    }
    tracing::error!(
        file = %data_dir.join(FILE).display(),
        "the key for reservation ids is damaged: a new one replaces it, and earlier reservations expire on their own"
    );
    make(data_dir).map_err(unusable)
}

/// Writes the key into a data directory or a backup, on stable storage.
///
/// # Errors
/// The file cannot be written.
pub fn write(key: SealKey, dir: &Path) -> io::Result<()> {
    directory::replace_file(dir, FILE, &to_text(key))
}

fn make(data_dir: &Path) -> Result<SealKey, String> {
    let key = SealKey::random().map_err(|error: StoreError| error.to_string())?;
    write(key, data_dir).map_err(|error| error.to_string())?;
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
    SipHasher13::new_with_keys(0, 0).hash(content.as_bytes()).h1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(dir: &Path) -> SealKey {
        read_or_make(dir).unwrap()
    }

    #[test]
    fn key_is_made_once_and_is_the_same_in_a_copy() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let key = read(dir.path());
        assert_eq!(read(dir.path()), key);
        write(key, copy.path()).unwrap();
        assert_eq!(read(copy.path()), key);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn other_users_cannot_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        read(dir.path());
        assert_eq!(fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn damaged_key_is_replaced_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
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
        fs::create_dir(dir.path().join(FILE)).unwrap();
        let error = read_or_make(dir.path()).unwrap_err().to_string();
        assert!(error.contains(FILE), "{error}");
        assert!(dir.path().join(FILE).is_dir());
    }
}
