//! Detects changes of a file by polling it.
//!
//! Kernel notifications (inotify) would be faster, but network and overlay file systems and files mounted into a
//! container do not send them. If a directory above the file is a symbolic link that is swapped, as for a Kubernetes
//! ConfigMap, the wrong file would be watched. Each check is one `stat`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The state of a file: enough to detect any change, regardless of how it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    File { device: u64, inode: u64, size: u64, modified: (i64, i64), changed: (i64, i64) },
    Failed(ErrorKind),
}

impl FileState {
    /// Reads the state, following symbolic links along the whole path.
    fn at(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(file) => Self::File {
                device: file.dev(),
                inode: file.ino(),
                size: file.size(),
                modified: (file.mtime(), file.mtime_nsec()),
                // Detects a change even if a copying tool resets the modification time.
                changed: (file.ctime(), file.ctime_nsec()),
            },
            Err(error) => Self::Failed(error.kind()),
        }
    }
}

/// A file, and its last known states.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    changes: ChangeDetector<FileState>,
}

impl Watch {
    /// Starts with the current state of the file.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), changes: ChangeDetector::new(FileState::at(path)) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the file. Returns true if it has changed since the last `note`, and is not being written.
    pub fn has_changed(&mut self) -> bool {
        self.changes.see(FileState::at(&self.path))
    }

    /// Returns whether the file's state is still the recorded one.
    pub fn is_at_rest(&self) -> bool {
        self.changes.noted == FileState::at(&self.path)
    }

    /// Records the current state of the file.
    pub fn note(&mut self) {
        self.changes = ChangeDetector::new(FileState::at(&self.path));
    }
}

/// Finds changes in a sequence of states. A change counts once two consecutive states are equal, because until then the
/// file may still be changing.
#[derive(Debug)]
struct ChangeDetector<T> {
    noted: T,
    /// A state that differs from `noted` and was seen once.
    fresh: Option<T>,
}

impl<T: PartialEq> ChangeDetector<T> {
    fn new(noted: T) -> Self {
        Self { noted, fresh: None }
    }

    /// Adds a state. If it equals the previous one and differs from `noted`, records it and returns true.
    fn see(&mut self, look: T) -> bool {
        let is_new = look != self.noted;
        let is_settled = is_new && self.fresh.as_ref() == Some(&look);
        if is_settled {
            *self = Self::new(look);
        } else {
            self.fresh = is_new.then_some(look);
        }
        is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(looks: &str) -> Vec<usize> {
        let mut changes = ChangeDetector::new('a');
        looks.chars().enumerate().filter_map(|(index, look)| changes.see(look).then_some(index)).collect()
    }

    #[test]
    fn change_counts_once_two_checks_agree() {
        assert!(seen("aaaa").is_empty());
        assert_eq!(seen("abbbb"), [2]);
        assert_eq!(seen("abcdee"), [5], "the file is being written until then");
        assert!(seen("abab").is_empty(), "back to the earlier value");
        assert_eq!(seen("bbaabb"), [1, 3, 5]);
    }

    #[test]
    fn every_kind_of_file_change_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let link = |to: &str| {
            std::os::unix::fs::symlink(to, path("new")).unwrap();
            fs::rename(path("new"), path("data")).unwrap();
        };
        for version in ["1", "2"] {
            fs::create_dir(path(version)).unwrap();
            fs::write(path(version).join("rules"), "same size").unwrap();
        }
        link("1");
        std::os::unix::fs::symlink("data/rules", path("rules")).unwrap();

        let file = path("rules");
        let mut before = FileState::at(&file);
        let mut differs = |what: &str| {
            let now = FileState::at(&file);
            assert_ne!(now, before, "{what}");
            before = now;
        };
        link("2");
        differs("a directory above it is swapped");
        fs::write(path("2/rules"), "longer than it was").unwrap();
        differs("written over");
        fs::write(path("other"), "longer than it was").unwrap();
        fs::rename(path("other"), path("2/rules")).unwrap();
        differs("another file of the same size in its place");
        fs::remove_file(path("2/rules")).unwrap();
        differs("removed");
    }
}
