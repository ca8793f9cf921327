//! The flags that bound what clients may do.

use std::time::Duration;

use crate::protocol::{DEFAULT_MAX_PAIRS, line, resp};
use crate::server::connection::Timeouts;
use crate::server::{self, Limits};

/// The longest time that a flag can give: a year. Far longer ones are past what a clock can add.
pub const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Connections open at once
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS", value_name = "N",
          default_value_t = server::DEFAULT_MAX_CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Connections open at once from one address, or from one IPv6 network of 64 bits; 0: as many as there may be. Behind
    /// a load balancer all may come from one address
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = 0)]
    max_connections_per_address: u32,
    /// Bytes in a line of the line protocol
    #[arg(long, env = "DIVVY_MAX_LINE", value_name = "BYTES", default_value_t = line::DEFAULT_MAX_LINE)]
    max_line: usize,
    /// key=value pairs in a request
    #[arg(long, env = "DIVVY_MAX_PAIRS", value_name = "N", default_value_t = DEFAULT_MAX_PAIRS)]
    max_pairs: usize,
    /// Arguments in a RESP request
    #[arg(long, env = "DIVVY_MAX_ARGUMENTS", value_name = "N", default_value_t = resp::Limits::default().max_arguments)]
    max_arguments: usize,
    /// Bytes in an argument of a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_ARGUMENT",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_argument_bytes
    )]
    max_argument: usize,
    /// Bytes in a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_REQUEST",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_request_bytes
    )]
    max_request: usize,
    /// Bytes of output that are gathered for a connection before it is written to; one reply may be longer
    #[arg(long, env = "DIVVY_MAX_OUTPUT", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_OUTPUT)]
    max_output: usize,
    /// Bytes that all connections together may hold in large unfinished requests and in replies that are not read
    #[arg(
        long,
        env = "DIVVY_MAX_BUFFER_MEMORY",
        value_name = "BYTES",
        default_value_t = server::DEFAULT_MAX_BUFFER_MEMORY
    )]
    max_buffer_memory: usize,
    /// Bytes in the body of an HTTP request, and in a gRPC message
    #[arg(long, env = "DIVVY_MAX_BODY", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_BODY)]
    max_body: usize,
    /// Seconds a connection may send nothing; 0: for ever
    #[arg(long, env = "DIVVY_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    idle_timeout: u64,
    /// Seconds a request may take from its first byte to its last
    #[arg(
        long,
        env = "DIVVY_REQUEST_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_REQUEST_TIMEOUT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    request_timeout: u64,
    /// Seconds a client may take nothing of what was answered
    #[arg(
        long,
        env = "DIVVY_WRITE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_WRITE_TIMEOUT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    write_timeout: u64,
    /// Seconds a client of the line protocol or of RESP may take to give the password
    #[arg(
        long,
        env = "DIVVY_AUTH_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_AUTH_TIMEOUT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    auth_timeout: u64,
    /// Seconds a TLS handshake may take
    #[arg(
        long,
        env = "DIVVY_TLS_HANDSHAKE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_HANDSHAKE_TIMEOUT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS)
    )]
    tls_handshake_timeout: u64,
}

impl LimitArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_connections: self.max_connections as usize,
            max_connections_per_address: (self.max_connections_per_address > 0)
                .then_some(self.max_connections_per_address as usize),
            max_line: self.max_line,
            max_pairs: self.max_pairs,
            max_output: self.max_output,
            max_buffer_memory: self.max_buffer_memory,
            max_body: self.max_body,
            resp: resp::Limits {
                max_arguments: self.max_arguments,
                max_argument_bytes: self.max_argument,
                max_request_bytes: self.max_request,
                ..resp::Limits::default()
            },
            timeouts: Timeouts {
                idle: (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout)),
                request: Duration::from_secs(self.request_timeout),
                write: Duration::from_secs(self.write_timeout),
                auth: Duration::from_secs(self.auth_timeout),
                handshake: Duration::from_secs(self.tls_handshake_timeout),
            },
        }
    }
}
