//! The endpoint of connections, and the way to connect to it.

use std::time::Duration;

use redis::sentinel::SentinelClient;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::slot_map::Address;
use crate::wire::{Stream, connect, timed_out};

/// Maximum time to connect to one server, including its greetings.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A server to connect to.
pub struct Endpoint {
    resolver: Resolver,
    certificates: Option<TlsCertificates>,
}

/// How the address of the server is found.
enum Resolver {
    Fixed(ConnectionInfo),
    /// The sentinels are asked for the master at each connect. So after a failover, a new connection goes to the new
    /// master.
    Sentinel(Mutex<SentinelClient>),
}

impl Endpoint {
    pub fn server(info: ConnectionInfo, certificates: Option<TlsCertificates>) -> Self {
        Self { resolver: Resolver::Fixed(info), certificates }
    }

    pub fn sentinel(client: SentinelClient, certificates: Option<TlsCertificates>) -> Self {
        Self { resolver: Resolver::Sentinel(Mutex::new(client)), certificates }
    }

    /// Returns a node of `template`'s cluster.
    pub fn node(template: &ConnectionInfo, certificates: Option<TlsCertificates>, node: &Address) -> Self {
        let (host, port) = (node.host.clone(), node.port);
        let addr = match template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self::server(template.clone().set_addr(addr), certificates)
    }

    pub async fn connect(&self) -> Result<Stream, RedisError> {
        let info = match &self.resolver {
            Resolver::Fixed(info) => info.clone(),
            Resolver::Sentinel(client) => client.lock().await.async_get_client().await?.get_connection_info().clone(),
        };
        let stream = timeout(CONNECT_TIMEOUT, connect(&info, self.certificates.as_ref())).await;
        stream.unwrap_or_else(|_| Err(timed_out()))
    }
}
