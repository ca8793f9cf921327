//! The slots of a cluster: their nodes, and hash tags. This module does no I/O.
//!
//! A hash tag leads to a slot: a key that must be in the slot of another key of a cluster begins with the tag of that slot.
//!
//! A tag is the smallest number, in decimal, that Redis puts into the slot. So it is the same on all servers and in all
//! versions. It depends only on the slot, and contains no bytes from clients, which could be braces.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::LazyLock;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use redis::Value;
use redis::cluster_routing::Slot;

/// The last slot of every cluster.
const LAST_SLOT: i64 = 16_383;

/// Number of attempts that almost always suffice to find a key for a node with a single slot.
const MOST_KEYS: u32 = 100_000;
/// The number of slots of every cluster.
const SLOTS: usize = 16_384;
/// Enough numbers to have one in each slot, as a test checks.
const MOST_TAGS: u32 = 1 << 20;

static TAGS: LazyLock<HashMap<Slot, u32, RandomState>> = LazyLock::new(|| {
    let mut tags = HashMap::with_capacity_and_hasher(SLOTS, RandomState::default());
    for number in 0..MOST_TAGS {
        tags.entry(Slot::for_key(itoa::Buffer::new().format(number))).or_insert(number);
        if tags.len() == SLOTS {
            break;
        }
    }
    tags
});

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
    owners: HashMap<Slot, usize, foldhash::fast::RandomState>,
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
        let mut ranges: Vec<_> = ranges.iter().map(read_range).collect::<Option<_>>()?;
        ranges.sort_unstable_by_key(|(first, ..)| *first);
        let mut map = Self::default();
        let mut version = FixedState::default().build_hasher();
        for (first, last, master) in ranges {
            // The node that answered may not know the address yet.
            let Some(address) = read_node(master, answered_by) else { continue };
            (first, last, identity(master)).hash(&mut version);
            let master = map.place(address);
            for slot in first.max(0)..=last.min(LAST_SLOT) {
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
        let key = |number: u32| [prefix, format!("{{{number}}}").as_bytes()].concat();
        let is_there = |key: &Vec<u8>| self.owner(Slot::for_key(key)) == Some(node);
        (0..MOST_KEYS).map(key).find(is_there).unwrap_or_else(|| prefix.to_vec())
    }

    fn place(&mut self, master: Address) -> usize {
        let known = self.masters.iter().position(|known| *known == master);
        known.unwrap_or_else(|| {
            self.masters.push(master);
            self.masters.len() - 1
        })
    }
}

/// Returns the first slot, the last slot and the master.
fn read_range(range: &Value) -> Option<(i64, i64, &[Value])> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else { return None };
    Some((*first, *last, master))
}

/// Returns the node's id. Other nodes may use another form of its address.
fn identity(node: &[Value]) -> Option<&[u8]> {
    match node {
        [_, _, Value::BulkString(id), ..] => Some(id),
        _ => None,
    }
}

/// Reads `[host, port, …]`. A host that is nil or empty stands for the host of the node that answered. `?` stands for an unknown host.
fn read_node(node: &[Value], answered_by: &Address) -> Option<Address> {
    let [host, Value::Int(port), ..] = node else { return None };
    let host = match host {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::SimpleString(text) => text,
        Value::Nil => "",
        _ => return None,
    };
    (host != "?").then_some(Address { host: host_or(host, answered_by), port: u16::try_from(*port).ok()? })
}

/// Returns the tag of the key's slot, with braces. Redis computes the slot from the text between the key's first
/// braces, or from the whole key if there is no such text.
pub fn tag_of(name: &[u8]) -> String {
    let number = TAGS.get(&Slot::for_key(name)).copied().unwrap_or_default();
    format!("{{{number}}}")
}

/// Returns whether a cluster keeps the two keys in one slot.
pub fn share_slot(one: &[u8], other: &[u8]) -> bool {
    Slot::for_key(one) == Slot::for_key(other)
}

#[cfg(test)]
mod slot_map_tests {
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
}

#[cfg(test)]
mod slot_tag_tests {
    use super::*;
    use proptest::prelude::*;

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
