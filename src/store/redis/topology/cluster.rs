//! A cluster: each call goes to the node that has its key's slot, the calls to one node in one round trip.
//!
//! redis-rs has a client for clusters, too. It answers no call, not even for healthy nodes, while it looks the
//! slots up anew, and it does that again and again as long as a node is away. Here nodes fail each for itself.
//!
//! Only what a node said that it did not do, or what was never sent, is sent again.

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
use super::slot_map::{Address, SlotMap};
use crate::store::redis::scan::{Cursor, Scan, Scanned};
use crate::store::redis::wire::{Call, Failure, PROBE, Reply, number_of_keys};

/// How often one call may be redirected: more often than any cluster has reason to.
const MAX_REDIRECTS: usize = 4;
/// The slots are not looked up again so soon: while a master is away, every batch would.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(100);
/// Nodes that are asked for the slots at once; the first answer counts. Some may be away.
const NODES_ASKED: usize = 3;

pub struct Cluster {
    /// The first of the operator's URLs: user, password and TLS of all nodes.
    template: ConnectionInfo,
    certificates: Option<TlsCertificates>,
    seeds: Vec<Address>,
    timeout: Duration,
    clients: Mutex<HashMap<Address, Arc<NodeClient>>>,
    slots: ArcSwap<SlotMap>,
    /// Locked while the slots are looked up.
    looked_up: tokio::sync::Mutex<Option<LookUp>>,
    /// Whom to ask next for the slots: not always those that are away.
    next_asked: AtomicUsize,
}

/// The last look-up of the slots.
struct LookUp {
    at: Instant,
    result: Result<(), Failure>,
}

/// A call, and the node that it goes to.
struct RoutedCall {
    /// Its place among the calls.
    index: usize,
    slot: Slot,
    /// The node that it was sent to, and is to be sent to if a redirection says so.
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
        let mut replies = vec![Err(Failure::NoNode); calls.len()];
        let route = |(index, call): (usize, &Call)| RoutedCall {
            index,
            slot: Slot::for_key(call.key()),
            node: None,
            asking: false,
        };
        let mut routed: Vec<RoutedCall> = calls.iter().enumerate().map(route).collect();
        for (reply, _) in replies.iter_mut().zip(calls).filter(|(_, call)| !call.is_in_one_slot()) {
            *reply = Err(Failure::ManySlots);
        }
        routed.retain(|routed| calls.get(routed.index).is_some_and(Call::is_in_one_slot));
        if let Err(failure) = self.known_slots(deadline).await {
            return vec![Err(failure); calls.len()];
        }
        for _ in 0..=MAX_REDIRECTS {
            if routed.is_empty() {
                break;
            }
            routed = self.dispatch(calls, routed, &mut replies, deadline).await;
        }
        replies
    }

    /// The sum of what all masters answer to the call, which must be a number.
    pub async fn sum(&self, call: &Call, deadline: Instant) -> Result<u64, Failure> {
        let map = self.known_slots(deadline).await?;
        let answers = map.masters().iter().map(|node| async { self.client(node).ask(call, deadline).await });
        let mut sum = 0;
        for answer in join_all(answers).await {
            sum += number_of_keys(answer?)?;
        }
        Ok(sum)
    }

    /// A page of one shard. A cursor is good as long as every slot is at the node where it was: otherwise keys could be
    /// passed over.
    pub async fn scan(&self, scan: &Scan, cursor: Option<&str>, deadline: Instant) -> Result<Scanned, Failure> {
        self.look_up(deadline).await?;
        let map = self.slots.load_full();
        let begin = Cursor::resume(cursor, map.version())?;
        let node = map.masters().get(begin.shard).ok_or(Failure::NoNode)?;
        let page = self.client(node).page(scan, begin, deadline).await;
        let page = page.map_err(|failure| Failure::AtNode(node.to_string().into(), failure.into()))?;
        let shard = if page.next == 0 { begin.shard + 1 } else { begin.shard };
        let next = Cursor { shard, process: page.process, position: page.next, ..begin };
        Ok(Scanned { actors: page.actors, next: (shard < map.masters().len()).then(|| next.to_string()) })
    }

    /// Whether any of the masters takes hits: while one is away, the others' buckets may be served.
    pub async fn check(&self, deadline: Instant) -> Result<(), Failure> {
        let map = self.known_slots(deadline).await?;
        let probe = async |node| self.client(node).ask(&Call::Probe { key: map.key_at(node, PROBE) }, deadline).await;
        let probes: Vec<_> = map.masters().iter().map(|node| Box::pin(probe(node))).collect();
        if probes.is_empty() {
            return Err(Failure::NoNode);
        }
        select_ok(probes).await.map(drop)
    }

    /// Whether there is a connection to any of the nodes.
    pub fn is_connected(&self) -> bool {
        self.clients.lock().values().any(|client| client.is_connected())
    }

    pub fn close(&self) {
        self.clients.lock().clear();
    }

    /// Sends each call to its node; returns those that were redirected or lost, and have to be sent once more.
    async fn dispatch(
        &self,
        calls: &[Call],
        routed: Vec<RoutedCall>,
        replies: &mut [Result<Reply, Failure>],
        deadline: Instant,
    ) -> Vec<RoutedCall> {
        let map = self.slots.load_full();
        let (mut redirected, mut lost) = (Vec::new(), Vec::new());
        let mut by_node: HashMap<Address, Vec<RoutedCall>> = HashMap::new();
        for mut call in routed {
            match call.node.take().or_else(|| map.owner(call.slot).cloned()) {
                Some(node) => by_node.entry(node).or_default().push(call),
                None => lost.push(call),
            }
        }
        let sent = by_node.into_iter().map(|(node, routed)| async move {
            let requests =
                routed.iter().filter_map(|call| Some(Request { call: calls.get(call.index)?, asking: call.asking }));
            let requests: Vec<_> = requests.collect();
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
            // If it fails, calls go where they were sent, or are given up.
            let _ = self.look_up(deadline).await;
        }
        redirected.extend(self.found_again(lost));
        redirected
    }

    /// Those of the lost calls whose slot is at another node by now.
    fn found_again(&self, lost: Vec<RoutedCall>) -> impl Iterator<Item = RoutedCall> {
        let map = self.slots.load_full();
        lost.into_iter().filter_map(move |call| {
            let owner = map.owner(call.slot)?;
            (call.node.as_ref() != Some(owner)).then(|| RoutedCall { node: Some(owner.clone()), asking: false, ..call })
        })
    }

    /// Which slots are where, looked up if that has not happened yet.
    async fn known_slots(&self, deadline: Instant) -> Result<Arc<SlotMap>, Failure> {
        if self.slots.load().masters().is_empty() {
            self.look_up(deadline).await?;
        }
        Ok(self.slots.load_full())
    }

    /// Asks some nodes which of them has which slots, unless that was done a moment ago.
    #[expect(clippy::disallowed_methods, reason = "how long to wait for nodes, and how often to ask them")]
    async fn look_up(&self, deadline: Instant) -> Result<(), Failure> {
        let locked = timeout_at(deadline, self.looked_up.lock()).await;
        let mut last = locked.map_err(|_| Failure::Timeout(self.timeout))?;
        if let Some(last) = last.as_ref().filter(|last| last.at.elapsed() < LOOK_UP_PAUSE) {
            return last.result.clone();
        }
        // Half of the time is left for the calls themselves.
        let answer = self.first_answer(deadline.min(Instant::now() + self.timeout / 2)).await;
        let result = answer.map(|map| {
            let is_known = |address: &Address| map.masters().contains(address) || self.seeds.contains(address);
            self.clients.lock().retain(|address, _| is_known(address));
            self.slots.store(Arc::new(map));
        });
        *last = Some(LookUp { at: Instant::now(), result: result.clone() });
        result
    }

    async fn first_answer(&self, deadline: Instant) -> Result<SlotMap, Failure> {
        let map = self.slots.load_full();
        let mut nodes: Vec<_> = map.masters().iter().chain(&self.seeds).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let first = self.next_asked.fetch_add(NODES_ASKED, Relaxed) % nodes.len().max(1);
        nodes.rotate_left(first);
        nodes.truncate(NODES_ASKED);
        let answers = nodes.into_iter().map(|node| {
            Box::pin(async move {
                let reply = self.client(node).ask(&Call::Slots, deadline).await?;
                SlotMap::read(&reply.value()?, node).ok_or(Failure::Foreign("CLUSTER SLOTS names no master"))
            })
        });
        select_ok(answers).await.map(|(map, _)| map)
    }

    fn client(&self, node: &Address) -> Arc<NodeClient> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(node) {
            return Arc::clone(client);
        }
        let endpoint = Endpoint::node(&self.template, self.certificates.clone(), node);
        let client = Arc::new(NodeClient::new(endpoint, self.timeout));
        clients.insert(node.clone(), Arc::clone(&client));
        client
    }
}
