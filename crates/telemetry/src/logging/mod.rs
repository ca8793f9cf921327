//! The log: its destination, how text is escaped, and how often a message may appear.
//!
//! All modules log through `tracing`. Text from a client or a peer is written [`Escaped`]. Messages that clients can
//! cause at will go through a [`LogThrottle`]. Lines go through a bounded [`queue`]: logging never waits, and a log
//! that cannot be written affects nothing else. This module does not depend on the messages.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;
use std::{io, mem, process, thread};

use clap::ValueEnum;
use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

pub use self::queue::LineWriter;
use self::queue::{Queue, Stderr};
use divvy_core::clock::{Clock, Timestamp};

/// Maximum time that the process waits at its end for the last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people
    Human,
    /// One JSON object per line
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
    queue: Queue,
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.flush(FLUSH_TIMEOUT);
    }
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Returns the number of lines lost since the start, because the queue was full or standard error failed.
pub fn dropped_lines() -> u64 {
    QUEUE.get().map_or(0, Queue::dropped)
}

/// Starts the log of this process on standard error. Standard output is for answers. Panics are logged, too. Call it
/// once.
///
/// `filter` is a list of directives as in `RUST_LOG`. A later directive for the same target takes precedence. Text for people
/// has colors if `is_coloured` is set.
///
/// # Errors
/// `filter` is invalid, or the system refuses a thread.
pub fn begin(format: Format, is_coloured: bool, filter: &str) -> Result<Log, BeginError> {
    let filter = EnvFilter::builder().parse(filter)?;
    let queue = Queue::start(Stderr::open()?, |lines| {
        let total = dropped_lines();
        tracing::warn!(lines, total, "log lines were dropped: the log could not be written fast enough");
    })?;
    let lines = QUEUE.get_or_init(|| queue.clone());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Internal errors would go to standard error, and panic if that fails.
        .log_internal_errors(false)
        .with_ansi(is_coloured)
        .with_writer(|| QueuedLine(lines));
    match format {
        Format::Human => log.init(),
        Format::Json => log.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(log_panic));
    Ok(Log { queue })
}

/// Collects one event, which is queued as a whole.
struct QueuedLine(&'static Queue);

impl io::Write for QueuedLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
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

/// Messages of one kind that are logged per second. Further ones are counted, and the next logged message reports their
/// number.
pub const MESSAGES_PER_SECOND: u64 = 5;

/// Throttle for one kind of message, which all threads share. Make it a `static`.
#[derive(Debug)]
pub struct LogThrottle {
    state: Mutex<ThrottleState>,
    /// Messages per second.
    rate: u64,
}

#[derive(Debug)]
struct ThrottleState {
    second: u64,
    /// Number of messages logged in this second.
    logged: u64,
    left_out: u64,
}

impl LogThrottle {
    /// Creates a throttle that has logged nothing.
    #[expect(clippy::new_without_default, reason = "a throttle is a static")]
    pub const fn new() -> Self {
        Self::at_rate(MESSAGES_PER_SECOND)
    }

    /// Creates a throttle with another number of messages per second.
    pub const fn at_rate(rate: u64) -> Self {
        Self { state: Mutex::new(ThrottleState { second: 0, logged: 0, left_out: 0 }), rate }
    }

    /// Calls `log`, unless too many messages were logged in this second. Passes the number of messages omitted since
    /// the last logged one, if any.
    pub fn say(&self, log: impl FnOnce(Option<u64>)) {
        static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::system);
        self.say_at(CLOCK.now(), log);
    }

    /// Same as [`LogThrottle::say`], at this time.
    pub fn say_at(&self, now: Timestamp, log: impl FnOnce(Option<u64>)) {
        if let Some(left_out) = self.take_turn(now.as_secs()) {
            log((left_out > 0).then_some(left_out));
        }
    }

    /// Returns whether a message may be logged in `second`. If so, returns the number of messages omitted before it.
    fn take_turn(&self, second: u64) -> Option<u64> {
        let state = &mut *self.state.lock();
        if state.second != second {
            (state.second, state.logged) = (second, 0);
        }
        if state.logged >= self.rate {
            state.left_out += 1;
            return None;
        }
        state.logged += 1;
        Some(mem::take(&mut state.left_out))
    }
}

/// Maximum number of bytes shown of a client's input.
const CLIENT_BYTES: usize = 64;

/// Maximum number of bytes shown of an error from a peer or a library, enough for operators to understand it.
const ERROR_BYTES: usize = 512;

/// Bytes from outside. Displays them truncated, with control characters, double quotes and all non-ASCII characters escaped.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a> {
    bytes: &'a [u8],
    limit: usize,
}

impl<'a> Escaped<'a> {
    /// Wraps bytes that a client sent.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, limit: CLIENT_BYTES }
    }

    /// Wraps the text of an error that may quote a client or a peer.
    pub fn error(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), limit: ERROR_BYTES }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.bytes.get(..self.limit).unwrap_or(self.bytes);
        for byte in shown {
            match byte {
                b'\'' => f.write_char('\'')?,
                byte => write!(f, "{}", byte.escape_ascii())?,
            }
        }
        match self.bytes.len() {
            length if length > shown.len() => write!(f, "... ({length} bytes)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn excess_messages_are_counted_and_reported_by_the_next_one() {
        let kind = LogThrottle::new();
        let logged = |second| (0..100).filter_map(|_| kind.take_turn(second)).collect::<Vec<_>>();
        assert_eq!(logged(7), [0; MESSAGES_PER_SECOND as usize]);
        assert_eq!(logged(8), [100 - MESSAGES_PER_SECOND, 0, 0, 0, 0]);
        let faster = LogThrottle::at_rate(200);
        assert_eq!((0..300).filter_map(|_| faster.take_turn(1)).count(), 200);
    }

    #[test]
    fn threads_share_the_throttle_and_count_every_message() {
        let kind = LogThrottle::new();
        let turns = || (0..1_000).filter_map(|_| kind.take_turn(1)).collect::<Vec<_>>();
        let logged: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(turns)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(logged.len() as u64, MESSAGES_PER_SECOND);
        let omitted = logged.iter().sum::<u64>() + kind.take_turn(2).unwrap();
        assert_eq!(omitted, 4_000 - MESSAGES_PER_SECOND);
    }

    #[test]
    fn plain_text_stays_and_control_sequences_are_escaped() {
        assert_eq!(Escaped::new(b"GET /status").to_string(), "GET /status");
        let hostile = Escaped::new(b"a\r\n2026 ERROR forged\x1b[2J\xff\"").to_string();
        assert_eq!(hostile, r#"a\r\n2026 ERROR forged\x1b[2J\xff\""#);
    }

    #[test]
    fn long_text_is_truncated_with_a_mark() {
        assert_eq!(Escaped::new(&[b'a'; 64]).to_string(), "a".repeat(64));
        assert_eq!(Escaped::new(&[b'a'; 65]).to_string(), format!("{}... (65 bytes)", "a".repeat(64)));
        let reason = "cannot reach 'redis://127.0.0.1:6379', which refuses the connection: is it running there?";
        assert_eq!(Escaped::error(reason).to_string(), reason);
    }

    proptest! {
        #[test]
        fn any_bytes_become_a_short_line_of_ascii(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let shown = Escaped::new(&bytes).to_string();
            prop_assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", shown);
            prop_assert!(shown.len() <= 4 * CLIENT_BYTES + "... (200 bytes)".len());
        }
    }
}
