//! Settings about the value of one field, next to its pattern: the conditions `networks` and `list`, and `actorPrefix`.
//!
//! A request without the field never meets a condition. A value that is an address or a network is in the networks that
//! contain it. Other values are in none.
//!
//! `actorPrefix` replaces an address by its network, so that all its addresses share a counter.

use std::fmt;
use std::sync::Arc;

use super::list::List;
use super::network_table::NetworkTable;
use super::setting_name::{LIST, NETWORKS};
use super::{Address, ListEntry, Network};

/// The word before the entries of a condition that their values must not match.
pub const NOT: &str = "not ";

/// A condition. Displays as in a rules file: `ip: not 10.0.0.0/8, 2001:db8::/32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The field.
    pub field: String,
    /// Whether the condition is met by values that are not in the members.
    pub is_inverted: bool,
    /// The values.
    pub members: Members,
}

/// The values that a condition is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// Networks in the rules file.
    Networks(NetworkSet),
    /// Entries of a list file.
    List(Arc<List>),
}

/// Networks as written, compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSet {
    networks: Box<[Network]>,
    /// The index of the first network that contains an address.
    table: NetworkTable<u32>,
}

/// The entry that a value matches: the network, or the line of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The entry's text.
    pub entry: String,
    /// Its line in the list.
    pub line: Option<u32>,
}

impl NetworkSet {
    /// Compiles networks.
    pub fn new(networks: Vec<Network>) -> Self {
        let table = NetworkTable::new(networks.iter().copied().zip(0..), |all| all.iter().copied().min().unwrap_or(0));
        Self { networks: networks.into(), table }
    }

    /// Returns the networks as written.
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    fn find(&self, value: &[u8]) -> Option<u32> {
        self.table.find(value)
    }

    /// Returns whether each address of `other` is in these networks.
    fn covers(&self, other: &Self) -> bool {
        other.networks.iter().all(|network| self.table.covers(*network))
    }

    fn overlaps(&self, other: &Self) -> bool {
        other.networks.iter().any(|network| self.table.overlaps(*network))
    }
}

impl Condition {
    /// Returns the name of its setting.
    pub fn setting(&self) -> &'static str {
        match self.members {
            Members::Networks(_) => NETWORKS,
            Members::List(_) => LIST,
        }
    }

    /// Returns whether the value meets the condition.
    pub fn is_met_by(&self, value: &[u8]) -> bool {
        let is_member = match &self.members {
            Members::Networks(networks) => networks.find(value).is_some(),
            Members::List(list) => list.find(value).is_some(),
        };
        is_member != self.is_inverted
    }

    /// Returns whether an address of the network may meet the condition. Lists may have entries for some of them.
    pub fn may_be_met_in(&self, network: Network) -> bool {
        match &self.members {
            Members::Networks(networks) if self.is_inverted => !networks.table.covers(network),
            Members::Networks(networks) => networks.table.overlaps(network),
            Members::List(_) => true,
        }
    }

    /// Returns the first entry that the value matches.
    pub fn find(&self, value: &[u8]) -> Option<Member> {
        match &self.members {
            Members::Networks(networks) => {
                let network = networks.networks.get(networks.find(value)? as usize)?;
                Some(Member { entry: network.to_string(), line: None })
            }
            Members::List(list) => {
                let line = list.find(value)?;
                Some(Member { entry: list.entry(line)?.to_string(), line: Some(line) })
            }
        }
    }

    /// Returns a value that matches one of the entries; `None` if a list is empty.
    pub(super) fn example(&self) -> Option<Vec<u8>> {
        match &self.members {
            Members::Networks(networks) => networks.networks.first().map(|network| network.first().to_string().into()),
            Members::List(list) => list.entries().next().map(|(_, entry)| match entry {
                ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern) => pattern.most_general_value(),
                ListEntry::Network(network) => network.first().to_string().into(),
            }),
        }
    }

    /// Returns its list, if it has one.
    pub fn list(&self) -> Option<&List> {
        match &self.members {
            Members::Networks(_) => None,
            Members::List(list) => Some(list),
        }
    }

    /// Returns the entries as in a rules file, without the field.
    pub fn entries(&self) -> String {
        let not = if self.is_inverted { NOT } else { "" };
        let entries = match &self.members {
            Members::Networks(networks) => join(networks.networks.iter()),
            Members::List(list) => list.name().to_owned(),
        };
        format!("{not}{entries}")
    }

    /// Returns the text that stands for the condition in the keys of counters. The order of networks has no meaning, and
    /// a list's entries may change.
    pub(super) fn key_text(&self) -> String {
        let not = if self.is_inverted { NOT } else { "" };
        let entries = match &self.members {
            Members::Networks(networks) => {
                let mut sorted = networks.networks.to_vec();
                sorted.sort_unstable_by_key(|network| (network.first(), network.prefix()));
                sorted.dedup();
                join(sorted.iter())
            }
            Members::List(list) => list.name().to_owned(),
        };
        format!("{} {not}{entries}", self.setting())
    }

    /// Returns whether both are about the same field and the same kind of members.
    fn is_comparable(&self, other: &Self) -> bool {
        self.field == other.field && self.setting() == other.setting()
    }

    /// Returns whether each value that meets `other` meets this condition, apart from values that are networks. Lists are compared by
    /// their names only.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.is_comparable(other)
            && match (&self.members, &other.members) {
                (Members::List(one), Members::List(other_list)) => {
                    self.is_inverted == other.is_inverted && one.name() == other_list.name()
                }
                (Members::Networks(one), Members::Networks(other_set)) => {
                    match (self.is_inverted, other.is_inverted) {
                        (false, false) => one.covers(other_set),
                        (true, true) => other_set.covers(one),
                        (true, false) => !one.overlaps(other_set),
                        // Values that are no addresses are in no network.
                        (false, true) => false,
                    }
                }
                _ => false,
            }
    }

    /// Returns whether it is certain that no value meets both conditions, apart from values that are networks.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.is_comparable(other)
            && match (&self.members, &other.members) {
                (Members::List(one), Members::List(other_list)) => {
                    self.is_inverted != other.is_inverted && one.name() == other_list.name()
                }
                (Members::Networks(one), Members::Networks(other_set)) => match (self.is_inverted, other.is_inverted) {
                    (false, false) => !one.overlaps(other_set),
                    (true, false) => one.covers(other_set),
                    (false, true) => other_set.covers(one),
                    (true, true) => false,
                },
                _ => false,
            }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.entries())
    }
}

fn join<'a>(networks: impl Iterator<Item = &'a Network>) -> String {
    networks.map(Network::to_string).collect::<Vec<_>>().join(", ")
}

/// The setting. Displays as in a rules file: `ip: 32, 56`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActorPrefix {
    /// The field, one of the rule's actor fields.
    pub field: String,
    /// The lengths of the prefixes.
    pub lengths: PrefixLengths,
}

/// The number of bits that a network has, by the kind of address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixLengths {
    /// From 0 to 32.
    pub v4: u8,
    /// From 0 to 128.
    pub v6: u8,
}

impl PrefixLengths {
    fn network(self, address: Address) -> Network {
        Network::of(address, if address.is_v4() { self.v4 } else { self.v6 })
    }

    /// Appends the network of an address or of a smaller network. A single address is written without a length, and another
    /// value as it is.
    pub fn write(self, value: &[u8], out: &mut Vec<u8>) {
        match Address::parse_bytes(value) {
            Some(address) => self.network(address).write(out),
            None => self.write_network(value, out),
        }
    }

    #[inline(never)]
    fn write_network(self, value: &[u8], out: &mut Vec<u8>) {
        let network = Network::of_value(value).map(|named| (named, self.network(named.first())));
        match network {
            Some((named, around)) if around.covers(named) => around.write(out),
            _ => out.extend_from_slice(value),
        }
    }

    /// Returns the actor that a person means by an address or a network; `None` for a network of another length.
    pub fn canonical(self, actor: &str) -> Option<String> {
        match Network::parse(actor) {
            Ok(network) if network.is_address() => Some(self.network(network.first()).to_string()),
            Ok(network) => (self.network(network.first()) == network).then(|| network.to_string()),
            Err(_) => {
                let mut text = Vec::new();
                self.write(actor.as_bytes(), &mut text);
                String::from_utf8(text).ok()
            }
        }
    }

    /// Returns whether each network of `other` is in one of these networks.
    pub fn are_at_most(self, other: Self) -> bool {
        self.v4 <= other.v4 && self.v6 <= other.v6
    }
}

impl fmt::Display for PrefixLengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.v4, self.v6)
    }
}

impl fmt::Display for ActorPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::networks;
    use proptest::prelude::*;

    #[test]
    fn condition_is_met_by_members_or_by_all_other_values() {
        let (inside, outside) = (networks("ip: 10.0.0.0/8, ::1"), networks("ip: not 10.0.0.0/8, ::1"));
        for (value, is_inside) in
            [("10.1.2.3:80", true), ("[::1]", true), ("11.0.0.1", false), ("unknown", false), ("", false)]
                .into_iter()
                .chain([
                    ("10.1.2.0/24", true),
                    ("10.0.0.0/8", true),
                    ("10.0.0.0/7", false),
                    ("::1/128", true),
                    ("::/64", false),
                ])
        {
            assert_eq!(inside.is_met_by(value.as_bytes()), is_inside, "{value}");
            assert_eq!(outside.is_met_by(value.as_bytes()), !is_inside, "{value}");
        }
        assert_eq!(inside.find(b"10.1.2.3").unwrap().entry, "10.0.0.0/8");
        assert_eq!(outside.to_string(), "ip: not 10.0.0.0/8, ::1");
        assert_eq!(outside.key_text(), networks("ip: not ::1, 10.0.0.0/8, ::1").key_text());
        assert_ne!(outside.key_text(), inside.key_text());
    }

    proptest! {
        #[test]
        fn containment_follows_the_definition(
            one in prop::sample::subsequence(&["10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "::/1", "::1"], 1..5),
            other in prop::sample::subsequence(&["10.0.0.0/8", "10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16", "::/1", "::1"], 1..5),
            one_not in prop::bool::ANY, other_not in prop::bool::ANY,
        ) {
            let condition = |entries: Vec<&str>, not: bool| networks(&format!("ip: {}{}", if not { NOT } else { "" }, entries.join(", ")));
            let (one, other) = (condition(one, one_not), condition(other, other_not));
            let values = ["10.0.0.0", "10.1.0.0", "10.128.0.0", "11.0.0.0", "::1", "::2", "8000::", "unknown"];
            let (met, met_by_other): (Vec<_>, Vec<_>) =
                values.iter().map(|value| (one.is_met_by(value.as_bytes()), other.is_met_by(value.as_bytes()))).unzip();
            let all = met.iter().zip(&met_by_other);
            prop_assert_eq!(one.contains(&other), all.clone().all(|(one, other)| *one || !*other));
            prop_assert_eq!(one.excludes(&other), all.clone().all(|(one, other)| !(*one && *other)));
        }
    }

    fn name(lengths: PrefixLengths, value: &str) -> String {
        let mut out = Vec::new();
        lengths.write(value.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn addresses_of_a_network_have_its_name() {
        let lengths = PrefixLengths { v4: 24, v6: 56 };
        for (value, expected) in [
            ("192.0.2.77", "192.0.2.0/24"),
            ("::ffff:192.0.2.1", "192.0.2.0/24"),
            ("192.0.2.1:8080", "192.0.2.0/24"),
            ("2001:db8:1:2ff:3::4", "2001:db8:1:200::/56"),
            ("[2001:db8:1:200::]:443", "2001:db8:1:200::/56"),
            ("192.0.2.0/26", "192.0.2.0/24"),
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("192.0.0.0/16", "192.0.0.0/16"),
            ("2001:db8:1:2ff::/64", "2001:db8:1:200::/56"),
            ("unknown", "unknown"),
            ("", ""),
            ("192.0.2.0/24", "192.0.2.0/24"),
        ] {
            assert_eq!(name(lengths, value), expected, "{value}");
        }
        let single = PrefixLengths { v4: 32, v6: 128 };
        assert_eq!(name(single, "192.0.2.77:80"), "192.0.2.77");
        assert_eq!(name(single, "2001:DB8::1"), "2001:db8::1");
        assert_eq!(name(PrefixLengths { v4: 0, v6: 0 }, "::1"), "::/0");
    }

    #[test]
    fn actor_is_named_by_an_address_or_by_its_network() {
        let lengths = PrefixLengths { v4: 32, v6: 56 };
        assert_eq!(lengths.canonical("2001:db8::1").as_deref(), Some("2001:db8::/56"));
        assert_eq!(lengths.canonical("2001:db8::/56").as_deref(), Some("2001:db8::/56"));
        assert_eq!(lengths.canonical("2001:db8::/48"), None);
        assert_eq!(lengths.canonical("192.0.2.0/24"), None);
        assert_eq!(lengths.canonical("192.0.2.1:80").as_deref(), Some("192.0.2.1"));
        assert_eq!(lengths.canonical("unknown").as_deref(), Some("unknown"));
    }
}
