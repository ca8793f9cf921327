//! Which Redis: one server, the master that sentinels name, or a cluster; and how to connect to it.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsMode};
use tokio::sync::Mutex;

/// Why no store can be made of the options.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRedisTarget {
    #[error("no Redis URL is given; write one such as redis://127.0.0.1:6379")]
    NoUrl,
    // The URL itself may hold a password, so it is not repeated.
    #[error(
        "Redis URL {number} is not valid: {reason}; write redis://[user:password@]host:port[/database], rediss:// for TLS, or redis+unix:///path"
    )]
    Url { number: usize, reason: RedisError },
    #[error("the Redis URLs do not go together: {0}")]
    Mixed(RedisError),
}

/// An open connection; clones share it.
#[derive(Clone)]
pub(super) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// What to connect to.
pub(super) struct Target {
    /// The addresses without passwords, for messages.
    pub name: String,
    kind: Kind,
    config: AsyncConnectionConfig,
}

enum Kind {
    Server(Client),
    /// Asks the sentinels for the master at each connect, so a failover is followed by reconnecting.
    Sentinel(Mutex<SentinelClient>),
    Cluster(ClusterClient),
}

impl Target {
    pub(super) fn new(
        urls: &[String],
        sentinel_master: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, InvalidRedisTarget> {
        let mut infos = Vec::with_capacity(urls.len());
        for (index, url) in urls.iter().enumerate() {
            let info = url.as_str().into_connection_info();
            infos.push(info.map_err(|reason| InvalidRedisTarget::Url { number: index + 1, reason })?);
        }
        let Some(first) = infos.first().cloned() else { return Err(InvalidRedisTarget::NoUrl) };
        let name = infos.iter().map(|info| info.addr().to_string()).collect::<Vec<_>>().join(", ");
        // Half of the time for connecting leaves the other half for the batch that found the connection broken.
        let connecting = timeout / 2;
        let kind = match sentinel_master {
            Some(master) => sentinel(infos, &first, master),
            None if infos.len() == 1 => Client::open(first).map(Kind::Server),
            None => cluster(infos, connecting, timeout),
        };
        let kind = kind.map_err(InvalidRedisTarget::Mixed)?;
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(connecting)).set_response_timeout(Some(timeout));
        Ok(Self { name, kind, config })
    }

    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
        match &self.kind {
            Kind::Server(client) => {
                client.get_multiplexed_async_connection_with_config(&self.config).await.map(Connection::Server)
            }
            Kind::Sentinel(client) => {
                let mut client = client.lock().await;
                client.get_async_connection_with_config(&self.config).await.map(Connection::Server)
            }
            Kind::Cluster(client) => client.get_async_connection().await.map(Connection::Cluster),
        }
    }
}

/// The first URL's user, password, database and TLS are the master's too.
fn sentinel(infos: Vec<ConnectionInfo>, first: &ConnectionInfo, master: &str) -> Result<Kind, RedisError> {
    let mut node = SentinelNodeConnectionInfo::default().set_redis_connection_info(first.redis_settings().clone());
    if matches!(first.addr(), ConnectionAddr::TcpTls { .. }) {
        node = node.set_tls_mode(TlsMode::Secure);
    }
    SentinelClient::build(infos, master, Some(node), SentinelServerType::Master)
        .map(|client| Kind::Sentinel(Mutex::new(client)))
}

/// The client's own retries are off: they repeat a command whose reply got lost, which could take a credit twice.
fn cluster(infos: Vec<ConnectionInfo>, connecting: Duration, timeout: Duration) -> Result<Kind, RedisError> {
    ClusterClientBuilder::new(infos)
        .retries(0)
        .connection_timeout(connecting)
        .response_timeout(timeout)
        .overall_response_timeout(Some(timeout))
        .build()
        .map(Kind::Cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(urls: &[&str], master: Option<&str>) -> Result<Target, InvalidRedisTarget> {
        let urls: Vec<_> = urls.iter().map(|url| url.to_string()).collect();
        Target::new(&urls, master, Duration::from_millis(500))
    }

    #[test]
    fn a_server_sentinels_and_a_cluster_are_told_apart() {
        let kind = |urls: &[&str], master| target(urls, master).unwrap().kind;
        assert!(matches!(kind(&["redis://127.0.0.1"], None), Kind::Server(_)));
        assert!(matches!(kind(&["rediss://user:secret@example.org:6380/2"], None), Kind::Server(_)));
        assert!(matches!(kind(&["redis+unix:///run/redis.sock"], None), Kind::Server(_)));
        assert!(matches!(kind(&["redis://a:26379"], Some("main")), Kind::Sentinel(_)));
        assert!(matches!(kind(&["redis://a", "redis://b"], None), Kind::Cluster(_)));
    }

    #[test]
    fn a_name_and_an_error_hold_no_password() {
        let name = target(&["redis://user:secret@example.org:6380"], None).unwrap().name;
        assert_eq!(name, "example.org:6380");
        for urls in [&["redis://user:secret@example.org:port"][..], &["secret"], &["http://secret@x"]] {
            let error = target(urls, None).err().unwrap().to_string();
            assert!(error.contains("Redis URL 1") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn no_url_is_an_error() {
        assert!(matches!(target(&[], None), Err(InvalidRedisTarget::NoUrl)));
    }
}
