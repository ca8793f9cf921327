//! The RESP front: sessions that answer the commands of Redis clients.
//!
//! | module | purpose |
//! |---|---|
//! | [`session`] | one connection: decodes requests, and answers them in order |
//! | [`batch`] | the requests of one read that need the limiter, applied together |
//! | [`single_commands`] | commands that are answered alone: about the connection, the rules, the users, the server; operations of operators |
//! | [`transaction`] | `MULTI`, `EXEC` and the requests between them |
//! | [`client`] | one client's state; all clients, for `CLIENT LIST` |
//! | [`info`] | `INFO` and what else clients ask about the server |

mod batch;
mod client;
mod info;
mod session;
mod single_commands;
mod transaction;

use std::sync::Arc;

use bytes::BytesMut;

pub use self::info::RespFront;
use self::session::RespSession;
use super::net::accept::Front;
use super::net::connection::{self, ConnectionContext};
use super::net::protocol::Protocol;
use super::net::stream::Stream;
use crate::errors::{self, Terms};
use crate::protocol::resp::ReplyWriter;
use divvy_limiter::{ErrorClass, LimiterError};

const TERMS: Terms = Terms {
    take_lease: Some("take a lease with DIVVY.RESERVE and AMOUNT 1, and release it when the work is done"),
    list_rules: Some("DIVVY.RULES lists them"),
};

/// Writes an error of the limiter, under Redis's code for a lack of permission or its general code.
fn write_limiter_error(error: &impl LimiterError, writer: &mut ReplyWriter) {
    let code = match error.class() {
        ErrorClass::Forbidden => "NOPERM",
        ErrorClass::RulesMistake
        | ErrorClass::BadRequest
        | ErrorClass::UnsuitableRule
        | ErrorClass::UnnamedLease
        | ErrorClass::NotFound
        | ErrorClass::ReusedName
        | ErrorClass::Full
        | ErrorClass::StoreFailure => "ERR",
    };
    writer.error(format_args!("{code} {}", errors::describe(error, &TERMS)));
}

impl Front for RespFront {
    const PROTOCOL: Protocol = Protocol::Resp;

    fn serve(
        self: &Arc<Self>,
        stream: Stream,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static {
        let session = RespSession::new(self, &context);
        connection::serve(stream, BytesMut::new(), session, self.server.limits.timeouts, context)
    }
}
