//! The handle of the audit log, and a change that is being made.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::audit_file::AuditFile;
use super::caller::Caller;
use super::change::{Change, State};
use super::entry::{Entry, Status};
use super::writer::Writer;
use crate::clock::Clock;
use crate::logging::LogThrottle;
use crate::metrics::Metrics;

/// Maximum time that a change waits for the line about its attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that the process waits at its end for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Lines per second about strangers, who could otherwise fill the disk.
const STRANGERS_PER_SECOND: u64 = 10;

/// The audit log is required, and cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing was changed: the audit log, which --audit requires, cannot be written")]
pub struct Unavailable;

/// The audit log of the process.
#[derive(Debug)]
pub struct AuditLog {
    /// `None` for the ordinary log.
    writer: Option<Writer>,
    is_required: bool,
    clock: Clock,
    metrics: Arc<Metrics>,
    changes: AtomicU64,
    strangers: LogThrottle,
}

impl AuditLog {
    /// Creates an audit log whose lines go to the ordinary log.
    pub fn in_log(clock: Clock, metrics: Arc<Metrics>) -> Arc<Self> {
        Self::new(None, false, clock, metrics)
    }

    /// Creates an audit log in a file. `is_required`: changes are refused while the file cannot be written.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn in_file(path: PathBuf, is_required: bool, clock: Clock, metrics: Arc<Metrics>) -> io::Result<Arc<Self>> {
        let writer = Writer::start(AuditFile::new(path), Arc::clone(&metrics))?;
        Ok(Self::new(Some(writer), is_required, clock, metrics))
    }

    fn new(writer: Option<Writer>, is_required: bool, clock: Clock, metrics: Arc<Metrics>) -> Arc<Self> {
        let strangers = LogThrottle::at_rate(STRANGERS_PER_SECOND);
        Arc::new(Self { writer, is_required, clock, metrics, changes: AtomicU64::new(0), strangers })
    }

    /// Begins a change. If the log is required, waits until a line about the attempt is on stable storage.
    ///
    /// # Errors
    /// The log is required, and cannot be written. The change must not be made, and its outcome is recorded.
    pub async fn begin(self: &Arc<Self>, caller: Caller, change: Change) -> Result<PendingChange, Unavailable> {
        let pending = self.pend(caller, change);
        let Some(writer) = self.required_writer() else { return Ok(pending) };
        let is_written = match writer.push_attempt(pending.attempt()) {
            None => false,
            Some(is_written) => match timeout(ATTEMPT_TIMEOUT, is_written).await {
                Ok(is_written) => is_written == Ok(true),
                Err(_) => {
                    self.metrics.audit.set_failing(true);
                    false
                }
            },
        };
        pending.proceed_if(is_written)
    }

    /// Same as [`AuditLog::begin`], for threads. It waits as long as the disk takes.
    ///
    /// # Errors
    /// Same as [`AuditLog::begin`].
    pub fn begin_blocking(self: &Arc<Self>, caller: Caller, change: Change) -> Result<PendingChange, Unavailable> {
        let pending = self.pend(caller, change);
        let Some(writer) = self.required_writer() else { return Ok(pending) };
        let is_written = writer.push_attempt(pending.attempt()).map(oneshot::Receiver::blocking_recv);
        pending.proceed_if(is_written == Some(Ok(true)))
    }

    /// Records a change that is not refused even if the log is required, such as one that was made already.
    pub fn pend(self: &Arc<Self>, caller: Caller, change: Change) -> PendingChange {
        let number = self.changes.fetch_add(1, Relaxed) + 1;
        PendingChange { log: Arc::clone(self), caller, change, number, is_ended: false }
    }

    /// Records an attempt that was refused before it began. Those of [strangers](Caller::is_stranger) are recorded a few times
    /// a second.
    pub fn refuse(self: &Arc<Self>, caller: Caller, change: Change, error: impl Display) {
        if !caller.is_stranger() {
            return self.pend(caller, change).refuse(error);
        }
        self.strangers.say(|omitted| {
            let mut pending = self.pend(caller, change);
            pending.end(Status::Refused, None, None, Some(error.to_string()), omitted);
        });
    }

    /// Waits up to a second for the last lines to be written.
    pub async fn finish(&self) {
        if let Some(writer) = &self.writer {
            // Lines that are not written by then are lost.
            let _ = timeout(FLUSH_TIMEOUT, writer.flush()).await;
        }
    }

    fn required_writer(&self) -> Option<&Writer> {
        self.writer.as_ref().filter(|_| self.is_required)
    }
}

/// A change that is being made. Its outcome is recorded once: if it is dropped, for example by a panic, it has failed.
#[derive(Debug)]
#[must_use = "a dropped change is recorded as failed"]
pub struct PendingChange {
    log: Arc<AuditLog>,
    caller: Caller,
    change: Change,
    number: u64,
    is_ended: bool,
}

impl PendingChange {
    /// Records that the change was made.
    pub fn complete(mut self, before: Option<State>, after: Option<State>) {
        self.end(Status::Done, before, after, None, None);
    }

    /// Records that nothing was changed, for this reason.
    pub fn refuse(mut self, error: impl Display) {
        self.end(Status::Refused, None, None, Some(error.to_string()), None);
    }

    /// Records that the change failed, and may have been made in part.
    pub fn fail(mut self, before: Option<State>, error: impl Display) {
        self.end(Status::Failed, before, None, Some(error.to_string()), None);
    }

    fn proceed_if(self, is_written: bool) -> Result<Self, Unavailable> {
        if is_written {
            return Ok(self);
        }
        self.refuse(Unavailable);
        Err(Unavailable)
    }

    fn attempt(&self) -> Vec<u8> {
        self.entry(Status::Attempted).line(self.log.clock.now())
    }

    fn entry(&self, status: Status) -> Entry<'_> {
        let Self { caller, change, number, .. } = self;
        Entry { number: *number, status, caller, change, before: None, after: None, error: None, omitted: None }
    }

    fn end(
        &mut self,
        status: Status,
        before: Option<State>,
        after: Option<State>,
        error: Option<String>,
        omitted: Option<u64>,
    ) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let entry = Entry { before, after, error, omitted, ..self.entry(status) };
        match &self.log.writer {
            None => entry.log(),
            Some(writer) => writer.push_outcome(entry.line(self.log.clock.now())),
        }
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        self.end(Status::Failed, None, None, Some("the work was aborted before its outcome was known".into()), None);
    }
}

#[cfg(test)]
mod tests;
