//! How requests find exceptions: limits of one rule, and overrides, which are blocks and allows of one rule or of all rules.
//!
//! An exception of one rule belongs to its label. An override of all rules (`*`) belongs to a field and to the length of a
//! prefix, so that a request finds it with one look-up for each length that is in use. Most are for single values or IPv4
//! addresses. Requests find these by their text, which takes fewer instructions than reading an address.
//!
//! The entry that decides about an actor at a rule, if several could:
//! 1. An allow.
//! 2. A block.
//! 3. The actor's own limit.
//! 4. The rule.
//!
//! If several allows apply, or several blocks, the one with the longer prefix wins. A value that is not a network is as
//! long as it can be. Among equals, one for the named rule wins over one for all rules (`*`), and otherwise the one that
//! ends last.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::memory::{Exceptions, OwnerExceptions};
use super::owner::{ExceptionOwner, IPV4, OwnerName};
use crate::store::{Exception, ExceptionKind};
use divvy_core::clock::Timestamp;
use divvy_core::rules::{Key, Network, Operation, OverrideKind};

/// The exceptions of one rule.
#[derive(Debug, Clone)]
pub(crate) struct RuleExceptions {
    pub limits: Arc<OwnerExceptions>,
    pub blocks: Arc<OwnerExceptions>,
    pub allows: Arc<OwnerExceptions>,
}

/// The overrides of all rules.
#[derive(Debug, Default)]
pub(crate) struct Everywhere {
    /// The revision of the owners when this was made.
    pub revision: u64,
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
    values: Arc<OwnerExceptions>,
}

/// An override that applies to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applicable {
    pub kind: OverrideKind,
    /// Number of bits that its network fixes; [`WHOLE`] for a single value or address.
    prefix: u8,
    /// Whether it is for the named rule, and not for all rules.
    pub is_for_rule: bool,
    /// Its end. `None` if it has none.
    pub ends: Option<Timestamp>,
    pub reason: Option<Arc<str>>,
}

/// The prefix of an override for a single value or address.
const WHOLE: u8 = u8::MAX;

/// An override of all rules that applies to a request, and the field and the place where it was found.
type Found<'a> = (Applicable, &'a FieldOverrides, &'a Place);

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

impl Everywhere {
    /// Returns whether one allow for all rules covers every address of the network.
    pub fn allows_all_of(&self, field: &Key, network: Network, now: Timestamp) -> bool {
        let places = self.fields.iter().filter(|of| of.field == *field).flat_map(|of| &of.places);
        places.filter(|place| place.kind == OverrideKind::Allow && !place.values.is_empty()).any(|place| {
            let prefix = place.prefix.filter(|prefix| *prefix <= network.prefix());
            let outer = prefix.and_then(|_| place.look_up(network, |sought| place.values.get(sought, now)));
            outer.flatten().is_some()
        })
    }

    pub fn new(memory: &Exceptions) -> Self {
        // Read first, so that the next request finds an owner that is added during this function.
        let revision = memory.owners_revision();
        let mut by_field: BTreeMap<String, Vec<Place>> = BTreeMap::new();
        for values in memory.all_owners() {
            let Some(ExceptionOwner { kind, of }) = ExceptionOwner::parse(&values.owner) else { continue };
            if let OwnerName::Field(field, prefix) = of {
                // A limit has no field.
                let kind = if kind == ExceptionKind::Allow { OverrideKind::Allow } else { OverrideKind::Block };
                by_field.entry(field.to_owned()).or_default().push(Place { kind, prefix, values });
            }
        }
        let fields = by_field.into_iter().map(|(field, places)| FieldOverrides { field: Key::new(&field), places });
        Self { revision, fields: fields.collect() }
    }

    pub fn is_in_use(&self) -> bool {
        self.fields.iter().flat_map(|of| &of.places).any(|place| !place.values.is_empty())
    }

    /// Returns the override of all rules that decides about the operation, if there is one.
    #[inline]
    pub(crate) fn find(&self, operation: &Operation, now: Timestamp) -> Option<Applicable> {
        // Fast path: most requests have none.
        if self.contains(operation) { self.find_first(operation, now).map(|(found, ..)| found) } else { None }
    }

    /// Returns the same override, and its text as in listings: `field=value` or `field=network`.
    pub(crate) fn find_entry(&self, operation: &Operation, now: Timestamp) -> Option<(Applicable, String)> {
        let (found, of, place) = self.find_first(operation, now)?;
        let value = operation.value(&of.field)?;
        let shown = match place.prefix.zip(Network::of_value(value)) {
            Some((prefix, network)) => Network::of(network.first(), prefix).to_string(),
            None => String::from_utf8_lossy(value).into_owned(),
        };
        Some((found, format!("{}={shown}", of.field.as_str())))
    }

    /// Returns whether there is an override for the operation, in force or expired.
    #[inline(never)]
    fn contains(&self, operation: &Operation) -> bool {
        self.fields.iter().any(|of| operation.value(&of.field).is_some_and(|value| of.contains(value)))
    }

    #[inline(never)]
    fn find_first(&self, operation: &Operation, now: Timestamp) -> Option<Found<'_>> {
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
    fn find<'a>(&'a self, value: &[u8], now: Timestamp, first: &mut Option<Found<'a>>) {
        let (is_usual, network) = (is_usual_text(value), Network::of_value(value));
        for place in &self.places {
            let found = match network {
                _ if place.is_by_text(is_usual) => place.values.get(value, now),
                Some(network) => place.look_up(network, |sought| place.values.get(sought, now)).flatten(),
                None => None,
            };
            if let Some(found) = found {
                let is_whole = |prefix: &u8| network.is_some_and(|network| *prefix == network.first().length());
                let prefix = place.prefix.filter(|prefix| !is_whole(prefix)).unwrap_or(WHOLE);
                let found = Applicable::new(&found, place.kind, prefix, false);
                if first.as_ref().is_none_or(|(known, ..)| found.comes_before(known)) {
                    *first = Some((found, self, place));
                }
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

impl Applicable {
    fn new(exception: &Exception, kind: OverrideKind, prefix: u8, is_for_rule: bool) -> Self {
        Self { kind, prefix, is_for_rule, ends: exception.ends, reason: exception.reason().cloned() }
    }

    /// Returns whether this override takes precedence over another one, in the documented order.
    fn comes_before(&self, other: &Self) -> bool {
        let order = |of: &Self| (of.kind, of.prefix, of.is_for_rule, of.ends.unwrap_or(Timestamp::MAX));
        order(self) > order(other)
    }
}

impl RuleExceptions {
    #[inline]
    pub fn has_overrides(&self) -> bool {
        !self.blocks.is_empty() || !self.allows.is_empty()
    }

    /// Returns whether there is an override of the actor, in force or expired.
    #[inline]
    pub fn may_override(&self, actor: &[u8]) -> bool {
        // Fast path: very few rules have overrides.
        self.has_overrides() && self.overrides_actor(actor)
    }

    #[inline(never)]
    fn overrides_actor(&self, actor: &[u8]) -> bool {
        self.blocks.contains(actor) || self.allows.contains(actor)
    }

    /// Returns the override that decides about the actor: one of this rule's, or `everywhere`.
    pub fn find_override(&self, actor: &[u8], everywhere: Option<&Applicable>, now: Timestamp) -> Option<Applicable> {
        let mut first = everywhere.cloned();
        for (kind, values) in [(OverrideKind::Block, &self.blocks), (OverrideKind::Allow, &self.allows)] {
            if let Some(found) = values.get(actor, now) {
                let found = Applicable::new(&found, kind, prefix_of(actor), true);
                if first.as_ref().is_none_or(|known| found.comes_before(known)) {
                    first = Some(found);
                }
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
    use proptest::prelude::*;

    use super::*;
    use crate::register::Register;
    use crate::register::memory::is_forgotten;
    use crate::register::owner::place_of;
    use crate::store::ExceptionChange;

    fn overrides(entries: &[(OverrideKind, &str, &str)]) -> Register {
        let overrides = Register::new(Timestamp::EPOCH);
        for (kind, field, value) in entries {
            let exception_kind = match kind {
                OverrideKind::Block => ExceptionKind::Block,
                OverrideKind::Allow => ExceptionKind::Allow,
            };
            let (owner, actor) = place_of(exception_kind, field, value).unwrap();
            put(&overrides, owner, &actor, Some(Exception::by_hand(Some(&format!("{kind} {value}")), None)));
        }
        overrides
    }

    fn put(overrides: &Register, owner: ExceptionOwner<'_>, actor: &str, value: Option<Exception>) {
        overrides.memory.apply(&ExceptionChange { owner: owner.to_string(), actor: actor.to_owned(), value }, 0);
    }

    fn found(overrides: &Register, pairs: &[(&str, &str)]) -> Option<String> {
        let operation: Operation = pairs.iter().copied().collect();
        let found = overrides.everywhere()?.find(&operation, Timestamp::EPOCH)?;
        Some(found.reason?.to_string())
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

    #[test]
    fn entry_is_shown_as_in_listings() {
        use OverrideKind::{Allow, Block};
        let all = overrides(&[
            (Block, "ip", "0.0.0.0/0"),
            (Block, "ip", "10.1.0.0/16"),
            (Block, "ip", "10.1.2.3"),
            (Block, "ip", "2001:db8::/32"),
            (Allow, "ip", "2001:db8:7::/56"),
            (Block, "ip", "2001:db8:7::/64"),
            (Block, "user", "a/b"),
            (Block, "peer", "10.1.2.3"),
        ]);
        for (pairs, expected) in [
            (&[("ip", "2001:db8:7::/56")][..], Some("ip=2001:db8:7::/56")),
            (&[("ip", "2001:db8:7::/64")], Some("ip=2001:db8:7::/56")),
            (&[("ip", "2001:db8:7::/48")], Some("ip=2001:db8::/32")),
            (&[("ip", "2001:db8::/31")], None),
            (&[("ip", "10.1.2.0/24")], Some("ip=10.1.0.0/16")),
            (&[("ip", "10.0.0.0/8")], Some("ip=0.0.0.0/0")),
            (&[("ip", "10.1.2.3:443")], Some("ip=10.1.2.3")),
            (&[("ip", "::ffff:10.1.2.3")], Some("ip=10.1.2.3")),
            (&[("user", "a/b"), ("peer", "10.1.2.3")], Some("peer=10.1.2.3")),
            (&[("user", "a/b"), ("ip", "10.1.2.4")], Some("user=a/b")),
            (&[("user", "a/b"), ("ip", "2001:db8:7::1")], Some("ip=2001:db8:7::/56")),
            (&[("user", "10.1.2.3")], None),
        ] {
            let operation: Operation = pairs.iter().copied().collect();
            let entry = all.everywhere().unwrap().find_entry(&operation, Timestamp::EPOCH);
            assert_eq!(entry.map(|(_, text)| text).as_deref(), expected, "{pairs:?}");
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

    fn remove(overrides: &Register, field: &str, value: &str) {
        let (owner, actor) = place_of(ExceptionKind::Block, field, value).unwrap();
        put(overrides, owner, &actor, None);
    }

    #[test]
    fn fields_without_overrides_are_dropped() {
        let names: Vec<_> = (0..100).map(|number| format!("field-{number}")).collect();
        let entries: Vec<_> = names.iter().map(|name| (OverrideKind::Block, name.as_str(), "10.0.0.0/8")).collect();
        let all = overrides(&entries);
        let memory = &all.memory;
        assert_eq!(memory.all_owners().len(), 100);
        names.iter().skip(1).for_each(|name| remove(&all, name, "10.0.0.0/8"));
        remove(&all, "never there", "x");
        assert_eq!(memory.all_owners().len(), 1, "an owner goes with its last entry");
        assert!(found(&all, &[("field-1", "10.0.0.1")]).is_none());
        assert!(found(&all, &[("field-0", "10.0.0.1")]).is_some());

        // One comes and another one goes, so their number stays the same.
        remove(&all, "field-0", "10.0.0.0/8");
        let (owner, actor) = place_of(ExceptionKind::Block, "field-1", "10.0.0.1").unwrap();
        put(&all, owner, &actor, Some(Exception::by_hand(Some("again"), Timestamp::from_secs(5))));
        assert_eq!(found(&all, &[("field-1", "10.0.0.1")]).as_deref(), Some("again"));

        let dropped = memory.drop_some(None, Exceptions::ALL, 10, is_forgotten, Timestamp::from_secs(5).unwrap());
        assert_eq!((dropped.len(), memory.all_owners().len()), (1, 0));
        assert!(all.everywhere().is_none());
    }

    #[test]
    fn rule_finds_later_overrides_even_if_all_were_removed() {
        let all = overrides(&[]);
        let of_rule = all.of_rule("r");
        let owner = ExceptionOwner::of_rule(ExceptionKind::Block, "r");
        let block = Exception::by_hand(None, None);
        for value in [Some(&block), Some(&block), None, None, Some(&block)] {
            put(&all, owner, "ann", value.cloned());
            assert_eq!(of_rule.may_override(b"ann"), value.is_some());
        }
    }

    #[test]
    fn override_of_a_rule_wins_over_one_of_all_rules_unless_its_prefix_is_shorter() {
        let all = overrides(&[(OverrideKind::Block, "ip", "2001:db8::/64"), (OverrideKind::Block, "user", "ann")]);
        let of_rule = all.of_rule("r");
        assert!(!of_rule.has_overrides());
        for actor in ["2001:db8::/56", "ann"] {
            let owner = ExceptionOwner::of_rule(ExceptionKind::Block, "r");
            put(&all, owner, actor, Some(Exception::by_hand(Some("rule"), None)));
        }
        let decides = |actor: &str, pair: (&str, &str)| {
            let operation: Operation = [pair].into_iter().collect();
            let now = Timestamp::EPOCH;
            let everywhere = all.everywhere().unwrap().find(&operation, now);
            of_rule.find_override(actor.as_bytes(), everywhere.as_ref(), now).unwrap().reason.unwrap().to_string()
        };
        assert_eq!(decides("ann", ("user", "ann")), "rule");
        assert_eq!(decides("2001:db8::/56", ("ip", "2001:db8::1")), "block 2001:db8::/64");
        assert_eq!(decides("2001:db8::/56", ("ip", "2001:db9::1")), "rule");
    }

    fn applicable(kind: OverrideKind, prefix: u8, is_for_rule: bool) -> Applicable {
        Applicable { kind, prefix, is_for_rule, ends: None, reason: None }
    }

    /// Returns the override that decides, as requests find it: one after the other.
    fn decides(overrides: &[Applicable]) -> Option<Applicable> {
        overrides.iter().cloned().reduce(|first, next| if next.comes_before(&first) { next } else { first })
    }

    /// Tries all combinations of overrides that can apply at one rule, of each kind: for the rule and for all rules, for an
    /// address and for networks. The first that is there decides, in the documented order, however they are found.
    #[test]
    fn first_in_the_documented_order_decides() {
        use OverrideKind::{Allow, Block};
        let documented = [
            applicable(Allow, WHOLE, true),
            applicable(Allow, WHOLE, false),
            applicable(Allow, 56, true),
            applicable(Allow, 56, false),
            applicable(Allow, 32, false),
            applicable(Block, WHOLE, true),
            applicable(Block, WHOLE, false),
            applicable(Block, 56, true),
            applicable(Block, 56, false),
            applicable(Block, 32, false),
        ];
        for combination in 0..1_u32 << documented.len() {
            let is_there = |(bit, one): (usize, &Applicable)| (combination & (1 << bit) != 0).then(|| one.clone());
            let mut present: Vec<_> = documented.iter().enumerate().filter_map(is_there).collect();
            let expected = present.first().cloned();
            assert_eq!(decides(&present), expected, "{combination:b}");
            present.reverse();
            assert_eq!(decides(&present), expected, "{combination:b}, backwards");
        }
    }

    #[test]
    fn among_equals_the_one_that_ends_last_decides() {
        let at = |seconds| Timestamp::from_secs(seconds).unwrap();
        let ending = |ends| Applicable { ends, ..applicable(OverrideKind::Block, WHOLE, false) };
        assert_eq!(decides(&[ending(Some(at(5))), ending(Some(at(9)))]), Some(ending(Some(at(9)))));
        assert_eq!(decides(&[ending(None), ending(Some(at(9)))]), Some(ending(None)));
        assert!(!ending(None).comes_before(&ending(None)));
    }
}
