//! Progress of long tasks on standard error.
//!
//! A short task shows nothing. On a terminal there is one line, which is overwritten and finally removed. Elsewhere, a
//! line is printed every few seconds. A separate thread prints, so that progress shows even while a task waits for one
//! long answer. The task continues even if printing fails.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time until the first line on a terminal, and between updates.
const ON_TERMINAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(500));
/// Time until the first line elsewhere, and between further lines.
const ELSEWHERE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(5));

/// Returns to the start of the line, and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Shows the progress of a task until it is dropped.
pub struct Progress {
    /// The running thread, which ends when this is dropped.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows the current result of `describe`, and how long the task has been running.
    pub fn show(describe: impl Fn() -> String + Send + 'static) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let (running, ended) = mpsc::channel();
        let write = move || keep_writing(&describe, &ended, is_terminal);
        // Without a thread, the task runs without visible progress.
        let thread = thread::Builder::new().name("divvy-progress".into()).spawn(write).ok();
        Self { running: Some(running), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread must not stop the task.
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
