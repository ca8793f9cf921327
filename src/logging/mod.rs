//! The log: where it goes, how text is escaped, and how often a message may appear.
//!
//! Every room writes to it through `tracing`. What a client or a peer sent is written [`Escaped`]; what a client can
//! cause at will is written through a [`LogThrottle`]. Lines go through a bounded [`queue`]: logging never waits, and a log that
//! cannot be written harms nothing else. Nothing here knows what happened.

mod escaped;
mod log_throttle;
mod panics;
mod queue;
mod stderr;

pub use escaped::Escaped;
pub use log_throttle::{LogThrottle, MESSAGES_PER_SECOND};

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use self::queue::Queue;
use self::stderr::Stderr;

/// How long the end of the process may wait for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// What a line of the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Human {
        /// With colours, for a terminal.
        is_coloured: bool,
    },
    /// One JSON object a line, nothing else.
    Json,
}

/// Why the log cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    #[error("RUST_LOG is no list of log filters")]
    Filter(#[from] ParseError),
    #[error("cannot start the thread that writes the log")]
    Writer(#[from] io::Error),
}

/// The log of this process. What was logged is written when this is dropped, unless that takes longer than a second.
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

/// Lines that were not written since the start: the queue was full, or standard error failed.
pub fn dropped_lines() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.dropped())
}

/// Begins the log of this process, on standard error: answers go to standard output, so logs do not. Panics are logged,
/// too. Once only.
///
/// `filter` is a list of directives as in `RUST_LOG`, of which a later one for the same target wins.
///
/// # Errors
/// When `filter` cannot be read, or the system refuses a thread.
pub fn begin(format: Format, filter: &str) -> Result<Log, BeginError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let queue = Arc::clone(QUEUE.get_or_init(Arc::default));
    queue.start_writer(Stderr::open()?, tell_dropped)?;
    let lines = Arc::clone(&queue);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // They would go to standard error, and panic when it fails.
        .log_internal_errors(false)
        .with_writer(move || QueuedLine(Arc::clone(&lines)));
    match format {
        Format::Human { is_coloured } => log.with_ansi(is_coloured).init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    panics::log_panics();
    Ok(Log { queue })
}

fn tell_dropped(lines: u64) {
    tracing::warn!(lines, total = dropped_lines(), "log lines were dropped: the log could not be written fast enough");
}

/// What one event is written to, as a whole.
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
