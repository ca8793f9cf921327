//! Where a connection leads, and how to make it.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError};
use tokio::sync::Mutex;

use super::slots::Address;

/// How long one server may take to accept a connection, its greetings included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a connection leads.
pub(super) enum Source {
    Server(ConnectionInfo),
    /// The sentinels are asked for the master at each connect, so a failover is followed by reconnecting.
    Sentinel(Mutex<SentinelClient>),
}

impl Source {
    /// A node of the cluster to which `template` leads, too.
    pub(super) fn node(template: &ConnectionInfo, node: &Address) -> Self {
        let (host, port) = (node.host.clone(), node.port);
        let addr = match template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self::Server(template.clone().set_addr(addr))
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        // A reply's time limit is its batch's, so the library keeps none.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
        match self {
            Self::Server(info) => {
                Client::open(info.clone())?.get_multiplexed_async_connection_with_config(&config).await
            }
            Self::Sentinel(client) => client.lock().await.get_async_connection_with_config(&config).await,
        }
    }
}
