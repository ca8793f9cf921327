//! Flags for the listen addresses, and their sockets.

use std::io::{self, ErrorKind};
use std::str::FromStr;

use anyhow::bail;
use tokio::net::TcpListener;

use super::service_manager::InheritedSockets;
use divvy_server::{self as server, Fronts};

const DEFAULT_LISTEN: &str = "127.0.0.1:8321";
const DEFAULT_HTTP_LISTEN: &str = "127.0.0.1:8322";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Listeners")]
pub struct ListenArgs {
    /// Address of the line protocol, or `none`. The environment variable PORT changes the port of the default [default:
    /// 127.0.0.1:8321]
    #[arg(long, value_name = "ADDR")]
    listen: Option<Listen>,
    /// Address of RESP, or `none`
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9049")]
    resp_listen: Listen,
    /// Address of HTTP (/v1, /healthz, /readyz, /metrics), or `none`. The environment variable HTTP_SERVICE_PORT
    /// changes the port of the default [default: 127.0.0.1:8322]
    #[arg(long, value_name = "ADDR")]
    http_listen: Option<Listen>,
    /// Address of gRPC (Envoy's Rate Limit Service), or `none`
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8323")]
    grpc_listen: Listen,
    /// Share the ports with other processes that set this flag (SO_REUSEPORT), so that a new server can start before
    /// the old one stops
    #[arg(long, value_parser = clap::builder::BoolishValueParser::new())]
    reuse_port: bool,
}

/// An address to listen on, or `none`.
#[derive(Debug, Clone)]
pub enum Listen {
    Off,
    At(String),
}

impl FromStr for Listen {
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

/// Returns the listen address. A flag or its variable takes precedence over Button's Divvy's variable, which only sets
/// the port.
fn address(flag: &Option<Listen>, original: &str, default: &str) -> anyhow::Result<Listen> {
    match (flag, std::env::var(original)) {
        (Some(listen), _) => Ok(listen.clone()),
        (None, Ok(port)) if !port.is_empty() => {
            let Ok(port) = port.parse::<u16>() else {
                bail!("{original} is {port:?}, but must be a port number from 0 to {}", u16::MAX);
            };
            Ok(Listen::At(format!("127.0.0.1:{port}")))
        }
        (None, _) => Ok(Listen::At(default.to_owned())),
    }
}

impl ListenArgs {
    /// Returns the listen addresses of the line protocol, RESP, HTTP and gRPC.
    ///
    /// # Errors
    /// A variable of Button's Divvy is not a port number.
    pub fn addresses(&self) -> anyhow::Result<[Listen; 4]> {
        Ok([
            address(&self.listen, "PORT", DEFAULT_LISTEN)?,
            self.resp_listen.clone(),
            address(&self.http_listen, "HTTP_SERVICE_PORT", DEFAULT_HTTP_LISTEN)?,
            self.grpc_listen.clone(),
        ])
    }

    /// Binds the addresses. A socket from the service manager replaces its listener's address.
    ///
    /// # Errors
    /// An address cannot be bound, or all of them are `none`.
    pub async fn bind(
        &self,
        [line, resp, http, grpc]: &[Listen; 4],
        mut inherited: InheritedSockets,
    ) -> anyhow::Result<Fronts> {
        let fronts = Fronts {
            line: self.front(inherited.take("line")?, "--listen", line).await?,
            resp: self.front(inherited.take("resp")?, "--resp-listen", resp).await?,
            http: self.front(inherited.take("http")?, "--http-listen", http).await?,
            grpc: self.front(inherited.take("grpc")?, "--grpc-listen", grpc).await?,
        };
        if [&fronts.line, &fronts.resp, &fronts.http, &fronts.grpc].into_iter().all(Option::is_none) {
            bail!("every listen address is `none`: no client could reach the server");
        }
        Ok(fronts)
    }

    async fn front(
        &self,
        inherited: Option<TcpListener>,
        flag: &str,
        address: &Listen,
    ) -> anyhow::Result<Option<TcpListener>> {
        match (inherited, address) {
            (Some(listener), _) => Ok(Some(listener)),
            (None, Listen::Off) => Ok(None),
            (None, Listen::At(address)) => match server::bind(address, self.reuse_port).await {
                Ok(listener) => Ok(Some(listener)),
                Err(error) => bail!("cannot listen on {address}: {}", explain_bind_error(flag, &error)),
            },
        }
    }
}

/// Explains why an address cannot be bound, and how to solve that.
fn explain_bind_error(flag: &str, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => {
            format!("it is in use: is another divvy running? Stop it, or choose another address with {flag}")
        }
        ErrorKind::AddrNotAvailable => {
            format!("this machine does not have that address ({error}): choose another one with {flag}")
        }
        ErrorKind::PermissionDenied => {
            format!("{error}: ports below 1024 need privileges; choose another address with {flag}")
        }
        _ => format!("{error}: choose another address with {flag}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_needs_a_host_and_a_port() {
        for good in ["127.0.0.1:0", "[::1]:9049", "localhost:80", "None"] {
            assert!(Listen::from_str(good).is_ok(), "{good}");
        }
        for (bad, expected) in [
            (":9049", "write 127.0.0.1:9049"),
            ("9049", "0.0.0.0:9049 for all"),
            ("localhost", "expected HOST:PORT"),
            ("localhost:resp", "expected HOST:PORT"),
            ("http://localhost:80", "expected HOST:PORT"),
            ("", "expected HOST:PORT"),
        ] {
            let error = Listen::from_str(bad).unwrap_err();
            assert!(error.contains(expected), "{bad}: {error}");
        }
    }
}
