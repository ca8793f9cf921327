//! Descriptors of envoyproxy/ratelimit: ordered entries of a key and a value, each key any number of times; and the one rule of a
//! domain that applies to them.
//!
//! A domain is a tree. Each level has names: `key_value`, with `*` for any characters, or `key` for any value. An entry of a
//! descriptor selects the node with its exact name, or else the first pattern that it matches, or else the node of its key. The
//! look-up never turns back. A limit applies only to descriptors that end at its node. All other descriptors of the domain have
//! no limit.
//!
//! Source: `GetLimit` in `src/config/config_impl.go` of <https://github.com/envoyproxy/ratelimit>.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;

use serde_json::{Map, Value};

use super::matcher::RuleSetError;
use super::operation::{DOMAIN, Key};
use super::pattern::GlobIndex;
use super::{Operation, Pattern, Rule};

/// The properties of ratelimit's limit that no other rule has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// The limit's domain.
    pub domain: String,
    /// The names on the path to the limit, after the domain, with `.` between them.
    pub full_key: String,
    /// The `name` of the limit, or an empty text.
    pub name: String,
    /// The names of the limits of the same request that do not apply if this one does.
    pub replaces: Vec<String>,
    /// The kind of the limit.
    pub kind: DescriptorKind,
    /// Whether the limit denies only together with all other quotas of a request.
    pub is_quota: bool,
    /// Whether the limit never denies.
    pub is_shadow: bool,
    /// Data for the answers to requests that the limit allows.
    pub metadata: Map<String, Value>,
    /// Whether statistics have all values of a request.
    pub is_detailed: bool,
    /// The nodes on the path to the limit.
    pub levels: Vec<DescriptorLevel>,
}

named_values! {
    /// The kind of a limit.
    #[derive(Default)]
    DescriptorKind {
        /// A number of requests in a window.
        #[default]
        Limit = "limit",
        /// Any number of requests, as the file says.
        Unlimited = "unlimited",
        /// No limit: the rule of a domain for all other descriptors.
        Nothing = "nothing",
    }
}

/// A node on the path to a limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DescriptorLevel {
    /// The pattern that stands for all values in counters, if they share one.
    pub shared: Option<String>,
    /// The name of the node.
    pub name: String,
    /// Whether statistics have the request's value.
    pub shows_value: bool,
}

impl Descriptor {
    /// Returns the name of the limit in statistics, unless that depends on the request.
    pub fn statistic(&self) -> String {
        format!("{}.{}", self.domain, self.full_key)
    }

    /// Returns whether the limit has another name in statistics for each request.
    pub fn shows_values(&self) -> bool {
        self.is_detailed || self.levels.iter().any(|level| level.shows_value)
    }

    /// Returns the name of the limit in statistics for a request with these entries. An entry without a level has its value there.
    pub fn statistic_of<T: AsRef<[u8]>>(&self, entries: impl Iterator<Item = [T; 2]>) -> String {
        let keeps_empty = self.is_detailed && self.levels.iter().all(|level| level.shared.is_none());
        let levels = self.levels.iter().map(Some).chain(iter::repeat(None));
        let mut name = self.domain.clone().into_bytes();
        for ([key, value], level) in entries.zip(levels) {
            let (key, value) = (key.as_ref(), value.as_ref());
            let configured = |level: &DescriptorLevel| {
                let whole = if level.name.contains('*') { level.name.as_str() } else { "" };
                let value = level.name.as_bytes().strip_prefix(key).and_then(|rest| rest.strip_prefix(b"_"));
                value.unwrap_or(whole.as_bytes()).to_vec()
            };
            let shown = match level {
                Some(level) if level.shared.is_some() || !(self.is_detailed || level.shows_value) => configured(level),
                _ => value.to_vec(),
            };
            let separator: &[u8] = if shown.is_empty() && !keeps_empty { b"" } else { b"_" };
            name.extend([b".", key, separator, &shown].concat());
        }
        String::from_utf8_lossy(&name).into_owned()
    }
}

/// A node of a domain's tree, and the nodes below it.
#[derive(Debug)]
pub struct DescriptorNode {
    /// `key_value`, which may contain `*`, or `key`. Names at a level differ.
    pub name: String,
    /// The limit of descriptors that end here.
    pub limit: Option<Rule>,
    /// The nodes below, in the order of their files.
    pub nodes: Vec<Self>,
}

/// ratelimit's default for [`DescriptorRules::near_limit_ratio`].
pub const DEFAULT_NEAR_LIMIT_RATIO: f32 = 0.8;

/// The rules of all domains.
#[derive(Debug)]
pub struct DescriptorRules {
    /// The share of a limit beyond which statistics count hits as near the limit.
    pub near_limit_ratio: f32,
    rules: Vec<Rule>,
    /// The index of the first of them among all rules of the server.
    first: usize,
    /// The hash of all domains and names, with those that have no limit.
    shape: DefaultHasher,
    domains: HashMap<Box<[u8]>, Tree, foldhash::fast::RandomState>,
    domain_key: Key,
}

impl Default for DescriptorRules {
    fn default() -> Self {
        let near_limit_ratio = DEFAULT_NEAR_LIMIT_RATIO;
        let (rules, domains, domain_key) = (Vec::new(), HashMap::default(), Key::new(DOMAIN));
        Self { near_limit_ratio, rules, first: 0, shape: DefaultHasher::new(), domains, domain_key }
    }
}

/// A domain's tree. Its rules are numbered from the first one of all domains.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
    top: Level,
    /// The rule for descriptors without a limit.
    no_limit: usize,
    /// Whether a limit replaces others.
    replaces: bool,
}

#[derive(Debug, Default)]
struct Node {
    limit: Option<usize>,
    below: Option<Box<Level>>,
}

/// The nodes of one level.
#[derive(Debug, Default)]
struct Level {
    by_name: HashMap<Box<[u8]>, usize, foldhash::fast::RandomState>,
    /// Patterns by the number of their node, which ascends in the order of the files.
    patterns: GlobIndex,
    /// The first node whose pattern matches every name.
    any: Option<usize>,
}

/// Buffers for a look-up.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    name: Vec<u8>,
    pieces: Vec<usize>,
}

impl DescriptorRules {
    /// Adds a domain that is not among them yet: the nodes of its tree, and the rule for descriptors without a limit.
    ///
    /// # Errors
    /// There are too many patterns or rules.
    pub fn add(&mut self, domain: &str, nodes: Vec<DescriptorNode>, no_limit: Rule) -> Result<(), RuleSetError> {
        let mut tree = Tree { nodes: Vec::new(), top: Level::default(), no_limit: self.rules.len(), replaces: false };
        self.rules.push(no_limit);
        domain.hash(&mut self.shape);
        tree.top = self.level(nodes, &mut tree)?;
        self.domains.insert(domain.as_bytes().into(), tree);
        Ok(())
    }

    fn level(&mut self, given: Vec<DescriptorNode>, tree: &mut Tree) -> Result<Level, RuleSetError> {
        let (mut level, mut globs) = (Level::default(), Vec::new());
        for DescriptorNode { name, limit, nodes } in given {
            (&name, nodes.len()).hash(&mut self.shape);
            let number = tree.nodes.len();
            tree.nodes.push(Node::default());
            let limit = limit.map(|rule| {
                tree.replaces |= rule.descriptor.as_ref().is_some_and(|descriptor| !descriptor.replaces.is_empty());
                self.rules.push(rule);
                self.rules.len() - 1
            });
            let below = if nodes.is_empty() { None } else { Some(Box::new(self.level(nodes, tree)?)) };
            if let Some(node) = tree.nodes.get_mut(number) {
                *node = Node { limit, below };
            }
            match Pattern::parse(&name) {
                Pattern::Any => level.any = level.any.or(Some(number)),
                Pattern::Glob(glob) => {
                    globs.push((glob, u32::try_from(number).map_err(|_| RuleSetError::TooManyRules)?));
                }
                Pattern::Literal(_) => {}
            }
            level.by_name.insert(name.into_bytes().into(), number);
        }
        level.patterns = GlobIndex::new(globs).map_err(|_| RuleSetError::TooManyGlobs(DOMAIN.to_owned()))?;
        Ok(level)
    }

    /// Returns a hash of all domains and the names of their nodes. It differs if other descriptors have a limit.
    pub fn shape(&self) -> u64 {
        self.shape.finish()
    }

    /// Returns whether there are no domains.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns whether `domain` is one of them.
    pub fn has_domain(&self, domain: &[u8]) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns whether a limit of `domain` replaces others.
    pub fn has_replacements(&self, domain: &[u8]) -> bool {
        self.domains.get(domain).is_some_and(|tree| tree.replaces)
    }

    /// Appends the rules to the file's.
    pub(super) fn move_rules_to(&mut self, rules: &mut Vec<Rule>) {
        self.first = rules.len();
        rules.append(&mut self.rules);
    }

    /// Returns the index of the first rule.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Returns the index of the rule that applies to `operation`; `None` if the operation has none of the domains.
    pub(super) fn find(&self, operation: &Operation, buffers: &mut Buffers) -> Option<usize> {
        let tree = self.domains.get(operation.value(&self.domain_key)?)?;
        Some(self.first + tree.find(operation, buffers))
    }
}

impl Tree {
    /// Returns the number of the rule that applies.
    fn find(&self, operation: &Operation, buffers: &mut Buffers) -> usize {
        let (mut level, mut limit) = (Some(&self.top), None);
        for [key, value] in operation.entries() {
            let node = level.and_then(|level| level.find(key, value, buffers)).and_then(|node| self.nodes.get(node));
            let Some(node) = node else { return self.no_limit };
            (level, limit) = (node.below.as_deref(), node.limit);
        }
        limit.unwrap_or(self.no_limit)
    }
}

impl Level {
    /// Returns the node that an entry selects.
    fn find(&self, key: &[u8], value: &[u8], Buffers { name, pieces }: &mut Buffers) -> Option<usize> {
        name.clear();
        for part in [key, b"_", value] {
            name.extend_from_slice(part);
        }
        if let Some(node) = self.by_name.get(name.as_slice()) {
            return Some(*node);
        }
        let mut first = self.any;
        self.patterns.for_each_match(name, pieces, |node| {
            let node = node as usize;
            first = Some(first.map_or(node, |first| first.min(node)));
        });
        first.or_else(|| self.by_name.get(key).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::rule;
    use crate::rules::{RuleSet, Scratch};

    fn node(name: &str, is_limit: bool, nodes: Vec<DescriptorNode>) -> DescriptorNode {
        let limit = is_limit.then(|| Rule { label: Some(name.to_owned()), ..rule("domain=d") });
        DescriptorNode { name: name.to_owned(), limit, nodes }
    }

    fn limit(name: &str) -> DescriptorNode {
        node(name, true, Vec::new())
    }

    fn rules(nodes: Vec<DescriptorNode>) -> RuleSet {
        let mut domains = DescriptorRules::default();
        domains.add("d", nodes, Rule { label: Some("none".to_owned()), ..rule("domain=d") }).unwrap();
        RuleSet::new(vec![rule("a=1"), rule("")]).unwrap().with_domains(domains).unwrap()
    }

    /// Returns the label of the one rule for these entries in the domain `d`, as gRPC sends them.
    fn found(rules: &RuleSet, entries: &[(&str, &str)]) -> String {
        let mut operation = Operation::new();
        operation.push(DOMAIN, "d");
        entries.iter().for_each(|(key, value)| operation.push(key, value));
        let mut scratch = Scratch::default();
        let found: Vec<_> = rules.matches(&operation, &mut scratch).collect();
        assert_eq!(found.len(), 1, "{entries:?}");
        found[0].1.label.clone().unwrap_or_default()
    }

    #[test]
    fn exact_name_comes_before_patterns_and_patterns_before_the_key() {
        let rules = rules(vec![limit("k"), limit("k_a*"), limit("k_*b"), limit("k_ab"), limit("*"), limit("x")]);
        for (value, expected) in
            [("ab", "k_ab"), ("abb", "k_a*"), ("bb", "k_*b"), ("a*", "k_a*"), ("c", "*"), ("", "*")]
        {
            assert_eq!(found(&rules, &[("k", value)]), expected, "{value}");
        }
        assert_eq!(found(&rules, &[("x", "")]), "*", "a pattern comes before the key");
    }

    #[test]
    fn limit_applies_only_to_descriptors_that_end_at_it() {
        let nested = vec![node("b", false, vec![limit("c_1")]), limit("b_2"), limit("a_1")];
        let rules = rules(vec![node("a_1", true, nested), limit("a"), limit("domain_x")]);
        for (entries, expected) in [
            (&[("a", "1")][..], "a_1"),
            (&[("a", "2")], "a"),
            (&[("a", "2"), ("b", "2")], "none"),
            (&[("a", "1"), ("b", "2")], "b_2"),
            (&[("a", "1"), ("b", "3")], "none"),
            (&[("a", "1"), ("b", "3"), ("c", "1")], "c_1"),
            (&[("a", "1"), ("b", "2"), ("c", "1")], "none"),
            (&[("b", "2"), ("a", "1")], "none"),
            (&[("a", "1"), ("a", "1")], "a_1"),
            (&[("domain", "x")], "domain_x"),
            (&[("", "")], "none"),
            (&[], "none"),
        ] {
            assert_eq!(found(&rules, entries), expected, "{entries:?}");
        }
    }

    #[test]
    fn names_are_compared_as_one_text() {
        let rules = rules(vec![limit("a_b_c"), limit("x_y*"), limit("d")]);
        assert_eq!(found(&rules, &[("a", "b_c")]), "a_b_c");
        assert_eq!(found(&rules, &[("a_b", "c")]), "a_b_c");
        assert_eq!(found(&rules, &[("x_yz", "1")]), "x_y*");
        assert_eq!(found(&rules, &[("a_b_c", "9")]), "a_b_c", "as the key of any value");
    }

    #[test]
    fn other_domains_see_the_rules_of_the_file() {
        let (rules, mut scratch) = (rules(vec![limit("a")]), Scratch::default());
        for (operation, expected) in [("domain=e a=1", 0), ("a=1", 0), ("domain=e", 1), ("domain=d a=1", 3)] {
            let operation = crate::rules::testing::operation(operation);
            let found: Vec<_> = rules.matches(&operation, &mut scratch).map(|(index, _)| index).collect();
            assert_eq!(found, [expected], "{operation:?}");
        }
    }
}
