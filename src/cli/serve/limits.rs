//! Flags that bound the resources of clients.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use divvy_core::units::{self, Bytes, MAX_IN_MEMORY, MAX_SECONDS, Time};

use divvy_server::{self as server, Limits, Timeouts};

/// Minimum for the size of a body. It leaves room for a short operation.
const MIN_BODY: u64 = 64;
/// Open files other than connections: listening sockets, and the store's files of about 8 MiB each.
const OTHER_FILES: u64 = 4_096;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits on clients")]
pub struct LimitArgs {
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = server::DEFAULT_MAX_CONNECTIONS,
          value_parser = units::count::<u32>(1..=u32::MAX.into()))]
    max_connections: u32,
    /// Maximum number of open connections from one address or IPv6 /64 network. It may be a load balancer's. 0: no limit
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = units::count::<u32>(0..=u32::MAX.into()))]
    max_connections_per_address: u32,
    /// Maximum memory that all connections together may hold in large unfinished requests, unread replies, and HTTP/2
    /// requests in flight
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = server::DEFAULT_MAX_BUFFER_MEMORY.into(),
        value_parser = units::bytes(0..=MAX_IN_MEMORY)
    )]
    max_buffer_memory: Bytes,
    /// Maximum size of the body of an HTTP request, and of a gRPC message
    #[arg(long, value_name = "BYTES", default_value_t = server::DEFAULT_MAX_BODY.into(),
          value_parser = units::bytes(MIN_BODY..=MAX_IN_MEMORY))]
    max_body: Bytes,
    /// Close connections that send nothing for this long. 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = Time(Duration::ZERO),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    idle_timeout: Time,
    /// Maximum time for a request, from its first byte to its last
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_REQUEST_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    request_timeout: Time,
    /// Close connections that read less than 1 KiB of their replies in this time
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = Time(server::DEFAULT_WRITE_TIMEOUT),
        value_parser = units::seconds(1..=MAX_SECONDS)
    )]
    write_timeout: Time,
}

impl LimitArgs {
    pub fn limits(&self) -> Limits {
        let per_address = self.max_connections_per_address as usize;
        Limits {
            max_connections: self.max_connections as usize,
            max_connections_per_address: Some(per_address).filter(|connections| *connections > 0),
            max_buffer_memory: self.max_buffer_memory.in_memory(),
            max_body: self.max_body.in_memory(),
            timeouts: Timeouts {
                idle: Some(self.idle_timeout.0).filter(|timeout| !timeout.is_zero()),
                request: self.request_timeout.0,
                write: self.write_timeout.0,
                ..Timeouts::default()
            },
            ..Limits::default()
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
