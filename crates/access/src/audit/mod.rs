//! The audit log: a line for each change by an operator, and for each refused attempt at one.
//!
//! A change begins with [`AuditLog::begin`], and its outcome ends the [`PendingChange`]. Fronts record refused attempts. With a
//! file of its own, lines go through a bounded queue to a thread, so that a slow or failing disk delays no hit. Without a
//! file they are events of the ordinary log, with the target `audit`. If the audit log is required, a change begins only
//! when a line about the attempt is on stable storage. Nothing here depends on protocols or rules.

mod entry;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod writer;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, mem};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use self::entry::{Action, Caller, Change, State};
use self::entry::{Entry, Status, truncate_error};
use self::writer::{AuditFile, Writer};
use divvy_core::clock::{Clock, Timestamp};
use divvy_telemetry::metrics::Metrics;

/// Maximum time that a change waits for the line about its attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that the process waits at its end for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// The refused attempts of all strangers together (`None`), and of each user.
    refusals: Mutex<HashMap<Option<Box<str>>, Refusals>>,
}

impl AuditLog {
    /// Creates an audit log in a file. `None`: its lines go to the ordinary log. `is_required`: changes are refused while the file
    /// cannot be written.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(file: Option<PathBuf>, is_required: bool, clock: Clock, metrics: Arc<Metrics>) -> io::Result<Arc<Self>> {
        let writer = file.map(|path| Writer::start(AuditFile::new(path), Arc::clone(&metrics))).transpose()?;
        let (changes, refusals) = (AtomicU64::new(0), Mutex::default());
        Ok(Arc::new(Self { writer, is_required, clock, metrics, changes, refusals }))
    }

    /// Begins a change. If the log is required, waits until a line about the attempt is on stable storage.
    ///
    /// # Errors
    /// The log is required, and cannot be written. The change must not be made, and its outcome is recorded.
    pub async fn begin(self: &Arc<Self>, caller: Caller, change: Change) -> Result<PendingChange, Unavailable> {
        let mut pending = self.begin_unconditionally(caller, change);
        let (report, is_written) = oneshot::channel();
        if !pending.attempt(|is_written| _ = report.send(is_written)) {
            return Ok(pending);
        }
        let is_written = timeout(ATTEMPT_TIMEOUT, is_written).await;
        pending.proceed_if(is_written.ok().map(|is_written| is_written == Ok(true)))
    }

    /// Same as [`AuditLog::begin`], for threads.
    ///
    /// # Errors
    /// Same as [`AuditLog::begin`].
    pub fn begin_blocking(self: &Arc<Self>, caller: Caller, change: Change) -> Result<PendingChange, Unavailable> {
        let mut pending = self.begin_unconditionally(caller, change);
        let (report, is_written) = mpsc::channel();
        if !pending.attempt(move |is_written| _ = report.send(is_written)) {
            return Ok(pending);
        }
        let is_written = is_written.recv_timeout(ATTEMPT_TIMEOUT);
        let is_late = is_written == Err(mpsc::RecvTimeoutError::Timeout);
        pending.proceed_if((!is_late).then_some(is_written == Ok(true)))
    }

    /// Begins a change that must not wait for the log, such as one that takes rights away. A required log has a line about
    /// the attempt as soon as it can be written.
    pub fn begin_at_once(self: &Arc<Self>, caller: Caller, change: Change) -> PendingChange {
        let mut pending = self.begin_unconditionally(caller, change);
        pending.attempt(|_| ());
        pending
    }

    /// Records a change that is not refused even if the log is required, such as one that was made already.
    pub fn begin_unconditionally(self: &Arc<Self>, caller: Caller, change: Change) -> PendingChange {
        PendingChange { log: Arc::clone(self), caller, change, number: None, is_attempted: false, is_ended: false }
    }

    /// Records an attempt that was refused before it began. Those of one user, and those of all
    /// strangers together, are recorded a few times a second.
    pub fn refuse(self: &Arc<Self>, caller: Caller, change: Change, error: impl Display) {
        self.begin_unconditionally(caller, change).refuse(error);
    }

    /// Adds a line about a refused attempt of a client, unless there were enough in this second.
    fn throttle(&self, refusal: Refusal) {
        let second = self.clock.now().as_secs();
        let mut all = self.refusals.lock();
        let user = Some(refusal.caller.user().into()).filter(|_| !refusal.caller.is_stranger);
        let rate = if user.is_none() { STRANGERS_PER_SECOND } else { USER_PER_SECOND };
        let has_room = all.len() < MAX_THROTTLES || all.contains_key(&user) || user.is_none();
        let of_user = all.entry(if has_room { user } else { Some("".into()) }).or_default();
        if of_user.second != second {
            (of_user.second, of_user.lines) = (second, 0);
        }
        if of_user.lines >= rate {
            of_user.omitted += 1;
            of_user.last = Some(refusal);
            return;
        }
        of_user.lines += 1;
        of_user.last = None;
        let omitted = mem::take(&mut of_user.omitted);
        drop(all);
        self.record_refusal(&refusal, omitted);
    }

    /// Adds a line about the refused attempts of each user that have none, unless one may follow in this second. Call it
    /// once a second.
    pub fn report_omitted(&self, now: Timestamp) {
        let second = now.as_secs();
        let take = |of_user: &mut Refusals| {
            let last = of_user.last.take_if(|_| of_user.second != second)?;
            Some((last, mem::take(&mut of_user.omitted).saturating_sub(1)))
        };
        let due: Vec<_> = self.refusals.lock().values_mut().filter_map(take).collect();
        for (last, before) in due {
            self.record_refusal(&last, before);
        }
    }

    /// Adds a line about a refused attempt. `omitted` attempts before it have none.
    fn record_refusal(&self, Refusal { caller, change, error }: &Refusal, omitted: u64) {
        let (number, omitted) = (self.next_number(), Some(omitted).filter(|omitted| *omitted > 0));
        let (status, error) = (Status::Refused, Some(&**error));
        let entry = Entry { number, status, caller, change, before: None, after: None, error, omitted };
        let line = entry.line(self.clock.now());
        match &self.writer {
            None => self::log(&line),
            Some(writer) => writer.push_refusal(line),
        }
    }

    fn next_number(&self) -> u64 {
        self.changes.fetch_add(1, Relaxed) + 1
    }

    /// Adds lines about the refused attempts that have none, then waits up to a second for the last lines to be written.
    pub async fn finish(self: &Arc<Self>) {
        self.report_omitted(Timestamp::MAX);
        if let Some(writer) = &self.writer {
            // Lines that are not written by then are lost.
            let _ = timeout(FLUSH_TIMEOUT, writer.flush()).await;
        }
    }
}

/// Writes a line to the ordinary log.
fn log(line: &str) {
    tracing::info!(target: "audit", %line, "change by an operator");
}

/// A change that is being made. Its outcome is recorded once: if it is dropped, for example by a panic, it has failed.
#[derive(Debug)]
#[must_use = "a dropped change is recorded as failed"]
pub struct PendingChange {
    log: Arc<AuditLog>,
    caller: Caller,
    change: Change,
    /// Number of the change, once it has a line.
    number: Option<u64>,
    /// Whether the required log was asked for a line about the attempt.
    is_attempted: bool,
    is_ended: bool,
}

impl PendingChange {
    /// Records that the change was made.
    pub fn complete(mut self, before: Option<State>, after: Option<State>) {
        self.end(Status::Done, before, after, None);
    }

    /// Records that nothing was changed, for this reason. See [`AuditLog::refuse`] for how often that is recorded. A line
    /// about the attempt is always followed by one about its outcome.
    pub fn refuse(mut self, error: impl Display) {
        let error = truncate_error(&error.to_string()).to_owned();
        if self.is_attempted || !self.caller.is_client() {
            return self.end(Status::Refused, None, None, Some(&error));
        }
        self.is_ended = true;
        self.log.throttle(Refusal { caller: self.caller.clone(), change: self.change.clone(), error });
    }

    /// Records that the change failed, and may have been made in part.
    pub fn fail(mut self, before: Option<State>, error: impl Display) {
        self.end(Status::Failed, before, None, Some(&error.to_string()));
    }

    /// Adds a line about the attempt if the log is required, and reports whether it is on stable storage. Otherwise, returns false.
    fn attempt(&mut self, report: impl FnOnce(bool) + Send + 'static) -> bool {
        let log = Arc::clone(&self.log);
        let Some(writer) = log.writer.as_ref().filter(|_| log.is_required) else { return false };
        self.is_attempted = true;
        writer.push(self.entry(Status::Attempted).line(log.clock.now()), Some(Box::new(report)));
        true
    }

    /// Goes on if the line about the attempt is on stable storage. `None`: that takes too long.
    fn proceed_if(self, is_written: Option<bool>) -> Result<Self, Unavailable> {
        if is_written.is_none() {
            self.log.metrics.audit.failing.set(1);
        }
        if is_written == Some(true) {
            return Ok(self);
        }
        self.refuse(Unavailable);
        Err(Unavailable)
    }

    /// Returns an entry. The first one gives the change its number, so that refused attempts without a line leave no gaps.
    fn entry(&mut self, status: Status) -> Entry<'_> {
        let Self { log, caller, change, number, .. } = self;
        let number = *number.get_or_insert_with(|| log.next_number());
        Entry { number, status, caller, change, before: None, after: None, error: None, omitted: None }
    }

    fn end(&mut self, status: Status, before: Option<State>, after: Option<State>, error: Option<&str>) {
        if mem::replace(&mut self.is_ended, true) {
            return;
        }
        let log = Arc::clone(&self.log);
        let entry = Entry { before, after, error, ..self.entry(status) };
        let line = entry.line(log.clock.now());
        match &log.writer {
            None => self::log(&line),
            Some(writer) => writer.push(line, None),
        }
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        self.end(Status::Failed, None, None, Some("the work was aborted before its outcome was known"));
    }
}

/// Lines per second about refused attempts of all strangers together.
const STRANGERS_PER_SECOND: u64 = 10;

/// Lines per second about refused attempts of one user.
const USER_PER_SECOND: u64 = 25;

/// Maximum number of users whose refused attempts are counted apart. Further users share one count.
const MAX_THROTTLES: usize = 1_024;

/// A refused attempt.
#[derive(Debug)]
struct Refusal {
    caller: Caller,
    change: Change,
    error: String,
}

/// The refused attempts of one user, or of several together.
#[derive(Debug, Default)]
struct Refusals {
    second: u64,
    /// Number of lines in this second.
    lines: u64,
    /// Number of attempts without a line since the last one with a line.
    omitted: u64,
    /// The last of them. It stands for the others if no line follows.
    last: Option<Refusal>,
}

#[cfg(test)]
mod tests;
