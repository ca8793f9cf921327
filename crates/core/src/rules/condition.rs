//! Settings about the value of one field, next to its pattern: the conditions `networks` and `list`, and `actorPrefix`.
//!
//! A request without the field never meets a condition. A value that is an address or a network is in the networks that
//! contain it. Other values are in none.
//!
//! `actorPrefix` replaces an address by its network, so that all its addresses share a counter.
//!
//! A [`List`] has the entries of a file, one a line, each a text, a pattern or a network.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::network_table::NetworkTable;
use super::pattern::Glob;
use super::setting_name::{LIST, NETWORKS};
use super::{Address, Misspelling, Network, Pattern, Spelling};

/// The word before the entries of a condition that their values must not match.
pub(crate) const NOT: &str = "not ";

/// A condition. Displays as in a rules file: `ip: not 10.0.0.0/8, 2001:db8::/32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The field.
    pub field: String,
    /// Whether the condition is met by values that are not in the members.
    pub is_inverted: bool,
    /// The values: the entries of a list file, or the networks in the rules file.
    pub members: Arc<List>,
}

impl Condition {
    /// Returns the name of its setting.
    pub fn setting(&self) -> &'static str {
        if self.members.name.is_some() { LIST } else { NETWORKS }
    }

    /// Returns whether the value meets the condition.
    pub fn is_met_by(&self, value: &[u8]) -> bool {
        self.members.find(value).is_some() != self.is_inverted
    }

    /// Returns whether an address of the network may meet the condition. Lists may have entries for some of them.
    pub fn may_be_met_in(&self, network: Network) -> bool {
        match self.members.name {
            Some(_) => true,
            None if self.is_inverted => !self.members.networks.covers(network),
            None => self.members.networks.overlaps(network),
        }
    }

    /// Returns the first entry that the value matches, and its line in a list.
    pub(super) fn find(&self, value: &[u8]) -> Option<(String, Option<u32>)> {
        let line = self.members.find(value)?;
        let entry = self.members.entry(line)?.to_string();
        Some((entry, self.members.name.is_some().then_some(line)))
    }

    /// Returns a value that matches one of the entries; `None` if a list is empty.
    pub(super) fn example(&self) -> Option<Vec<u8>> {
        self.members.entries().next().map(|(_, entry)| match entry {
            ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern) => pattern.most_general_value(),
            ListEntry::Network(network) => network.first().to_string().into(),
        })
    }

    /// Returns the entries as in a rules file, without the field.
    pub fn entries(&self) -> String {
        self.write_entries(self.members.networks())
    }

    /// Returns the text that stands for the condition in the keys of counters. The order of networks has no meaning, and
    /// a list's entries may change.
    pub(super) fn key_text(&self) -> String {
        let sorted: BTreeSet<_> = self.members.networks().collect();
        format!("{} {}", self.setting(), self.write_entries(sorted))
    }

    fn write_entries(&self, networks: impl IntoIterator<Item = Network>) -> String {
        let not = if self.is_inverted { NOT } else { "" };
        let networks = networks.into_iter().map(|network| network.to_string());
        let entries = self.members.name.clone().unwrap_or_else(|| networks.collect::<Vec<_>>().join(", "));
        format!("{not}{entries}")
    }

    /// Returns whether each value that meets `other` meets this condition, apart from values that are networks. Lists are compared by
    /// their names only.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.contains_if(self.is_inverted, other)
    }

    /// Returns whether it is certain that no value meets both conditions, apart from values that are networks: each value that
    /// meets `other` fails this condition.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.contains_if(!self.is_inverted, other)
    }

    /// Returns whether each value that meets `other` is a member, or is not if `is_inverted`.
    fn contains_if(&self, is_inverted: bool, other: &Self) -> bool {
        self.field == other.field
            && match (&self.members.name, &other.members.name) {
                (Some(one), Some(other_name)) => is_inverted == other.is_inverted && one == other_name,
                (None, None) => match (is_inverted, other.is_inverted) {
                    (false, false) => self.members.covers(&other.members),
                    (true, true) => other.members.covers(&self.members),
                    (true, false) => !self.members.overlaps(&other.members),
                    // Values that are no addresses are in no network.
                    (false, true) => false,
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

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListEntry {
    /// A value that the pattern matches.
    Pattern(Pattern),
    /// Exactly this value: a literal that is in quotes, so it is a text even if it resembles an address.
    Quoted(Pattern),
    /// An address or a network in the network.
    Network(Network),
}

/// The entries of a list file, compiled. Two lists are equal if they have the same name and the same entries on the same
/// lines. The networks in a rules file are a list without a name, whose lines are their places.
#[derive(Debug)]
pub struct List {
    name: Option<String>,
    /// The entries with their lines, in the order of the file.
    entries: Vec<(u32, ListEntry)>,
    /// Texts by value, each with the first line that has it.
    texts: Vec<(Box<str>, u32)>,
    globs: Vec<(Glob, u32)>,
    /// The line of an entry `*`.
    any: Option<u32>,
    networks: NetworkTable<u32>,
    digest: u128,
}

/// An entry that no normalized value matches: its line, its text, and why.
type WrongEntry = (u32, String, Misspelling);

impl List {
    /// Compiles a list. `name` is the name of its file as the rules file writes it, and `entries` come with their lines,
    /// which ascend.
    pub fn new(name: &str, entries: Vec<(u32, ListEntry)>) -> Arc<Self> {
        Self::compile(Some(name.to_owned()), entries)
    }

    /// Compiles the networks in a rules file.
    pub fn of_networks(networks: Vec<Network>) -> Arc<Self> {
        Self::compile(None, (1..).zip(networks.into_iter().map(ListEntry::Network)).collect())
    }

    fn compile(name: Option<String>, entries: Vec<(u32, ListEntry)>) -> Arc<Self> {
        let (mut texts, mut globs, mut any, mut networks) = (Vec::new(), Vec::new(), None, Vec::new());
        let mut hasher = SipHasher13::new();
        for (line, entry) in &entries {
            hasher.write_u32(*line);
            hasher.write(format!("{entry}\n").as_bytes());
            match entry {
                ListEntry::Network(network) => networks.push((*network, *line)),
                ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern) => match pattern {
                    Pattern::Any => any = any.or(Some(*line)),
                    Pattern::Literal(text) => texts.push((text.as_str().into(), *line)),
                    Pattern::Glob(glob) => globs.push((glob.clone(), *line)),
                },
            }
        }
        texts.sort_unstable();
        texts.dedup_by(|later, first| later.0 == first.0);
        let networks = NetworkTable::new(networks, |lines| lines.iter().copied().min().unwrap_or_default());
        let digest = hasher.finish128().as_u128();
        Arc::new(Self { name, entries, texts, globs, any, networks, digest })
    }

    /// Returns the name of its file, as the rules file writes it. `None` for networks in the rules file.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns its entries with their lines.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &(u32, ListEntry)> {
        self.entries.iter()
    }

    fn networks(&self) -> impl Iterator<Item = Network> {
        self.entries
            .iter()
            .filter_map(|(_, entry)| if let ListEntry::Network(network) = entry { Some(*network) } else { None })
    }

    /// Returns whether each address of the networks of `other` is in these networks.
    fn covers(&self, other: &Self) -> bool {
        other.networks().all(|network| self.networks.covers(network))
    }

    fn overlaps(&self, other: &Self) -> bool {
        other.networks().any(|network| self.networks.overlaps(network))
    }

    /// Returns a number that differs for other entries.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Returns the first line whose entry matches the value.
    pub fn find(&self, value: &[u8]) -> Option<u32> {
        let text = self.texts.binary_search_by(|(text, _)| text.as_bytes().cmp(value)).ok();
        let text = text.and_then(|place| self.texts.get(place)).map(|(_, line)| *line);
        let glob = self.globs.iter().find(|(glob, _)| glob.matches_bytes(value)).map(|(_, line)| *line);
        let network = if self.networks.is_empty() { None } else { self.networks.find(value) };
        [text, glob, network, self.any].into_iter().flatten().min()
    }

    /// Returns the list with the entries that normalized values match; `None` if none differs.
    ///
    /// # Errors
    /// Entries that no normalized value matches, with their lines.
    pub(super) fn normalize(&self, spelling: Spelling) -> Result<Option<Arc<Self>>, Vec<WrongEntry>> {
        let (mut entries, mut wrong) = (Vec::with_capacity(self.entries.len()), Vec::new());
        for (line, entry) in &self.entries {
            match entry.normalize(spelling) {
                Ok(normal) => entries.extend(normal.into_iter().map(|entry| (*line, entry))),
                Err(misspelling) => wrong.push((*line, entry.to_string(), misspelling)),
            }
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok((entries != self.entries).then(|| Self::compile(self.name.clone(), entries)))
    }

    /// Returns the entry on this line.
    pub fn entry(&self, line: u32) -> Option<&ListEntry> {
        let place = self.entries.binary_search_by_key(&line, |(line, _)| *line).ok()?;
        self.entries.get(place).map(|(_, entry)| entry)
    }
}

impl PartialEq for List {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest && self.name == other.name && self.entries == other.entries
    }
}

impl Eq for List {}

impl ListEntry {
    /// Returns the entries of a list that match the normalized values of those that it matches.
    ///
    /// # Errors
    /// No normalized value matches.
    fn normalize(&self, spelling: Spelling) -> Result<Vec<ListEntry>, Misspelling> {
        match self {
            Self::Network(_) if matches!(spelling, Spelling::Address | Spelling::Host) => Ok(vec![self.clone()]),
            Self::Quoted(pattern) if spelling == Spelling::Address => {
                let text = spelling.normalize(pattern.as_str()).unwrap_or_default();
                Ok(vec![Self::Quoted(Pattern::Literal(text.into_owned()))])
            }
            Self::Network(network) => Self::Pattern(Pattern::Literal(network.to_string())).normalize(spelling),
            Self::Quoted(pattern) => Ok(spelling.of_pattern(pattern)?.into_iter().map(Self::Quoted).collect()),
            Self::Pattern(pattern) => {
                let hint = if spelling == Spelling::Address { ", or put it in quotes if it is a text" } else { "" };
                let patterns = spelling
                    .of_pattern(pattern)
                    .map_err(|Misspelling { what, fix }| Misspelling { what, fix: fix + hint })?;
                Ok(patterns.into_iter().map(Self::Pattern).collect())
            }
        }
    }
}

impl std::fmt::Display for ListEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pattern(pattern) | Self::Quoted(pattern) => pattern.fmt(f),
            Self::Network(network) => network.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::{cases, networks};
    use proptest::prelude::*;

    #[test]
    fn condition_is_met_by_members_or_by_all_other_values() {
        let (inside, outside) = (networks("ip: 10.0.0.0/8, ::1"), networks("ip: not 10.0.0.0/8, ::1"));
        for (values, is_inside) in
            [("10.1.2.3:80|[::1]|10.1.2.0/24|10.0.0.0/8|::1/128", true), ("11.0.0.1|unknown||10.0.0.0/7|::/64", false)]
        {
            for value in values.split('|') {
                assert_eq!(inside.is_met_by(value.as_bytes()), is_inside, "{value}");
                assert_eq!(outside.is_met_by(value.as_bytes()), !is_inside, "{value}");
            }
        }
        assert_eq!(inside.find(b"10.1.2.3").unwrap().0, "10.0.0.0/8");
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
        let rows = "192.0.2.77 => 192.0.2.0/24|::ffff:192.0.2.1 => 192.0.2.0/24|192.0.2.1:8080 => 192.0.2.0/24|\
            2001:db8:1:2ff:3::4 => 2001:db8:1:200::/56|[2001:db8:1:200::]:443 => 2001:db8:1:200::/56|\
            192.0.2.0/26 => 192.0.2.0/24|192.0.2.7/24 => 192.0.2.0/24|192.0.0.0/16 => 192.0.0.0/16|\
            2001:db8:1:2ff::/64 => 2001:db8:1:200::/56|unknown => unknown| => |192.0.2.0/24 => 192.0.2.0/24";
        for (value, expected) in cases(rows) {
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

    fn list(entries: &[&str]) -> Arc<List> {
        let entry = |text: &&str| match Network::parse(text) {
            Ok(network) => ListEntry::Network(network),
            Err(_) => ListEntry::Pattern(Pattern::parse(text)),
        };
        List::new("list", (1..).zip(entries.iter().map(entry)).collect())
    }

    proptest! {
        #[test]
        fn list_finds_the_line_that_a_linear_search_finds(
            entries in prop::collection::vec("[ab*]{0,3}|10\\.[01]\\.[0-3]\\.[0-3]|10\\.0\\.0\\.0/8|10\\.1\\.0\\.0/16", 0..20),
            values in prop::collection::vec("[ab]{0,4}|10\\.[01]\\.[0-3]\\.[0-3](/(8|16|24))?", 1..9),
        ) {
            let entries: Vec<_> = entries.iter().map(String::as_str).collect();
            let list = list(&entries);
            for value in values {
                let named = Network::of_value(value.as_bytes());
                let matches = |(_, entry): &&(u32, ListEntry)| match entry {
                    ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern) => pattern.matches(&value),
                    ListEntry::Network(network) => named.is_some_and(|named| network.covers(named)),
                };
                let expected = list.entries().find(matches).map(|(line, _)| *line);
                prop_assert_eq!(list.find(value.as_bytes()), expected);
            }
        }
    }
}
