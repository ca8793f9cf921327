//! Flags that bound the resources of clients.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::protocol::{DEFAULT_MAX_PAIRS, line, resp};
use crate::server::connection::Timeouts;
use crate::server::{self, Limits, StreamBounds};
use crate::units::{self, Bytes, MAX_IN_MEMORY, MAX_SECONDS, Time};

/// Upper bound for flags that count parts of a request.
const MAX_IN_REQUEST: u64 = 1_000_000;
/// Upper bound for requests in flight on a connection.
const MAX_STREAMS: u64 = 1_000_000;
/// Minimum for the length of a line or an argument. It leaves room for each command with a short operation.
const MIN_TEXT: u64 = 64;
/// Minimum for the size of a RESP request, including the protocol's overhead.
const MIN_REQUEST: u64 = 256;
/// Minimum for the number of arguments: a HELLO with all options has seven.
const MIN_ARGUMENTS: u64 = 8;
/// Open files other than connections: listening sockets, and the store's files of about 8 MiB each.
const OTHER_FILES: u64 = 4_096;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits on clients")]
pub struct LimitArgs {
    /// Maximum number of open connections
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS", value_name = "N", default_value_t = server::DEFAULT_MAX_CONNECTIONS,
          value_parser = units::count::<u32>(1..=u32::MAX.into()))]
    max_connections: u32,
    /// Maximum number of open connections from one address, or from one IPv6 /64 network. 0: no limit. Behind a load
    /// balancer, all connections may come from one address
    #[arg(long, env = "DIVVY_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = 0,
          value_parser = units::count::<u32>(0..=u32::MAX.into()))]
    max_connections_per_address: u32,
    /// Maximum length of a line of the line protocol
    #[arg(long, env = "DIVVY_MAX_LINE", value_name = "BYTES", default_value_t = line::DEFAULT_MAX_LINE.into(),
          value_parser = units::bytes(MIN_TEXT..=MAX_IN_MEMORY))]
    max_line: Bytes,
    /// Maximum number of key=value pairs in a request
    #[arg(long, env = "DIVVY_MAX_PAIRS", value_name = "N", default_value_t = DEFAULT_MAX_PAIRS,
          value_parser = units::count::<usize>(1..=MAX_IN_REQUEST))]
    max_pairs: usize,
    /// Maximum number of arguments in a RESP request
    #[arg(long, env = "DIVVY_MAX_ARGUMENTS", value_name = "N", default_value_t = resp::Limits::default().max_arguments,
          value_parser = units::count::<usize>(MIN_ARGUMENTS..=MAX_IN_REQUEST))]
    max_arguments: usize,
    /// Maximum size of an argument in a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_ARGUMENT",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_argument_bytes.into(),
        value_parser = units::bytes(MIN_TEXT..=MAX_IN_MEMORY)
    )]
    max_argument: Bytes,
    /// Maximum size of a RESP request
    #[arg(
        long,
        env = "DIVVY_MAX_REQUEST",
        value_name = "BYTES",
        default_value_t = resp::Limits::default().max_request_bytes.into(),
        value_parser = units::bytes(MIN_REQUEST..=MAX_IN_MEMORY)
    )]
    max_request: Bytes,
    /// Replies are flushed when this many bytes are pending on a connection. A single reply may be longer
    #[arg(long, env = "DIVVY_MAX_OUTPUT", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_OUTPUT.into(),
          value_parser = units::bytes(1..=MAX_IN_MEMORY))]
    max_output: Bytes,
    /// Maximum memory that all connections together may hold in large unfinished requests, unread replies, and HTTP/2
    /// requests in flight
    #[arg(
        long,
        env = "DIVVY_MAX_BUFFER_MEMORY",
        value_name = "BYTES",
        default_value_t = server::DEFAULT_MAX_BUFFER_MEMORY.into(),
        value_parser = units::bytes(0..=MAX_IN_MEMORY)
    )]
    max_buffer_memory: Bytes,
    /// Maximum size of the body of an HTTP request, and of a gRPC message
    #[arg(long, env = "DIVVY_MAX_BODY", value_name = "BYTES", default_value_t = server::DEFAULT_MAX_BODY.into(),
          value_parser = units::bytes(MIN_TEXT..=MAX_IN_MEMORY))]
    max_body: Bytes,
    /// Maximum number of requests in flight on one HTTP/2 connection to the HTTP port
    #[arg(
        long,
        env = "DIVVY_MAX_HTTP_STREAMS",
        value_name = "N",
        default_value_t = StreamBounds::HTTP.max_concurrent,
        value_parser = units::count::<u32>(1..=MAX_STREAMS)
    )]
    max_http_streams: u32,
    /// Maximum number of calls in flight on one connection to the gRPC port. A gateway that opens more calls before it
    /// has received this bound counts the refused calls as failures
    #[arg(
        long,
        env = "DIVVY_MAX_GRPC_STREAMS",
        value_name = "N",
        default_value_t = StreamBounds::GRPC.max_concurrent,
        value_parser = units::count::<u32>(1..=MAX_STREAMS)
    )]
    max_grpc_streams: u32,
    /// Close an HTTP/2 connection if its client has reset more than this many requests that divvy has not served yet.
    /// divvy reads 2 KiB of a connection at a time, which is at most 82 such requests
    #[arg(
        long,
        env = "DIVVY_MAX_PENDING_RESETS",
        value_name = "N",
        default_value_t = StreamBounds::HTTP.max_pending_resets,
        value_parser = units::count::<usize>(1..=MAX_IN_REQUEST)
    )]
    max_pending_resets: usize,
    /// Close an HTTP/2 connection if divvy had to reset more than this many of its requests, because they broke the
    /// protocol or exceeded the maximum number in flight
    #[arg(
        long,
        env = "DIVVY_MAX_LOCAL_RESETS",
        value_name = "N",
        default_value_t = StreamBounds::HTTP.max_local_resets,
        value_parser = units::count::<usize>(1..=MAX_IN_REQUEST)
    )]
    max_local_resets: usize,
    /// Close connections that send nothing for this long. 0: never
    #[arg(long, env = "DIVVY_IDLE_TIMEOUT", value_name = "SECONDS", default_value_t = Time(Duration::ZERO),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    idle_timeout: Time,
    /// Maximum time for a request, from its first byte to its last
    #[arg(
        long,
        env = "DIVVY_REQUEST_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_REQUEST_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    request_timeout: Time,
    /// Close connections that read less than 1 KiB of their replies in this time
    #[arg(
        long,
        env = "DIVVY_WRITE_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_WRITE_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    write_timeout: Time,
    /// Maximum time for a client of the line protocol or RESP to give the password
    #[arg(
        long,
        env = "DIVVY_AUTH_TIMEOUT",
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_AUTH_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    auth_timeout: Time,
    /// Maximum time for a TLS handshake
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
        let (max_pending_resets, max_local_resets) = (self.max_pending_resets, self.max_local_resets);
        let streams = |max_concurrent| StreamBounds { max_concurrent, max_pending_resets, max_local_resets };
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
            http_streams: streams(self.max_http_streams),
            grpc_streams: streams(self.max_grpc_streams),
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

/// Raises the soft limit of open files to the hard limit, because each connection is an open file. Warns if the hard limit is
/// too low for `connections`.
pub fn raise_open_files_limit(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "cannot raise the open files limit");
    }
    let needed = connections as u64 + OTHER_FILES;
    // `None` means unlimited.
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            "the open files limit is too low for --max-connections {connections}: raise it to {needed} \
             (ulimit -n; LimitNOFILE= for systemd), or lower --max-connections"
        );
    }
}
