//! A cluster: each call goes to the node that has its key's slot, the calls to one node in one round trip.
//!
//! redis-rs has a client for clusters, too. It answers nobody, neither for nodes that are well, while it looks the
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
use redis::ConnectionInfo;
use redis::cluster_routing::Slot;
use tokio::time::{Instant, timeout_at};

use super::call::{Call, Failure, Reply};
use super::link::{Link, Request};
use super::scan::{Cursor, Scan, Scanned};
use super::slots::{Address, SlotMap};
use super::target::{PROBE, Source};

/// How often one call may be sent on: more often than any cluster has reason to.
const MOST_TURNS: usize = 5;
/// The slots are not looked up again so soon: while a master is away, every batch would.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(100);
/// Nodes that are asked for the slots at once; the first answer counts. Some may be away.
const NODES_ASKED: usize = 3;

pub(super) struct Cluster {
    /// The first of the operator's URLs: user, password and TLS of all nodes.
    template: ConnectionInfo,
    seeds: Vec<Address>,
    timeout: Duration,
    links: Mutex<HashMap<Address, Arc<Link>>>,
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

/// A call on its way through the cluster.
struct Errand {
    /// Its place among the calls.
    index: usize,
    slot: Slot,
    /// The node that it was sent to, and is to be sent to if a redirection says so.
    node: Option<Address>,
    asking: bool,
}

impl Cluster {
    pub(super) fn new(template: ConnectionInfo, seeds: Vec<Address>, timeout: Duration) -> Self {
        Self {
            template,
            seeds,
            timeout,
            links: Mutex::default(),
            slots: ArcSwap::default(),
            looked_up: tokio::sync::Mutex::default(),
            next_asked: AtomicUsize::new(0),
        }
    }

    /// Makes the calls, each at the node that has its key.
    pub(super) async fn exchange(&self, calls: &[Call], deadline: Instant) -> Vec<Result<Reply, Failure>> {
        let mut replies = vec![Err(Failure::NoNode); calls.len()];
        let errand = |(index, call): (usize, &Call)| Errand {
            index,
            slot: Slot::for_key(call.key()),
            node: None,
            asking: false,
        };
        let mut errands: Vec<Errand> = calls.iter().enumerate().map(errand).collect();
        if let Err(failure) = self.known_slots(deadline).await {
            return vec![Err(failure); calls.len()];
        }
        for _ in 0..MOST_TURNS {
            if errands.is_empty() {
                break;
            }
            errands = self.turn(calls, errands, &mut replies, deadline).await;
        }
        replies
    }

    /// The sum of what all masters answer to the call, which must be a number.
    pub(super) async fn sum(&self, call: &Call, deadline: Instant) -> Result<u64, Failure> {
        let map = self.known_slots(deadline).await?;
        let answers = map.masters().iter().map(|node| async { self.link(node).ask(call, deadline).await });
        let mut sum = 0;
        for answer in join_all(answers).await {
            sum += super::count(answer?)?;
        }
        Ok(sum)
    }

    /// A page of one shard. A cursor is good as long as every slot is at the node where it was: otherwise keys could be
    /// passed over.
    pub(super) async fn scan(&self, scan: &Scan, cursor: Option<&str>, deadline: Instant) -> Result<Scanned, Failure> {
        self.look_up(deadline).await?;
        let map = self.slots.load_full();
        let begin = Cursor::resume(cursor, map.version())?;
        let node = map.masters().get(begin.shard).ok_or(Failure::NoNode)?;
        let page = self.link(node).page(scan, begin, deadline).await;
        let page = page.map_err(|failure| Failure::AtNode(node.to_string().into(), failure.into()))?;
        let shard = if page.next == 0 { begin.shard + 1 } else { begin.shard };
        let next = Cursor { shard, process: page.process, position: page.next, ..begin };
        Ok(Scanned { actors: page.actors, next: (shard < map.masters().len()).then(|| next.to_string()) })
    }

    /// Whether any of the masters takes hits: while one is away, the others' buckets may be served.
    pub(super) async fn check(&self, deadline: Instant) -> Result<(), Failure> {
        let map = self.known_slots(deadline).await?;
        let probe = async |node| self.link(node).ask(&Call::Probe { key: map.key_at(node, PROBE) }, deadline).await;
        let probes: Vec<_> = map.masters().iter().map(|node| Box::pin(probe(node))).collect();
        if probes.is_empty() {
            return Err(Failure::NoNode);
        }
        select_ok(probes).await.map(drop)
    }

    /// Whether there is a connection to any of the nodes.
    pub(super) fn is_connected(&self) -> bool {
        self.links.lock().values().any(|link| link.is_connected())
    }

    pub(super) fn close(&self) {
        self.links.lock().clear();
    }

    /// Sends each errand to its node; returns those that have to be sent once more.
    async fn turn(
        &self,
        calls: &[Call],
        errands: Vec<Errand>,
        replies: &mut [Result<Reply, Failure>],
        deadline: Instant,
    ) -> Vec<Errand> {
        let map = self.slots.load_full();
        let (mut redirected, mut lost) = (Vec::new(), Vec::new());
        let mut by_node: HashMap<Address, Vec<Errand>> = HashMap::new();
        for mut errand in errands {
            match errand.node.take().or_else(|| map.owner(errand.slot).cloned()) {
                Some(node) => by_node.entry(node).or_default().push(errand),
                None => lost.push(errand),
            }
        }
        let sent = by_node.into_iter().map(|(node, errands)| async move {
            let requests = errands
                .iter()
                .filter_map(|errand| Some(Request { call: calls.get(errand.index)?, asking: errand.asking }));
            let requests: Vec<_> = requests.collect();
            let results = self.link(&node).exchange(&requests, deadline).await;
            (node, errands, results)
        });
        for (node, errands, results) in join_all(sent).await {
            for (mut errand, result) in errands.into_iter().zip(results) {
                let redirection = result.as_ref().err().and_then(Failure::redirection);
                let was_lost = result.as_ref().is_err_and(Failure::was_not_done);
                if let Some(reply) = replies.get_mut(errand.index) {
                    *reply = result.map_err(|failure| Failure::AtNode(node.to_string().into(), failure.into()));
                }
                if let Some(redirection) = redirection {
                    errand.node = Address::parse(&redirection.node, &node);
                    errand.asking = redirection.asking;
                    redirected.push(errand);
                } else if was_lost {
                    errand.node = Some(node.clone());
                    lost.push(errand);
                }
            }
        }
        if !lost.is_empty() || redirected.iter().any(|errand| !errand.asking) {
            // If it fails, errands go where they were sent, or are given up.
            let _ = self.look_up(deadline).await;
        }
        redirected.extend(self.found_again(lost));
        redirected
    }

    /// Those of the lost errands whose slot is at another node by now.
    fn found_again(&self, lost: Vec<Errand>) -> impl Iterator<Item = Errand> {
        let map = self.slots.load_full();
        lost.into_iter().filter_map(move |errand| {
            let owner = map.owner(errand.slot)?;
            (errand.node.as_ref() != Some(owner)).then(|| Errand { node: Some(owner.clone()), asking: false, ..errand })
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
            self.links.lock().retain(|address, _| is_known(address));
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
                let reply = self.link(node).ask(&Call::Slots, deadline).await?;
                SlotMap::read(&reply, node).ok_or(Failure::Foreign("CLUSTER SLOTS names no master"))
            })
        });
        select_ok(answers).await.map(|(map, _)| map)
    }

    fn link(&self, node: &Address) -> Arc<Link> {
        let mut links = self.links.lock();
        if let Some(link) = links.get(node) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link::new(Source::node(&self.template, node), self.timeout));
        links.insert(node.clone(), Arc::clone(&link));
        link
    }
}
