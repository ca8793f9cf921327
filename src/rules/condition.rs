//! Conditions of a rule on the value of one field, next to its pattern: `networks` and `list`.
//!
//! A request without the field never meets a condition. A value that is an address or a
//! network is in the networks that contain it. Other values are in none.

use std::fmt;
use std::sync::Arc;

use super::list::List;
use super::network_table::NetworkTable;
use super::setting_name::{LIST, NETWORKS};
use super::{ListEntry, Network};

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

#[cfg(test)]
mod tests {
    use super::super::testing::networks;
    use super::*;
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
}
