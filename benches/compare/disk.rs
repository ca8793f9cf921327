//! What a directory takes on disk.

use std::io::{self, ErrorKind};
use std::path::Path;

/// Bytes of all files below `directory`, by their lengths; a file that goes away meanwhile does not count.
pub fn bytes_below(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path())?,
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(bytes)
}
