//! Users: the rights that an access file gives, on every front; logins; reloads.

mod certificates;
mod command_line;
mod header_tricks;
mod logins;
mod random;
mod revocation;
mod rights;
mod scopes;
mod turns;

use std::ops::Deref;

use base64_simd::STANDARD;
use divvy::access::{Category, Digest};

use crate::support::{COMPAT_RULES, LineClient, Place, RespClient, Site, http};

/// Text after the names of all users' passwords.
const PASSWORD: &str = "'s password";

/// Returns a line of an access file for a user whose password is its name and [`PASSWORD`].
pub fn line(name: &str, words: &str) -> String {
    format!("user {name} on {} {words}\n", Digest::of(password(name).as_bytes()).to_word())
}

pub fn password(name: &str) -> String {
    format!("{name}{PASSWORD}")
}

/// Returns a line for a user with only this category, and everything in scope.
fn only(category: Category) -> String {
    line(category.name(), &format!("-@all +@{category} ~*"))
}

/// A server with an access file.
struct Guarded(Site);

impl Deref for Guarded {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.0
    }
}

impl Guarded {
    fn start(file: &str, args: &[&str]) -> Self {
        Self::with_rules(&std::fs::read_to_string(COMPAT_RULES).unwrap(), file, args)
    }

    fn with_rules(rules: &str, file: &str, args: &[&str]) -> Self {
        let own = ["--store", "memory", "--access-file", "DIR/users.acl"];
        Self(Site::start(Place::with(rules, &[("users.acl", file)]), &[&own, args].concat()))
    }

    /// Replaces the access file, and waits for this outcome.
    fn reload(&self, file: &str, outcome: &str) {
        self.replace("users.acl", file, outcome);
    }

    /// Connects over RESP as this user.
    fn resp(&self, name: &str) -> RespClient {
        let mut client = self.server.resp();
        assert_eq!(client.command_of(&[b"AUTH", name.as_bytes(), password(name).as_bytes()]), "OK");
        client
    }

    /// Connects over the line protocol as the user `default`.
    fn line(&self) -> LineClient {
        let mut client = self.server.line();
        client.send(format!("AUTH {}\n", password("default")).as_bytes());
        assert_eq!(client.read_line(), "OK\n");
        client
    }

    /// Sends a request over HTTP as this user, or without credentials. Returns the response.
    fn http(&self, method: &str, path: &str, name: Option<&str>) -> http::Response {
        let authorization = name.map(basic);
        let headers = authorization.iter().map(|value| ("authorization", value.as_str()));
        let headers: Vec<_> = headers.chain([("connection", "close")]).collect();
        http::request(self.server.http, http::encode(method, path, &headers, b""))
    }
}

/// Returns the header for HTTP's Basic authentication.
fn basic(name: &str) -> String {
    format!("Basic {}", STANDARD.encode_to_string(format!("{name}:{}", password(name))))
}
