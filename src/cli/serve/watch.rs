//! Files that may change while the server runs: when they are read again.
//!
//! Changes are found by polling. Kernel notifications (inotify) would be faster, but network and overlay file systems and files mounted
//! into a container do not send them. If a directory above the file is a symbolic link that is swapped, as for a Kubernetes
//! ConfigMap, the wrong file would be watched. Each check is one `stat`.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use divvy_access::audit::Caller;
use divvy_core::config::{Problem, Report};

/// The reason for reloading a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The file has changed.
    Changed,
    /// An operator asks for it.
    Asked,
}

impl Reason {
    /// Returns the caller of the reload for the audit log.
    pub fn caller(self) -> Caller {
        Caller::other(match self {
            Self::Changed => "file",
            Self::Asked => "signal",
        })
    }
}

/// Pause between two looks at a file that has changed.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of pauses for a file that is being written.
const MAX_PAUSES: usize = 100;
/// Maximum number of reads in a row, if each names other files than the one before.
const MAX_READS: usize = 3;
/// Maximum number of mistakes, and of warnings, that are logged at a load.
const MAX_LOGGED_PROBLEMS: usize = 100;

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

/// A file and the files that it names, and their last known states.
#[derive(Debug)]
pub struct Watch {
    pub path: PathBuf,
    /// The files that it names.
    others: Vec<PathBuf>,
    changes: ChangeDetector<Vec<FileState>>,
    /// The reason why they could not be read at the last try.
    unread: Option<String>,
}

impl Watch {
    /// Starts with the current state of the file.
    pub fn new(path: &Path) -> Self {
        let changes = ChangeDetector::new(vec![FileState::at(path)]);
        Self { path: path.to_owned(), others: Vec::new(), changes, unread: None }
    }

    /// Loads the file with `read` if it has changed, or if an operator asks for it, and not while it or a file that it names is
    /// being written, because a half file may be a valid one. `lists` returns the files that it names. Returns `None` if there is
    /// nothing new.
    pub fn load<T>(
        &mut self,
        reason: Reason,
        read: impl Fn(&Path) -> Result<T, Report>,
        lists: impl Fn(&T) -> &[PathBuf],
    ) -> Option<Result<T, Report>> {
        let lists = |loaded: &Result<T, Report>| match loaded {
            Ok(loaded) => Some(lists(loaded).to_vec()),
            // A file that cannot be read names nothing.
            Err(report) => Some(report.lists.clone()).filter(|lists| !lists.is_empty()),
        };
        if reason == Reason::Changed {
            let loaded = self.read_if_changed(&read)?;
            // New files are read again at the next look, when they are known not to be changing.
            let has_others = lists(&loaded).is_some_and(|lists| self.follow(&lists));
            return Some(loaded).filter(|loaded| !has_others && self.record_read(unread(loaded)));
        }
        for _ in 0..MAX_READS {
            let Some(loaded) = self.read_at_rest(&read, || thread::sleep(PAUSE)) else { break };
            if !lists(&loaded).is_some_and(|lists| self.follow(&lists)) {
                self.record_read(unread(&loaded));
                return Some(loaded);
            }
        }
        let what = "it is being written, or a file that it names".to_owned();
        let (file, fix) = (self.path.display().to_string().into(), "load it again when that is done".to_owned());
        let problem = Problem { file, line: None, operation: None, what, fix };
        Some(Err(Report { errors: vec![problem], ..Report::default() }))
    }

    /// Watches the files that the file names, in place of those that it named before. Returns whether they are others: then
    /// the file counts as changed, because the others may have been read while they were being written.
    fn follow(&mut self, others: &[PathBuf]) -> bool {
        let is_other = self.others != others;
        if is_other {
            self.others = others.to_vec();
            self.forget();
        }
        is_other
    }

    /// Makes the next look find a change, unless the file is being written.
    fn forget(&mut self) {
        // No file has this state.
        self.changes = ChangeDetector { noted: Vec::new(), fresh: Some(self.states()) };
    }

    /// Records whether the file could be read, and if not, why. Then the next look reads it again, because the reason may pass:
    /// too many open files, or a failing disk. Returns false for a reason that is known already.
    fn record_read(&mut self, unread: Option<String>) -> bool {
        if unread.is_some() {
            self.forget();
        }
        let is_news = unread.is_none() || unread != self.unread;
        self.unread = unread;
        is_news
    }

    fn states(&self) -> Vec<FileState> {
        std::iter::once(&self.path).chain(&self.others).map(|path| FileState::at(path)).collect()
    }

    /// Reads the file if it has changed and is not being written. If it was written while it was read, returns `None`, too:
    /// a later check will notice the end of that.
    fn read_if_changed<T>(&mut self, read: impl FnOnce(&Path) -> T) -> Option<T> {
        let states = self.states();
        let read = self.changes.see(states).then(|| read(&self.path));
        read.filter(|_| self.is_at_rest())
    }

    /// Returns whether the file's state is still the recorded one.
    fn is_at_rest(&self) -> bool {
        self.changes.noted == self.states()
    }

    /// Reads the file once it is not being written, and records its state. A file that has changed must stay as it is for a
    /// `pause`. Returns `None` if it never does: a later check will notice the end of that.
    fn read_at_rest<T>(&mut self, read: impl Fn(&Path) -> T, pause: impl Fn()) -> Option<T> {
        if self.is_at_rest() {
            self.forget();
        }
        for _ in 0..=MAX_PAUSES {
            let read = self.read_if_changed(&read);
            if read.is_some() {
                return read;
            }
            pause();
        }
        None
    }
}

/// Returns why a file could not be read, if it could not.
fn unread<T>(loaded: &Result<T, Report>) -> Option<String> {
    loaded.as_ref().err().filter(|report| report.is_unread).map(ToString::to_string)
}

/// Logs the first errors and warnings of a load, each on its own line, and the number of the others.
pub fn log_problems<T>(loaded: &Result<T, Report>, warnings: impl Fn(&T) -> &[Problem]) {
    match loaded {
        Ok(loaded) => log_first(warnings(loaded), |problem| tracing::warn!("{problem}")),
        Err(report) => {
            log_first(&report.errors, |problem| tracing::error!("{problem}"));
            log_first(&report.warnings, |problem| tracing::warn!("{problem}"));
        }
    }
}

/// Logs the first problems with `log`, and the number of the others.
fn log_first(problems: &[Problem], log: impl Fn(&dyn Display)) {
    problems.iter().take(MAX_LOGGED_PROBLEMS).for_each(|problem| log(problem));
    if let Some(rest @ [problem, ..]) = problems.get(MAX_LOGGED_PROBLEMS..) {
        let (file, more) = (&problem.file, rest.len());
        log(&format_args!("{file}: and {more} more like these; `divvy check` or `divvy access check` shows all"));
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
    use std::cell::{Cell, RefCell};

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
    fn file_is_read_when_it_is_not_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.acl");
        let parts = ["o", "on", "one"];
        fs::write(&path, "").unwrap();
        let mut watch = Watch::new(&path);
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(watch.read_at_rest(read, || panic!("it has not changed")).as_deref(), Some(""));
        fs::write(&path, parts[0]).unwrap();
        let pauses = Cell::new(0);
        let write_on = || {
            pauses.set(pauses.get() + 1);
            if let Some(part) = parts.get(pauses.get()) {
                fs::write(&path, part).unwrap();
            }
        };
        assert_eq!(watch.read_at_rest(read, write_on).as_deref(), Some("one"));
        assert_eq!(pauses.get(), 3);
        // Written without an end.
        let longer = || fs::write(&path, read(&path) + "!").unwrap();
        longer();
        assert_eq!(watch.read_at_rest(read, longer), None);
        longer();
        let mut is_read = || watch.read_if_changed(|_| ()).is_some();
        assert!(!is_read() && is_read(), "the next checks notice the end");
        // Written while it is read.
        let reads = Cell::new(0);
        let during = |path: &Path| {
            let text = read(path);
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                fs::write(path, "whole").unwrap();
            }
            text
        };
        assert_eq!(watch.read_at_rest(during, || ()).as_deref(), Some("whole"));
    }

    #[test]
    fn version_that_could_not_be_read_is_read_again_until_it_could() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.acl");
        fs::write(&path, "ann").unwrap();
        let mut watch = Watch::new(&path);
        let reason = || Some("all descriptors are in use".to_owned());
        let mut look = |unread: Option<String>| {
            let is_read = watch.read_if_changed(|_| ()).is_some();
            is_read.then(|| watch.record_read(unread))
        };
        assert_eq!(look(None), None);
        fs::write(&path, "bob").unwrap();
        assert_eq!(look(None), None, "it may still be being written");
        assert_eq!(look(reason()), Some(true));
        assert_eq!((look(reason()), look(reason())), (Some(false), Some(false)), "the log has the reason already");
        assert_eq!(look(None), Some(true));
        assert_eq!((look(None), look(None)), (None, None));
    }

    #[test]
    fn log_has_the_first_mistakes_and_the_number_of_the_others() {
        let logged = |count: usize| {
            let text: String = (0..count).map(|_| "user ann\n").collect();
            let report = divvy_access::parse(&text, "users.acl", None).unwrap_err();
            let lines = RefCell::new(Vec::new());
            log_first(&report.errors[..count], |line| lines.borrow_mut().push(line.to_string()));
            lines.into_inner()
        };
        assert_eq!(logged(MAX_LOGGED_PROBLEMS).len(), MAX_LOGGED_PROBLEMS);
        let lines = logged(MAX_LOGGED_PROBLEMS + 7);
        assert_eq!(lines.len(), MAX_LOGGED_PROBLEMS + 1);
        assert!(lines.last().unwrap().starts_with("users.acl: and 7 more like these"));
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
