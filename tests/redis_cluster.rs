//! A Redis cluster as the store: keys in different slots, lost scripts, moving slots, and a failing master.

use std::time::{Duration, Instant};

use divvy::algorithm::{Limit, ReservationAsk, Resolution, TokenBucket};
use divvy::store::{Action, Store, StoreError};

use crate::conformance::{TAKE, wait};
use crate::redis::{about, apply, one, open, page, recover, summary, timed, window};
use crate::support::{PATIENCE, RedisCluster, RedisServer, until};

const SECOND: u64 = 1_000_000_000;

#[test]
fn windows_across_slots_survive_lost_scripts_moving_slots_and_a_failover() {
    let mut cluster = RedisCluster::start();
    let store = open(cluster.urls());
    wait(async {
        let limit = window(100, 600 * SECOND);
        let actors: Vec<String> = (0..50).map(|number| format!("actor {number}")).collect();
        let hits: Vec<_> = actors.iter().map(|actor| (actor.as_str(), limit, TAKE)).collect();
        for round in 1..=3 {
            for outcome in apply(&store, &hits).await {
                assert_eq!(summary(outcome.unwrap()), (true, 100 - round, 600));
            }
            cluster.nodes.iter().for_each(|node| drop(node.cli(&["SCRIPT", "FLUSH"])));
        }
        for actor in &actors {
            let key = format!("divvy:method=GET path=/x:{actor}:100:600");
            assert_eq!(cluster.cli(&["GET", &key]), "97");
            assert!((570_000..=600_000).contains(&cluster.cli(&["PTTL", &key]).parse().unwrap()));
        }
        assert_eq!(store.approximate_len().await.unwrap(), 50);

        move_slot(&mut cluster, "divvy:method=GET path=/x:a:100:600", async || {
            one(&store, "a", limit, TAKE).await.unwrap().left
        })
        .await;

        let cursor = page(&store, limit, None, 1).await.unwrap().next;
        assert!(page(&store, limit, cursor.clone(), 1).await.is_ok());
        let master = cluster.master_of("divvy:method=GET path=/x:a:100:600");
        let port = master.port;
        master.kill();
        timed(one(&store, "a", limit, TAKE)).await.unwrap_err();
        recover(&store, limit).await;
        // This node may hear of the new master later than the store did.
        until(|| cluster.master_of("divvy:method=GET path=/x:a:100:600").port != port);
        eventually(async || timed(apply(&store, &hits)).await.iter().all(Result::is_ok)).await;
        // The new master has another order. A node that was asked for the slots may not know the new master yet.
        eventually(async || matches!(page(&store, limit, cursor.clone(), 1).await, Err(StoreError::InvalidCursor(_))))
            .await;
        eventually(async || page(&store, limit, None, 1).await.is_ok()).await;
    });
}

/// Waits until the condition holds.
async fn eventually(condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Clients choose parts of a bucket's name, and therefore its slot.
#[test]
fn reservation_is_in_the_slot_of_its_bucket_despite_braces_from_clients() {
    let cluster = RedisCluster::start();
    let store = open(cluster.urls());
    let tokens = Limit::TokenBucket(TokenBucket::new(5, 1, 600 * SECOND).unwrap());
    wait(async {
        let names = ["{", "}", "{}", "}{", "{x}", "a{b}c{d}", "{{x}}", "{}{x}", "plain", "{\u{0}}", "{é}", "{a", "a}"];
        for name in names {
            for limit in [window(5, 600 * SECOND), tokens] {
                let reserve = ReservationAsk::Reserve { credits: 2, ttl_seconds: 60 };
                let left = async || one(&store, name, limit, TAKE).await.unwrap().left;
                assert_eq!(left().await, 4, "{name:?}");
                assert_eq!(about(&store, (name, "{it}"), limit, reserve).await.unwrap().left, 2, "{name:?}");
                assert_eq!(left().await, 1, "{name:?}");
                let commit = ReservationAsk::Commit { cost: 1, charges: true, run: None };
                let committed = about(&store, (name, "{it}"), limit, commit).await.unwrap();
                assert_eq!((committed.resolution, committed.left), (Resolution::Done, 2), "{name:?}");
                assert_eq!(left().await, 1, "{name:?}");
                assert!(one(&store, name, limit, Action::Forget).await.unwrap().allowed, "{name:?}");
            }
        }
        let masters = cluster.nodes.iter().take(3);
        let records: usize = masters.map(|node| node.pipe("KEYS {*}divvy.reservation:*").lines().count()).sum();
        assert_eq!(records, 2 * names.len(), "each is remembered where its bucket is");
    });
}

/// While a slot moves, some of its keys are at the old node and some at the new one. Hits continue, and reservations
/// wait.
#[test]
fn hits_continue_and_reservations_are_refused_while_a_slot_moves() {
    let mut cluster = RedisCluster::start();
    let store = open(cluster.urls());
    wait(async {
        let (limit, key) = (window(100, 600 * SECOND), "divvy:method=GET path=/x:a:100:600");
        let hit = async || one(&store, "a", limit, TAKE).await.unwrap().left;
        let reserve = ReservationAsk::Reserve { credits: 10, ttl_seconds: 600 };
        assert_eq!(about(&store, ("a", "it"), limit, reserve).await.unwrap().left, 90);
        assert_eq!(hit().await, 89);
        let slot = MovingSlot::of(&mut cluster, key);
        let MovingSlot { from, to, .. } = &slot;
        let keys = from.quoted(&format!("CLUSTER GETKEYSINSLOT {} 9", slot.number));
        let mut keys: Vec<_> = keys.lines().filter_map(|line| line.split_once(' ')).map(|(_, name)| name).collect();
        keys.sort_unstable_by_key(|name| (!name.contains("divvy.reserved:"), name.contains("divvy.reservation:")));
        let [side, bucket, record] = keys[..] else { panic!("{keys:?}") };
        let migrate = |name: &str| {
            assert_eq!(from.pipe(&format!("MIGRATE 127.0.0.1 {} {name} 0 5000", to.port)), "OK", "{name}");
        };
        slot.begin();
        assert_eq!(hit().await, 88, "all is still at the old node");
        migrate(side);
        assert_eq!(hit().await, 97, "reserved credit is not shown");
        let other = about(&store, ("a", "other"), limit, reserve).await.unwrap_err();
        assert!(other.to_string().contains("Multiple keys request during rehashing"), "{other}");
        migrate(bucket);
        assert_eq!(hit().await, 86, "both are at the new node, the slot is not");
        migrate(record);
        slot.end(to);
        slot.end(from);
        assert_eq!(hit().await, 85);
        assert_eq!(about(&store, ("a", "it"), limit, ReservationAsk::Release { run: None }).await.unwrap().left, 95);
    });
}

/// A slot that moves from its master to another one.
struct MovingSlot<'a> {
    number: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
}

impl<'a> MovingSlot<'a> {
    fn of(cluster: &'a mut RedisCluster, key: &str) -> Self {
        let number = cluster.cli(&["CLUSTER", "KEYSLOT", key]);
        let from = cluster.master_of(key).port;
        let (to, from) = (
            cluster.nodes.iter().take(3).find(|node| node.port != from).unwrap(),
            cluster.nodes.iter().find(|node| node.port == from).unwrap(),
        );
        Self { number, from, to }
    }

    fn begin(&self) {
        let [from_id, to_id] = [self.from, self.to].map(|node| node.cli(&["CLUSTER", "MYID"]));
        assert_eq!(self.to.cli(&["CLUSTER", "SETSLOT", &self.number, "IMPORTING", &from_id]), "OK");
        assert_eq!(self.from.cli(&["CLUSTER", "SETSLOT", &self.number, "MIGRATING", &to_id]), "OK");
    }

    /// Tells a node that the slot has moved.
    fn end(&self, node: &RedisServer) {
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &self.number, "NODE", &self.to.cli(&["CLUSTER", "MYID"])]), "OK");
    }
}

/// Moves `key`'s slot to another master. Hits the key before, during (ASK) and after the move (MOVED). Each hit must
/// count once.
async fn move_slot(cluster: &mut RedisCluster, key: &str, hit: impl AsyncFn() -> u64) {
    assert_eq!(hit().await, 99);
    let slot = MovingSlot::of(cluster, key);
    slot.begin();
    assert_eq!(hit().await, 98, "the key is still at the old node");
    assert_eq!(slot.from.cli(&["MIGRATE", "127.0.0.1", &slot.to.port.to_string(), key, "0", "5000"]), "OK");
    assert_eq!(hit().await, 97, "the key is at the new node, the slot is not");
    slot.end(slot.to);
    slot.end(slot.from);
    assert_eq!(hit().await, 96, "the slot is at the new node");
}
