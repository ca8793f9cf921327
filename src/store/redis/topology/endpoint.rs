//! Where a connection leads, and how to make it.

use std::time::Duration;

use redis::sentinel::SentinelClient;
use redis::{ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::slot_map::Address;
use crate::store::redis::wire::{Stream, connect, timed_out};

/// How long one server may take to accept a connection, its greetings included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a connection leads.
pub struct Endpoint {
    place: Place,
    certificates: Option<TlsCertificates>,
}

enum Place {
    Server(ConnectionInfo),
    /// The sentinels are asked for the master at each connect, so a failover is followed by reconnecting.
    Sentinel(Mutex<SentinelClient>),
}

impl Endpoint {
    pub fn server(info: ConnectionInfo, certificates: Option<TlsCertificates>) -> Self {
        Self { place: Place::Server(info), certificates }
    }

    pub fn sentinel(client: SentinelClient, certificates: Option<TlsCertificates>) -> Self {
        Self { place: Place::Sentinel(Mutex::new(client)), certificates }
    }

    /// A node of the cluster to which `template` leads, too.
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
        let info = match &self.place {
            Place::Server(info) => info.clone(),
            Place::Sentinel(client) => client.lock().await.async_get_client().await?.get_connection_info().clone(),
        };
        let stream = timeout(CONNECT_TIMEOUT, connect(&info, self.certificates.as_ref())).await;
        stream.unwrap_or_else(|_| Err(timed_out()))
    }
}
