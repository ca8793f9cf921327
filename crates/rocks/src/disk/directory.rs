//! The data directory: its owner and its format, which are checked before RocksDB touches anything in it, and the errors of
//! opening it.
//!
//! A file names the format. A directory that is not divvy's, has another format or lacks its database is refused and
//! left unchanged.
//!
//! The store's [`SealKey`] is created once, and copied into every backup. Its file contains the layout's number, the key, and a
//! checksum of both.
//!
//! The sync mark says how much of the write-ahead log is on stable storage. After a power cut, the log may end early, but not
//! before this mark, because synced data does not vanish. The mark is written after a successful fsync, so it never claims too
//! much. A missing, torn or old mark claims less.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use siphasher::{sip, sip128};

use divvy_core::regular_file;
use divvy_store::SealKey;

/// File that contains the format's number in digits.
pub const FORMAT_FILE: &str = "DIVVY-FORMAT";
/// Suffix of a file that is about to replace the file without the suffix.
const NEW: &str = ".new";
/// File that marks the directory as a backup. No server opens a backup, so it stays unchanged.
pub const BACKUP_FILE: &str = "DIVVY-BACKUP";
/// RocksDB's entry point, which names the database's current files.
const CURRENT: &str = "CURRENT";
/// First part of the name of RocksDB's list of files. Its number follows.
const MANIFEST: &str = "MANIFEST-";

/// File that is written to test the disk, and removed at once.
const PROBE_FILE: &str = "DIVVY-PROBE";
/// Size of the test. It is more than RocksDB writes when it opens a database. A disk with less room would fail again at
/// once.
const PROBE_BYTES: usize = 1 << 20;

/// RocksDB's lock file.
pub const LOCK_FILE: &str = "LOCK";
/// divvy's lock file. The process that has the database open holds the lock as long as its one descriptor lives. The
/// file stays.
const OWN_LOCK_FILE: &str = "DIVVY-LOCK";
/// Maximum number of attempts to lock, because a check of the lock holds it for a moment; and the pause between them.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// File of counters that are being written back, until RocksDB takes it over.
pub const WRITE_BACK_FILE: &str = "DIVVY-WRITE-BACK";
/// Extension of RocksDB's files while it writes them.
const TEMPORARY: &str = "dbtmp";
/// The format of data directories and backups. Builds before the first release wrote 1, which nothing reads.
pub const FORMAT: u8 = 2;

/// Creates the directory if it does not exist but its parent does. Claims it if it is empty.
///
/// # Errors
/// The directory is not divvy's, has another format, is damaged, or cannot be used.
pub fn claim(path: &Path) -> Result<(), OpenError> {
    let unusable = |error: io::Error| OpenError::unusable(path, &error);
    match fs::create_dir(path) {
        // Its name may be mistyped.
        Ok(()) => tracing::warn!(
            path = %path.display(),
            "the data directory did not exist: created it, and all counters start afresh; if you expected existing counters, check --data-dir"
        ),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(unusable(error)),
    }
    if path.join(BACKUP_FILE).exists() {
        return Err(OpenError::IsBackup(path.into()));
    }
    match fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(format) if is_known(&format) => {}
        // The power failed before the file reached the disk, and it contains zeros. Nothing had been acknowledged.
        Ok(format) if format.chars().all(|char| char == '\0') && fs::read_dir(path).map_err(unusable)?.count() <= 1 => {
            fs::remove_file(path.join(FORMAT_FILE)).map_err(unusable)?;
            write_format(path).map_err(unusable)?;
        }
        Ok(format) => return Err(OpenError::UnknownFormat(path.into(), format.trim().into())),
        Err(error) if error.kind() == ErrorKind::NotFound && is_empty(path).map_err(unusable)? => {
            write_format(path).map_err(unusable)?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(OpenError::NotOurs(path.into())),
        Err(error) => return Err(unusable(error)),
    }
    restore_manifest(path).map_err(unusable)?;
    // RocksDB would create a new database here, and delete the rest of the old one at the next start.
    if !has_database(path) && holds_data(path).map_err(unusable)? {
        return Err(OpenError::damaged(path, &format_args!("the file {CURRENT} is missing")));
    }
    Ok(())
}

/// Makes [`CURRENT`] name the manifest before, if the one it names is missing. RocksDB syncs the name of a new manifest after it
/// wrote CURRENT, and deletes the old one later. So a power cut may leave a CURRENT without its manifest, if the file system
/// loses the name of a file that is older than one it keeps. If this is the first manifest, no data was written yet.
fn restore_manifest(path: &Path) -> io::Result<()> {
    let named = fs::read_to_string(path.join(CURRENT)).unwrap_or_default();
    let named = named.trim_end();
    if !named.starts_with(MANIFEST) || path.join(named).exists() {
        return Ok(());
    }
    let names = files_in(path)?.into_iter().filter_map(|file| file.file_name()?.to_str().map(String::from));
    match names.filter(|name| name.starts_with(MANIFEST)).max_by_key(|name| (name.len(), name.clone())) {
        Some(before) => {
            tracing::warn!(missing = named, before, "a power cut lost RocksDB's new manifest: using the one before");
            replace_file(path, CURRENT, &format!("{before}\n"))
        }
        None if holds_data(path)? => Ok(()),
        None => fs::remove_file(path.join(CURRENT)),
    }
}

/// Returns whether the directory has a database.
pub fn has_database(path: &Path) -> bool {
    path.join(CURRENT).exists()
}

/// Locks a directory. While the lock exists, no other divvy process opens the directory. It is `None` on a file system without such
/// locks, where RocksDB's own lock must suffice.
///
/// # Errors
/// This or another process has locked it.
pub fn lock(path: &Path) -> Result<Option<File>, OpenError> {
    let unusable = |error: io::Error| OpenError::unusable(path, &error);
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path.join(OWN_LOCK_FILE)).map_err(unusable)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
    }
    Err(OpenError::InUse(path.into()))
}

/// Returns whether this or another process has the database open. Unlike a failed attempt to open it, this leaves no
/// trace.
pub fn is_in_use(path: &Path) -> bool {
    File::open(path.join(OWN_LOCK_FILE))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Removes files that RocksDB had not finished when a process was killed. This process must have the database open, so
/// that no other process writes such files.
pub fn remove_unfinished(path: &Path) -> io::Result<()> {
    for file in files_in(path)? {
        if file.ends_with(WRITE_BACK_FILE) || file.extension().is_some_and(|extension| extension == TEMPORARY) {
            tracing::info!(file = %file.display(), "removing an unfinished file that a killed process left");
            fs::remove_file(file)?;
        }
    }
    Ok(())
}

/// Returns the paths of the files in a directory.
pub fn files_in(path: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
}

/// Returns whether the directory is empty, or does not exist.
pub fn is_empty(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        entries => Ok(entries?.next().is_none()),
    }
}

/// Returns the size of those files in the directory that `is_counted` selects (bytes).
///
/// # Errors
/// The directory cannot be read.
pub fn size(path: &Path, is_counted: impl Fn(&Path) -> bool) -> io::Result<u64> {
    let sizes =
        files_in(path)?.into_iter().filter(|file| is_counted(file)).map(|file| match fs::symlink_metadata(file) {
            // RocksDB has removed the file since.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            metadata => metadata.map(|metadata| metadata.len()),
        });
    sizes.sum()
}

/// Tests whether the directory's disk takes writes, with a file that is removed again.
///
/// # Errors
/// The disk takes no writes.
pub fn probe(path: &Path) -> io::Result<()> {
    let probe = path.join(PROBE_FILE);
    let written = File::create(&probe).and_then(|mut file| {
        file.write_all(&[0; PROBE_BYTES])?;
        file.sync_all()
    });
    let removed = fs::remove_file(&probe);
    written.and(removed)
}

/// Returns whether the content of a format file names the format that this version reads.
pub fn is_known(format: &str) -> bool {
    format.trim() == FORMAT.to_string()
}

fn holds_data(path: &Path) -> io::Result<bool> {
    let is_data = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "sst" || extension == "log");
    Ok(files_in(path)?.iter().any(is_data))
}

/// Writes the file that names the format to stable storage.
pub fn write_format(path: &Path) -> io::Result<()> {
    write_file(path, FORMAT_FILE, &format!("{FORMAT}\n"))
}

/// Removes a file, if it exists.
///
/// # Errors
/// It cannot be removed.
pub fn remove_file(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Writes a new file to stable storage.
pub fn write_file(path: &Path, name: &str, content: &str) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    // The key for reservation ids is a secret, and no other program reads the other files.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path.join(name))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    File::open(path)?.sync_all()
}

/// Replaces a file on stable storage. A crash leaves either the old content or the new one.
fn replace_file(path: &Path, name: &str, content: &str) -> io::Result<()> {
    let new = format!("{name}{NEW}");
    remove_file(&path.join(&new))?;
    write_file(path, &new, content)?;
    fs::rename(path.join(&new), path.join(name))?;
    File::open(path)?.sync_all()
}

/// The reason why a data directory could not be opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory's lock.
    #[error("{0} is in use by another process; stop that one, or choose another --data-dir")]
    InUse(PathBuf),
    /// The directory has files, but does not belong to divvy.
    #[error("{0} holds files but no divvy database; choose an empty or new directory with --data-dir")]
    NotOurs(PathBuf),
    /// This version of divvy does not read the directory's format.
    #[error(
        "{0} has format {1}, and this divvy reads {FORMAT}; run the one that wrote it, or choose another --data-dir"
    )]
    UnknownFormat(PathBuf, String),
    /// RocksDB or divvy cannot read the content.
    #[error("the database in {0} is damaged ({1}); restore a backup, or move it away to start with empty counters")]
    Damaged(PathBuf, String),
    /// The directory cannot be created, read or written.
    #[error("cannot open the data directory {0}: {1}; make it writable, make room, or choose another --data-dir")]
    Unusable(PathBuf, String),
    /// The directory is a backup, which must be restored first.
    #[error("{0} is a backup; serve a data directory that `divvy restore {0} --data-dir DIR` makes from it")]
    IsBackup(PathBuf),
    /// The system does not start another thread.
    #[error("cannot start a thread for the store: {0}; raise the process limit (ulimit -u)")]
    NoThread(std::io::Error),
}

impl OpenError {
    /// Returns the error of a directory that cannot be used for this reason.
    pub fn unusable(path: &Path, reason: &dyn Display) -> Self {
        Self::Unusable(path.into(), reason.to_string())
    }

    /// Returns the error of a database that cannot be read for this reason.
    pub fn damaged(path: &Path, reason: &dyn Display) -> Self {
        Self::Damaged(path.into(), reason.to_string())
    }
}

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
    let file = data_dir.join(SEAL_FILE);
    let unusable = |reason: &dyn Display| OpenError::unusable(data_dir, &format_args!("{SEAL_FILE}: {reason}"));
    match regular_file::read(&file, MAX_BYTES).map(|text| parse(&text)) {
        Ok(Some(key)) => return Ok(key),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if error.kind() != ErrorKind::FileTooLarge => return Err(unusable(&error)),
        Ok(None) | Err(_) => tracing::error!(
            file = %file.display(),
            "the key for reservation ids is damaged: a new one replaces it, and earlier reservations expire on their own"
        ),
    }
    let key = SealKey::random().map_err(|error| unusable(&error))?;
    write_seal_key(key, data_dir).map_err(|error| unusable(&error))?;
    Ok(key)
}

/// Writes the key into a data directory or a backup, on stable storage. A crash leaves either the old key or the new one.
///
/// # Errors
/// The file cannot be written.
pub fn write_seal_key(key: SealKey, dir: &Path) -> io::Result<()> {
    replace_file(dir, SEAL_FILE, &to_text(key))
}

fn to_text(key: SealKey) -> String {
    let content = format!("{VERSION} {}", key.to_text());
    // This detects damage. It need not detect forgery, because anyone who can write the file can read the key.
    let check = sip128::SipHasher13::new_with_keys(0, 0).hash(content.as_bytes()).h1;
    format!("{content} {check:016x}\n")
}

fn parse(text: &[u8]) -> Option<SealKey> {
    let text = std::str::from_utf8(text).ok()?;
    let key = text.strip_prefix(VERSION)?.split(' ').nth(1).and_then(SealKey::parse)?;
    (to_text(key) == text).then_some(key)
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
        let sequence = match regular_file::read(&path, LENGTH as u64) {
            Ok(bytes) => bytes.first_chunk().and_then(decode),
            Err(error) if [ErrorKind::NotFound, ErrorKind::FileTooLarge].contains(&error.kind()) => None,
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
        let Some(synced) = self.sequence.filter(|synced| *synced > recovered) else { return Ok(()) };
        let reason = format!(
            "the write-ahead log ends at change {recovered}, but changes up to {synced} had been synced; to serve the rest \
             anyway, remove the file {SYNCED_FILE}"
        );
        Err(OpenError::damaged(path, &reason))
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
    sip::SipHasher13::new().hash(&[*MAGIC, sequence.to_le_bytes()].concat()).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn empty_directory_is_claimed_permanently() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        claim(&path).unwrap();
        claim(&path).unwrap();
        assert!(!has_database(&path), "ended before the database was made");
        fs::write(path.join("MANIFEST-000001"), "").unwrap();
        fs::write(path.join(CURRENT), "MANIFEST-000001\n").unwrap();
        claim(&path).unwrap();
        assert!(has_database(&path));
    }

    /// Regression test: the campaign of power cuts found that the server refused to start.
    #[test]
    fn current_without_its_manifest_names_the_one_before_or_goes_if_there_was_no_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        claim(&path).unwrap();
        let named = |current: &str| {
            fs::write(path.join(CURRENT), current).unwrap();
            claim(&path).unwrap();
            fs::read_to_string(path.join(CURRENT)).ok()
        };
        assert_eq!(named("MANIFEST-000001\n"), None, "it is made again");
        fs::write(path.join("000004.log"), "").unwrap();
        for refused in ["MANIFEST-000005\n", "", "\0\0", "MANIFEST"] {
            assert_eq!(named(refused).as_deref(), Some(refused), "RocksDB refuses it");
        }
        for manifest in ["MANIFEST-000005", "MANIFEST-999999", "MANIFEST-1000000"] {
            fs::write(path.join(manifest), "").unwrap();
            assert_eq!(named("MANIFEST-1000007\n"), Some(format!("{manifest}\n")));
            assert_eq!(named("MANIFEST-000005\n").as_deref(), Some("MANIFEST-000005\n"));
        }
    }

    #[test]
    fn claim_undone_by_a_power_cut_is_made_again() {
        for unfinished in ["", "\0\0"] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(FORMAT_FILE), unfinished).unwrap();
            claim(dir.path()).unwrap();
            fs::write(dir.path().join(FORMAT_FILE), unfinished).unwrap();
            fs::write(dir.path().join(CURRENT), "MANIFEST-000001\n").unwrap();
            assert!(matches!(claim(dir.path()), Err(OpenError::UnknownFormat(..))), "it had been finished");
        }
    }

    #[test]
    fn directory_is_locked_once_and_inspecting_it_does_not_unlock_it() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_in_use(dir.path()));
        let held = lock(dir.path()).unwrap();
        assert!(is_in_use(dir.path()) && is_in_use(dir.path()));
        assert!(matches!(lock(dir.path()), Err(OpenError::InUse(_))));
        drop(held);
        assert!(!is_in_use(dir.path()));
        assert!(lock(dir.path()).is_ok());
    }

    #[test]
    fn only_unfinished_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let kept = ["OPTIONS-000007", "000012.sst", "CURRENT"];
        for name in kept.iter().chain(&["OPTIONS-000009.dbtmp", "000011.dbtmp", WRITE_BACK_FILE]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_unfinished(dir.path()).unwrap();
        assert!(kept.iter().all(|name| dir.path().join(name).exists()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), kept.len());
    }

    #[test]
    fn directory_that_is_not_a_whole_database_of_this_format_is_refused_and_left_unchanged() {
        /// Regression test for the last case: RocksDB used to create a new database in such a directory, and deleted the old one's
        /// files at the second start.
        type Refusal = fn(&OpenError) -> bool;
        let cases: [(&[(&str, &str)], Refusal); 6] = [
            (&[("precious.txt", "mine")], |error| matches!(error, OpenError::NotOurs(_))),
            (&[("precious.txt", "mine"), ("LOCK", "")], |error| matches!(error, OpenError::NotOurs(_))),
            (&[(FORMAT_FILE, "2"), (BACKUP_FILE, "")], |error| matches!(error, OpenError::IsBackup(_))),
            (&[(FORMAT_FILE, "1")], |error| matches!(error, OpenError::UnknownFormat(_, found) if found == "1")),
            (&[(FORMAT_FILE, "99")], |error| matches!(error, OpenError::UnknownFormat(_, found) if found == "99")),
            (&[(FORMAT_FILE, "2"), ("000012.sst", "")], |error| matches!(error, OpenError::Damaged(..))),
        ];
        for (files, is_expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            files.iter().for_each(|(name, content)| fs::write(dir.path().join(name), content).unwrap());
            let error = claim(dir.path()).unwrap_err();
            assert!(is_expected(&error), "{files:?}: {error}");
            assert_eq!(files_in(dir.path()).unwrap().len(), files.len());
        }
    }

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

    #[test]
    fn last_mark_counts_and_a_damaged_one_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let mark = SyncMark::open(dir.path()).unwrap();
        [u64::MAX, 7].into_iter().for_each(|sequence| mark.note(sequence));
        assert_eq!(SyncMark::open(dir.path()).unwrap().sequence, Some(7));
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
