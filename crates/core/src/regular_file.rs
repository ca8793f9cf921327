//! Reads files that operators name, whole and without waiting for another process.
//!
//! Opening a FIFO blocks, a device may do anything, and a file may have any size. This module does not interpret the
//! contents.

use std::fs::{self, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::units::Approximate;

/// Returns the content of the regular file at `path`, at most `max_bytes`.
///
/// # Errors
/// The system's error, [`ErrorKind::InvalidInput`] if it is not a regular file, or [`ErrorKind::FileTooLarge`].
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // The type is checked before the file is opened, because opening a device may have effects.
    check_type(fs::metadata(path)?.file_type())?;
    // The file may have been replaced since. Opening another kind of file does not wait either.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    check_type(file.metadata()?.file_type())?;
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it is larger than {}", Approximate(max_bytes))));
    }
    Ok(bytes)
}

/// Returns a warning about a file with secrets if every user of the machine can read it. `None` if that is unknown.
pub fn warn_if_public(path: &Path) -> Option<String> {
    const OTHERS_MAY_READ: u32 = 0o004;
    let is_public = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & OTHERS_MAY_READ != 0);
    let file = path.display();
    is_public.then(|| format!("{file}: every user of this machine can read it; run `chmod o-r {file}`"))
}

fn check_type(found: FileType) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let names = [(found.is_dir(), "a directory"), (found.is_fifo(), "a pipe"), (found.is_socket(), "a socket")];
    let name = names.into_iter().find(|(is_it, _)| *is_it).map_or("a device", |(_, name)| name);
    Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {name}, but must be a regular file")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn regular_file_is_read_up_to_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, [7; 2049]).unwrap();
        assert_eq!(read(&path, 2049).unwrap(), [7; 2049]);
        let error = read(&path, 2048).unwrap_err();
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::FileTooLarge, "it is larger than 2 KiB".to_owned()));
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert_eq!(read(&dir.path().join("link"), 4096).unwrap().len(), 2049);
    }

    #[test]
    fn file_that_others_can_read_is_public() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "secret").unwrap();
        for (mode, expected) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(warn_if_public(&path).is_some(), expected, "{mode:o}");
        }
        assert_eq!(warn_if_public(&dir.path().join("none")), None);
    }

    #[test]
    fn other_files_are_rejected_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let socket = dir.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (&*fifo, "a pipe"),
            (&*socket, "a socket"),
            (dir.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = read(path, 1024).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(what), "{}: {error}", path.display());
        }
        assert_eq!(read(&dir.path().join("none"), 1024).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
