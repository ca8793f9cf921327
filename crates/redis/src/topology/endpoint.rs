//! The endpoint of connections: a server, or the master that sentinels name, and the way to connect to it.

use std::time::Duration;

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates, TlsMode};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::slots::Address;
use crate::options::{InvalidRedisTarget, RedisSentinel};
use crate::wire::stream::{Stream, connect, timed_out};

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

    /// Returns the master that sentinels name. User, password, database and TLS of the first URL are the master's.
    pub fn sentinel(
        infos: &[ConnectionInfo],
        first: &ConnectionInfo,
        sentinel: &RedisSentinel,
        certificates: Option<TlsCertificates>,
    ) -> Result<Self, InvalidRedisTarget> {
        let addresses = infos.iter().map(|info| info.addr().clone());
        let builder = SentinelClientBuilder::new(addresses, &sentinel.master, SentinelServerType::Master);
        let mut builder = builder.map_err(InvalidRedisTarget::Sentinel)?;
        let master = first.redis_settings();
        builder = builder.set_client_to_redis_db(master.db()).set_client_to_redis_protocol(master.protocol());
        if let Some(user) = master.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = master.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(auth) = &sentinel.auth {
            let (user, password) =
                auth.split_once(':').map_or((None, auth.as_str()), |(user, rest)| (Some(user), rest));
            builder = builder.set_client_to_sentinel_password(password);
            if let Some(user) = user {
                builder = builder.set_client_to_sentinel_username(user);
            }
        }
        if is_tls(first) {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(certificates) = &certificates {
                builder = builder.set_client_to_redis_certificates(certificates.clone());
            }
        }
        let client = builder.build().map_err(InvalidRedisTarget::Sentinel)?;
        Ok(Self { resolver: Resolver::Sentinel(Mutex::new(client)), certificates })
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

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}
