//! The file of the audit log.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Rights of a new file: it may contain the names of people.
const MODE: u32 = 0o640;

/// A file that lines are appended to. If it was renamed or removed, the next line begins a new file at its path.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    open: Option<OpenFile>,
    /// Whether the file ends with a part of a line that failed.
    is_torn: bool,
    /// Whether the file was created, and its directory is not on stable storage.
    is_new: bool,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    /// Device and inode, which distinguish it from another file at the path.
    id: (u64, u64),
    /// Whether it is a regular file, which can be written to stable storage.
    is_regular: bool,
}

impl AuditFile {
    /// Creates the handle, and opens nothing.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None, is_torn: false, is_new: false }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file at the path, unless it is open.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&mut self) -> io::Result<()> {
        let at_path = fs::metadata(&self.path).ok().map(|found| id(&found));
        if self.open.as_ref().is_some_and(|open| Some(open.id) == at_path) {
            return Ok(());
        }
        self.open = None;
        // A pipe without a reader must not block.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new().append(true).create(true).mode(MODE).custom_flags(flags).open(&self.path)?;
        let found = file.metadata()?;
        self.is_new |= at_path.is_none();
        self.open = Some(OpenFile { file, id: id(&found), is_regular: found.is_file() });
        self.is_torn = found.is_file() && ends_within_line(&self.path, found.len());
        Ok(())
    }

    /// Appends a line in one write, and puts it on stable storage if `is_synced` is set.
    ///
    /// # Errors
    /// The system's. A part of the line may have been written, which does not affect the next one.
    pub fn append(&mut self, line: &[u8], is_synced: bool) -> io::Result<()> {
        self.open()?;
        let Some(open) = &mut self.open else { return Err(ErrorKind::NotFound.into()) };
        let separated;
        let mut rest = line;
        if self.is_torn {
            separated = [b"\n", line].concat();
            rest = &separated;
        }
        while !rest.is_empty() {
            match open.file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !is_synced || !open.is_regular {
            return Ok(());
        }
        open.file.sync_data()?;
        if self.is_new {
            // Otherwise the file itself may be gone after a crash.
            File::open(directory(&self.path))?.sync_all()?;
            self.is_new = false;
        }
        Ok(())
    }
}

/// Returns the directory of the file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns whether the file ends with a part of a line, which a crash or a full disk left. A file that must not be read
/// is taken for whole.
fn ends_within_line(path: &Path, length: u64) -> bool {
    let Some(last) = length.checked_sub(1) else { return false };
    let mut byte = [0];
    File::open(path).and_then(|file| file.read_exact_at(&mut byte, last)).is_ok_and(|()| byte != *b"\n")
}

fn id(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn lines_are_appended_and_a_renamed_or_removed_file_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        fs::write(&path, "earlier\n").unwrap();
        let mut file = AuditFile::new(path.clone());
        file.append(b"one\n", false).unwrap();
        file.append(b"two\n", true).unwrap();
        let rotated = dir.path().join("audit.log.1");
        fs::rename(&path, &rotated).unwrap();
        file.append(b"three\n", true).unwrap();
        assert_eq!(fs::read_to_string(&rotated).unwrap(), "earlier\none\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_file(&path).unwrap();
        file.append(b"four\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
        // This is what `logrotate` does with `copytruncate`.
        File::create(&path).unwrap();
        file.append(b"five\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "five\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o037, 0, "others have no rights");
    }

    #[test]
    fn failures_are_reported_and_the_next_line_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let mut file = AuditFile::new(missing.join("audit.log"));
        assert_eq!(file.append(b"one\n", false).unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir(&missing).unwrap();
        file.append(b"two\n", true).unwrap();
        fs::remove_dir_all(&missing).unwrap();
        assert_eq!(file.append(b"three\n", true).unwrap_err().kind(), ErrorKind::NotFound);

        let mut full = AuditFile::new("/dev/full".into());
        assert_eq!(full.append(b"one\n", true).unwrap_err().kind(), ErrorKind::StorageFull);
        AuditFile::new("/dev/null".into()).append(b"one\n", true).unwrap();
        assert!(AuditFile::new(dir.path().to_owned()).append(b"one\n", true).is_err());
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(AuditFile::new(fifo).append(b"one\n", true).is_err(), "nobody reads it");
    }

    #[test]
    fn directory_of_a_new_file_is_on_stable_storage_with_its_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = AuditFile::new(path.clone());
        file.append(b"one\n", false).unwrap();
        assert!(file.is_new, "this line need not be there");
        file.append(b"two\n", true).unwrap();
        assert!(!file.is_new);
        fs::remove_file(&path).unwrap();
        file.open().unwrap();
        assert!(file.is_new);
        let mut known = AuditFile::new(path);
        known.open().unwrap();
        assert!(!known.is_new);
        assert_eq!(directory(Path::new("audit.log")), Path::new("."));
    }

    #[test]
    fn torn_line_does_not_swallow_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = AuditFile::new(path.clone());
        file.append(b"begun", false).unwrap();
        file.is_torn = true;
        file.append(b"next\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "begun\nnext\n");
        // Another process continues.
        fs::write(&path, "whole\nbegun").unwrap();
        let mut file = AuditFile::new(path.clone());
        file.append(b"next\n", false).unwrap();
        file.append(b"last\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\nbegun\nnext\nlast\n");
    }
}
