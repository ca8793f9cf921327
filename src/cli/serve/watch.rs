//! Detects changes of a file by polling it.
//!
//! Kernel notifications (inotify) would come sooner, but not at all for network and overlay file systems or a file
//! mounted into a container, and where a directory above the file is a symbolic link that is swapped, as for a
//! Kubernetes ConfigMap, the wrong file would be watched. A look is one `stat`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a look at a file sees: enough to notice any change, however it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    File { device: u64, inode: u64, size: u64, modified: (i64, i64), changed: (i64, i64) },
    Failed(ErrorKind),
}

impl Look {
    /// Follows symbolic links, all along the path.
    fn at(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(file) => Self::File {
                device: file.dev(),
                inode: file.ino(),
                size: file.size(),
                modified: (file.mtime(), file.mtime_nsec()),
                // Also where a copying tool sets the time of modification back.
                changed: (file.ctime(), file.ctime_nsec()),
            },
            Err(error) => Self::Failed(error.kind()),
        }
    }
}

/// A file, and what was seen of it.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    changes: Changes<Look>,
}

impl Watch {
    /// Begins with the file as it is now.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), changes: Changes::new(Look::at(path)) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at the file. True when it changed since it was last taken note of, and is now at rest.
    pub fn has_changed(&mut self) -> bool {
        self.changes.see(Look::at(&self.path))
    }

    /// Whether the file is still what the last look saw.
    pub fn is_at_rest(&self) -> bool {
        self.changes.noted == Look::at(&self.path)
    }

    /// Takes note of the file as it is now.
    pub fn note(&mut self) {
        self.changes = Changes::new(Look::at(&self.path));
    }
}

/// Finds changes in a sequence of looks. A change counts when two looks agree on it: until then the file may still be being written.
#[derive(Debug)]
struct Changes<T> {
    noted: T,
    /// Unlike `noted`, and seen once.
    fresh: Option<T>,
}

impl<T: PartialEq> Changes<T> {
    fn new(noted: T) -> Self {
        Self { noted, fresh: None }
    }

    /// True when this look and the one before agree on something new, which is noted by that.
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
        let mut changes = Changes::new('a');
        looks.chars().enumerate().filter_map(|(index, look)| changes.see(look).then_some(index)).collect()
    }

    #[test]
    fn a_change_counts_when_two_looks_agree() {
        assert!(seen("aaaa").is_empty());
        assert_eq!(seen("abbbb"), [2]);
        assert_eq!(seen("abcdee"), [5], "the file is being written until then");
        assert!(seen("abab").is_empty(), "back to what it was");
        assert_eq!(seen("bbaabb"), [1, 3, 5]);
    }

    #[test]
    fn every_way_to_change_a_file_is_seen() {
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
        let mut before = Look::at(&file);
        let mut differs = |what: &str| {
            let now = Look::at(&file);
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
