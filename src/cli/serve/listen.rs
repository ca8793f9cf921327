//! The flags that say where the fronts listen, and their sockets.

use std::str::FromStr;

use anyhow::{Context, bail};
use tokio::net::TcpListener;

use crate::server::{self, Fronts};

const DEFAULT_LISTEN: &str = "127.0.0.1:8321";
const DEFAULT_HTTP_LISTEN: &str = "127.0.0.1:8322";

#[derive(Debug, clap::Args)]
pub struct ListenArgs {
    /// Address of the line protocol, or `none`; the environment's PORT changes the port of the default
    /// [default: 127.0.0.1:8321]
    #[arg(long, env = "DIVVY_LISTEN", value_name = "ADDR")]
    listen: Option<Listen>,
    /// Address of the RESP protocol, or `none`
    #[arg(long, env = "DIVVY_RESP_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:9049")]
    resp_listen: Listen,
    /// Address of HTTP (/healthz, /readyz, /metrics), or `none`; the environment's HTTP_SERVICE_PORT changes the port
    /// of the default [default: 127.0.0.1:8322]
    #[arg(long, env = "DIVVY_HTTP_LISTEN", value_name = "ADDR")]
    http_listen: Option<Listen>,
    /// Address of gRPC (Envoy's Rate Limit Service), or `none`
    #[arg(long, env = "DIVVY_GRPC_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8323")]
    grpc_listen: Listen,
}

/// An address to listen on, or `none`.
#[derive(Debug, Clone)]
enum Listen {
    Off,
    At(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("none") {
            return Ok(Self::Off);
        }
        let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Self::At(text.to_owned())),
            _ => Err("expected HOST:PORT (port 0 picks a free one) or `none`".to_owned()),
        }
    }
}

/// Where the fronts listen.
pub struct Addresses {
    line: Listen,
    resp: Listen,
    http: Listen,
    grpc: Listen,
}

/// A flag, or its variable, wins over the original's variable, which gives the port only.
fn address(flag: &Option<Listen>, original: &str, default: &str) -> anyhow::Result<Listen> {
    match (flag, std::env::var(original)) {
        (Some(listen), _) => Ok(listen.clone()),
        (None, Ok(port)) if !port.is_empty() => {
            let port: u16 =
                port.parse().with_context(|| format!("{original} is {port:?}, and must be a port number"))?;
            Ok(Listen::At(format!("127.0.0.1:{port}")))
        }
        (None, _) => Ok(Listen::At(default.to_owned())),
    }
}

impl ListenArgs {
    /// # Errors
    /// When a variable of the original's is no port.
    pub fn addresses(&self) -> anyhow::Result<Addresses> {
        Ok(Addresses {
            line: address(&self.listen, "PORT", DEFAULT_LISTEN)?,
            resp: self.resp_listen.clone(),
            http: address(&self.http_listen, "HTTP_SERVICE_PORT", DEFAULT_HTTP_LISTEN)?,
            grpc: self.grpc_listen.clone(),
        })
    }
}

impl Addresses {
    /// # Errors
    /// When an address cannot be listened on, or there is none.
    pub async fn bind(&self) -> anyhow::Result<Fronts> {
        let fronts = Fronts {
            line: bind(&self.line).await?,
            resp: bind(&self.resp).await?,
            http: bind(&self.http).await?,
            grpc: bind(&self.grpc).await?,
        };
        if [&fronts.line, &fronts.resp, &fronts.http, &fronts.grpc].into_iter().all(Option::is_none) {
            bail!("every address to listen on is `none`: nobody could reach the server");
        }
        Ok(fronts)
    }
}

async fn bind(address: &Listen) -> anyhow::Result<Option<TcpListener>> {
    match address {
        Listen::Off => Ok(None),
        Listen::At(address) => Ok(Some(server::bind(address).await?)),
    }
}
