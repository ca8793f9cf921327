//! The state that all fronts share, and the bounds for their clients.

use std::sync::Arc;

use crate::health::Health;
use crate::net::connection::Timeouts;
use crate::net::memory::BufferMemory;
use crate::net::work::{MAX_AT_ONCE, WorkSlots};
use crate::operations::Operations;
use crate::protocol::{self, DEFAULT_MAX_PAIRS, resp};
use divvy_access::audit::AuditLog;
use divvy_limiter::Limiter;

/// The state that all fronts share.
#[derive(Clone)]
pub struct ServerContext {
    pub limiter: Arc<Limiter>,
    /// Carries out what operators ask for.
    pub operations: Operations,
    pub limits: Limits,
    /// Budget for buffers and for requests in work.
    pub memory: Arc<BufferMemory>,
    /// Bounds the large requests in work.
    pub slots: WorkSlots,
    pub health: Arc<Health>,
}

impl ServerContext {
    /// Creates the context of a server whose changes are recorded in `audit`.
    pub fn new(limiter: Arc<Limiter>, audit: Arc<AuditLog>, limits: Limits, health: Arc<Health>) -> Self {
        let operations = Operations::new(Arc::clone(&limiter), audit);
        let memory = BufferMemory::new(limits.max_buffer_memory, Arc::clone(limiter.metrics()));
        Self { limiter, operations, limits, memory, slots: WorkSlots::new(MAX_AT_ONCE), health }
    }
}

/// Maximum number of open connections of all fronts.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
/// Maximum length of the body of an HTTP request, and of a gRPC message (bytes).
pub const DEFAULT_MAX_BODY: usize = 64 * 1024;
/// Budget for the buffers of all connections, without the free part of each (bytes).
pub const DEFAULT_MAX_BUFFER_MEMORY: usize = 128 * 1024 * 1024;
/// Output of a connection after which it writes before it answers more (bytes). One write of this size keeps a fast network busy.
const WRITE_THRESHOLD: usize = 256 * 1024;

/// Bounds for clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of open connections of all fronts.
    pub max_connections: usize,
    /// Maximum number from one address, or from one IPv6 network of 64 bits; `None` if only the total is bounded.
    pub max_connections_per_address: Option<usize>,
    /// Maximum length of a line, without its terminator (bytes).
    pub max_line: usize,
    /// Maximum number of pairs in an operation.
    pub max_pairs: usize,
    /// Output of a connection after which it writes before it answers more (bytes). A single reply may be longer.
    pub write_threshold: usize,
    /// Budget for the buffers of all connections, without the free part of each (bytes).
    pub max_buffer_memory: usize,
    /// Maximum length of the body of an HTTP request, and of a gRPC message (bytes).
    pub max_body: usize,
    /// Bounds on requests of the RESP front.
    pub resp: resp::Limits,
    /// Timeouts of all connections.
    pub timeouts: Timeouts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: DEFAULT_MAX_CONNECTIONS as usize,
            max_connections_per_address: None,
            max_line: protocol::line::DEFAULT_MAX_LINE,
            max_pairs: DEFAULT_MAX_PAIRS,
            write_threshold: WRITE_THRESHOLD,
            max_buffer_memory: DEFAULT_MAX_BUFFER_MEMORY,
            max_body: DEFAULT_MAX_BODY,
            resp: resp::Limits::default(),
            timeouts: Timeouts::default(),
        }
    }
}
