//! Which Redis: one server, the master that sentinels name, or a cluster.

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates, TlsMode};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::endpoint::Endpoint;
use super::node_client::{NodeClient, Request};
use super::slot_map::Address;
use crate::store::redis::invalid_target::InvalidRedisTarget;
use crate::store::redis::options::{RedisOptions, RedisSentinel};
use crate::store::redis::scan::{Cursor, Scan, Scanned};
use crate::store::redis::wire::{Call, Failure, PROBE, Reply, number_of_keys};

/// Where Redis keeps its keys, which decides what a script must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    OneServer,
    Cluster,
}

/// One or several Redis servers.
pub struct Target {
    /// The addresses without passwords, for messages.
    pub name: String,
    servers: Servers,
}

enum Servers {
    One(NodeClient),
    Cluster(Box<Cluster>),
}

impl Target {
    pub fn new(options: &RedisOptions) -> Result<Self, InvalidRedisTarget> {
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
                let client = sentinel_client(&infos, first, sentinel, certificates.clone())?;
                Servers::One(NodeClient::new(Endpoint::sentinel(client, certificates), timeout))
            }
            ([only], None) => Servers::One(NodeClient::new(Endpoint::server(only.clone(), certificates), timeout)),
            ([first, ..], None) => {
                let seeds = seeds(&infos, first)?;
                Servers::Cluster(Box::new(Cluster::new(first.clone(), certificates, seeds, timeout)))
            }
        };
        Ok(Self { name, servers })
    }

    pub fn layout(&self) -> Layout {
        match &self.servers {
            Servers::One(_) => Layout::OneServer,
            Servers::Cluster(_) => Layout::Cluster,
        }
    }

    /// Makes the calls: in one round trip, or in one for each node of a cluster, all at once.
    pub async fn exchange(&self, calls: &[Call], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        match &self.servers {
            Servers::One(client) => {
                let requests: Vec<_> = calls.iter().map(|call| Request { call, asking: false }).collect();
                client.exchange(&requests, deadline).await
            }
            // Boxed: what it keeps of many nodes would be moved around with every hit on a single server.
            Servers::Cluster(cluster) => Box::pin(cluster.exchange(calls, deadline)).await,
        }
    }

    /// Whether hits can be answered; in a cluster, whether some of them can.
    pub async fn check(&self, deadline: Instant) -> Result<(), Failure> {
        match &self.servers {
            Servers::One(client) => client.ask(&Call::Probe { key: PROBE.into() }, deadline).await.map(drop),
            Servers::Cluster(cluster) => cluster.check(deadline).await,
        }
    }

    /// The number of keys, on all masters together.
    pub async fn count_keys(&self, deadline: Instant) -> Result<u64, Failure> {
        match &self.servers {
            Servers::One(client) => number_of_keys(client.ask(&Call::Count, deadline).await?),
            Servers::Cluster(cluster) => cluster.sum(&Call::Count, deadline).await,
        }
    }

    /// A page of the actors whose buckets the scan looks for.
    pub async fn scan(&self, scan: &Scan, cursor: Option<&str>, deadline: Instant) -> Result<Scanned, Failure> {
        match &self.servers {
            Servers::One(client) => {
                let begin = Cursor::resume(cursor, 0)?;
                let page = client.page(scan, begin, deadline).await?;
                let next = Cursor { process: page.process, position: page.next, ..begin };
                Ok(Scanned { actors: page.actors, next: (page.next != 0).then(|| next.to_string()) })
            }
            Servers::Cluster(cluster) => cluster.scan(scan, cursor, deadline).await,
        }
    }

    /// Whether there is a connection, to any of several nodes.
    pub fn is_connected(&self) -> bool {
        match &self.servers {
            Servers::One(client) => client.is_connected(),
            Servers::Cluster(cluster) => cluster.is_connected(),
        }
    }

    pub fn close(&self) {
        match &self.servers {
            Servers::One(client) => client.close(),
            Servers::Cluster(cluster) => cluster.close(),
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
