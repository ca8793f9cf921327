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
mod single_commands;
mod info;
mod session;
mod transaction;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpListener;

use self::info::{RespState, run_id};
use self::session::RespSession;
use super::Limits;
use super::net::auth::Guard;
use super::net::connection::{self, ConnectionContext};
use super::net::protocol::{Front, Protocol};
use super::net::memory::BufferMemory;
use super::net::stream::Stream;
use super::net::work::WorkSlots;
use super::operations::Operations;
use divvy_limiter::Limiter;

/// The front.
pub struct RespFront {
    shared: Arc<RespState>,
}

impl RespFront {
    /// Creates the front. `operations` carries out what operators ask for. `guard` logs clients in. Transactions count toward
    /// `memory`. `slots` bound the large requests.
    #[expect(clippy::disallowed_methods, reason = "the uptime")]
    pub fn new(
        limiter: Arc<Limiter>,
        operations: Operations,
        limits: Limits,
        guard: Option<Arc<Guard>>,
        listener: Option<&TcpListener>,
        memory: Arc<BufferMemory>,
        slots: WorkSlots,
    ) -> Self {
        let shared = RespState {
            requests: limiter.metrics().requests.front(Protocol::Resp.front()),
            limiter,
            operations,
            limits,
            guard,
            address: listener.and_then(|listener| listener.local_addr().ok()),
            started: Instant::now(),
            run_id: run_id(),
            clients: Arc::default(),
            memory,
            slots,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Front for RespFront {
    const PROTOCOL: Protocol = Protocol::Resp;

    fn serve(
        &self,
        stream: Stream,
        peer: SocketAddr,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send + 'static {
        let session =
            RespSession::new(Arc::clone(&self.shared), peer, stream.local_addr().ok(), stream.certificate_name());
        connection::serve(stream, session, self.shared.limits.timeouts, context)
    }
}
