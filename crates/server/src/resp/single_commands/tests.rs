//! The rights for a command that waits for a slot.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

use super::super::RespFront;
use super::*;
use crate::net::auth::Guard;
use crate::net::connection::ConnectionContext;
use crate::net::protocol::{Front, Protocol};
use crate::net::memory::BufferMemory;
use crate::net::work::{MAX_AT_ONCE, WorkSlots};
use crate::operations::Operations;
use crate::protocol::command::ClientFilter;
use crate::tests::{USER_RULES, authority, connect, limiter, timeouts, user, users};
use crate::{DEFAULT_MAX_BUFFER_MEMORY, Limits};
use divvy_access::audit::AuditLog;
use divvy_core::clock::Clock;
use divvy_limiter::exceptions::ExceptionTarget;

const PATIENCE: Duration = Duration::from_secs(30);
const LOGGED_IN: &[u8] = b"+OK\r\n";

#[tokio::test]
async fn rights_are_those_after_the_wait_for_a_slot() {
    for (words, expected) in [
        ("+@all ~*", "+OK\r\n"),
        ("+@read ~*", "-NOPERM User ops has no permissions to run the 'divvy.limit|set' command\r\n"),
        ("+@all ~label:other", "-NOPERM this is outside the scope of your user\r\n"),
    ] {
        let limiter = limiter(USER_RULES);
        let metrics = Arc::clone(limiter.metrics());
        let authority = Arc::new(authority(&user("ops", "secret", "+@all ~*"), &metrics));
        let guard = Arc::new(Guard::new(Arc::clone(&authority), "resp", true, &metrics.access));
        let audit = AuditLog::in_log(Clock::system(), Arc::clone(&metrics));
        let operations = Operations::new(Arc::clone(&limiter), audit);
        let slots = operations.slots().clone();
        let memory = BufferMemory::new(DEFAULT_MAX_BUFFER_MEMORY, Arc::clone(&metrics));
        let context =
            ConnectionContext { closing: CancellationToken::new(), memory: memory.share(), metrics: metrics.clone() };
        let (shared, limits) = (Arc::clone(&limiter), Limits::for_tests(timeouts(PATIENCE)));
        let front = RespFront::new(shared, operations, limits, Some(guard), None, memory, WorkSlots::new(1));

        let (stream, mut client) = connect(Protocol::Resp).await;
        tokio::spawn(front.serve(stream, client.local_addr().unwrap(), context));

        let taken = futures_util::future::join_all((0..MAX_AT_ONCE).map(|_| slots.take())).await;
        client.write_all(b"AUTH ops secret\r\nDIVVY.LIMIT SET users ann 5\r\n").await.unwrap();
        let mut reply = vec![0; LOGGED_IN.len()];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply, LOGGED_IN);
        while !front.shared.clients.list(&ClientFilter::All).contains("cmd=divvy.limit|set") {
            yield_now().await;
        }
        authority.replace(users(&user("ops", "secret", words)));
        drop(taken);
        reply.resize(expected.len(), 0);
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&reply), expected);
        let has_changed =
            limiter.exception_of(ExceptionTarget::limit("users", "ann"), &Scope::EVERYTHING).unwrap().is_some();
        assert_eq!(has_changed, expected == "+OK\r\n");
    }
}

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
