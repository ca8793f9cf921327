//! The live page: its routes, sessions and streams, and attacks on them. `tests/live_page.rs` shows it to a browser.

mod attacks;
mod browser;
mod feed;
mod headers;
mod logins;
mod streams;
mod without_users;

use std::ops::Deref;

use self::browser::Browser;
use crate::support::{self, Place, RulesFile, Server};
use crate::users::{line, password};

/// Rules with and without a label, a canary, and two rules that share a label's absence.
const RULES: &str = "[api=search]\ncreditLimit = 2\nresetSeconds = 3600\nactorField = user\nlabel = search\n\
    comment = Costly & <b>slow</b>\n\n\
    [api=try]\ncreditLimit = 1\nresetSeconds = 3600\nmatchPolicy = canary\n\n\
    [api=try]\ncreditLimit = 5\nresetSeconds = 3600\nlabel = try\n\n\
    [default]\ncreditLimit = 0\nresetSeconds = 0\n";

/// A server with a live page and an access file.
struct Site(support::Site);

impl Deref for Site {
    type Target = support::Site;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Site {
    fn start(users: &str, args: &[&str]) -> Self {
        let files = ["--access-file", "DIR/users.acl", "--audit-log", "DIR/audit.log"];
        let own = [&["--store", "memory", "--ui", "--open", "line,metrics"], &files[..], args].concat();
        Self(support::Site::start(Place::with(RULES, &[("users.acl", users)]), &own))
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
}

/// Starts a server with a live page and without users.
fn open_site(rules: &str, args: &[&str]) -> (Server, RulesFile) {
    let rules = RulesFile::ini(rules);
    let server = Server::start(&[&[rules.path(), "--store", "memory", "--ui"], args].concat());
    (server, rules)
}
