//! Tests of all fronts at once, and what tests share.

#[cfg(feature = "rocksdb")]
mod dropped_connections;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::net::connection::Timeouts;
use crate::net::front::Protocol;
use crate::net::stream::{Plain, Stream};
use divvy_access::{Authority, Digest, Users, parse};
use divvy_core::clock::Clock;
use divvy_core::config::{self, Format};
use divvy_limiter::store::{Backend, MemoryStore};
use divvy_limiter::{ActiveRules, CounterNames, Limiter};
use divvy_telemetry::metrics::Metrics;

/// A rule for each user, with the label `users`.
pub const USER_RULES: &str = "[user=*]\ncreditLimit = 9\nper = 1h\nactorField = user\nlabel = users\n\n\
    [default]\ncreditLimit = 0\nresetSeconds = 0\n";

/// Returns a limiter in memory with these rules.
pub fn limiter(rules: &str) -> Arc<Limiter> {
    let (rules, metrics) = (config::parse(rules, Format::Ini, "rules.ini").unwrap().rules, Metrics::new());
    let policy = ActiveRules::new(rules, &metrics, CounterNames::Usual);
    Arc::new(Limiter::new(Some(policy), Backend::Memory(MemoryStore::default()), Clock::system(), metrics))
}

/// Returns the line of a user with this password and these rights.
pub fn user(name: &str, password: &str, rights: &str) -> String {
    format!("user {name} on {} {rights}\n", Digest::of(password.as_bytes()).to_word())
}

/// Returns the users of an access file.
pub fn users(file: &str) -> Users {
    Users::new(parse(file, "users.acl", None).unwrap().users).unwrap()
}

/// Returns an authority that knows the users of an access file.
pub fn authority(file: &str, metrics: &Metrics) -> Authority {
    Authority::new(users(file), metrics.access.password_hashes.clone())
}

/// Returns both ends of a connection without TLS: the server's, and the client's.
pub async fn connect(protocol: Protocol) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, peer) = listener.accept().await.unwrap();
    (Stream::Plain(Plain::new(stream, protocol, peer)), client)
}

/// Returns timeouts that are all of this length. A connection may be idle forever.
pub fn timeouts(limit: Duration) -> Timeouts {
    Timeouts { idle: None, request: limit, write: limit, auth: limit, handshake: limit }
}
