//! The thread that writes the audit log, and its queue.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::audit_file::AuditFile;
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::Metrics;

/// Maximum number of lines that wait. Lines have at most a few kilobytes.
const MAX_QUEUED: usize = 1_024;
/// Places in the queue, in addition to those, for lines about refused attempts. They have no others, so that they never
/// take the place of a line about a change.
const MAX_REFUSALS_QUEUED: usize = 128;

/// Receives whether a line is on stable storage.
type Report = Box<dyn FnOnce(bool) + Send>;

/// Work for the thread.
enum Job {
    /// Append a line about an outcome.
    Outcome(Vec<u8>),
    /// Append a line about a refused attempt.
    Refusal(Vec<u8>, #[expect(dead_code, reason = "it is held while the line waits")] OwnedSemaphorePermit),
    /// Put a line about an attempt on stable storage, and report whether it is there.
    Attempt(Vec<u8>, Report),
    /// Report that all earlier jobs are done.
    Flush(oneshot::Sender<()>),
}

/// The queue. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Writer {
    queue: mpsc::Sender<Job>,
    refusals: Arc<Semaphore>,
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
        Ok(Self { queue, refusals: Arc::new(Semaphore::new(MAX_REFUSALS_QUEUED)), metrics })
    }

    /// Queues a line about an outcome. If the queue is full, the line is lost.
    pub fn push_outcome(&self, line: Vec<u8>) {
        if let Err(
            mpsc::error::TrySendError::Full(Job::Outcome(line)) | mpsc::error::TrySendError::Closed(Job::Outcome(line)),
        ) = self.queue.try_send(Job::Outcome(line))
        {
            self.metrics.audit.set_failing(true);
            lose(&line, &self.metrics);
        }
    }

    /// Queues a line about a refused attempt. Returns whether there was a place for it.
    pub fn push_refusal(&self, line: Vec<u8>) -> bool {
        let Ok(place) = Arc::clone(&self.refusals).try_acquire_owned() else { return false };
        self.queue.try_send(Job::Refusal(line, place)).is_ok()
    }

    /// Queues a line about an attempt. `report` receives whether it is on stable storage, and is dropped if the queue is full.
    pub fn push_attempt(&self, line: Vec<u8>, report: impl FnOnce(bool) + Send + 'static) {
        if self.queue.try_send(Job::Attempt(line, Box::new(report))).is_err() {
            self.metrics.audit.set_failing(true);
            self.metrics.audit.lines_lost.inc();
        }
    }

    /// Waits until all queued lines are written or lost.
    pub async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.queue.send(Job::Flush(done)).await.is_ok() {
            // The thread has ended if this fails.
            let _ = is_done.await;
        }
    }
}

fn write_lines(mut jobs: mpsc::Receiver<Job>, file: &mut AuditFile, health: &mut FileHealth) {
    while let Some(job) = jobs.blocking_recv() {
        // Whoever waited for the result may have left.
        match job {
            Job::Outcome(line) | Job::Refusal(line, _) => {
                let written = file.append(&line, false);
                health.note(file, &written);
                if written.is_err() {
                    lose(&line, &health.metrics);
                }
            }
            Job::Attempt(line, report) => {
                let written = file.append(&line, true);
                health.note(file, &written);
                if written.is_err() {
                    health.metrics.audit.lines_lost.inc();
                }
                report(written.is_ok());
            }
            Job::Flush(done) => _ = done.send(()),
        }
    }
}

/// Counts a line that is not in the file, and passes it to the ordinary log.
fn lose(line: &[u8], metrics: &Metrics) {
    metrics.audit.lines_lost.inc();
    // The line is ASCII.
    let line = String::from_utf8_lossy(line.trim_ascii_end());
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
        self.metrics.audit.set_failing(result.is_err());
        if std::mem::replace(&mut self.is_failing, result.is_err()) == result.is_err() {
            return;
        }
        let file = file.path().display();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refusals_take_no_place_of_other_lines() {
        let (queue, mut jobs) = mpsc::channel(MAX_QUEUED + MAX_REFUSALS_QUEUED);
        let (refusals, metrics) = (Arc::new(Semaphore::new(MAX_REFUSALS_QUEUED)), Metrics::new());
        let writer = Writer { queue, refusals, metrics: Arc::clone(&metrics) };
        let queued = (0..2_000).filter(|_| writer.push_refusal(b"{}\n".to_vec())).count();
        assert_eq!(queued, MAX_REFUSALS_QUEUED);
        for _ in 0..MAX_QUEUED {
            writer.push_attempt(b"{}\n".to_vec(), |_| ());
        }
        assert_eq!(metrics.audit.lines_lost.get(), 0);
        writer.push_attempt(b"{}\n".to_vec(), |_| ());
        assert_eq!(metrics.audit.lines_lost.get(), 1, "the queue is bounded");
        drop(jobs.recv().await);
        assert!(writer.push_refusal(b"{}\n".to_vec()), "its place is free again");
    }
}
