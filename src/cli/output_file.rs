//! Writes the output file of a subcommand. An existing file is overwritten only if the operator asks for that.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes `text` to the file at `path`, which must not exist unless `force`.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn write(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let written = if force {
        fs::write(path, text)
    } else {
        File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()))
    };
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => already_exists(path),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    })
}

/// Returns the error for a file that exists.
pub fn already_exists(path: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} already exists; add --force to overwrite it", path.display())
}
