//! A server with an audit log.

use std::fs;
use std::ops::Deref;
use std::path::Path;

use serde_json::Value;

use super::{LineClient, Place, Server, Site, http, until};

pub const PASSWORD: &str = "correct horse";
pub const RULES: &str = "
[user=*] creditLimit=10 resetSeconds=2592000 actorField=user label=by-user
[default] creditLimit=0
";

/// A server of [`RULES`] with the audit log `audit/log` in its directory.
pub struct Audited(pub Site);

impl Deref for Audited {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

impl Audited {
    pub fn serving(flags: &[&str]) -> Self {
        let place = Place::new(RULES);
        fs::create_dir(place.path("audit")).unwrap();
        let store = ["--audit-log", "DIR/audit/log", "--data-dir", "DIR/data", "--backup-dir", "DIR/backups"];
        Self(Site::start(place, &[&store, flags].concat()))
    }

    /// Waits for this many lines, and returns all of them.
    pub fn lines(&self, count: usize) -> Vec<Value> {
        lines(self.path("audit/log"), count)
    }
}

/// Waits for this many lines of an audit log, and returns all of them.
pub fn lines(path: impl AsRef<Path>, count: usize) -> Vec<Value> {
    until(|| read(&path).len() >= count);
    read(&path)
}

pub fn read(path: impl AsRef<Path>) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Sends a request over HTTP with a JSON body and the right password.
pub fn send(server: &Server, method: &str, path: &str, body: &str) -> u16 {
    let bearer = format!("Bearer {PASSWORD}");
    let headers = [("content-type", "application/json"), ("authorization", &bearer), ("connection", "close")];
    http::request(server.http, http::encode(method, path, &headers, body.as_bytes())).status
}

pub fn hit(server: &Server, user: &str) {
    assert!(LineClient::connect(server.line).hit(&format!("user={user}")).0);
}
