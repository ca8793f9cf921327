//! Bounds for clients, of all fronts.

use super::http::StreamBounds;
use super::net::connection::Timeouts;
use crate::protocol::resp::Limits as RespLimits;
use crate::protocol::{DEFAULT_MAX_PAIRS, line};

/// Maximum number of open connections of all fronts.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 10_000;
/// Maximum length of the body of an HTTP request, and of a gRPC message (bytes).
pub const DEFAULT_MAX_BODY: usize = 64 * 1024;
/// Budget for the buffers of all connections, without the free part of each (bytes).
pub const DEFAULT_MAX_BUFFER_MEMORY: usize = 128 * 1024 * 1024;
/// Output of a connection after which it writes before it answers more (bytes). One write of this size keeps a fast network busy.
const MAX_OUTPUT: usize = 256 * 1024;

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
    pub max_output: usize,
    /// Budget for the buffers of all connections, without the free part of each (bytes).
    pub max_buffer_memory: usize,
    /// Maximum length of the body of an HTTP request, and of a gRPC message (bytes).
    pub max_body: usize,
    /// Bounds on requests of the RESP front.
    pub resp: RespLimits,
    /// HTTP/2 connections of the HTTP front.
    pub http_streams: StreamBounds,
    /// Connections of the gRPC front.
    pub grpc_streams: StreamBounds,
    /// Timeouts of all connections.
    pub timeouts: Timeouts,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: DEFAULT_MAX_CONNECTIONS as usize,
            max_connections_per_address: None,
            max_line: line::DEFAULT_MAX_LINE,
            max_pairs: DEFAULT_MAX_PAIRS,
            max_output: MAX_OUTPUT,
            max_buffer_memory: DEFAULT_MAX_BUFFER_MEMORY,
            max_body: DEFAULT_MAX_BODY,
            resp: RespLimits::default(),
            http_streams: StreamBounds::HTTP,
            grpc_streams: StreamBounds::GRPC,
            timeouts: Timeouts::default(),
        }
    }
}

#[cfg(test)]
impl Limits {
    /// Returns small bounds for tests, with these timeouts.
    pub(super) fn for_tests(timeouts: Timeouts) -> Self {
        Self { max_connections: 10, max_line: 1000, max_pairs: 10, timeouts, ..Self::default() }
    }
}
