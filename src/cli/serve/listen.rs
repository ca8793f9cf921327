//! Listen addresses and their sockets, which may come from the service manager (systemd), its notifications, and bounds on the resources
//! of clients.
//!
//! The service manager's sockets stay open while the service restarts. New connections wait in their queues.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::slice;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::ArgAction;
use listenfd::ListenFd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use socket2::SockRef;
use tokio::net::TcpListener;

use divvy_core::units::{self, Bytes, MAX_IN_MEMORY, MAX_SECONDS, Time};
use divvy_server::{self as server, Fronts, Limits, Timeouts};

#[derive(clap::Args)]
#[command(next_help_heading = "Listeners")]
pub struct ListenArgs {
    /// Address of the line protocol, or `none`. The environment variable PORT changes the port of the default [default:
    /// 127.0.0.1:8321]
    #[arg(long, value_name = "ADDR")]
    listen: Option<ListenAddress>,
    /// Address of RESP, or `none`
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9049")]
    resp_listen: ListenAddress,
    /// Addresses of HTTP (/v1, /healthz, /readyz, /metrics), separated by commas, or `none`. The environment variable
    /// HTTP_SERVICE_PORT changes the port of the default [default: 127.0.0.1:8322]
    #[arg(long, value_name = "ADDR", value_delimiter = ',', action = ArgAction::Set)]
    http_listen: Option<Vec<ListenAddress>>,
    /// Address of gRPC (Envoy's Rate Limit Service), or `none`
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8323")]
    grpc_listen: ListenAddress,
    /// Share the ports with other processes that set this flag (SO_REUSEPORT), so that a new server can start before
    /// the old one stops
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    reuse_port: bool,
}

/// An address to listen on, or `none`.
#[derive(Debug, Clone)]
pub enum ListenAddress {
    Off,
    At(String),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self::Off);
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        match port.parse::<u16>() {
            Ok(_) if !host.is_empty() && !host.contains('/') => Ok(Self::At(text.to_owned())),
            Ok(port) if host.is_empty() => Err(format!(
                "the host is missing: write 127.0.0.1:{port} for clients on this machine, or 0.0.0.0:{port} for all"
            )),
            _ => Err("expected HOST:PORT (port 0 picks a free one) or `none`".to_owned()),
        }
    }
}

/// Returns the addresses to listen on. A flag or its variable takes precedence over Button's Divvy's variable, which only
/// sets the port.
fn addresses(flag: Option<&[ListenAddress]>, original: &str, default: &str) -> anyhow::Result<Vec<ListenAddress>> {
    let address = match (flag, std::env::var(original)) {
        (Some(addresses), _) => return Ok(addresses.to_vec()),
        (None, Ok(port)) if !port.is_empty() => {
            let Ok(port) = port.parse::<u16>() else {
                bail!("{original} is {port:?}, but must be a port number from 0 to {}", u16::MAX);
            };
            format!("127.0.0.1:{port}")
        }
        (None, _) => default.to_owned(),
    };
    Ok(vec![ListenAddress::At(address)])
}

impl ListenArgs {
    /// Binds the addresses. A socket from the service manager replaces its listener's address.
    ///
    /// # Errors
    /// A variable of Button's Divvy is not a port number, an address cannot be bound, or all of them are `none`.
    pub async fn bind(&self, mut inherited: HashMap<&'static str, TcpListener>) -> anyhow::Result<Fronts> {
        let line = addresses(self.listen.as_ref().map(slice::from_ref), "PORT", "127.0.0.1:8321")?;
        let http = addresses(self.http_listen.as_deref(), "HTTP_SERVICE_PORT", "127.0.0.1:8322")?;
        let (resp, grpc) = (slice::from_ref(&self.resp_listen), slice::from_ref(&self.grpc_listen));
        let fronts = Fronts {
            line: self.front(inherited.remove("line"), "--listen", &line).await?,
            resp: self.front(inherited.remove("resp"), "--resp-listen", resp).await?,
            http: self.front(inherited.remove("http"), "--http-listen", &http).await?,
            grpc: self.front(inherited.remove("grpc"), "--grpc-listen", grpc).await?,
        };
        if [&fronts.line, &fronts.resp, &fronts.http, &fronts.grpc].into_iter().all(Vec::is_empty) {
            bail!("every listen address is `none`: no client could reach the server");
        }
        Ok(fronts)
    }

    /// Returns the sockets of a front.
    async fn front(
        &self,
        inherited: Option<TcpListener>,
        flag: &str,
        addresses: &[ListenAddress],
    ) -> anyhow::Result<Vec<TcpListener>> {
        if let Some(listener) = inherited {
            return Ok(vec![listener]);
        }
        let mut listeners = Vec::with_capacity(addresses.len());
        for address in addresses {
            let ListenAddress::At(address) = address else {
                ensure!(addresses.len() == 1, "{flag} has `none` and an address: leave one of them out");
                continue;
            };
            match server::bind(address, self.reuse_port).await {
                Ok(listener) => listeners.push(listener),
                Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
                    "cannot listen on {address}: it is in use: is another divvy running? Stop it, or choose another address \
                     with {flag}"
                ),
                Err(error) => bail!("cannot listen on {address}: {error}; choose another address with {flag}"),
            }
        }
        Ok(listeners)
    }
}

/// Returns the addresses of a front's sockets.
///
/// # Errors
/// The system does not know one.
pub fn local_addresses(listeners: &[TcpListener]) -> io::Result<Vec<SocketAddr>> {
    listeners.iter().map(TcpListener::local_addr).collect()
}

/// Names of the sockets in `FileDescriptorName=`, and the order of sockets without such names.
const FRONTS: [&str; 4] = ["line", "resp", "http", "grpc"];

/// Takes the sockets from the service manager that `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES` describe, by the name of their
/// listener.
///
/// # Errors
/// A socket is not a listening TCP socket, or cannot be assigned to a listener.
pub fn inherited_sockets() -> anyhow::Result<HashMap<&'static str, TcpListener>> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut received = ListenFd::from_env();
    let fronts = assign(&names, received.len())?;
    let mut sockets = HashMap::new();
    for (index, front) in fronts.into_iter().enumerate() {
        let socket = received
            .take_tcp_listener(index)
            .with_context(|| format!("cannot use the service manager's socket for {front}"))?
            .filter(|socket| SockRef::from(socket).is_listener().unwrap_or(false))
            .with_context(|| {
                format!("the service manager's socket for {front} does not listen: divvy needs Accept=no")
            })?;
        socket.set_nonblocking(true)?;
        sockets.insert(front, TcpListener::from_std(socket)?);
    }
    Ok(sockets)
}

/// Assigns each of `count` sockets to a listener: by their names, which colons separate, or by their order if no name
/// is known.
fn assign(names: &str, count: usize) -> anyhow::Result<Vec<&'static str>> {
    let names: Vec<&str> = names.split(':').collect();
    let named: Vec<_> = names.iter().filter_map(|name| FRONTS.into_iter().find(|front| front == name)).collect();
    let has_twice =
        named.iter().enumerate().any(|(index, front)| named.iter().skip(index + 1).any(|other| other == front));
    match named.len() {
        0 if count <= FRONTS.len() => Ok(FRONTS.into_iter().take(count).collect()),
        known if known == count && names.len() == count && !has_twice => Ok(named),
        _ => bail!(
            "the service manager passed {count} sockets: give each listener at most one, and name none or all of them with \
             FileDescriptorName= {}",
            FRONTS.join(", ")
        ),
    }
}

/// A reload that an operator asked for. Reports the reload, and that the server is ready again when the last owner is done.
#[derive(Debug)]
pub struct AskedReload(());

impl AskedReload {
    /// Reports that files are being reloaded.
    pub fn begin() -> Self {
        match NotifyState::monotonic_usec_now() {
            // Since systemd 253, the time is required.
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => {
                tracing::warn!(%error, "cannot notify the service manager of the reload: cannot read the clock");
            }
        }
        Self(())
    }
}

impl Drop for AskedReload {
    fn drop(&mut self) {
        notify(&[NotifyState::Ready]);
    }
}

/// Reports these states to the service manager.
pub fn notify(states: &[NotifyState]) {
    // A missing service manager is not an error.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager: check NOTIFY_SOCKET");
    }
}

/// Minimum for the size of a body. It leaves room for a short operation.
const MIN_BODY: u64 = 64;
/// Open files other than connections: listening sockets, and the store's files of about 8 MiB each.
const OTHER_FILES: u64 = 4_096;

#[derive(clap::Args)]
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
    #[arg(long, value_name = "SECONDS", default_value_t = Time(server::DEFAULT_REQUEST_TIMEOUT),
          value_parser = units::seconds(1..=MAX_SECONDS))]
    request_timeout: Time,
    /// Close connections whose client reads none of its replies for this long
    #[arg(long, value_name = "SECONDS", default_value_t = Time(server::DEFAULT_WRITE_TIMEOUT),
          value_parser = units::seconds(1..=MAX_SECONDS))]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_needs_a_host_and_a_port() {
        for good in ["127.0.0.1:0", "[::1]:9049", "localhost:80", "None"] {
            assert!(ListenAddress::from_str(good).is_ok(), "{good}");
        }
        for (bad, expected) in [
            (":9049", "write 127.0.0.1:9049"),
            ("9049", "0.0.0.0:9049 for all"),
            ("localhost", "expected HOST:PORT"),
            ("localhost:resp", "expected HOST:PORT"),
            ("http://localhost:80", "expected HOST:PORT"),
            ("", "expected HOST:PORT"),
        ] {
            let error = ListenAddress::from_str(bad).unwrap_err();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }

    #[test]
    fn sockets_are_assigned_by_name_or_else_by_order() {
        for (names, count, expected) in [
            ("http:line", 2, Some(&["http", "line"][..])),
            ("", 0, Some(&[])),
            ("", 1, Some(&["line"])),
            ("divvy.socket:divvy.socket:divvy.socket", 3, Some(&["line", "resp", "http"])),
            ("", 5, None),
            ("line:unknown", 2, None),
            ("line:line", 2, None),
            ("line", 2, None),
        ] {
            assert_eq!(assign(names, count).ok().as_deref(), expected, "{names:?} for {count}");
        }
    }
}
