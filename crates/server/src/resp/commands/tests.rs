//! The rights for a command that waits for a slot.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

use super::super::RespFront;
use super::*;
use crate::net::auth::Guard;
use crate::net::connection::{ConnectionContext, Timeouts};
use crate::net::front::{Front, Protocol};
use crate::net::memory::BufferMemory;
use crate::net::stream::{Plain, Stream};
use crate::net::work::{MAX_AT_ONCE, WorkSlots};
use crate::operations::Operations;
use crate::protocol::command::ClientFilter;
use crate::{DEFAULT_MAX_BUFFER_MEMORY, Limits};
use divvy_access::audit::AuditLog;
use divvy_access::{Authority, Digest, Users, parse};
use divvy_core::clock::Clock;
use divvy_core::config::{self, Format};
use divvy_limiter::exceptions::ExceptionTarget;
use divvy_limiter::store::{Backend, MemoryStore};
use divvy_limiter::{CounterNames, Limiter, Scope};
use divvy_telemetry::metrics::Metrics;

const RULES: &str = "[user=*]\ncreditLimit = 9\nper = 1h\nactorField = user\nlabel = users\n\n\
    [default]\ncreditLimit = 0\nresetSeconds = 0\n";
const PATIENCE: Duration = Duration::from_secs(30);
const LOGGED_IN: &[u8] = b"+OK\r\n";

fn users(words: &str) -> Users {
    let file = format!("user ops on {} {words}\n", Digest::of(b"secret").to_word());
    Users::new(parse(&file, "users.acl", None).unwrap().users).unwrap()
}

fn limits() -> Limits {
    let timeouts = Timeouts { idle: None, request: PATIENCE, write: PATIENCE, auth: PATIENCE, handshake: PATIENCE };
    Limits::for_tests(timeouts)
}

fn limiter(metrics: &Arc<Metrics>) -> Arc<Limiter> {
    let rules = config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules;
    let policy = Policy::new(rules, metrics, CounterNames::Usual);
    let store = Backend::Memory(MemoryStore::default());
    Arc::new(Limiter::new(Some(policy), store, Clock::system(), Arc::clone(metrics)))
}

#[tokio::test]
async fn rights_are_those_after_the_wait_for_a_slot() {
    for (words, expected) in [
        ("+@all ~*", "+OK\r\n"),
        ("+@read ~*", "-NOPERM User ops has no permissions to run the 'divvy.limit|set' command\r\n"),
        ("+@all ~label:other", "-NOPERM this is outside the scope of your user\r\n"),
    ] {
        let metrics = Metrics::new();
        let authority = Arc::new(Authority::new(users("+@all ~*"), metrics.access.password_hashes.clone()));
        let guard = Arc::new(Guard::new(Arc::clone(&authority), "resp", true, &metrics.access));
        let limiter = limiter(&metrics);
        let audit = AuditLog::in_log(Clock::system(), Arc::clone(&metrics));
        let operations = Operations::new(Arc::clone(&limiter), audit);
        let slots = operations.slots().clone();
        let memory = BufferMemory::new(DEFAULT_MAX_BUFFER_MEMORY, Arc::clone(&metrics));
        let context =
            ConnectionContext { closing: CancellationToken::new(), memory: memory.share(), metrics: metrics.clone() };
        let shared = Arc::clone(&limiter);
        let front = RespFront::new(shared, operations, limits(), Some(guard), None, memory, WorkSlots::new(1));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        let stream = Stream::Plain(Plain::new(stream, Protocol::Resp, peer));
        tokio::spawn(front.serve(stream, peer, context));

        let taken = futures_util::future::join_all((0..MAX_AT_ONCE).map(|_| slots.take())).await;
        client.write_all(b"AUTH ops secret\r\nDIVVY.LIMIT SET users ann 5\r\n").await.unwrap();
        let mut reply = vec![0; LOGGED_IN.len()];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply, LOGGED_IN);
        while !front.shared.clients.list(&ClientFilter::All).contains("cmd=divvy.limit|set") {
            yield_now().await;
        }
        authority.replace(users(words));
        drop(taken);
        reply.resize(expected.len(), 0);
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), expected);
        let has_changed =
            limiter.exception_of(ExceptionTarget::limit("users", "ann"), &Scope::EVERYTHING).unwrap().is_some();
        assert_eq!(has_changed, expected == "+OK\r\n");
    }
}

use crate::protocol::resp::Version;
use divvy_limiter::Refusal;

#[test]
fn request_out_of_scope_has_the_code_for_a_lack_of_permission() {
    let text = |refusal: Refusal| {
        let mut output = Vec::new();
        write_limiter_error(&refusal, &mut ReplyWriter::new(&mut output, Version::Resp2));
        String::from_utf8(output).unwrap()
    };
    assert_eq!(text(Refusal::OutOfScope), "-NOPERM this is outside the scope of your user\r\n");
    assert!(text(Refusal::NoCredits).starts_with("-ERR "));
}
