//! Bounds on what clients may do, all fronts together.

use super::http::StreamBounds;
use super::net::connection::Timeouts;
use crate::protocol::resp::Limits as RespLimits;

/// Bounds on what clients may do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub max_connections: usize,
    /// From one address, or one IPv6 network of 64 bits; `None`: as many as there may be.
    pub max_connections_per_address: Option<usize>,
    pub max_line: usize,
    pub max_pairs: usize,
    /// Once so much output has gathered it is written before more is answered; one reply may be longer (bytes).
    pub max_output: usize,
    /// Bound on the buffers of all connections together, beyond the small ones that each has of its own (bytes).
    pub max_buffer_memory: usize,
    /// Bytes in the body of an HTTP request, and in a gRPC message.
    pub max_body: usize,
    pub resp: RespLimits,
    /// HTTP/2 connections of the HTTP front.
    pub http_streams: StreamBounds,
    /// Connections of the gRPC front.
    pub grpc_streams: StreamBounds,
    pub timeouts: Timeouts,
}
