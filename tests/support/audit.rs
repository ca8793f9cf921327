//! A server with an audit log.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::redis::until;
use super::{LineClient, RespClient, Server, http};

pub const PASSWORD: &str = "correct horse";
pub const RULES: &str = "[user=*]\ncreditLimit = 10\nresetSeconds = 2592000\nactorField = user\nlabel = by-user\n\n\
                     [default]\ncreditLimit = 0\n";

/// A server with an audit log in a directory.
pub struct Audited {
    pub dir: tempfile::TempDir,
    pub server: Server,
}

impl Audited {
    /// Serves [`RULES`]. The audit log is `audit/log` in the directory.
    pub fn serving(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("audit")).unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("rules.ini"), RULES).unwrap();
        let (rules, log) = (path("rules.ini"), path("audit/log"));
        let mut args = vec![rules.as_str(), "--audit-log", &log];
        let (data, backups) = (path("data"), path("backups"));
        if !options.contains(&"--redis-url") {
            args.extend(["--data-dir", &data, "--backup-dir", &backups]);
        }
        let server = Server::start(&[&args, options].concat());
        Self { dir, server }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn resp(&self) -> RespClient {
        RespClient::connect(self.server.resp)
    }

    /// Waits for this many lines, and returns all of them.
    pub fn lines(&self, count: usize) -> Vec<Value> {
        until(|| read(&self.path("audit/log")).len() >= count);
        read(&self.path("audit/log"))
    }
}

pub fn read(path: &Path) -> Vec<Value> {
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
