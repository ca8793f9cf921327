//! Warnings about files with secrets that every user of the machine can read.

use std::path::Path;

use divvy_core::files;

/// Returns a warning if every user of the machine can read the file.
pub fn warning(path: &Path) -> Option<String> {
    let file = path.display();
    files::is_public(path).then(|| format!("{file}: every user of this machine can read it; run `chmod o-r {file}`"))
}

/// Logs the warning, if there is one.
pub fn log(path: &Path) {
    if let Some(warning) = warning(path) {
        tracing::warn!("{warning}");
    }
}
