//! Tests of all fronts at once, and what tests share.

#[cfg(feature = "rocksdb")]
mod dropped_connections;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::net::connection::{ConnectionContext, Timeouts};
use crate::net::memory::BufferMemory;
use crate::net::protocol::Protocol;
use crate::net::stream::{Plain, Stream};
use crate::server_context::Limits;
use crate::server_context::ServerContext;
use divvy_access::audit::AuditLog;
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
    (Stream::Left(Plain::new(stream, protocol, peer)), client)
}

/// Returns the context of a server with this limiter, these timeouts, and the audit log in the ordinary log.
pub fn server(limiter: Arc<Limiter>, timeouts: Timeouts) -> ServerContext {
    let audit = AuditLog::new(None, false, Clock::system(), Arc::clone(limiter.metrics())).unwrap();
    let health = Health::start(&limiter, CancellationToken::new(), None).unwrap();
    let limits = Limits { max_connections: 10, max_line: 1000, max_pairs: 10, timeouts, ..Limits::default() };
    ServerContext::new(limiter, audit, limits, health)
}

/// Returns the context of a connection from `peer`, with a share of this budget.
pub fn connection_context(memory: &Arc<BufferMemory>, metrics: &Arc<Metrics>, peer: SocketAddr) -> ConnectionContext {
    let (closing, memory, metrics) = (CancellationToken::new(), memory.share(), Arc::clone(metrics));
    ConnectionContext { peer, local: None, certificate: None, closing, memory, metrics }
}

/// Returns timeouts that are all of this length. A connection may be idle forever.
pub fn timeouts(limit: Duration) -> Timeouts {
    Timeouts { idle: None, request: limit, write: limit, auth: limit, handshake: limit }
}
