//! Lists: entries that a file has, one a line, each a text, a pattern or a network.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::network_table::NetworkTable;
use super::pattern::Glob;
use super::{Misspelling, Network, Pattern, Spelling};

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
/// lines.
#[derive(Debug)]
pub struct List {
    name: String,
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
        Arc::new(Self {
            name: name.to_owned(),
            entries,
            texts,
            globs,
            any,
            networks,
            digest: hasher.finish128().as_u128(),
        })
    }

    /// Returns the name of its file, as the rules file writes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its entries with their lines.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &(u32, ListEntry)> {
        self.entries.iter()
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
        Ok((entries != self.entries).then(|| Self::new(&self.name, entries)))
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
            Self::Pattern(pattern) if spelling == Spelling::Address => {
                let patterns = spelling.of_pattern(pattern).map_err(|misspelling| Misspelling {
                    fix: format!("{}, or put it in quotes if it is a text", misspelling.fix),
                    ..misspelling
                })?;
                Ok(patterns.into_iter().map(Self::Pattern).collect())
            }
            Self::Pattern(pattern) => Ok(spelling.of_pattern(pattern)?.into_iter().map(Self::Pattern).collect()),
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
    use proptest::prelude::*;

    fn list(entries: &[&str]) -> Arc<List> {
        let entry = |text: &&str| match Network::parse(text) {
            Ok(network) => ListEntry::Network(network),
            Err(_) => ListEntry::Pattern(Pattern::parse(text)),
        };
        List::new("list", (1..).zip(entries.iter().map(entry)).collect())
    }

    #[test]
    fn first_line_that_matches_is_found() {
        let list = list(&["10.1.0.0/16", "10.0.0.0/8", "office", "off*", "*.example.org", "office", "::1"]);
        for (value, line) in [
            ("10.1.2.3:80", Some(1)),
            ("::ffff:10.2.3.4", Some(2)),
            ("office", Some(3)),
            ("offset", Some(4)),
            ("a.example.org", Some(5)),
            ("[::1]:443", Some(7)),
            ("11.0.0.1", None),
            ("", None),
            ("10.1.0.0/16", Some(1)),
            ("10.2.3.0/24", Some(2)),
            ("10.0.0.0/7", None),
        ] {
            assert_eq!(list.find(value.as_bytes()), line, "{value}");
        }
        assert_eq!(list.entry(2).unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(list.entry(8), None);
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
