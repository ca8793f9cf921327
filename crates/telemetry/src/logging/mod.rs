//! The log: its destination, how text is escaped, and how often a message may appear.
//!
//! All modules log through `tracing`. Text from a client or a peer is written [`Escaped`]. Messages that clients can
//! cause at will go through a [`LogThrottle`]. Lines go through a bounded [`queue`]: logging never waits, and a log
//! that cannot be written affects nothing else. This module does not depend on the messages.

mod client_messages;
mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{io, process, thread};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

pub use self::client_messages::{Escaped, LogThrottle, MESSAGES_PER_SECOND};
pub use self::queue::LineWriter;
use self::queue::{Queue, Stderr};

/// Maximum time that the process waits at its end for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    Human {
        /// Whether to use colors, for a terminal.
        is_coloured: bool,
    },
    /// One JSON object per line, and nothing else.
    Json,
}

/// An error that prevents the log from being started.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// `RUST_LOG` is invalid.
    #[error("RUST_LOG is not a list of log filters")]
    Filter(#[from] ParseError),
    /// The operating system does not start another thread.
    #[error("cannot start the thread that writes the log")]
    Writer(#[from] io::Error),
}

/// The log of this process. Dropping it waits up to a second for all lines to be written.
#[derive(Debug)]
#[must_use = "the last lines are written when this is dropped"]
pub struct Log {
    queue: Arc<Queue>,
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.flush(FLUSH_TIMEOUT);
    }
}

static QUEUE: OnceLock<Arc<Queue>> = OnceLock::new();

/// Returns the number of lines lost since the start, because the queue was full or standard error failed.
pub fn dropped_lines() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.dropped())
}

/// Starts the log of this process on standard error. Standard output is for answers. Panics are logged, too. Call it
/// once.
///
/// `filter` is a list of directives as in `RUST_LOG`. A later directive for the same target takes precedence.
///
/// # Errors
/// `filter` is invalid, or the system refuses a thread.
pub fn begin(format: Format, filter: &str) -> Result<Log, BeginError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let queue = Arc::clone(QUEUE.get_or_init(Arc::default));
    queue.start_writer(Stderr::open()?, report_dropped)?;
    let lines = Arc::clone(&queue);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Internal errors would go to standard error, and panic if that fails.
        .log_internal_errors(false)
        .with_writer(move || QueuedLine(Arc::clone(&lines)));
    match format {
        Format::Human { is_coloured } => log.with_ansi(is_coloured).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    log_panics();
    Ok(Log { queue })
}

fn report_dropped(lines: u64) {
    tracing::warn!(lines, total = dropped_lines(), "log lines were dropped: the log could not be written fast enough");
}

/// Collects one event, which is queued as a whole.
struct QueuedLine(Arc<Queue>);

impl io::Write for QueuedLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs all panics from now on.
fn log_panics() {
    panic::set_hook(Box::new(log));
}

fn log(panic: &PanicHookInfo<'_>) {
    let reason = panic.payload_as_str().unwrap_or("no reason was given");
    let location = panic.location().map(ToString::to_string);
    // Only captured if RUST_BACKTRACE asks for it, as in the standard library.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let thread = thread::current();
    tracing::error!(
        thread = thread.name().unwrap_or("unnamed"),
        location,
        backtrace,
        "bug in divvy: panic: {}",
        Escaped::error(reason)
    );
    if cfg!(debug_assertions) {
        // This is a server under test. Its clients might not notice the panic, and the queued line would be lost.
        eprintln!("bug in divvy: {panic}");
        process::abort();
    }
}
