//! Overrides: blocks and allows of single actors, of one rule or of all rules.
//!
//! An override of one rule belongs to its label, as limits of single actors do. An override of all rules (`*`) belongs to a
//! field and to the length of a prefix, so that a request finds it with one look-up for each length that is in use.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::exceptions::{Exceptions, OwnerExceptions};
use super::precedence::{Rank, WHOLE, comes_before};
use super::registry::Registry;
use crate::clock::Timestamp;
use crate::rules::{Address, Key, Network, NetworkError, Operation, OverrideKind};
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
    /// Number of owners of overrides when this was made. Owners are never removed.
    owners: usize,
    /// Sorted by field.
    places: Vec<Place>,
}

/// The overrides of all rules with one kind, one field and one length of prefix.
#[derive(Debug)]
struct Place {
    kind: OverrideKind,
    field: Key,
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
        Ok(network) => (Some(network.prefix()), Digits::of(network.first()).as_str().to_owned()),
        Err(NetworkError::NoAddress) => (None, value.to_owned()),
        Err(error) => return Err(error),
    };
    Ok((OverrideOwner { kind, of: OwnerName::Field(field.to_owned(), prefix) }, value))
}

impl OverrideOwner {
    /// Returns the value or the network for people, for an actor that is stored under this owner.
    pub fn shown<'a>(&self, actor: &'a str) -> Option<Cow<'a, str>> {
        let OwnerName::Field(_, Some(prefix)) = self.of else { return Some(Cow::Borrowed(actor)) };
        let address = match actor.len() {
            8 => IpAddr::from(Ipv4Addr::from_bits(u32::from_str_radix(actor, 16).ok()?)),
            _ => IpAddr::from(Ipv6Addr::from_bits(u128::from_str_radix(actor, 16).ok()?)),
        };
        Some(Network::of(address.into(), prefix).to_string().into())
    }
}

/// The bits of an address in hexadecimal digits: 8 for IPv4, 32 for IPv6.
struct Digits {
    text: [u8; 32],
    len: usize,
}

impl Digits {
    fn of(address: Address) -> Self {
        let (mut text, len) = ([b'0'; 32], usize::from(address.length()) / 4);
        let mut bits = address.bits();
        for digit in text.iter_mut().take(len).rev() {
            *digit = b"0123456789abcdef".get((bits & 15) as usize).copied().unwrap_or_default();
            bits >>= 4;
        }
        Self { text, len }
    }

    fn as_bytes(&self) -> &[u8] {
        self.text.get(..self.len).unwrap_or_default()
    }

    fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

/// Reads an address. Most are IPv4 in the usual form, which is read first, because that is quick.
fn read_address(value: &[u8]) -> Option<Address> {
    let (mut bits, mut byte, mut digits, mut dots) = (0_u32, 0_u32, 0, 0);
    for character in value {
        match character {
            b'0'..=b'9' if digits == 0 || (byte > 0 && digits < 3) => {
                byte = byte * 10 + u32::from(character - b'0');
                digits += 1;
            }
            b'.' if digits > 0 && byte < 256 && dots < 3 => {
                (bits, byte, digits, dots) = (bits << 8 | byte, 0, 0, dots + 1);
            }
            _ => return Address::parse_bytes(value),
        }
    }
    let is_whole = dots == 3 && digits > 0 && byte < 256;
    if is_whole {
        Some(IpAddr::from(Ipv4Addr::from_bits(bits << 8 | byte)).into())
    } else {
        Address::parse_bytes(value)
    }
}

impl Overrides {
    pub fn new(now: Timestamp) -> Self {
        Self { registry: Registry::new(DEFAULT_MAX_OVERRIDES, now), everywhere: ArcSwap::default() }
    }

    /// Returns the overrides of the rule with this label, including later ones.
    pub(in crate::limiter) fn of_rule(&self, label: &str) -> RuleOverrides {
        let of_kind = |kind| {
            let owner = OverrideOwner { kind, of: OwnerName::Rule(label.to_owned()) };
            (kind, self.registry.memory.of_owner(&owner.to_text()))
        };
        RuleOverrides(OverrideKind::ALL.map(of_kind))
    }

    /// Returns the overrides of all rules, if there are any.
    pub(in crate::limiter) fn everywhere(&self) -> Option<Arc<Everywhere>> {
        let memory = &self.registry.memory;
        let known = self.everywhere.load();
        if known.owners == memory.owner_count() {
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
        let allows = self.places.iter().filter(|place| place.kind == OverrideKind::Allow && place.field == *field);
        allows.filter(|place| !place.values.is_empty()).any(|place| {
            let prefix = place.prefix.filter(|prefix| *prefix <= network.prefix());
            let outer = prefix.map(|prefix| Digits::of(Network::of(network.first(), prefix).first()));
            outer.is_some_and(|outer| place.values.get(outer.as_bytes(), now).is_some())
        })
    }

    fn new(memory: &Exceptions<Override>) -> Self {
        // Read first, so that the next request finds an owner that is added during this function.
        let owners = memory.owner_count();
        let place = |values: Arc<OwnerExceptions<Override>>| {
            let OverrideOwner { kind, of: OwnerName::Field(field, prefix) } = OverrideOwner::parse(values.owner())?
            else {
                return None;
            };
            Some((field.clone(), Place { kind, field: Key::new(&field), prefix, values }))
        };
        let mut places: Vec<_> = memory.all_owners().into_iter().filter_map(place).collect();
        places.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self { owners, places: places.into_iter().map(|(_, place)| place).collect() }
    }

    fn is_in_use(&self) -> bool {
        self.places.iter().any(|place| !place.values.is_empty())
    }

    /// Returns the override of all rules that decides about the operation, if there is one.
    pub(in crate::limiter) fn find(&self, operation: &Operation, now: Timestamp) -> Option<Applicable> {
        let mut first: Option<Applicable> = None;
        let mut latest: Option<(&Key, Option<Address>)> = None;
        for place in self.places.iter().filter(|place| !place.values.is_empty()) {
            let Some(value) = operation.value(&place.field) else { continue };
            let found = match place.prefix {
                None => place.values.get(value, now),
                Some(prefix) => {
                    let address = match latest {
                        Some((field, address)) if *field == place.field => address,
                        _ => read_address(value),
                    };
                    latest = Some((&place.field, address));
                    address.filter(|address| prefix <= address.length()).and_then(|address| {
                        place.values.get(Digits::of(Network::of(address, prefix).first()).as_bytes(), now)
                    })
                }
            };
            let Some(Override { reason, ends, .. }) = found else { continue };
            let prefix = match (place.prefix, latest) {
                (Some(prefix), Some((_, Some(address)))) if prefix < address.length() => prefix,
                _ => WHOLE,
            };
            let rank = Rank { kind: place.kind, prefix, is_for_rule: false, ends };
            if first.as_ref().is_none_or(|known| comes_before(&rank, &known.rank)) {
                first = Some(Applicable { rank, reason });
            }
        }
        first
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
        let [(_, blocks), (_, allows)] = &self.0;
        blocks.contains(actor) || allows.contains(actor)
    }

    /// Returns the override that decides about the actor: one of this rule's, or `everywhere`.
    pub fn find(&self, actor: &[u8], everywhere: Option<&Applicable>, now: Timestamp) -> Option<Applicable> {
        let mut first = everywhere.cloned();
        for (kind, values) in &self.0 {
            let Some(Override { reason, ends, .. }) = values.get(actor, now) else { continue };
            let rank = Rank { kind: *kind, prefix: prefix_of(actor), is_for_rule: true, ends };
            if first.as_ref().is_none_or(|known| comes_before(&rank, &known.rank)) {
                first = Some(Applicable { rank, reason });
            }
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
        ] {
            assert_eq!(found(&all, pairs).as_deref(), expected, "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn address_is_read_as_everywhere_else(text in "[0-9.:a]{0,16}|[0-9]{1,3}[.][0-9]{1,3}[.][0-9]{1,3}[.][0-9]{1,3}") {
            prop_assert_eq!(read_address(text.as_bytes()), Address::parse_bytes(text.as_bytes()), "{}", text);
        }
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
