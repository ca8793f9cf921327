//! The thread that writes the audit log, its queue, and its file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::fs::OFlags;
use tokio::sync::{mpsc, oneshot};

use divvy_telemetry::logging::{Escaped, LineWriter, LogThrottle};
use divvy_telemetry::metrics::Metrics;

/// Maximum number of lines that wait. Lines have at most a few kilobytes.
const MAX_QUEUED: usize = 1_024;

/// Places in the queue, in addition to those, for lines about refused attempts.
const MAX_REFUSALS_QUEUED: usize = 128;

/// Receives whether a line is on stable storage. Whoever waited for it may have left.
type Report = Box<dyn FnOnce(bool) + Send>;

/// Work for the thread.
struct Job {
    /// The line to append. Empty if only the report matters, which comes after all earlier lines.
    line: String,
    /// Without a report, the line need not be on stable storage.
    report: Option<Report>,
}

/// The queue. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Sender<Job>,
    metrics: Arc<Metrics>,
}

impl Writer {
    /// Starts the thread. A file that cannot be opened is reported, and tried again for each line.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(mut file: AuditFile, metrics: Arc<Metrics>) -> io::Result<Self> {
        let (queue, jobs) = mpsc::channel(MAX_QUEUED + MAX_REFUSALS_QUEUED);
        let mut health = FileHealth { metrics: Arc::clone(&metrics), is_failing: false };
        let run = move || {
            let opened = file.open();
            health.note(&file, &opened);
            write_lines(jobs, &mut file, &mut health);
        };
        thread::Builder::new().name("divvy-audit".into()).spawn(run)?;
        Ok(Self { queue, metrics })
    }

    /// Queues a line. If the queue is full, the line is lost, and the report is dropped.
    pub fn push(&self, line: String, report: Option<Report>) {
        if let Err(error) = self.queue.try_send(Job { line, report }) {
            lose(&error.into_inner().line, &self.metrics);
        }
    }

    /// Queues a line about a refused attempt, which never takes the place of a line about a change.
    pub fn push_refusal(&self, line: String) {
        if self.queue.capacity() > MAX_QUEUED { self.push(line, None) } else { lose(&line, &self.metrics) }
    }

    /// Waits until all queued lines are written or lost.
    pub async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let report: Report = Box::new(|_| _ = done.send(()));
        if self.queue.send(Job { line: String::new(), report: Some(report) }).await.is_ok() {
            // The thread has ended if this fails.
            let _ = is_done.await;
        }
    }
}

fn write_lines(mut jobs: mpsc::Receiver<Job>, file: &mut AuditFile, health: &mut FileHealth) {
    while let Some(Job { line, report }) = jobs.blocking_recv() {
        let mut is_written = true;
        if !line.is_empty() {
            let written = file.append(format!("{line}\n").as_bytes(), report.is_some());
            health.note(file, &written);
            is_written = written.is_ok();
            if !is_written {
                lose(&line, &health.metrics);
            }
        }
        if let Some(report) = report {
            report(is_written);
        }
    }
}

/// Counts a line that is not in the file, and passes it to the ordinary log.
fn lose(line: &str, metrics: &Metrics) {
    metrics.audit.failing.set(1);
    metrics.audit.lines_lost.inc();
    tracing::warn!(target: "audit", %line, "this line is not in the audit log");
}

/// Whether the file can be written. Reports when that changes.
struct FileHealth {
    metrics: Arc<Metrics>,
    is_failing: bool,
}

impl FileHealth {
    fn note(&mut self, file: &AuditFile, result: &io::Result<()>) {
        static CHANGED: LogThrottle = LogThrottle::new();
        self.metrics.audit.failing.set(result.is_err().into());
        if std::mem::replace(&mut self.is_failing, result.is_err()) == result.is_err() {
            return;
        }
        let file = file.path.display();
        match result {
            Ok(()) => CHANGED.say(|more| tracing::info!(%file, more, "the audit log can be written again")),
            Err(error) => {
                let error = error.to_string();
                let error = Escaped::error(&error);
                CHANGED.say(|more| tracing::error!(%file, %error, more, "cannot write the audit log"));
            }
        }
    }
}

/// Rights of a new file: it may contain the names of people.
const MODE: u32 = 0o640;

/// A file that lines are appended to. If it was renamed or removed, the next line begins a new file at its path.
#[derive(Debug)]
pub struct AuditFile {
    path: PathBuf,
    open: Option<OpenFile>,
    /// Whether the file was created, and its directory is not on stable storage.
    is_new: bool,
}

#[derive(Debug)]
struct OpenFile {
    lines: LineWriter<File>,
    /// Device and inode, which distinguish it from another file at the path.
    id: (u64, u64),
    /// Whether it is a regular file, which can be written to stable storage.
    is_regular: bool,
}

impl AuditFile {
    /// Creates the handle, and opens nothing.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None, is_new: false }
    }

    /// Opens the file at the path, unless it is open.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&mut self) -> io::Result<()> {
        let at_path = fs::metadata(&self.path).ok().map(|found| id(&found));
        if self.open.as_ref().is_some_and(|open| Some(open.id) == at_path) {
            return Ok(());
        }
        self.open = None;
        // A pipe without a reader must not block.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new().append(true).create(true).mode(MODE).custom_flags(flags).open(&self.path)?;
        let found = file.metadata()?;
        self.is_new |= at_path.is_none();
        let is_torn = found.is_file() && ends_within_line(&self.path, found.len());
        let lines = LineWriter { out: file, is_torn };
        self.open = Some(OpenFile { lines, id: id(&found), is_regular: found.is_file() });
        Ok(())
    }

    /// Appends a line in one write, and puts it on stable storage if `is_synced` is set.
    ///
    /// # Errors
    /// The system's. A part of the line may have been written, which does not affect the next one.
    pub fn append(&mut self, line: &[u8], is_synced: bool) -> io::Result<()> {
        self.open()?;
        let Some(open) = &mut self.open else { return Err(ErrorKind::NotFound.into()) };
        open.lines.write(line)?;
        if !is_synced || !open.is_regular {
            return Ok(());
        }
        open.lines.out.sync_data()?;
        if self.is_new {
            // Otherwise the file itself may be gone after a crash.
            File::open(directory(&self.path))?.sync_all()?;
            self.is_new = false;
        }
        Ok(())
    }
}

/// Returns the directory of the file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns whether the file ends with a part of a line, which a crash or a full disk left. A file that must not be read
/// is taken for whole.
fn ends_within_line(path: &Path, length: u64) -> bool {
    let Some(last) = length.checked_sub(1) else { return false };
    let mut byte = [0];
    File::open(path).and_then(|file| file.read_exact_at(&mut byte, last)).is_ok_and(|()| byte != *b"\n")
}

fn id(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn refusals_take_no_place_of_other_lines() {
        let (queue, mut jobs) = mpsc::channel(MAX_QUEUED + MAX_REFUSALS_QUEUED);
        let metrics = Metrics::new();
        let writer = Writer { queue, metrics: Arc::clone(&metrics) };
        (0..2_000).for_each(|_| writer.push_refusal("{}".to_owned()));
        let lost = 2_000 - MAX_REFUSALS_QUEUED as u64;
        assert_eq!(metrics.audit.lines_lost.get(), lost);
        (0..MAX_QUEUED).for_each(|_| writer.push("{}".to_owned(), None));
        assert_eq!(metrics.audit.lines_lost.get(), lost);
        writer.push("{}".to_owned(), None);
        assert_eq!(metrics.audit.lines_lost.get(), lost + 1, "the queue is bounded");
        drop(jobs.recv().await);
        writer.push_refusal("{}".to_owned());
        assert_eq!(metrics.audit.lines_lost.get(), lost + 2, "only places beyond those of changes are for refusals");
    }

    #[test]
    fn lines_are_appended_and_a_renamed_or_removed_file_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        fs::write(&path, "earlier\n").unwrap();
        let mut file = AuditFile::new(path.clone());
        file.append(b"one\n", false).unwrap();
        file.append(b"two\n", true).unwrap();
        let rotated = dir.path().join("audit.log.1");
        fs::rename(&path, &rotated).unwrap();
        file.append(b"three\n", true).unwrap();
        assert_eq!(fs::read_to_string(&rotated).unwrap(), "earlier\none\ntwo\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::remove_file(&path).unwrap();
        file.append(b"four\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "four\n");
        // This is what `logrotate` does with `copytruncate`.
        File::create(&path).unwrap();
        file.append(b"five\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "five\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o037, 0, "others have no rights");
    }

    #[test]
    fn failures_are_reported_and_the_next_line_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let mut file = AuditFile::new(missing.join("audit.log"));
        assert_eq!(file.append(b"one\n", false).unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir(&missing).unwrap();
        file.append(b"two\n", true).unwrap();
        fs::remove_dir_all(&missing).unwrap();
        assert_eq!(file.append(b"three\n", true).unwrap_err().kind(), ErrorKind::NotFound);

        let mut full = AuditFile::new("/dev/full".into());
        assert_eq!(full.append(b"one\n", true).unwrap_err().kind(), ErrorKind::StorageFull);
        AuditFile::new("/dev/null".into()).append(b"one\n", true).unwrap();
        assert!(AuditFile::new(dir.path().to_owned()).append(b"one\n", true).is_err());
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(AuditFile::new(fifo).append(b"one\n", true).is_err(), "nobody reads it");
    }

    #[test]
    fn directory_of_a_new_file_is_on_stable_storage_with_its_first_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = AuditFile::new(path.clone());
        file.append(b"one\n", false).unwrap();
        assert!(file.is_new, "this line need not be there");
        file.append(b"two\n", true).unwrap();
        assert!(!file.is_new);
        fs::remove_file(&path).unwrap();
        file.open().unwrap();
        assert!(file.is_new);
        let mut known = AuditFile::new(path);
        known.open().unwrap();
        assert!(!known.is_new);
        assert_eq!(directory(Path::new("audit.log")), Path::new("."));
    }

    #[test]
    fn torn_line_does_not_swallow_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut file = AuditFile::new(path.clone());
        file.append(b"begun", false).unwrap();
        file.open.as_mut().unwrap().lines.is_torn = true;
        file.append(b"next\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "begun\nnext\n");
        // Another process continues.
        fs::write(&path, "whole\nbegun").unwrap();
        let mut file = AuditFile::new(path.clone());
        file.append(b"next\n", false).unwrap();
        file.append(b"last\n", false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\nbegun\nnext\nlast\n");
    }
}
