//! Writes the output file of a subcommand. An existing file is overwritten only if the operator asks for that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

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
    written.map_err(|error| describe(path, error))
}

/// Writes all files or none: each text to its path. A path must not exist unless `force`, and may then be a regular file
/// only.
///
/// # Errors
/// A file exists, or cannot be written. If one cannot be opened, none is changed.
pub fn write_together(files: &[(&Path, &str)], force: bool) -> anyhow::Result<()> {
    let mut opened: Vec<OpenedFile<'_>> = Vec::new();
    for (path, text) in files {
        match OpenedFile::open(path, text, force) {
            Ok(file) => opened.push(file),
            Err(error) => {
                for file in opened.iter().filter(|file| file.is_new) {
                    // The first error matters more than an empty file that remains.
                    let _ = fs::remove_file(file.path);
                }
                return Err(describe(path, error));
            }
        }
    }
    for OpenedFile { path, text, mut file, .. } in opened {
        let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|error| describe(path, error))?;
    }
    Ok(())
}

/// A file that is ready to be written.
struct OpenedFile<'a> {
    path: &'a Path,
    text: &'a str,
    file: File,
    is_new: bool,
}

impl<'a> OpenedFile<'a> {
    fn open(path: &'a Path, text: &'a str, force: bool) -> io::Result<Self> {
        // Opening a pipe waits for its reader, so the type is checked first.
        let is_new = match fs::metadata(path) {
            Ok(found) if force && !found.is_file() => {
                return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
            }
            found => found.is_err(),
        };
        let mut options = OpenOptions::new();
        let options = options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = if force { options.create(true).truncate(false) } else { options.create_new(true) }.open(path)?;
        Ok(Self { path, text, file, is_new })
    }
}

fn describe(path: &Path, error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::AlreadyExists => {
            anyhow::anyhow!("{} already exists; add --force to overwrite it", path.display())
        }
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    }
}
