//! The rights for a command that waits for a slot.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;

use super::*;
use crate::net::accept::Front;
use crate::net::auth::Guard;
use crate::net::protocol::Protocol;
use crate::net::work::MAX_AT_ONCE;
use crate::tests::{USER_RULES, authority, connect, connection_context, limiter, server, timeouts, user, users};
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
        let server = server(Arc::clone(&limiter), timeouts(PATIENCE));
        let (slots, front) = (&server.operations.slots, Arc::new(RespFront::new(&server, Some(guard), None)));

        let (stream, mut client) = connect(Protocol::Resp).await;
        let context = connection_context(&server.memory, &metrics, client.local_addr().unwrap());
        tokio::spawn(front.serve(stream, context));

        let taken = futures_util::future::join_all((0..MAX_AT_ONCE).map(|_| slots.take())).await;
        client.write_all(b"AUTH ops secret\r\nDIVVY.LIMIT SET users ann 5\r\n").await.unwrap();
        let mut reply = vec![0; LOGGED_IN.len()];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply, LOGGED_IN);
        while !front.clients.list().contains("cmd=divvy.limit|set") {
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
