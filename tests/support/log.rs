//! A server's log in a file.

use std::fs::{self, File};
use std::process::Command;

use super::eventually;

/// A log file that exists as long as this.
pub struct Log {
    file: tempfile::NamedTempFile,
}

impl Log {
    /// Makes `command` log here, at the default level.
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

    /// Waits until `text` has been logged `count` times.
    pub fn await_count(&self, count: usize, text: &str) {
        assert!(eventually(|| self.count(text) >= count), "not {count} times {text:?} in:\n{}", self.text());
    }

    /// Waits until a line contains all of `parts`.
    pub fn await_line(&self, parts: &[&str]) {
        let is_there = || self.text().lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(eventually(is_there), "no line with {parts:?} in:\n{}", self.text());
    }
}
