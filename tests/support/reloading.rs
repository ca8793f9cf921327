//! A server whose rules change.

use std::cell::Cell;
use std::fs;

use super::log::Log;
use super::{RulesFile, Server, expanded};

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
