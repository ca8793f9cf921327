//! The files of a server's domains: one file, or all files below a directory. Names that begin with a dot are left out, because
//! Kubernetes keeps the versions of a volume in them. Links to directories are not followed, as in ratelimit.

use std::fs;
use std::path::{Path, PathBuf};

use super::model::{self, Domains};
use crate::config::{Problem, Problems, Report};

/// Maximum number of files and directories.
const MAX_PATHS: usize = 10_000;

/// Loaded files.
#[derive(Debug)]
pub struct DomainFiles {
    /// The domains.
    pub domains: Domains,
    /// Settings that look like mistakes.
    pub warnings: Vec<Problem>,
    /// The files and the directories, other than the given one.
    pub paths: Vec<PathBuf>,
}

/// Loads the file or the directory at `path`. With `merges`, descriptors of a domain may be in several documents.
///
/// # Errors
/// A file or a directory cannot be read, or ratelimit refuses a file.
pub fn load(path: &Path, merges: bool) -> Result<DomainFiles, Report> {
    if !path.is_dir() {
        let (domains, warnings) = model::load(&[path], merges)?;
        return Ok(DomainFiles { domains, warnings, paths: Vec::new() });
    }
    let mut problems = Problems::new(&path.display().to_string());
    let (mut files, mut paths) = (Vec::new(), Vec::new());
    if let Err((what, fix)) = find(path, &mut files, &mut paths) {
        problems.file_error(what, fix);
        problems.unread();
        return Err(Report { lists: paths, ..problems.into() });
    }
    if files.is_empty() {
        problems.warning(0, "the directory has no files, so there are no domains", "put ratelimit's YAML there");
    }
    match model::load(&files, merges) {
        Ok((domains, mut warnings)) => {
            warnings.splice(..0, Report::from(problems).warnings);
            Ok(DomainFiles { domains, warnings, paths })
        }
        Err(report) => Err(Report { lists: paths, ..report }),
    }
}

/// Collects the files below a directory, sorted by name, and the same with all directories.
fn find(directory: &Path, files: &mut Vec<PathBuf>, paths: &mut Vec<PathBuf>) -> Result<(), (String, &'static str)> {
    let unreadable =
        |error| (format!("cannot read the directory {}: {error}", directory.display()), "check its rights");
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries: Vec<_> = entries.map_err(unreadable)?.iter().map(fs::DirEntry::path).collect();
    entries.sort_unstable();
    for path in entries {
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden {
            continue;
        }
        if paths.len() >= MAX_PATHS {
            let what = format!("there are more than {MAX_PATHS} files and directories");
            return Err((what, "name the directory that has ratelimit's files alone"));
        }
        paths.push(path.clone());
        if path.is_file() {
            files.push(path);
        } else if path.is_dir() && !path.is_symlink() {
            find(&path, files, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(loaded: &DomainFiles) -> Vec<&str> {
        loaded.domains.iter().map(|domain| domain.name.as_str()).collect()
    }

    #[test]
    fn directory_has_its_files_without_hidden_ones_and_linked_directories() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, domain: &str| fs::write(dir.path().join(name), format!("domain: {domain}\n")).unwrap();
        for directory in ["..2026_1", "below", ".git"] {
            fs::create_dir(dir.path().join(directory)).unwrap();
        }
        write("..2026_1/b.yaml", "b");
        write("below/c", "c");
        write("a.txt", "a");
        write(".hidden.yaml", "a");
        write(".git/config", "a");
        std::os::unix::fs::symlink("..2026_1", dir.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/b.yaml", dir.path().join("b.yaml")).unwrap();
        std::os::unix::fs::symlink("below", dir.path().join("linked")).unwrap();
        let loaded = load(dir.path(), false).unwrap();
        assert_eq!(names(&loaded), ["a", "b", "c"]);
        assert_eq!(loaded.paths.len(), 5, "the link to a directory may become a file: {:?}", loaded.paths);
        assert_eq!(names(&load(&dir.path().join("b.yaml"), false).unwrap()), ["b"]);
    }

    #[test]
    fn empty_directory_is_a_warning_and_a_missing_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let loaded = load(dir.path(), false).unwrap();
        assert!(names(&loaded).is_empty() && loaded.warnings[0].to_string().contains("no files"));
        assert!(load(&dir.path().join("none"), false).unwrap_err().is_unread);
        fs::write(dir.path().join("a.yaml"), "domain: a\ndescriptor: []\n").unwrap();
        let report = load(dir.path(), false).unwrap_err();
        assert_eq!(report.lists, [dir.path().join("a.yaml")], "so that its correction is noticed");
    }
}
