//! A cluster: each call goes to the node that has its key's slot. All calls to a node take one round trip.
//!
//! redis-rs has a client for clusters, too. While it looks up the slots, it answers no call, not even for healthy
//! nodes, and it repeats that for as long as a node is unreachable. Here, a failed node does not affect the others.
//!
//! A call is sent again only if a node reported that it did not carry the call out, or if it was never sent.
//!
//! A hash tag leads to a slot: a key that must be in the slot of another key of a cluster begins with the tag of that slot.
//!
//! A tag is the smallest number, in decimal, that Redis puts into the slot. So it is the same on all servers and in all
//! versions. It depends only on the slot, and contains no bytes from clients, which could be braces.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::{FixedState, RandomState};
use futures_util::future::{join_all, select_ok};
use hashbrown::HashMap;
use parking_lot::Mutex;
use redis::Value;
use redis::cluster_routing::Slot;
use tokio::time::{Instant, timeout_at};

use super::node_client::{NodeClient, Request};
use super::replication::MakeReplication;
use crate::wire::stream::Endpoint;
use crate::wire::{Call, Failure, Reply};

/// The key that tests whether a server takes writes. In a cluster, a hash tag follows.
pub const PROBE: &[u8] = b"divvy.probe";
/// Maximum number of times that one call is sent again. No healthy cluster redirects a call as often.
const MAX_REDIRECTS: usize = 4;
/// Minimum time between two look-ups of the slots. While a master is unreachable, every batch wants one.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(100);
/// Number of nodes that are asked for the slots at the same time, because some may be unreachable. The first answer is used.
const NODES_ASKED: usize = 3;
/// The number of slots of every cluster.
const SLOTS: usize = 16_384;

static TAGS: LazyLock<HashMap<Slot, u32, RandomState>> = LazyLock::new(|| {
    let mut tags = HashMap::with_capacity_and_hasher(SLOTS, RandomState::default());
    let mut number = 0;
    while tags.len() < SLOTS {
        tags.entry(Slot::for_key(itoa::Buffer::new().format(number))).or_insert(number);
        number += 1;
    }
    tags
});

/// One server, or one master of a cluster.
pub struct Shard {
    pub client: Arc<NodeClient>,
    /// The master's address, for failures.
    pub name: Option<Arc<str>>,
    /// A key that this server may write.
    pub probe: Vec<u8>,
}

impl Shard {
    /// Makes calls in one round trip. If one fails, all fail.
    pub async fn ask<const N: usize>(&self, calls: [Call; N], deadline: Instant) -> Result<[Reply; N], Failure> {
        let replies = self.client.ask(calls, deadline).await;
        replies.map_err(|failure| match &self.name {
            Some(name) => Failure::AtNode(Arc::clone(name), failure.into()),
            None => failure,
        })
    }
}

pub struct Cluster {
    /// The first of the operator's URLs: user, password and TLS of all nodes.
    template: Endpoint,
    seeds: Vec<Address>,
    timeout: Duration,
    /// Makes the replication of a node with this address, if replicas must confirm changes.
    replication: MakeReplication,
    clients: Mutex<HashMap<Address, Arc<NodeClient>, RandomState>>,
    slots: ArcSwap<SlotMap>,
    /// The time and the result of the last look-up. Locked while the slots are looked up.
    looked_up: tokio::sync::Mutex<Option<(Instant, Result<(), Failure>)>>,
    /// The next node to ask for the slots. It advances, so that nodes that are unreachable are not the only ones asked.
    next_asked: AtomicUsize,
}

/// A call, and its node.
struct RoutedCall<'a> {
    request: Request<'a>,
    /// Its index among the calls.
    index: usize,
    slot: Slot,
    /// The node that the call was sent or redirected to.
    node: Option<Address>,
}

impl Cluster {
    pub fn new(template: Endpoint, seeds: Vec<Address>, timeout: Duration, replication: MakeReplication) -> Self {
        Self {
            template,
            seeds,
            timeout,
            replication,
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
            let slot = call.slot();
            if call.keys.iter().all(|key| Slot::for_key(key) == slot) {
                routed.push(RoutedCall { request: Request { call, asking: false }, index, slot, node: None });
            } else {
                *reply = Err(Failure::ManySlots);
            }
        }
        let mut tries = 0..=MAX_REDIRECTS;
        while !routed.is_empty() && tries.next().is_some() {
            routed = self.dispatch(routed, &mut replies, deadline).await;
        }
        replies
    }

    /// Returns the masters in the order of their slots, and a number that changes when a slot moves.
    pub async fn shards(&self, deadline: Instant) -> Result<(Vec<Shard>, u64), Failure> {
        let map = self.known_slots(deadline).await?;
        let shard = |node: &Address| {
            let probe = map.key_at(node, PROBE);
            Shard { client: self.client(node), name: Some(node.to_string().into()), probe }
        };
        Ok((map.masters.iter().map(shard).collect(), map.version))
    }

    pub fn clients(&self) -> Vec<Arc<NodeClient>> {
        self.clients.lock().values().cloned().collect()
    }

    pub fn close(&self) {
        self.clients.lock().clear();
    }

    /// Sends each call to its node. Returns the calls that were not carried out, and must be sent once more.
    async fn dispatch<'a>(
        &self,
        routed: Vec<RoutedCall<'a>>,
        replies: &mut [Result<Reply, Failure>],
        deadline: Instant,
    ) -> Vec<RoutedCall<'a>> {
        let map = self.slots.load_full();
        let (mut again, mut is_outdated) = (Vec::new(), false);
        let mut by_node: HashMap<Address, Vec<RoutedCall<'a>>, RandomState> = HashMap::default();
        for mut call in routed {
            match call.node.take().or_else(|| map.owner(call.slot).cloned()) {
                Some(node) => by_node.entry(node).or_default().push(call),
                None => {
                    is_outdated = true;
                    again.push(call);
                }
            }
        }
        let sent = by_node.into_iter().map(|(node, routed)| async move {
            let requests: Vec<_> = routed.iter().map(|routed| routed.request).collect();
            let results = self.client(&node).exchange(&requests, deadline).await;
            (node, routed, results)
        });
        for (node, routed, results) in join_all(sent).await {
            for (call, result) in routed.into_iter().zip(results) {
                let result = result.map_err(|failure| {
                    let other = failure.redirection().map(|(other, asking)| (Address::parse(other, &node), asking));
                    if let Some((node, asking)) = other.or(failure.was_not_done().then_some((None, false))) {
                        is_outdated |= !asking;
                        again.push(RoutedCall { node, request: Request { asking, ..call.request }, ..call });
                    }
                    Failure::AtNode(node.to_string().into(), failure.into())
                });
                if let Some(reply) = replies.get_mut(call.index) {
                    *reply = result;
                }
            }
        }
        if is_outdated {
            // If this fails, redirected calls still go to their new node, and the others to the same one.
            let _ = self.look_up(deadline).await;
        }
        again
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
                let [reply] = self.client(node).ask([Call::command(&[b"CLUSTER", b"SLOTS"])], deadline).await?;
                SlotMap::read(&reply.value()?, node).ok_or(Failure::Foreign("CLUSTER SLOTS names no master"))
            })
        });
        select_ok(answers).await.map(|(map, _)| map)
    }

    fn client(&self, node: &Address) -> Arc<NodeClient> {
        let endpoint = || self.template.node(node.host.clone(), node.port);
        let connect =
            || Arc::new(NodeClient::new(endpoint(), self.timeout, self.replication.of_server(node.to_string())));
        Arc::clone(self.clients.lock().entry(node.clone()).or_insert_with(connect))
    }
}

/// The listen address of a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

impl Address {
    /// Parses `host:port`. An empty host stands for the host of `answered_by`.
    pub fn parse(text: &str, answered_by: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self { host: host_or(host, answered_by), port: port.parse().ok()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

fn host_or(host: &str, answered_by: &Address) -> String {
    if host.is_empty() { answered_by.host.clone() } else { host.to_owned() }
}

/// The masters by slot.
#[derive(Debug, Clone, Default)]
pub struct SlotMap {
    /// Indexes of masters. Slots without a master are missing.
    owners: HashMap<Slot, usize, RandomState>,
    /// Every master once, in the order of their slots.
    pub masters: Vec<Address>,
    /// Changes when a slot moves to another node.
    pub version: u64,
}

impl SlotMap {
    /// Reads the reply of the node `answered_by` to CLUSTER SLOTS. Returns `None` if it cannot be read or names no master. Each
    /// range is `[first, last, [host, port, …] of the master, replicas…]`.
    pub fn read(reply: &Value, answered_by: &Address) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let mut ranges: Vec<_> = ranges.iter().map(|range| read_range(range, answered_by)).collect::<Option<_>>()?;
        ranges.sort_unstable_by_key(|(first, ..)| *first);
        let mut map = Self::default();
        let mut version = FixedState::default().build_hasher();
        for (first, last, id, address) in ranges {
            // The node that answered may not know the address yet.
            let Some(address) = address else { continue };
            (first, last, id).hash(&mut version);
            let known = map.masters.iter().position(|known| *known == address);
            let master = known.unwrap_or_else(|| {
                map.masters.push(address);
                map.masters.len() - 1
            });
            for slot in first.max(0)..=last.min(i64::from(u16::MAX)) {
                map.owners.extend(u16::try_from(slot).ok().and_then(Slot::new).map(|slot| (slot, master)));
            }
        }
        map.version = version.finish();
        (!map.masters.is_empty()).then_some(map)
    }

    pub fn owner(&self, slot: Slot) -> Option<&Address> {
        self.masters.get(*self.owners.get(&slot)?)
    }

    /// Returns a key with this prefix in one of the node's slots.
    pub fn key_at(&self, node: &Address, prefix: &[u8]) -> Vec<u8> {
        let tag = TAGS.iter().find(|(slot, _)| self.owner(**slot) == Some(node)).map_or(0, |(_, number)| *number);
        [prefix, format!("{{{tag}}}").as_bytes()].concat()
    }
}

/// Returns the first slot, the last slot, and the id and the address of the master. Its form of the address may differ from that of
/// other nodes. A host that is nil or empty stands for the host of the node that answered. `?` stands for an unknown host.
fn read_range<'a>(range: &'a Value, answered_by: &Address) -> Option<(i64, i64, &'a [u8], Option<Address>)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else { return None };
    let [host, Value::Int(port), Value::BulkString(id), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    let address = Address { host: host_or(host, answered_by), port: u16::try_from(*port).ok()? };
    Some((*first, *last, id, (host != "?").then_some(address)))
}

/// Returns the tag of the key's slot, with braces. Redis computes the slot from the text between the key's first
/// braces, or from the whole key if there is no such text.
pub fn tag_of(name: &[u8]) -> String {
    let number = TAGS.get(&Slot::for_key(name)).copied().unwrap_or_default();
    format!("{{{number}}}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
    }

    fn range(first: i64, last: i64, master: Value) -> Value {
        let replica = node(Value::BulkString(b"replica".to_vec()), 1);
        Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
    }

    #[test]
    fn every_slot_has_its_master() {
        let ten = |port| node(Value::BulkString(b"10.0.0.1".to_vec()), port);
        let reply =
            Value::Array(vec![range(0, 99, ten(1)), range(100, 200, node(Value::Nil, 2)), range(300, 300, ten(1))]);
        let map = SlotMap::read(&reply, &address("asked", 9)).unwrap();
        let owner = |slot| map.owner(Slot::new(slot).unwrap()).cloned();
        assert_eq!(owner(0), Some(address("10.0.0.1", 1)));
        assert_eq!(owner(99), owner(300));
        assert_eq!(owner(100), Some(address("asked", 2)), "no host: the one that was asked");
        assert_eq!(owner(201), None);
        assert_eq!(map.masters.len(), 2);
        for node in &map.masters {
            assert_eq!(map.owner(Slot::for_key(map.key_at(node, b"divvy.probe"))), Some(node));
        }
    }

    #[test]
    fn slot_that_moves_changes_the_version_and_another_spelling_of_an_address_does_not() {
        let version = |ranges: &[(i64, i64, &str, &str)]| {
            let range = |&(first, last, host, id): &(_, _, &str, &str)| {
                let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
                let master = Value::Array(vec![text(host), Value::Int(7000), text(id)]);
                Value::Array(vec![Value::Int(first), Value::Int(last), master])
            };
            let reply = Value::Array(ranges.iter().map(range).collect());
            SlotMap::read(&reply, &address("asked", 9)).unwrap().version
        };
        let before = version(&[(0, 9, "a", "1"), (10, 99, "b", "2")]);
        assert_eq!(version(&[(10, 99, "b", "2"), (0, 9, "other-name", "1")]), before);
        assert_ne!(version(&[(0, 8, "a", "1"), (9, 99, "b", "2")]), before);
        assert_ne!(version(&[(0, 9, "a", "3"), (10, 99, "b", "2")]), before, "another node at the same address");
    }

    #[test]
    fn unknown_host_is_left_out_and_a_foreign_reply_is_refused() {
        let unknown = Value::Array(vec![range(0, 9, node(Value::BulkString(b"?".to_vec()), 1))]);
        for reply in [unknown, Value::Nil, Value::Array(vec![]), Value::Array(vec![Value::Int(1)])] {
            assert!(SlotMap::read(&reply, &address("asked", 9)).is_none(), "{reply:?}");
        }
    }

    #[test]
    fn address_without_a_host_is_that_of_the_node_that_answered() {
        let asked = address("asked", 9);
        assert_eq!(Address::parse("10.0.0.1:7000", &asked), Some(address("10.0.0.1", 7000)));
        assert_eq!(Address::parse("::1:7000", &asked), Some(address("::1", 7000)));
        assert_eq!(Address::parse(":7000", &asked), Some(address("asked", 7000)));
        assert_eq!(Address::parse("nowhere", &asked), None);
    }

    #[test]
    fn every_slot_has_a_tag() {
        assert_eq!(TAGS.len(), SLOTS);
        for (slot, number) in &*TAGS {
            assert_eq!(Slot::for_key(format!("{{{number}}}whatever {{}}")), *slot);
        }
        // The slots are those of Redis's CLUSTER KEYSLOT. They must never change, because other servers use the same
        // names.
        assert_eq!([tag_of(b"foo"), tag_of(b"{user1000}.following")], ["{43681}", "{8583}"]);
    }

    proptest! {
        #[test]
        fn key_that_begins_with_the_tag_is_in_the_same_slot(name in prop::collection::vec(
            prop_oneof![Just(b'{'), Just(b'}'), any::<u8>()], 0..20)
        ) {
            let tagged = [tag_of(&name).as_bytes(), b"divvy.reserved:", &name].concat();
            prop_assert_eq!(Slot::for_key(tagged), Slot::for_key(&name));
        }
    }
}
