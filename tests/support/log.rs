//! A server's log, which goes to a file of its own.

use std::fs::{self, File};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;

/// A log that lives as long as this.
pub struct Log {
    file: tempfile::NamedTempFile,
}

impl Log {
    /// `command` logs here, at the default level.
    pub fn of(command: &mut Command) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        command.env_remove("RUST_LOG").stderr(File::create(file.path()).unwrap());
        Self { file }
    }

    pub fn text(&self) -> String {
        fs::read_to_string(self.file.path()).unwrap()
    }

    pub fn count(&self, text: &str) -> usize {
        self.text().matches(text).count()
    }

    /// Waits until `text` was logged so many times.
    pub fn await_count(&self, count: usize, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.count(text) < count {
            assert!(Instant::now() < deadline, "not {count} times {text:?} in:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a line holds all of `parts`.
    pub fn await_line(&self, parts: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text().lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            assert!(Instant::now() < deadline, "no line with {parts:?} in:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }
}
