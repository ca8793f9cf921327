//! The audit log: a line for each change by an operator, and for each refused attempt at one.
//!
//! A front begins a change with [`AuditLog::begin`], carries it out, and ends the [`PendingChange`] with its outcome. With a
//! file of its own, lines go through a bounded queue to a thread, so that a slow or failing disk delays no hit. Without a
//! file they are events of the ordinary log, with the target `audit`. If the audit log is required, a change begins only
//! when a line about the attempt is on stable storage. Nothing here depends on protocols or rules.

mod entry;
mod writer;

use std::collections::HashMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use self::entry::{Action, Caller, Change, State};
use self::entry::{Entry, Status, truncate_error};
use self::writer::{AuditFile, Writer};
use divvy_core::clock::{Clock, Timestamp};
use divvy_telemetry::logging::LogThrottle;
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
    /// The throttles for lines about refused attempts: of all strangers together (`None`), and of each user.
    refusals: Mutex<HashMap<Option<Box<str>>, Arc<UserThrottle>>>,
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
        let (changes, refusals) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Self { writer, is_required, clock, metrics, changes, refusals })
    }

    /// Begins a change. If the log is required, waits until a line about the attempt is on stable storage.
    ///
    /// # Errors
    /// The log is required, and cannot be written. The change must not be made, and its outcome is recorded.
    pub async fn begin(self: &Arc<Self>, caller: Caller, change: Change) -> Result<PendingChange, Unavailable> {
        let mut pending = self.begin_unconditionally(caller, change);
        let Some(writer) = self.required_writer() else { return Ok(pending) };
        let (report, is_written) = oneshot::channel();
        writer.push_attempt(pending.attempt(), |is_written| _ = report.send(is_written));
        let is_written = timeout(ATTEMPT_TIMEOUT, is_written).await;
        if is_written.is_err() {
            self.metrics.audit.set_failing(true);
        }
        pending.proceed_if(is_written == Ok(Ok(true)))
    }

    /// Same as [`AuditLog::begin`], for threads.
    ///
    /// # Errors
    /// Same as [`AuditLog::begin`].
    pub fn begin_blocking(self: &Arc<Self>, caller: Caller, change: Change) -> Result<PendingChange, Unavailable> {
        let mut pending = self.begin_unconditionally(caller, change);
        let Some(writer) = self.required_writer() else { return Ok(pending) };
        let (report, is_written) = mpsc::channel();
        writer.push_attempt(pending.attempt(), move |is_written| _ = report.send(is_written));
        pending.proceed_if(await_line(&is_written, &self.metrics))
    }

    /// Begins a change that must not wait for the log, such as one that takes rights away. A required log has a line about
    /// the attempt as soon as it can be written.
    pub fn begin_at_once(self: &Arc<Self>, caller: Caller, change: Change) -> PendingChange {
        let mut pending = self.begin_unconditionally(caller, change);
        if let Some(writer) = self.required_writer() {
            let ((report, is_written), metrics) = (mpsc::channel(), Arc::clone(&self.metrics));
            writer.push_attempt(pending.attempt(), move |is_written| _ = report.send(is_written));
            // The thread only reports a disk that hangs. If the system refuses it, the next change that waits reports the disk.
            let watch = move || _ = await_line(&is_written, &metrics);
            let _ = thread::Builder::new().name("divvy-attempt".into()).spawn(watch);
        }
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

    /// Adds a line about the refused attempts of each user that have none, unless one may follow in this second. Call it
    /// once a second.
    pub fn report_omitted(self: &Arc<Self>, now: Timestamp) {
        let throttles: Vec<_> = self.refusals.lock().values().cloned().collect();
        for throttle in throttles {
            let Some((OmittedAttempt { caller, change, error }, before)) = throttle.take_omitted(now) else { continue };
            let mut pending = self.begin_unconditionally(caller, change);
            pending.is_ended = true;
            let omitted = (before > 0).then_some(before);
            if !pending.record_refusal(error.clone(), omitted) {
                let (caller, change) = (pending.caller.clone(), pending.change.clone());
                throttle.put_back(OmittedAttempt { caller, change, error }, before);
            }
        }
    }

    /// Adds lines about the refused attempts that have none, then waits up to a second for the last lines to be written.
    pub async fn finish(self: &Arc<Self>) {
        self.report_omitted(Timestamp::MAX);
        if let Some(writer) = &self.writer {
            // Lines that are not written by then are lost.
            let _ = timeout(FLUSH_TIMEOUT, writer.flush()).await;
        }
    }

    /// Returns the throttle for this caller; `None` if it is not a client.
    fn throttle_of(&self, caller: &Caller) -> Option<Arc<UserThrottle>> {
        let mut throttles = self.refusals.lock();
        let user = match caller {
            _ if caller.is_stranger => None,
            _ if !caller.is_client() => return None,
            _ if throttles.len() >= MAX_THROTTLES && !throttles.contains_key(&Some(caller.user().into())) => Some(""),
            _ => Some(caller.user()),
        };
        let rate = if user.is_none() { STRANGERS_PER_SECOND } else { USER_PER_SECOND };
        Some(Arc::clone(throttles.entry(user.map(Into::into)).or_insert_with(|| UserThrottle::at_rate(rate))))
    }

    fn required_writer(&self) -> Option<&Writer> {
        self.writer.as_ref().filter(|_| self.is_required)
    }

    /// Holds up the thread that writes the file until the sender is dropped.
    #[cfg(any(test, feature = "testing"))]
    pub fn hold_up(&self) -> mpsc::Sender<()> {
        let (hold, held) = mpsc::channel();
        if let Some(writer) = &self.writer {
            writer.push_attempt(Vec::new(), move |_| _ = held.recv());
        }
        hold
    }
}

/// Waits until a line about an attempt is on stable storage. Returns false if it is not, or if that takes too long.
fn await_line(is_written: &mpsc::Receiver<bool>, metrics: &Metrics) -> bool {
    let result = is_written.recv_timeout(ATTEMPT_TIMEOUT);
    if result == Err(mpsc::RecvTimeoutError::Timeout) {
        metrics.audit.set_failing(true);
    }
    result == Ok(true)
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
        let throttle = self.log.throttle_of(&self.caller).filter(|_| !self.is_attempted);
        let Some(throttle) = throttle else {
            return self.end(Status::Refused, None, None, Some(error.to_string()));
        };
        self.is_ended = true;
        let (now, mut is_recorded) = (self.log.clock.now(), false);
        throttle.lines.say_at(now, |omitted| {
            is_recorded = self.record_refusal(error.to_string(), omitted);
            if !is_recorded {
                throttle.lines.omit(1 + omitted.unwrap_or(0));
            }
        });
        if !is_recorded {
            let (caller, change) = (self.caller.clone(), self.change.clone());
            throttle.remember(OmittedAttempt { caller, change, error: truncate_error(&error.to_string()).to_owned() });
        }
    }

    /// Adds a line about a refused attempt. Returns false if there is no place for it.
    fn record_refusal(&mut self, error: String, omitted: Option<u64>) -> bool {
        let log = Arc::clone(&self.log);
        let entry = Entry { error: Some(error), omitted, ..self.entry(Status::Refused) };
        match &log.writer {
            None => {
                entry.log();
                true
            }
            Some(writer) => writer.push_refusal(entry.line(log.clock.now())),
        }
    }

    /// Records that the change failed, and may have been made in part.
    pub fn fail(mut self, before: Option<State>, error: impl Display) {
        self.end(Status::Failed, before, None, Some(error.to_string()));
    }

    fn proceed_if(self, is_written: bool) -> Result<Self, Unavailable> {
        if is_written {
            return Ok(self);
        }
        self.refuse(Unavailable);
        Err(Unavailable)
    }

    fn attempt(&mut self) -> Vec<u8> {
        self.is_attempted = true;
        let now = self.log.clock.now();
        self.entry(Status::Attempted).line(now)
    }

    /// Returns an entry. The first one gives the change its number, so that refused attempts without a line leave no gaps.
    fn entry(&mut self, status: Status) -> Entry<'_> {
        let Self { log, caller, change, number, .. } = self;
        let number = *number.get_or_insert_with(|| log.changes.fetch_add(1, Relaxed) + 1);
        Entry { number, status, caller, change, before: None, after: None, error: None, omitted: None }
    }

    fn end(&mut self, status: Status, before: Option<State>, after: Option<State>, error: Option<String>) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let log = Arc::clone(&self.log);
        let entry = Entry { before, after, error, ..self.entry(status) };
        match &log.writer {
            None => entry.log(),
            Some(writer) => writer.push_outcome(entry.line(log.clock.now())),
        }
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        self.end(Status::Failed, None, None, Some("the work was aborted before its outcome was known".into()));
    }
}

/// Lines per second about refused attempts of all strangers together.
const STRANGERS_PER_SECOND: u64 = 10;

/// Lines per second about refused attempts of one user.
const USER_PER_SECOND: u64 = 25;

/// Maximum number of throttles. Further users share one.
const MAX_THROTTLES: usize = 1_024;

/// A refused attempt without a line.
#[derive(Debug, Clone)]
struct OmittedAttempt {
    caller: Caller,
    change: Change,
    error: String,
}

/// The throttle of one user, or of several together.
#[derive(Debug)]
struct UserThrottle {
    lines: LogThrottle,
    /// The last attempt without a line. It stands for the others if no line follows.
    last_omitted: Mutex<Option<OmittedAttempt>>,
}

impl UserThrottle {
    fn at_rate(rate: u64) -> Arc<Self> {
        Arc::new(Self { lines: LogThrottle::at_rate(rate), last_omitted: Mutex::default() })
    }

    /// Remembers an attempt without a line.
    fn remember(&self, attempt: OmittedAttempt) {
        *self.last_omitted.lock() = Some(attempt);
    }

    /// Returns the last attempt without a line, and the number of those before it, and forgets them. Returns `None` if
    /// every attempt has a line, or if another line may follow in this second.
    fn take_omitted(&self, now: Timestamp) -> Option<(OmittedAttempt, u64)> {
        let count = self.lines.take_omitted(now)?;
        match self.last_omitted.lock().take() {
            Some(last) => Some((last, count.saturating_sub(1))),
            None => {
                // It has been counted, and not been remembered yet.
                self.lines.omit(count);
                None
            }
        }
    }

    /// Takes omitted attempts back, because they could not be reported.
    fn put_back(&self, attempt: OmittedAttempt, before: u64) {
        self.lines.omit(1 + before);
        self.last_omitted.lock().get_or_insert(attempt);
    }
}

#[cfg(test)]
mod tests;
