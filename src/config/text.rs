//! Reads the text of a file that the operator names.

use std::io::ErrorKind;
use std::path::Path;

use super::problem::{Location, Problems};
use crate::files;
use crate::units::Approximate;

/// Maximum size of a rules file: enough for several hundred thousand rules, without a risk to memory.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// Reads the file at `path`. If it cannot be read, adds the reason to `problems` and returns `None`.
pub fn read_text(path: &Path, problems: &mut Problems) -> Option<String> {
    let bytes = match files::read(path, MAX_FILE_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let what = format!("the file is larger than {}", Approximate(MAX_FILE_BYTES));
            problems.file_error(what, "use fewer rules, with patterns instead of single values");
            return None;
        }
        Err(error) => {
            problems.unread();
            problems.file_error(format!("cannot read the file: {error}"), "check its path and its permissions");
            return None;
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = memchr::memchr_iter(b'\n', before).count() + 1;
            problems.error(Location::line(line), "the file is not UTF-8", "save it as UTF-8");
            None
        }
    }
}
