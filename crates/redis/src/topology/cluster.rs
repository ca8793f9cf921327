//! A cluster: each call goes to the node that has its key's slot. All calls to a node take one round trip.
//!
//! redis-rs has a client for clusters, too. While it looks up the slots, it answers no call, not even for healthy
//! nodes, and it repeats that for as long as a node is unreachable. Here, a failed node does not affect the others.
//!
//! A call is sent again only if a node reported that it did not carry the call out, or if it was never sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::{join_all, select_ok};
use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use redis::{ConnectionInfo, TlsCertificates};
use tokio::time::{Instant, timeout_at};

use super::endpoint::Endpoint;
use super::node_client::{NodeClient, Request};
use super::slots::{Address, SlotMap};
use crate::wire::{Call, Failure, Reply};

/// The key that tests whether a server takes writes. In a cluster, a hash tag follows.
pub const PROBE: &[u8] = b"divvy.probe";
/// Maximum number of redirects of one call. No healthy cluster redirects a call as often.
const MAX_REDIRECTS: usize = 4;
/// Minimum time between two look-ups of the slots. While a master is unreachable, every batch wants one.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(100);
/// Number of nodes that are asked for the slots at the same time, because some may be unreachable. The first answer is used.
const NODES_ASKED: usize = 3;

/// All servers that have counters of their own, for the few calls that go to all of them.
pub struct Shards {
    /// Changes when a slot of a cluster moves.
    pub version: u64,
    pub list: Vec<Shard>,
}

/// One server, or one master of a cluster.
pub struct Shard {
    pub client: Arc<NodeClient>,
    /// The master's address, for failures.
    pub name: Option<Arc<str>>,
    /// A key that this server may write.
    pub probe: Vec<u8>,
}

impl Shard {
    pub async fn ask(&self, call: Call, deadline: Instant) -> Result<Reply, Failure> {
        self.client.ask(call, deadline).await.map_err(|failure| self.locate(failure))
    }

    /// Adds the server's name to the failure, in a cluster.
    pub fn locate(&self, failure: Failure) -> Failure {
        match &self.name {
            Some(name) => Failure::AtNode(Arc::clone(name), failure.into()),
            None => failure,
        }
    }
}

pub struct Cluster {
    /// The first of the operator's URLs: user, password and TLS of all nodes.
    template: ConnectionInfo,
    certificates: Option<TlsCertificates>,
    seeds: Vec<Address>,
    timeout: Duration,
    clients: Mutex<HashMap<Address, Arc<NodeClient>>>,
    slots: ArcSwap<SlotMap>,
    /// The time and the result of the last look-up. Locked while the slots are looked up.
    looked_up: tokio::sync::Mutex<Option<(Instant, Result<(), Failure>)>>,
    /// The next node to ask for the slots. It advances, so that nodes that are unreachable are not the only ones asked.
    next_asked: AtomicUsize,
}

/// A call, and its node.
struct RoutedCall<'a> {
    call: &'a Call,
    /// Its index among the calls.
    index: usize,
    slot: Slot,
    /// The node that the call was sent or redirected to.
    node: Option<Address>,
    asking: bool,
}

impl Cluster {
    pub fn new(
        template: ConnectionInfo,
        certificates: Option<TlsCertificates>,
        seeds: Vec<Address>,
        timeout: Duration,
    ) -> Self {
        Self {
            template,
            certificates,
            seeds,
            timeout,
            clients: Mutex::default(),
            slots: ArcSwap::default(),
            looked_up: tokio::sync::Mutex::default(),
            next_asked: AtomicUsize::new(0),
        }
    }

    /// Makes the calls, each at the node that has its key.
    pub async fn exchange(&self, calls: &[Call], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        if let Err(failure) = self.known_slots(deadline).await {
            return vec![Err(failure); calls.len()];
        }
        let mut replies = vec![Err(Failure::NoNode); calls.len()];
        let mut routed = Vec::with_capacity(calls.len());
        for ((index, call), reply) in calls.iter().enumerate().zip(&mut replies) {
            if call.is_in_one_slot() {
                routed.push(RoutedCall { call, index, slot: call.slot(), node: None, asking: false });
            } else {
                *reply = Err(Failure::ManySlots);
            }
        }
        for _ in 0..=MAX_REDIRECTS {
            if routed.is_empty() {
                break;
            }
            routed = self.dispatch(routed, &mut replies, deadline).await;
        }
        replies
    }

    /// Returns the masters in the order of their slots.
    pub async fn shards(&self, deadline: Instant) -> Result<Shards, Failure> {
        let map = self.known_slots(deadline).await?;
        let shard = |node: &Address| {
            let probe = map.key_at(node, PROBE);
            Shard { client: self.client(node), name: Some(node.to_string().into()), probe }
        };
        Ok(Shards { version: map.version, list: map.masters.iter().map(shard).collect() })
    }

    /// Returns whether there is a connection to any of the nodes.
    pub fn is_connected(&self) -> bool {
        self.clients.lock().values().any(|client| client.is_connected())
    }

    pub fn close(&self) {
        self.clients.lock().clear();
    }

    /// Sends each call to its node. Returns the calls that were redirected or lost, and must be sent once more.
    async fn dispatch<'a>(
        &self,
        routed: Vec<RoutedCall<'a>>,
        replies: &mut [Result<Reply, Failure>],
        deadline: Instant,
    ) -> Vec<RoutedCall<'a>> {
        let map = self.slots.load_full();
        let (mut redirected, mut lost) = (Vec::new(), Vec::new());
        let mut by_node: HashMap<Address, Vec<RoutedCall<'a>>> = HashMap::new();
        for mut call in routed {
            match call.node.take().or_else(|| map.owner(call.slot).cloned()) {
                Some(node) => by_node.entry(node).or_default().push(call),
                None => lost.push(call),
            }
        }
        let sent = by_node.into_iter().map(|(node, routed)| async move {
            let requests: Vec<_> =
                routed.iter().map(|routed| Request { call: routed.call, asking: routed.asking }).collect();
            let results = self.client(&node).exchange(&requests, deadline).await;
            (node, routed, results)
        });
        for (node, routed, results) in join_all(sent).await {
            for (mut call, result) in routed.into_iter().zip(results) {
                let redirection = result.as_ref().err().and_then(Failure::redirection);
                let was_lost = result.as_ref().is_err_and(Failure::was_not_done);
                if let Some(reply) = replies.get_mut(call.index) {
                    *reply = result.map_err(|failure| Failure::AtNode(node.to_string().into(), failure.into()));
                }
                if let Some(redirection) = redirection {
                    call.node = Address::parse(&redirection.node, &node);
                    call.asking = redirection.asking;
                    redirected.push(call);
                } else if was_lost {
                    call.node = Some(node.clone());
                    lost.push(call);
                }
            }
        }
        if !lost.is_empty() || redirected.iter().any(|call| !call.asking) {
            // If this fails, redirected calls still go to their new node, and lost calls are given up.
            let _ = self.look_up(deadline).await;
        }
        redirected.extend(self.found_again(lost));
        redirected
    }

    /// Returns the lost calls whose slot is at another node by now.
    fn found_again<'a>(&self, lost: Vec<RoutedCall<'a>>) -> impl Iterator<Item = RoutedCall<'a>> {
        let map = self.slots.load_full();
        lost.into_iter().filter_map(move |call| {
            let owner = map.owner(call.slot)?;
            (call.node.as_ref() != Some(owner)).then(|| RoutedCall { node: Some(owner.clone()), asking: false, ..call })
        })
    }

    /// Returns the slots. Looks them up if that has not happened yet.
    async fn known_slots(&self, deadline: Instant) -> Result<Arc<SlotMap>, Failure> {
        if self.slots.load().masters.is_empty() {
            self.look_up(deadline).await?;
        }
        Ok(self.slots.load_full())
    }

    /// Looks up the slots at some of the nodes, unless that was done a moment ago.
    #[expect(clippy::disallowed_methods, reason = "how long to wait for nodes, and how often to ask them")]
    pub async fn look_up(&self, deadline: Instant) -> Result<(), Failure> {
        let locked = timeout_at(deadline, self.looked_up.lock()).await;
        let mut last = locked.map_err(|_| Failure::Timeout(self.timeout))?;
        if let Some((_, result)) = last.as_ref().filter(|(at, _)| at.elapsed() < LOOK_UP_PAUSE) {
            return result.clone();
        }
        // Half of the time is left for the calls themselves.
        let answer = self.first_answer(deadline.min(Instant::now() + self.timeout / 2)).await;
        let result = answer.map(|map| {
            let is_known = |address: &Address| map.masters.contains(address) || self.seeds.contains(address);
            self.clients.lock().retain(|address, _| is_known(address));
            self.slots.store(Arc::new(map));
        });
        *last = Some((Instant::now(), result.clone()));
        result
    }

    async fn first_answer(&self, deadline: Instant) -> Result<SlotMap, Failure> {
        let map = self.slots.load_full();
        let mut nodes: Vec<_> = map.masters.iter().chain(&self.seeds).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let first = self.next_asked.fetch_add(NODES_ASKED, Relaxed) % nodes.len().max(1);
        nodes.rotate_left(first);
        nodes.truncate(NODES_ASKED);
        let answers = nodes.into_iter().map(|node| {
            Box::pin(async move {
                let reply = self.client(node).ask(Call::command(&[b"CLUSTER", b"SLOTS"]), deadline).await?;
                SlotMap::read(&reply.value()?, node).ok_or(Failure::Foreign("CLUSTER SLOTS names no master"))
            })
        });
        select_ok(answers).await.map(|(map, _)| map)
    }

    fn client(&self, node: &Address) -> Arc<NodeClient> {
        let endpoint = || Endpoint::node(&self.template, self.certificates.clone(), node);
        let connect = || Arc::new(NodeClient::new(endpoint(), self.timeout));
        Arc::clone(self.clients.lock().entry(node.clone()).or_insert_with(connect))
    }
}
