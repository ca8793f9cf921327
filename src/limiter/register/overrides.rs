//! Overrides: blocks and allows of single actors, of one rule or of all rules.
//!
//! An override of one rule belongs to its label, as limits of single actors do. An override of all rules (`*`) belongs to a
//! field and to the length of a prefix, so that a request finds it with one look-up for each length that is in use. Most are
//! for single values or IPv4 addresses. Requests find these by their text, which takes fewer instructions than reading an
//! address.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Registry;
use super::table::{Exceptions, OwnerExceptions, Sought};
use crate::clock::Timestamp;
use crate::limiter::precedence::{Rank, WHOLE, comes_before};
use crate::rules::{Key, Network, NetworkError, Operation, OverrideKind};
use crate::store::Override;

/// Default for the maximum number of blocks and allows.
pub const DEFAULT_MAX_OVERRIDES: usize = 1_000_000;

/// The name that stands for all rules.
pub const ALL_RULES: &str = "*";

/// All overrides.
#[derive(Debug)]
pub struct Overrides {
    pub registry: Registry<Override>,
    /// The overrides of all rules, by field.
    everywhere: ArcSwap<Everywhere>,
}

/// The overrides of one rule, by kind.
#[derive(Debug, Clone)]
pub(in crate::limiter) struct RuleOverrides([(OverrideKind, Arc<OwnerExceptions<Override>>); 2]);

/// The overrides of all rules.
#[derive(Debug, Default)]
pub(in crate::limiter) struct Everywhere {
    /// The revision of the owners when this was made.
    revision: u64,
    fields: Vec<FieldOverrides>,
}

/// The overrides of all rules about one field.
#[derive(Debug)]
struct FieldOverrides {
    field: Key,
    places: Vec<Place>,
}

/// The overrides of all rules with one kind, one field and one length of prefix.
#[derive(Debug)]
struct Place {
    kind: OverrideKind,
    /// `None` for values that are no addresses.
    prefix: Option<u8>,
    values: Arc<OwnerExceptions<Override>>,
}

/// An override that applies to a request.
#[derive(Debug, Clone)]
pub(in crate::limiter) struct Applicable {
    pub rank: Rank,
    pub reason: Option<Arc<str>>,
}

/// Where an override is kept: its kind, and its rule's label or the field that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideOwner {
    pub kind: OverrideKind,
    pub of: OwnerName,
}

/// The rule of an override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerName {
    /// One rule, by its label.
    Rule(String),
    /// All rules. The override is about this field of requests, and about networks with this length of prefix, or
    /// other values.
    Field(String, Option<u8>),
}

impl OverrideOwner {
    /// Returns the text under which stores keep it: `block:LABEL`, `block:*/FIELD/` or `block:*/FIELD/PREFIX`.
    pub fn to_text(&self) -> String {
        match &self.of {
            OwnerName::Rule(label) => format!("{}:{label}", self.kind),
            OwnerName::Field(field, None) => format!("{}:{ALL_RULES}/{field}/", self.kind),
            OwnerName::Field(field, Some(prefix)) => format!("{}:{ALL_RULES}/{field}/{prefix}", self.kind),
        }
    }

    /// Reads such a text.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, of) = text.split_once(':')?;
        let kind = OverrideKind::ALL.into_iter().find(|known| known.name() == kind)?;
        let Some(field) = of.strip_prefix(ALL_RULES) else {
            return Some(Self { kind, of: OwnerName::Rule(of.to_owned()) });
        };
        let (field, prefix) = field.strip_prefix('/')?.rsplit_once('/')?;
        let prefix = if prefix.is_empty() { None } else { Some(prefix.parse().ok()?) };
        Some(Self { kind, of: OwnerName::Field(field.to_owned(), prefix) })
    }
}

/// Returns the owner and the actor of an override of all rules for `field=value`, as stores keep them. The actor is the first
/// address of a network in hexadecimal digits, which is quick to write, or any other value as it is.
///
/// # Errors
/// The value is a network that is not in canonical form.
pub fn place_of(kind: OverrideKind, field: &str, value: &str) -> Result<(OverrideOwner, String), NetworkError> {
    let (prefix, value) = match Network::parse(value) {
        Ok(network) => {
            let (bits, digits) = (network.first().bits(), usize::from(network.first().length()) / 4);
            (Some(network.prefix()), format!("{bits:0digits$x}"))
        }
        Err(NetworkError::NoAddress) => (None, value.to_owned()),
        Err(error) => return Err(error),
    };
    Ok((OverrideOwner { kind, of: OwnerName::Field(field.to_owned(), prefix) }, value))
}

impl OverrideOwner {
    /// Returns the value or the network for people, for an actor that is stored under this owner.
    pub fn shown<'a>(&self, actor: &'a str) -> Option<Cow<'a, str>> {
        let OwnerName::Field(_, Some(prefix)) = self.of else { return Some(Cow::Borrowed(actor)) };
        Some(Network::of(first_address(actor)?.into(), prefix).to_string().into())
    }
}

/// The prefix of a single IPv4 address. Networks of IPv6 can have the same one.
const IPV4: u8 = 32;

/// Returns how requests look up the actors of an owner: single IPv4 addresses by their usual text, networks by their bits, and
/// others as they are stored.
fn sought(owner: &str) -> Sought {
    match OverrideOwner::parse(owner) {
        Some(OverrideOwner { of: OwnerName::Field(_, Some(IPV4)), .. }) => |actor| match first_address(actor) {
            Some(IpAddr::V4(address)) => address.to_string().into_bytes().into(),
            Some(IpAddr::V6(address)) => address.octets().to_vec().into(),
            None => actor.as_bytes().into(),
        },
        Some(OverrideOwner { of: OwnerName::Field(_, Some(_)), .. }) => |actor| match first_address(actor) {
            Some(IpAddr::V4(address)) => address.octets().to_vec().into(),
            Some(IpAddr::V6(address)) => address.octets().to_vec().into(),
            None => actor.as_bytes().into(),
        },
        _ => |actor| actor.as_bytes().into(),
    }
}

/// Returns the first address of a network, from its digits.
fn first_address(digits: &str) -> Option<IpAddr> {
    match digits.len() {
        8 => Some(Ipv4Addr::from_bits(u32::from_str_radix(digits, 16).ok()?).into()),
        32 => Some(Ipv6Addr::from_bits(u128::from_str_radix(digits, 16).ok()?).into()),
        _ => None,
    }
}

/// Returns whether the value is an IPv4 address in its usual text, if it is an address or a network at all: a port or IPv6
/// would need a colon, and a prefix a slash.
#[inline]
fn is_usual_text(value: &[u8]) -> bool {
    const LONGEST: usize = "255.255.255.255".len();
    let has = |bytes: &[u8; 8], sought: u8| {
        let differences = u64::from_ne_bytes(*bytes) ^ u64::from_ne_bytes([sought; 8]);
        // The trick that C libraries use: only a byte of 0 borrows from its highest bit.
        differences.wrapping_sub(u64::from_ne_bytes([1; 8])) & !differences & u64::from_ne_bytes([128; 8]) != 0
    };
    match (value.first_chunk(), value.last_chunk()) {
        // A prefix is at the end.
        (Some(first), Some(last)) => {
            value.len() <= LONGEST && !has(first, b':') && !has(last, b':') && !has(last, b'/')
        }
        _ => !value.iter().any(|byte| matches!(byte, b':' | b'/')),
    }
}

impl Overrides {
    pub fn new(now: Timestamp) -> Self {
        let mut registry = Registry::new(DEFAULT_MAX_OVERRIDES, now);
        registry.memory = Exceptions::new(sought);
        Self { registry, everywhere: ArcSwap::default() }
    }

    /// Returns the overrides of the rule with this label, including later ones.
    pub(in crate::limiter) fn of_rule(&self, label: &str) -> RuleOverrides {
        let of_kind = |kind| {
            let owner = OverrideOwner { kind, of: OwnerName::Rule(label.to_owned()) };
            (kind, self.registry.memory.of_owner(&owner.to_text()))
        };
        RuleOverrides(OverrideKind::ALL.map(of_kind))
    }

    /// Returns the fields that overrides of all rules are about.
    pub(in crate::limiter) fn fields(&self) -> BTreeSet<String> {
        let owners = self.registry.memory.all_owners();
        let field = |values: &Arc<OwnerExceptions<Override>>| match OverrideOwner::parse(values.owner())?.of {
            OwnerName::Field(field, _) => Some(field),
            OwnerName::Rule(_) => None,
        };
        owners.iter().filter_map(field).collect()
    }

    /// Returns the overrides of all rules, if there are any.
    pub(in crate::limiter) fn everywhere(&self) -> Option<Arc<Everywhere>> {
        let memory = &self.registry.memory;
        let known = self.everywhere.load();
        if known.revision == memory.owners_revision() {
            return known.is_in_use().then(|| Arc::clone(&known));
        }
        drop(known);
        let everywhere = Arc::new(Everywhere::new(memory));
        self.everywhere.store(Arc::clone(&everywhere));
        everywhere.is_in_use().then_some(everywhere)
    }
}

impl Overrides {
    /// Returns whether one allow for all rules covers every address of the network.
    pub(in crate::limiter) fn allows_all_of(&self, field: &str, network: Network, now: Timestamp) -> bool {
        self.everywhere().is_some_and(|everywhere| everywhere.allows_all_of(&Key::new(field), network, now))
    }
}

impl Everywhere {
    fn allows_all_of(&self, field: &Key, network: Network, now: Timestamp) -> bool {
        let places = self.fields.iter().filter(|of| of.field == *field).flat_map(|of| &of.places);
        places.filter(|place| place.kind == OverrideKind::Allow && !place.values.is_empty()).any(|place| {
            let prefix = place.prefix.filter(|prefix| *prefix <= network.prefix());
            let outer = prefix.and_then(|_| place.look_up(network, |sought| place.values.get(sought, now)));
            outer.flatten().is_some()
        })
    }

    fn new(memory: &Exceptions<Override>) -> Self {
        // Read first, so that the next request finds an owner that is added during this function.
        let revision = memory.owners_revision();
        let mut by_field: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for values in memory.all_owners() {
            if let Some(OverrideOwner { kind, of: OwnerName::Field(field, prefix) }) =
                OverrideOwner::parse(values.owner())
            {
                by_field.entry(field).or_default().push(Place { kind, prefix, values });
            }
        }
        let fields = by_field.into_iter().map(|(field, places)| FieldOverrides { field: Key::new(&field), places });
        Self { revision, fields: fields.collect() }
    }

    fn is_in_use(&self) -> bool {
        self.fields.iter().flat_map(|of| &of.places).any(|place| !place.values.is_empty())
    }

    /// Returns the override of all rules that decides about the operation, if there is one.
    #[inline]
    pub(in crate::limiter) fn find(&self, operation: &Operation, now: Timestamp) -> Option<Applicable> {
        // Fast path: most requests have none.
        if self.contains(operation) { self.find_first(operation, now) } else { None }
    }

    /// Returns whether there is an override for the operation, in force or expired.
    #[inline(never)]
    fn contains(&self, operation: &Operation) -> bool {
        self.fields.iter().any(|of| operation.value(&of.field).is_some_and(|value| of.contains(value)))
    }

    #[inline(never)]
    fn find_first(&self, operation: &Operation, now: Timestamp) -> Option<Applicable> {
        let mut first = None;
        for of in &self.fields {
            if let Some(value) = operation.value(&of.field) {
                of.find(value, now, &mut first);
            }
        }
        first
    }
}

impl FieldOverrides {
    #[inline]
    fn contains(&self, value: &[u8]) -> bool {
        let is_usual = is_usual_text(value);
        let mut has_networks = false;
        for place in &self.places {
            if !place.is_by_text(is_usual) {
                has_networks |= !place.values.is_empty();
            } else if place.values.contains(value) {
                return true;
            }
        }
        has_networks && self.contains_network(value, is_usual)
    }

    /// Returns whether there is an override for an address that is not found by its text.
    #[inline(never)]
    fn contains_network(&self, value: &[u8], is_usual: bool) -> bool {
        let Some(network) = Network::of_value(value) else { return false };
        let mut networks = self.places.iter().filter(|place| !place.is_by_text(is_usual));
        networks.any(|place| place.look_up(network, |sought| place.values.contains(sought)) == Some(true))
    }

    /// Finds the override for the value that decides, unless `first` does.
    fn find(&self, value: &[u8], now: Timestamp, first: &mut Option<Applicable>) {
        let (is_usual, network) = (is_usual_text(value), Network::of_value(value));
        for place in &self.places {
            let found = match network {
                _ if place.is_by_text(is_usual) => place.values.get(value, now),
                Some(network) => place.look_up(network, |sought| place.values.get(sought, now)).flatten(),
                None => None,
            };
            if let Some(Override { reason, ends, .. }) = found {
                let is_whole = |prefix: &u8| network.is_some_and(|network| *prefix == network.first().length());
                let prefix = place.prefix.filter(|prefix| !is_whole(prefix)).unwrap_or(WHOLE);
                let rank = Rank { kind: place.kind, prefix, is_for_rule: false, ends };
                choose(first, Applicable { rank, reason });
            }
        }
    }
}

impl Place {
    /// Returns whether a value is found by its text. `is_usual` is [`is_usual_text`].
    #[inline]
    fn is_by_text(&self, is_usual: bool) -> bool {
        self.prefix.is_none() || (is_usual && self.prefix == Some(IPV4))
    }

    /// Looks up the network with the place's prefix that contains another one. `None` if none can.
    #[inline]
    fn look_up<T>(&self, network: Network, look_up: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let prefix = self.prefix.filter(|prefix| *prefix <= network.prefix())?;
        let address = network.first();
        let bits = Network::of(address, prefix).first().bits();
        match address.is_v4() {
            true if prefix == IPV4 => Some(look_up(Ipv4Addr::from_bits(bits as u32).to_string().as_bytes())),
            true => Some(look_up(&(bits as u32).to_be_bytes())),
            false => Some(look_up(&bits.to_be_bytes())),
        }
    }
}

/// Puts the override in the place of `first` if it takes precedence.
fn choose(first: &mut Option<Applicable>, found: Applicable) {
    if first.as_ref().is_none_or(|known| comes_before(&found.rank, &known.rank)) {
        *first = Some(found);
    }
}

impl RuleOverrides {
    #[inline]
    pub fn is_empty(&self) -> bool {
        let [(_, blocks), (_, allows)] = &self.0;
        blocks.is_empty() && allows.is_empty()
    }

    /// Returns whether there is an override of the actor, in force or expired.
    #[inline]
    pub fn contains(&self, actor: &[u8]) -> bool {
        // Fast path: very few rules have overrides.
        !self.is_empty() && self.has(actor)
    }

    #[inline(never)]
    fn has(&self, actor: &[u8]) -> bool {
        let [(_, blocks), (_, allows)] = &self.0;
        blocks.contains(actor) || allows.contains(actor)
    }

    /// Returns the override that decides about the actor: one of this rule's, or `everywhere`.
    pub fn find(&self, actor: &[u8], everywhere: Option<&Applicable>, now: Timestamp) -> Option<Applicable> {
        let mut first = everywhere.cloned();
        for (kind, values) in &self.0 {
            let Some(Override { reason, ends, .. }) = values.get(actor, now) else { continue };
            let rank = Rank { kind: *kind, prefix: prefix_of(actor), is_for_rule: true, ends };
            choose(&mut first, Applicable { rank, reason });
        }
        first
    }
}

/// Returns the number of bits that an actor fixes: fewer than [`WHOLE`] if it is a network.
fn prefix_of(actor: &[u8]) -> u8 {
    let network = || Network::parse(std::str::from_utf8(actor).ok()?).ok().filter(|network| !network.is_address());
    if actor.contains(&b'/') { network().map_or(WHOLE, Network::prefix) } else { WHOLE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ExceptionChange;
    use proptest::prelude::*;

    fn overrides(entries: &[(OverrideKind, &str, &str)]) -> Overrides {
        let overrides = Overrides::new(Timestamp::EPOCH);
        for (kind, field, value) in entries {
            let (owner, actor) = place_of(*kind, field, value).unwrap();
            let reason = Some(format!("{kind} {value}").into());
            let value = Some(Override { reason, ends: None, repetition: None });
            overrides.registry.memory.apply(&ExceptionChange { owner: owner.to_text(), actor, value }, 0);
        }
        overrides
    }

    fn found(overrides: &Overrides, pairs: &[(&str, &str)]) -> Option<String> {
        let operation: Operation = pairs.iter().copied().collect();
        let found = overrides.everywhere()?.find(&operation, Timestamp::EPOCH)?;
        Some(found.reason?.to_string())
    }

    #[test]
    fn owner_is_read_as_it_was_written() {
        for of in [
            OwnerName::Rule("api".to_owned()),
            OwnerName::Field("ip".to_owned(), Some(24)),
            OwnerName::Field("a/b:c".to_owned(), None),
        ] {
            for kind in OverrideKind::ALL {
                let owner = OverrideOwner { kind, of: of.clone() };
                assert_eq!(OverrideOwner::parse(&owner.to_text()), Some(owner));
            }
        }
        for text in ["", "api", "deny:api", "block:*", "block:*/ip", "block:*/ip/x", "block:*/ip/256"] {
            assert_eq!(OverrideOwner::parse(text), None, "{text}");
        }
    }

    #[test]
    fn request_finds_the_override_with_the_longest_prefix() {
        use OverrideKind::{Allow, Block};
        assert!(overrides(&[]).everywhere().is_none());
        let all = overrides(&[
            (Block, "ip", "10.0.0.0/8"),
            (Block, "ip", "10.1.0.0/16"),
            (Block, "ip", "10.1.2.3"),
            (Block, "ip", "2001:db8::/32"),
            (Allow, "ip", "10.1.9.0/24"),
            (Block, "user", "eve"),
            (Block, "user", "10.1.9.9"),
        ]);
        for (pairs, expected) in [
            (&[("ip", "10.9.9.9")][..], Some("block 10.0.0.0/8")),
            (&[("ip", "10.1.9.9:443")], Some("allow 10.1.9.0/24")),
            (&[("ip", "10.1.2.3")], Some("block 10.1.2.3")),
            (&[("ip", "::ffff:10.1.2.4")], Some("block 10.1.0.0/16")),
            (&[("ip", "[2001:db8::1]:80")], Some("block 2001:db8::/32")),
            (&[("ip", "11.0.0.1")], None),
            (&[("ip", "eve")], None),
            (&[("user", "eve")], Some("block eve")),
            (&[("user", "eve"), ("ip", "10.9.9.9")], Some("block eve")),
            (&[("user", "eve"), ("ip", "10.1.9.1")], Some("allow 10.1.9.0/24")),
            (&[("user", "eve2")], None),
            (&[("peer", "eve")], None),
            (&[("ip", "10.1.9.0/24")], Some("allow 10.1.9.0/24")),
            (&[("ip", "10.1.9.128/25")], Some("allow 10.1.9.0/24")),
            (&[("ip", "10.1.2.0/24")], Some("block 10.1.0.0/16")),
            (&[("ip", "10.1.2.3/32")], Some("block 10.1.2.3")),
            (&[("ip", "10.1.2.3/16")], Some("block 10.1.0.0/16")),
            (&[("ip", "10.0.0.0/7")], None),
            (&[("ip", "2001:db8::/48")], Some("block 2001:db8::/32")),
            (&[("ip", "2001::/16")], None),
        ] {
            assert_eq!(found(&all, pairs).as_deref(), expected, "{pairs:?}");
        }
    }

    /// Returns an address in the notations that requests use.
    fn notations(address: &str) -> Vec<String> {
        if address.contains(':') {
            vec![address.to_owned(), address.to_uppercase(), format!("[{address}]:443"), format!("{address}%eth0")]
        } else {
            vec![
                address.to_owned(),
                format!("{address}:1"),
                format!("::ffff:{address}"),
                format!("[64:ff9b::{address}]"),
            ]
        }
    }

    proptest! {
        /// The definition: a search through all entries.
        #[test]
        fn look_ups_find_what_a_search_finds(
            entries in prop::collection::vec((prop::bool::ANY, prop::sample::select(vec![
                "10.0.0.0", "10.0.0.1", "10.0.0.3", "10.0.0.0/31", "10.0.0.0/30", "10.0.0.0/8", "0.0.0.0/0", "200.100.150.250",
                "2001:db8::", "2001:db8::1", "2001:db8::/127", "2001:db8::/32", "2001::/16", "eve", "a long name, no address", "::/0",
            ])), 0..6),
        ) {
            let kind = |allows: bool| if allows { OverrideKind::Allow } else { OverrideKind::Block };
            let entries: Vec<_> = entries.into_iter().map(|(allows, value)| (kind(allows), "ip", value)).collect();
            let all = overrides(&entries);
            let addresses = ["10.0.0.0", "10.0.0.1", "10.0.0.2", "11.0.0.0", "200.100.150.250", "2001:db8::", "2001:db8::1", "2001:db9::"];
            let others = [
                "eve", "", ":", "0a000000", "20010db8000000000000000000000000", "a long name, no address", "10.0.0.01", "10.0.0.0/8",
                "10.0.0.1/32", "10.0.0.0/30", "10.0.0.2/31", "10.0.0.0/7", "1.2.3.4/0", "2001:db8::/126", "2001:db8::/127", "::/0", "/", "1/1",
            ];
            let values = addresses.into_iter().flat_map(notations).chain(others.map(str::to_owned));
            for value in values {
                let bits = |entry: &str| match Network::parse(entry) {
                    Ok(network) if Network::of_value(value.as_bytes()).is_some_and(|named| network.covers(named)) => {
                        Some(if network.is_address() { WHOLE } else { network.prefix() })
                    }
                    Ok(_) => None,
                    Err(_) => (entry == value).then_some(WHOLE),
                };
                let expected = entries.iter().filter_map(|(kind, _, entry)| Some((*kind, bits(entry)?, *entry))).max();
                let expected = expected.map(|(kind, _, entry)| format!("{kind} {entry}"));
                prop_assert_eq!(found(&all, &[("ip", &value)]), expected, "{}", value);
            }
        }
    }

    fn remove(overrides: &Overrides, field: &str, value: &str) {
        let (owner, actor) = place_of(OverrideKind::Block, field, value).unwrap();
        overrides.registry.memory.apply(&ExceptionChange { owner: owner.to_text(), actor, value: None }, 0);
    }

    #[test]
    fn fields_without_overrides_are_dropped() {
        let names: Vec<_> = (0..100).map(|number| format!("field-{number}")).collect();
        let entries: Vec<_> = names.iter().map(|name| (OverrideKind::Block, name.as_str(), "10.0.0.0/8")).collect();
        let all = overrides(&entries);
        let memory = &all.registry.memory;
        assert_eq!(memory.all_owners().len(), 100);
        names.iter().skip(1).for_each(|name| remove(&all, name, "10.0.0.0/8"));
        remove(&all, "never there", "x");
        assert_eq!(memory.all_owners().len(), 1, "an owner goes with its last entry");
        assert!(found(&all, &[("field-1", "10.0.0.1")]).is_none());
        assert!(found(&all, &[("field-0", "10.0.0.1")]).is_some());

        // One comes and another one goes, so their number stays the same.
        remove(&all, "field-0", "10.0.0.0/8");
        let (owner, actor) = place_of(OverrideKind::Block, "field-1", "10.0.0.1").unwrap();
        let ends = Timestamp::from_secs(5);
        let value = Some(Override { reason: Some("again".into()), ends, repetition: None });
        memory.apply(&ExceptionChange { owner: owner.to_text(), actor, value }, 0);
        assert_eq!(found(&all, &[("field-1", "10.0.0.1")]).as_deref(), Some("again"));

        let dropped = memory.drop_expired(Exceptions::<Override>::ALL, 10, Timestamp::from_secs(5).unwrap());
        assert_eq!((dropped.len(), memory.all_owners().len()), (1, 0));
        assert!(all.everywhere().is_none());
    }

    #[test]
    fn rule_finds_later_overrides_even_if_all_were_removed() {
        let all = overrides(&[]);
        let of_rule = all.of_rule("r");
        let owner = || OverrideOwner { kind: OverrideKind::Block, of: OwnerName::Rule("r".to_owned()) }.to_text();
        for value in [Some(Override { reason: None, ends: None, repetition: None }), None] {
            let is_there = value.is_some();
            for _ in 0..2 {
                all.registry
                    .memory
                    .apply(&ExceptionChange { owner: owner(), actor: "ann".to_owned(), value: value.clone() }, 0);
                assert_eq!(of_rule.contains(b"ann"), is_there);
            }
        }
        let value = Some(Override { reason: None, ends: None, repetition: None });
        all.registry.memory.apply(&ExceptionChange { owner: owner(), actor: "ann".to_owned(), value }, 0);
        assert!(of_rule.contains(b"ann"));
    }

    #[test]
    fn network_must_be_canonical_and_other_values_stay() {
        for (value, stored, shown) in [
            ("10.0.0.0/8", "block:*/ip/8 0a000000", "10.0.0.0/8"),
            ("::ffff:10.0.0.1", "block:*/ip/32 0a000001", "10.0.0.1"),
            ("2001:db8::/32", "block:*/ip/32 20010db8000000000000000000000000", "2001:db8::/32"),
            ("::1", "block:*/ip/128 00000000000000000000000000000001", "::1"),
            ("a/b", "block:*/ip/ a/b", "a/b"),
        ] {
            let (owner, actor) = place_of(OverrideKind::Block, "ip", value).unwrap();
            assert_eq!(format!("{} {actor}", owner.to_text()), stored);
            assert_eq!(owner.shown(&actor).as_deref(), Some(shown));
        }
        assert!(place_of(OverrideKind::Block, "ip", "10.0.0.1/8").is_err());
    }

    #[test]
    fn override_of_a_rule_wins_over_one_of_all_rules_unless_its_prefix_is_shorter() {
        let all = overrides(&[(OverrideKind::Block, "ip", "2001:db8::/64"), (OverrideKind::Block, "user", "ann")]);
        let of_rule = all.of_rule("r");
        assert!(of_rule.is_empty());
        for actor in ["2001:db8::/56", "ann"] {
            let owner = OverrideOwner { kind: OverrideKind::Block, of: OwnerName::Rule("r".to_owned()) }.to_text();
            let value = Some(Override { reason: Some("rule".into()), ends: None, repetition: None });
            all.registry.memory.apply(&ExceptionChange { owner, actor: actor.to_owned(), value }, 0);
        }
        let decides = |actor: &str, pair: (&str, &str)| {
            let operation: Operation = [pair].into_iter().collect();
            let now = Timestamp::EPOCH;
            let everywhere = all.everywhere().unwrap().find(&operation, now);
            of_rule.find(actor.as_bytes(), everywhere.as_ref(), now).unwrap().reason.unwrap().to_string()
        };
        assert_eq!(decides("ann", ("user", "ann")), "rule");
        assert_eq!(decides("2001:db8::/56", ("ip", "2001:db8::1")), "block 2001:db8::/64");
        assert_eq!(decides("2001:db8::/56", ("ip", "2001:db9::1")), "rule");
    }
}
