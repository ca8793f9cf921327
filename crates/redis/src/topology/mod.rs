//! The target of all calls: one server, the master that sentinels name, or the masters of a cluster.

mod breaker;
pub mod cluster;
mod node_client;
mod replication;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::{join_all, select_ok, try_join_all};
use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, TlsCertificates};
use tokio::time::Instant;

use self::cluster::{Address, Cluster, PROBE, Shard};
use self::node_client::{NodeClient, Request};
use self::replication::MakeReplication;
use super::options::{InvalidRedisTarget, RedisOptions};
use super::wire::stream::{Endpoint, is_tls};
use super::wire::{Call, Failure, Reply};
use divvy_telemetry::metrics::Metric;

/// The location of keys in Redis, which determines the keys and arguments of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    OneServer,
    Cluster,
}

/// One or several Redis servers.
pub struct Target {
    /// The addresses, without passwords, for messages.
    pub name: String,
    servers: Servers,
    replication: MakeReplication,
}

enum Servers {
    One(Arc<NodeClient>),
    Cluster(Box<Cluster>),
}

impl Target {
    pub fn new(options: &RedisOptions) -> Result<Self, InvalidRedisTarget> {
        let certificates = options.tls.read()?;
        let parsed = options.urls.iter().zip(1..).map(|(url, number)| parse(url, number, certificates.as_ref()));
        let infos = parsed.collect::<Result<Vec<_>, _>>()?;
        let name = infos.iter().map(|info| info.addr().to_string()).collect::<Vec<_>>().join(", ");
        let timeout = options.timeout;
        if let Some(acks) = options.acks.filter(|acks| acks.timeout >= timeout) {
            return Err(InvalidRedisTarget::AckTimeout(acks.timeout, timeout));
        }
        let replication = MakeReplication { acks: options.acks, ..MakeReplication::default() };
        let one =
            |endpoint| Servers::One(Arc::new(NodeClient::new(endpoint, timeout, replication.of_server(name.clone()))));
        let first = infos.first().ok_or(InvalidRedisTarget::NoUrl)?;
        let endpoint = Endpoint::server(first.clone(), certificates);
        let servers = match &options.sentinel {
            Some(sentinel) => one(endpoint.behind(&infos, sentinel)?),
            None if infos.len() == 1 => one(endpoint),
            None => {
                let seeds = seeds(&infos, first)?;
                Servers::Cluster(Box::new(Cluster::new(endpoint, seeds, timeout, replication.clone())))
            }
        };
        Ok(Self { name, servers, replication })
    }

    pub fn layout(&self) -> Layout {
        if matches!(self.servers, Servers::One(_)) { Layout::OneServer } else { Layout::Cluster }
    }

    /// Makes the calls in one round trip, or in one round trip per node of a cluster, all at once.
    pub async fn exchange(&self, calls: &[Call], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        match &self.servers {
            Servers::One(client) => {
                let requests: Vec<_> = calls.iter().map(|call| Request { call, asking: false }).collect();
                client.exchange(&requests, deadline).await
            }
            // Boxed, because its state for many nodes would otherwise be moved around with every hit on a single
            // server.
            Servers::Cluster(cluster) => Box::pin(cluster.exchange(calls, deadline)).await,
        }
    }

    /// Returns the servers that have counters of their own, for the few calls that go to all of them, and a number that changes when
    /// a slot of a cluster moves.
    pub async fn shards(&self, deadline: Instant) -> Result<(Vec<Shard>, u64), Failure> {
        match &self.servers {
            Servers::One(client) => {
                let shard = Shard { client: Arc::clone(client), name: None, probe: PROBE.into() };
                Ok((vec![shard], 0))
            }
            Servers::Cluster(cluster) => cluster.shards(deadline).await,
        }
    }

    /// Looks up the slots of a cluster.
    pub async fn look_up(&self, deadline: Instant) -> Result<(), Failure> {
        match &self.servers {
            Servers::One(_) => Ok(()),
            Servers::Cluster(cluster) => cluster.look_up(deadline).await,
        }
    }

    /// Checks that hits can be answered: a server takes writes. The key expires after a millisecond. In a cluster, one master is enough: while another is unreachable, the other keys can
    /// be served.
    pub async fn check(&self, deadline: Instant) -> Result<(), Failure> {
        let shards = self.shards(deadline).await?.0;
        if shards.is_empty() {
            return Err(Failure::NoNode);
        }
        let write = |shard: &Shard| Call::command(&[b"SET", &shard.probe, b"1", b"PX", b"1"]);
        select_ok(shards.iter().map(|shard| Box::pin(shard.ask([write(shard)], deadline)))).await.map(drop)
    }

    /// Returns the number of keys, on all masters together.
    pub async fn count_keys(&self, deadline: Instant) -> Result<u64, Failure> {
        let shards = self.shards(deadline).await?.0;
        let replies = shards.iter().map(|shard| shard.ask([Call::command(&[b"DBSIZE"])], deadline));
        let replies = try_join_all(replies).await?;
        replies.iter().map(|[reply]| reply.decode::<u64>("the number of keys is not a number")).sum()
    }

    /// Returns whether there is a connection to any of the nodes.
    pub fn is_connected(&self) -> bool {
        self.clients().iter().any(|client| client.is_connected())
    }

    fn clients(&self) -> Vec<Arc<NodeClient>> {
        match &self.servers {
            Servers::One(client) => vec![Arc::clone(client)],
            Servers::Cluster(cluster) => cluster.clients(),
        }
    }

    /// Connects to all servers that answer. Returns the reason why one of them may not be used, if there is one.
    pub async fn check_replication(&self, deadline: Instant) -> Option<String> {
        self.replication.acks?;
        if let Ok((shards, _)) = self.shards(deadline).await {
            join_all(shards.iter().map(|shard| shard.ask([Call::command(&[b"PING"])], deadline))).await;
        }
        self.clients().iter().find_map(|client| client.replication()?.refusal())
    }

    /// Returns metrics of the replicas that must confirm changes. In a cluster, they show the master with the fewest replicas.
    pub fn replication_metrics(&self) -> [Metric; 3] {
        let clients = self.clients();
        let reports = clients.iter().filter_map(|client| client.replication()?.report());
        let (replicas, required) = reports.map(|report| (report.replicas, report.required)).min().unwrap_or_default();
        let failures = self.replication.failures.load(Relaxed);
        let failed = "Calls to Redis that too few replicas confirmed in time.";
        let needed = "Replicas that must confirm each change. 0 without --redis-min-replicas-ack.";
        [
            Metric::counter("divvy_redis_ack_failures_total", failed, failures),
            Metric::gauge("divvy_redis_acks_required", needed, required.into()),
            Metric::gauge("divvy_redis_replicas", "Replicas that the master has, if they must.", replicas.into()),
        ]
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
    let info = url.into_connection_info().map_err(|reason| InvalidRedisTarget::Url(number, reason))?;
    // The connection reads only replies of RESP 2.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    let info = info.set_redis_settings(settings);
    match (certificates, info.addr()) {
        (None, _) => Ok(info),
        (Some(certificates), ConnectionAddr::TcpTls { .. }) => {
            let client = Client::build_with_tls(info, certificates.clone());
            Ok(client.map_err(InvalidRedisTarget::Certificates)?.get_connection_info().clone())
        }
        (Some(_), _) => Err(InvalidRedisTarget::NoTls(number)),
    }
}

/// Returns the addresses to look the cluster up at.
fn seeds(infos: &[ConnectionInfo], first: &ConnectionInfo) -> Result<Vec<Address>, InvalidRedisTarget> {
    let terms = |info: &ConnectionInfo| {
        let settings = info.redis_settings();
        (is_tls(info), settings.username().map(str::to_owned), settings.password().map(str::to_owned))
    };
    let seed = |info: &ConnectionInfo| match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
            if info.redis_settings().db() == 0 && terms(info) == terms(first) =>
        {
            Ok(Address { host: host.clone(), port: *port })
        }
        _ => Err(InvalidRedisTarget::Mixed),
    };
    infos.iter().map(seed).collect()
}

#[cfg(test)]
mod tests;
