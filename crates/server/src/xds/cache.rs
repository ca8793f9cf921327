//! The file with the last response that was applied: a line that names the format, a checksum, and the message.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use divvy_core::regular_file;

const HEAD: &[u8] = b"divvy ratelimit-xds 1\n";

/// Reads the message in a file, which may have `max_message` bytes. `None` if there is no file.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read(path: &Path, max_message: usize) -> io::Result<Option<Vec<u8>>> {
    let max = HEAD.len() + SHA256_OUTPUT_LEN + max_message;
    let content = match regular_file::read(path, max as u64) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        content => content?,
    };
    let parts = content.strip_prefix(HEAD).and_then(|rest| rest.split_at_checked(SHA256_OUTPUT_LEN));
    let intact = parts.filter(|(checksum, message)| digest(&SHA256, message).as_ref() == *checksum);
    let (_, message) = intact.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is damaged"))?;
    Ok(Some(message.to_vec()))
}

/// Replaces the message in a file on stable storage. A crash leaves either the old message or the new one.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, message: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension("new");
    // The message may have been sent to a client that gave a credential.
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    for part in [HEAD, digest(&SHA256, message).as_ref(), message] {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(&new, path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_read_back_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        assert_eq!(read(&path, 10).unwrap(), None);
        for message in [&b"first"[..], b"", b"0123456789"] {
            write(&path, message).unwrap();
            assert_eq!(read(&path, 10).unwrap().unwrap(), message);
        }
        assert_eq!(read(&path, 9).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no other file is left");
    }

    #[test]
    fn every_damaged_byte_and_every_cut_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        write(&path, b"a message").unwrap();
        let intact = fs::read(&path).unwrap();
        let flipped = (0..intact.len()).map(|index| {
            let mut content = intact.clone();
            content[index] ^= 1;
            content
        });
        let cut = (0..intact.len()).map(|length| intact[..length].to_vec());
        for content in flipped.chain(cut) {
            fs::write(&path, content).unwrap();
            assert_eq!(read(&path, 100).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn failing_disk_leaves_the_old_message() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        write(&path, b"old").unwrap();
        fs::create_dir(path.with_added_extension("new")).unwrap();
        write(&path, b"new").unwrap_err();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"old");
    }
}
