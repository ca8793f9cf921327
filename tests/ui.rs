//! The live page: its routes, sessions and streams, and attacks on them. `tests/live_page.rs` shows it to a browser.

mod attacks;
mod browser;
mod feed;
mod headers;
mod logins;
mod streams;
mod without_users;

use std::path::PathBuf;

use divvy::access::Digest;

use self::browser::Browser;
use crate::support::log::Log;
use crate::support::{RulesFile, Server, divvy};

/// Rules with and without a label, a canary, and two rules that share a label's absence.
const RULES: &str = "[api=search]\ncreditLimit = 2\nresetSeconds = 3600\nactorField = user\nlabel = search\n\
    comment = Costly & <b>slow</b>\n\n\
    [api=try]\ncreditLimit = 1\nresetSeconds = 3600\nmatchPolicy = canary\n\n\
    [api=try]\ncreditLimit = 5\nresetSeconds = 3600\nlabel = try\n\n\
    [default]\ncreditLimit = 0\nresetSeconds = 0\n";

/// Returns a line of an access file for a user whose password is `PASSWORD of` its name.
fn line(name: &str, words: &str) -> String {
    format!("user {name} on {} {words}\n", Digest::of(password(name).as_bytes()).to_word())
}

fn password(name: &str) -> String {
    format!("password of {name}")
}

/// A server with a live page and an access file.
struct Site {
    dir: tempfile::TempDir,
    log: Log,
    server: Server,
}

impl Site {
    fn start(users: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("users.acl"), users).unwrap();
        std::fs::write(path("rules.ini"), RULES).unwrap();
        let mut command = divvy();
        let log = Log::of(&mut command);
        command.env("RUST_LOG", "info");
        let (users, rules, audit) = (path("users.acl"), path("rules.ini"), path("audit.log"));
        let own = [
            rules.as_str(),
            "--store",
            "memory",
            "--ui",
            "--access-file",
            &users,
            "--audit-log",
            &audit,
            "--open",
            "line,metrics",
        ];
        let server = Server::start_as(&mut command, &[&own, args].concat());
        Self { dir, log, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn browser(&self) -> Browser {
        Browser::new(self.server.http)
    }

    /// Returns a browser of a user who has logged in.
    fn logged_in(&self, name: &str) -> Browser {
        let mut browser = self.browser();
        assert_eq!(browser.log_in(name, &password(name)).status, 200, "{name}");
        browser
    }

    /// Replaces a file, and waits until it has been loaded or refused, for the `count`th time.
    fn replace(&self, name: &str, text: &str, outcome: &str, count: usize) {
        std::fs::write(self.path(name), text).unwrap();
        self.server.signal("-HUP");
        self.log.await_count(count, outcome);
    }
}

/// Starts a server with a live page and without users.
fn open_site(rules: &str, args: &[&str]) -> (Server, RulesFile) {
    let rules = RulesFile::ini(rules);
    let server = Server::start(&[&[rules.path(), "--store", "memory", "--ui"], args].concat());
    (server, rules)
}
