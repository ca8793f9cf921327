//! Which Redis: one server, the master that sentinels name, or a cluster; and how to connect to each.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, TlsCertificates,
    TlsMode,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::call::{Call, Failure, Reply};
use super::cluster::Cluster;
use super::link::{Link, Request};
use super::scan::{Cursor, Scan, Scanned};
use super::slots::Address;
use super::{RedisOptions, RedisSentinel};

/// The key that tells whether writes are taken.
pub(super) const PROBE: &[u8] = b"divvy.probe";
/// How long one server may take to accept a connection, its greetings included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

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
    #[error("the Redis URLs do not fit together: {0}")]
    Mixed(&'static str),
    #[error("Redis URL {number} is without TLS, so certificates have no use: write rediss://, or leave them out")]
    NoTls { number: usize },
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: io::Error },
    #[error("{} holds no {kind} in PEM (a section that begins with -----BEGIN)", path.display())]
    NotPem { path: PathBuf, kind: &'static str },
    #[error("cannot use the certificates for Redis: {0}")]
    Certificates(RedisError),
    #[error("cannot create a client for these sentinels: {0}")]
    Sentinel(RedisError),
}

/// What is asked.
pub(super) struct Target {
    /// The addresses without passwords, for messages.
    pub name: String,
    servers: Servers,
}

enum Servers {
    One(Link),
    Cluster(Box<Cluster>),
}

impl Target {
    pub(super) fn new(options: &RedisOptions) -> Result<Self, InvalidRedisTarget> {
        let certificates = options.tls.read()?;
        let mut infos = Vec::with_capacity(options.urls.len());
        for (index, url) in options.urls.iter().enumerate() {
            infos.push(parse(url, index + 1, certificates.as_ref())?);
        }
        let name = infos.iter().map(|info| info.addr().to_string()).collect::<Vec<_>>().join(", ");
        let timeout = options.timeout;
        let servers = match (infos.as_slice(), &options.sentinel) {
            ([], _) => return Err(InvalidRedisTarget::NoUrl),
            ([first, ..], Some(sentinel)) => {
                let client = sentinel_client(&infos, first, sentinel, certificates)?;
                Servers::One(Link::new(Source::Sentinel(Mutex::new(client)), timeout))
            }
            ([only], None) => Servers::One(Link::new(Source::Server(only.clone()), timeout)),
            ([first, ..], None) => {
                Servers::Cluster(Box::new(Cluster::new(first.clone(), seeds(&infos, first)?, timeout)))
            }
        };
        Ok(Self { name, servers })
    }

    /// Makes the calls: in one round trip, or in one for each node of a cluster, all at once.
    pub(super) async fn exchange(&self, calls: &[Call], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        match &self.servers {
            Servers::One(link) => {
                let requests: Vec<_> = calls.iter().map(|call| Request { call, asking: false }).collect();
                link.exchange(&requests, deadline).await
            }
            Servers::Cluster(cluster) => cluster.exchange(calls, deadline).await,
        }
    }

    /// Whether hits can be answered; in a cluster, whether some of them can.
    pub(super) async fn check(&self, deadline: Instant) -> Result<(), Failure> {
        match &self.servers {
            Servers::One(link) => link.ask(&Call::Probe { key: PROBE.into() }, deadline).await.map(drop),
            Servers::Cluster(cluster) => cluster.check(deadline).await,
        }
    }

    /// The number of keys, on all masters together.
    pub(super) async fn count_keys(&self, deadline: Instant) -> Result<u64, Failure> {
        match &self.servers {
            Servers::One(link) => super::count(link.ask(&Call::Count, deadline).await?),
            Servers::Cluster(cluster) => cluster.sum(&Call::Count, deadline).await,
        }
    }

    /// A page of the actors whose buckets the scan looks for.
    pub(super) async fn scan(&self, scan: &Scan, cursor: Option<&str>, deadline: Instant) -> Result<Scanned, Failure> {
        match &self.servers {
            Servers::One(link) => {
                let begin = Cursor::resume(cursor, 0)?;
                let page = link.page(scan, begin, deadline).await?;
                let next = Cursor { process: page.process, position: page.next, ..begin };
                Ok(Scanned { actors: page.actors, next: (page.next != 0).then(|| next.to_string()) })
            }
            Servers::Cluster(cluster) => cluster.scan(scan, cursor, deadline).await,
        }
    }

    /// Whether there is a connection, to any of several nodes.
    pub(super) fn is_connected(&self) -> bool {
        match &self.servers {
            Servers::One(link) => link.is_connected(),
            Servers::Cluster(cluster) => cluster.is_connected(),
        }
    }

    pub(super) fn close(&self) {
        match &self.servers {
            Servers::One(link) => link.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}

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

fn parse(
    url: &str,
    number: usize,
    certificates: Option<&TlsCertificates>,
) -> Result<ConnectionInfo, InvalidRedisTarget> {
    let info = url.into_connection_info().map_err(|reason| InvalidRedisTarget::Url { number, reason })?;
    match (certificates, info.addr()) {
        (None, _) => Ok(info),
        (Some(certificates), ConnectionAddr::TcpTls { .. }) => {
            let client = Client::build_with_tls(info, certificates.clone());
            Ok(client.map_err(InvalidRedisTarget::Certificates)?.get_connection_info().clone())
        }
        (Some(_), _) => Err(InvalidRedisTarget::NoTls { number }),
    }
}

fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}

/// The nodes that a cluster is found by.
fn seeds(infos: &[ConnectionInfo], first: &ConnectionInfo) -> Result<Vec<Address>, InvalidRedisTarget> {
    let mixed = |reason| Err(InvalidRedisTarget::Mixed(reason));
    let credentials = |info: &ConnectionInfo| {
        let settings = info.redis_settings();
        (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
    };
    let mut seeds = Vec::with_capacity(infos.len());
    for info in infos {
        if info.redis_settings().db() != 0 {
            return mixed("a cluster has only database 0");
        }
        if is_tls(info) != is_tls(first) {
            return mixed("write either redis:// or rediss:// for all nodes of a cluster");
        }
        if credentials(info) != credentials(first) {
            return mixed("give all nodes of a cluster the same user and password");
        }
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                seeds.push(Address { host: host.clone(), port: *port });
            }
            _ => return mixed("several URLs name the nodes of a cluster, which cannot use unix sockets"),
        }
    }
    Ok(seeds)
}

/// The first URL's user, password, database and TLS are the master's.
fn sentinel_client(
    infos: &[ConnectionInfo],
    first: &ConnectionInfo,
    sentinel: &RedisSentinel,
    certificates: Option<TlsCertificates>,
) -> Result<SentinelClient, InvalidRedisTarget> {
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
        let (user, password) = auth.split_once(':').map_or((None, auth.as_str()), |(user, rest)| (Some(user), rest));
        builder = builder.set_client_to_sentinel_password(password);
        if let Some(user) = user {
            builder = builder.set_client_to_sentinel_username(user);
        }
    }
    if is_tls(first) {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        if let Some(certificates) = certificates {
            builder = builder.set_client_to_redis_certificates(certificates);
        }
    }
    builder.build().map_err(InvalidRedisTarget::Sentinel)
}

#[cfg(test)]
mod tests;
