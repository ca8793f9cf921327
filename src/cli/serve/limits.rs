//! The flags that bound what clients may do.

use std::time::Duration;

use crate::protocol::{DEFAULT_MAX_PAIRS, line, resp};
use crate::server::connection::Timeouts;
use crate::server::{self, Limits};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Connections open at once
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS", value_name = "N",
          default_value_t = server::DEFAULT_MAX_CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
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
    /// Bytes in the body of an HTTP request, and in a gRPC message
    #[arg(long, env = "DIVVY_MAX_BODY", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_BODY)]
    max_body: usize,
    /// Seconds a connection may send nothing; 0: for ever
    #[arg(long, env = "DIVVY_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = 0)]
    idle_timeout: u64,
    /// Seconds a client may take nothing of what was answered
    #[arg(
        long,
        env = "DIVVY_WRITE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_WRITE_TIMEOUT.as_secs()
    )]
    write_timeout: u64,
    /// Seconds a client of the line protocol or of RESP may take to give the password
    #[arg(
        long,
        env = "DIVVY_AUTH_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_AUTH_TIMEOUT.as_secs()
    )]
    auth_timeout: u64,
    /// Seconds a TLS handshake may take
    #[arg(
        long,
        env = "DIVVY_TLS_HANDSHAKE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = server::DEFAULT_HANDSHAKE_TIMEOUT.as_secs()
    )]
    tls_handshake_timeout: u64,
}

impl LimitArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_connections: self.max_connections as usize,
            max_line: self.max_line,
            max_pairs: self.max_pairs,
            max_body: self.max_body,
            resp: resp::Limits {
                max_arguments: self.max_arguments,
                max_argument_bytes: self.max_argument,
                max_request_bytes: self.max_request,
                ..resp::Limits::default()
            },
            timeouts: Timeouts {
                idle: (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout)),
                write: Duration::from_secs(self.write_timeout),
                auth: Duration::from_secs(self.auth_timeout),
                handshake: Duration::from_secs(self.tls_handshake_timeout),
            },
        }
    }
}
