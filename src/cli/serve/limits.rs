//! The flags that bound what clients may do.

use std::time::Duration;

use crate::cli::units::{self, Bytes, MAX_IN_MEMORY, MAX_SECONDS, Time};
use crate::protocol::{DEFAULT_MAX_PAIRS, line, resp};
use crate::server::connection::Timeouts;
use crate::server::{self, Limits};

/// Enough for any bound that counts what one request has.
const MAX_IN_REQUEST: u64 = 1_000_000;
/// The shortest line and the smallest argument that a bound may leave: room for the commands and a short operation.
const LEAST_TEXT: u64 = 64;
/// The smallest RESP request that a bound may leave, with what the protocol puts around its arguments.
const LEAST_REQUEST: u64 = 256;
/// The fewest arguments that a bound may leave: a HELLO with all its options has seven.
const LEAST_ARGUMENTS: u64 = 8;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Connections open at once
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS", value_name = "N", default_value_t = server::DEFAULT_MAX_CONNECTIONS,
          value_parser = units::count::<u32>(1..=u32::MAX.into()))]
    max_connections: u32,
    /// Connections open at once from one address, or from one IPv6 network of 64 bits; 0: as many as there may be. Behind
    /// a load balancer all may come from one address
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = 0,
          value_parser = units::count::<u32>(0..=u32::MAX.into()))]
    max_connections_per_address: u32,
    /// Bytes in a line of the line protocol
    #[arg(long, env = "DIVVY_MAX_LINE", value_name = "BYTES", default_value_t = line::DEFAULT_MAX_LINE.into(),
          value_parser = units::bytes(LEAST_TEXT..=MAX_IN_MEMORY))]
    max_line: Bytes,
    /// key=value pairs in a request
    #[arg(long, env = "DIVVY_MAX_PAIRS", value_name = "N", default_value_t = DEFAULT_MAX_PAIRS,
          value_parser = units::count::<usize>(1..=MAX_IN_REQUEST))]
    max_pairs: usize,
    /// Arguments in a RESP request
    #[arg(long, env = "DIVVY_MAX_ARGUMENTS", value_name = "N", default_value_t = resp::Limits::default().max_arguments,
          value_parser = units::count::<usize>(LEAST_ARGUMENTS..=MAX_IN_REQUEST))]
    max_arguments: usize,
    /// Bytes in an argument of a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_ARGUMENT",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_argument_bytes.into(),
        value_parser = units::bytes(LEAST_TEXT..=MAX_IN_MEMORY)
    )]
    max_argument: Bytes,
    /// Bytes in a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_REQUEST",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_request_bytes.into(),
        value_parser = units::bytes(LEAST_REQUEST..=MAX_IN_MEMORY)
    )]
    max_request: Bytes,
    /// Bytes of output that are gathered for a connection before it is written to; one reply may be longer
    #[arg(long, env = "DIVVY_MAX_OUTPUT", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_OUTPUT.into(),
          value_parser = units::bytes(1..=MAX_IN_MEMORY))]
    max_output: Bytes,
    /// Bytes that all connections together may hold in large unfinished requests and in replies that are not read
    #[arg(
        long,
        env = "DIVVY_MAX_BUFFER_MEMORY",
        value_name = "BYTES",
        default_value_t = server::DEFAULT_MAX_BUFFER_MEMORY.into(),
        value_parser = units::bytes(0..=MAX_IN_MEMORY)
    )]
    max_buffer_memory: Bytes,
    /// Bytes in the body of an HTTP request, and in a gRPC message
    #[arg(long, env = "DIVVY_MAX_BODY", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_BODY.into(),
          value_parser = units::bytes(LEAST_TEXT..=MAX_IN_MEMORY))]
    max_body: Bytes,
    /// Seconds a connection may send nothing; 0: for ever
    #[arg(long, env = "DIVVY_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = Time(Duration::ZERO),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    idle_timeout: Time,
    /// Seconds a request may take from its first byte to its last
    #[arg(
        long,
        env = "DIVVY_REQUEST_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_REQUEST_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    request_timeout: Time,
    /// How long a client may take less than 1 KiB of its replies
    #[arg(
        long,
        env = "DIVVY_WRITE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_WRITE_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    write_timeout: Time,
    /// Seconds a client of the line protocol or of RESP may take to give the password
    #[arg(
        long,
        env = "DIVVY_AUTH_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_AUTH_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    auth_timeout: Time,
    /// Seconds a TLS handshake may take
    #[arg(
        long,
        env = "DIVVY_TLS_HANDSHAKE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_HANDSHAKE_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    tls_handshake_timeout: Time,
}

impl LimitArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_connections: self.max_connections as usize,
            max_connections_per_address: (self.max_connections_per_address > 0)
                .then_some(self.max_connections_per_address as usize),
            max_line: self.max_line.in_memory(),
            max_pairs: self.max_pairs,
            max_output: self.max_output.in_memory(),
            max_buffer_memory: self.max_buffer_memory.in_memory(),
            max_body: self.max_body.in_memory(),
            resp: resp::Limits {
                max_arguments: self.max_arguments,
                max_argument_bytes: self.max_argument.in_memory(),
                max_request_bytes: self.max_request.in_memory(),
                ..resp::Limits::default()
            },
            timeouts: Timeouts {
                idle: Some(self.idle_timeout.0).filter(|timeout| !timeout.is_zero()),
                request: self.request_timeout.0,
                write: self.write_timeout.0,
                auth: self.auth_timeout.0,
                handshake: self.tls_handshake_timeout.0,
            },
        }
    }
}
