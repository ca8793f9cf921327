//! How far a long task is, on standard error.
//!
//! A task that is over within a moment shows nothing. On a terminal there is one line, which is written over and removed
//! at the end; elsewhere there is a line every few seconds. A thread of its own writes, so a task that waits for one
//! long answer shows that it still does; whether the lines can be written is nothing to the task.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// When the first line appears on a terminal, and how often it changes.
const ON_TERMINAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(500));
/// When the first line appears elsewhere, and how often one follows.
const ELSEWHERE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// Goes to the start of the line and empties it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Shows how far a task is until this is dropped.
pub struct Progress {
    /// Dropped, it ends the thread.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows what `describe` says at the time, and for how long the task has been running.
    pub fn show(describe: impl Fn() -> String + Send + 'static) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let (running, ended) = mpsc::channel();
        let write = move || keep_writing(&describe, &ended, is_terminal);
        // Without a thread the task goes on unseen.
        let thread = thread::Builder::new().name("divvy-progress".into()).spawn(write).ok();
        Self { running: Some(running), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell, not even that it failed.
            let _ = thread.join();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "shows an operator how long a command has taken")]
fn keep_writing(describe: &impl Fn() -> String, ended: &Receiver<()>, is_terminal: bool) {
    let began = Instant::now();
    let (first, interval) = if is_terminal { ON_TERMINAL } else { ELSEWHERE };
    let mut wait = first;
    let mut has_line = false;
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let line = format!("{}, {} s", describe(), began.elapsed().as_secs());
        let written = match is_terminal {
            true => write!(io::stderr(), "{CLEAR_LINE}{line}"),
            false => writeln!(io::stderr(), "{line}"),
        };
        if written.is_err() {
            return;
        }
        has_line = is_terminal;
        wait = interval;
    }
    if has_line {
        let _ = write!(io::stderr(), "{CLEAR_LINE}");
    }
}
