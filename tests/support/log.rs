//! A server's log in a file, and a server whose rules change, which logs.

use std::cell::Cell;
use std::fs::{self, File};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::{PATIENCE, RulesFile, Server, expanded};

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
        let deadline = Instant::now() + PATIENCE;
        while self.count(text) < count {
            assert!(Instant::now() < deadline, "not {count} times {text:?} in:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a line contains all of `parts`.
    pub fn await_line(&self, parts: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while !self.text().lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            assert!(Instant::now() < deadline, "no line with {parts:?} in:\n{}", self.text());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A server that loads its rules again on SIGHUP only, and logs.
pub struct ReloadingServer {
    pub server: Server,
    pub log: Log,
    rules: RulesFile,
    reloads: Cell<usize>,
}

impl ReloadingServer {
    /// Serves these rules from the store in `options`.
    pub fn serving(rules: &str, options: &[&str]) -> Self {
        let rules = RulesFile::ini(rules);
        let (server, log) = Server::logged(&[&[rules.path(), "--reload-interval", "0"], options].concat());
        Self { server, log, rules, reloads: Cell::new(0) }
    }

    /// Replaces the rules by others, and waits until they are in force.
    pub fn reload(&self, rules: &str) {
        self.reloads.set(self.reloads.get() + 1);
        self.try_reload(rules, "the new rules are in force", self.reloads.get());
    }

    /// Replaces the file, and waits until the outcome has been logged this many times.
    pub fn try_reload(&self, rules: &str, outcome: &str, count: usize) {
        fs::write(self.rules.path(), expanded(rules)).unwrap();
        self.server.signal("-HUP");
        self.log.await_count(count, outcome);
    }
}
