//! The block or the allow that decides about an actor at a rule, for people: with the entry for all rules (`*`) that it comes from.

use crate::Limiter;
use crate::policy::Policy;
use crate::precedence::{WHOLE, comes_before};
use crate::register::overrides::Applicable;
use crate::register::owner::{ExceptionOwner, OwnerName, exception_kind, place_of};
use divvy_core::clock::{Timestamp, ceil_seconds};
use divvy_core::rules::explain::ActorOverride;
use divvy_core::rules::{Network, Operation, OverrideKind};

/// An entry for all rules that applies to an operation.
#[derive(Debug, Clone)]
pub(super) struct EverywhereEntry {
    applicable: Applicable,
    /// `field=value` or `field=network`, as in listings.
    text: String,
}

impl Limiter {
    /// Returns the entry for all rules that decides about the operation, if there is one. It is the entry that a hit finds.
    /// This takes longer, because it also returns the entry's text.
    pub(super) fn everywhere_entry(&self, operation: &Operation, now: Timestamp) -> Option<EverywhereEntry> {
        self.exceptions.everywhere()?;
        // Among equals, hits find the one of the first field.
        let mut pairs: Vec<_> = operation.iter().collect();
        pairs.sort_by_key(|(field, _)| *field);
        let mut first: Option<EverywhereEntry> = None;
        for (field, value) in pairs {
            let network = Network::of_value(value.as_bytes());
            let prefixes = network.map_or(vec![None], |network| (0..=network.prefix()).map(Some).collect());
            for (kind, prefix) in
                OverrideKind::ALL.into_iter().flat_map(|kind| prefixes.iter().map(move |p| (kind, *p)))
            {
                let owner = ExceptionOwner { kind: exception_kind(kind), of: OwnerName::Field(field, prefix) };
                let around = network.zip(prefix).map(|(network, prefix)| Network::of(network.first(), prefix));
                let Some(entry) = self.entry_at((kind, owner), around, field, value, now) else { continue };
                if first.as_ref().is_none_or(|known| comes_before(&entry.applicable.rank, &known.applicable.rank)) {
                    first = Some(entry);
                }
            }
        }
        first
    }

    /// Returns the entry of this owner for the network, or for the value if it is not in one.
    fn entry_at(
        &self,
        (kind, owner): (OverrideKind, ExceptionOwner<'_>),
        network: Option<Network>,
        field: &str,
        value: &str,
        now: Timestamp,
    ) -> Option<EverywhereEntry> {
        let (memory, name) = (&self.exceptions.memory, owner.to_string());
        if !memory.has_owner(&name) {
            return None;
        }
        let (prefix, shown, actor) = match network {
            None => (WHOLE, value.to_owned(), value.to_owned()),
            Some(network) => {
                let shown = network.to_string();
                let (_, actor) = place_of(exception_kind(kind), field, &shown).ok()?;
                (if network.is_address() { WHOLE } else { network.prefix() }, shown, actor)
            }
        };
        let found = memory.find(&name, &actor, now)?;
        let applicable = Applicable::new(&found, kind, prefix, false);
        Some(EverywhereEntry { applicable, text: format!("{field}={shown}") })
    }
}

/// Returns the block or the allow that decides about the actor of `operation` at the rule with this index.
pub(super) fn actor_override(
    policy: &Policy,
    index: usize,
    operation: &Operation,
    everywhere: Option<&EverywhereEntry>,
    now: Timestamp,
) -> Option<ActorOverride> {
    let found = policy.find_override(index, operation, everywhere.map(|entry| &entry.applicable), now)?;
    let Applicable { rank, reason } = found;
    Some(ActorOverride {
        kind: rank.kind,
        ends_in: rank.ends.map(|ends| ceil_seconds(ends.since(now))),
        reason: reason.map(|reason| reason.to_string()),
        entry: everywhere.filter(|_| !rank.is_for_rule).map(|entry| entry.text.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Backend, Exception, ExceptionChange, MemoryStore};
    use divvy_core::clock::Clock;
    use divvy_core::rules::OverrideKind::{Allow, Block};
    use divvy_telemetry::metrics::Metrics;

    const ENTRIES: [(OverrideKind, &str, &str); 10] = [
        (Allow, "ip", "10.1.9.0/24"),
        (Block, "ip", "0.0.0.0/0"),
        (Block, "ip", "10.1.0.0/16"),
        (Block, "ip", "10.1.2.3"),
        (Block, "ip", "2001:db8::/32"),
        (Allow, "ip", "2001:db8:7::/56"),
        (Block, "ip", "2001:db8:7::/64"),
        (Block, "user", "eve"),
        (Block, "peer", "10.1.2.3"),
        (Block, "user", "a/b"),
    ];

    /// Returns a limiter with those of [`ENTRIES`] whose bits are set. The reason of each says which one it is.
    fn limiter(entries: u32) -> Limiter {
        let limiter = Limiter::new(None, Backend::Memory(MemoryStore::default()), Clock::system(), Metrics::new());
        for (bit, (kind, field, value)) in ENTRIES.iter().enumerate().filter(|(bit, _)| entries & (1 << bit) != 0) {
            let (owner, actor) = place_of(exception_kind(*kind), field, value).unwrap();
            let value = Some(Exception::by_hand(Some(&bit.to_string()), None));
            limiter.exceptions.memory.apply(&ExceptionChange { owner: owner.to_string(), actor, value }, 0);
        }
        limiter
    }

    fn entry(limiter: &Limiter, pairs: &[(&str, &str)]) -> Option<(Applicable, String)> {
        let operation = pairs.iter().copied().collect();
        let found = limiter.everywhere_entry(&operation, Timestamp::EPOCH)?;
        Some((found.applicable, found.text))
    }

    #[test]
    fn entry_is_the_one_that_a_hit_finds() {
        let operations: [&[(&str, &str)]; 11] = [
            &[("ip", "10.1.9.9:443")],
            &[("ip", "10.1.2.3")],
            &[("ip", "::ffff:10.1.2.3")],
            &[("ip", "11.0.0.1")],
            &[("ip", "[2001:db8:7::1]:80")],
            &[("ip", "2001:db9::1")],
            &[("ip", "10.1.0.0/16")],
            &[("user", "a/b"), ("ip", "10.1.2.3")],
            &[("user", "eve"), ("peer", "10.1.2.3")],
            &[("peer", "10.1.2.3"), ("user", "eve")],
            &[("user", "10.1.2.3"), ("other", "eve")],
        ];
        // Every seventh set: among them, each entry is with and without each other.
        for entries in (0..1 << ENTRIES.len()).step_by(7) {
            let limiter = limiter(entries);
            for pairs in operations {
                let operation = pairs.iter().copied().collect();
                let everywhere = limiter.exceptions.everywhere();
                let hit = everywhere.and_then(|everywhere| everywhere.find(&operation, Timestamp::EPOCH));
                let found = entry(&limiter, pairs);
                let decides = |found: &Applicable| (found.rank, found.reason.clone());
                assert_eq!(found.as_ref().map(|(entry, _)| decides(entry)), hit.as_ref().map(decides), "{pairs:?}");
                let Some((Applicable { rank, reason }, text)) = found else { continue };
                let (kind, field, value) = ENTRIES[reason.unwrap().parse::<usize>().unwrap()];
                assert_eq!((rank.kind, text), (kind, format!("{field}={value}")));
            }
        }
    }

    #[test]
    fn entry_of_a_network_applies_to_all_its_addresses() {
        let limiter = limiter(u32::MAX);
        for (actor, expected) in [
            ("2001:db8:7::/56", Some("ip=2001:db8:7::/56")),
            ("2001:db8:7::/64", Some("ip=2001:db8:7::/56")),
            ("2001:db8:7::/48", Some("ip=2001:db8::/32")),
            ("2001:db8::/31", None),
            ("10.1.2.0/24", Some("ip=10.1.0.0/16")),
            ("10.0.0.0/8", Some("ip=0.0.0.0/0")),
            ("10.1.2.3", Some("ip=10.1.2.3")),
        ] {
            let found = entry(&limiter, &[("ip", actor)]);
            assert_eq!(found.map(|(_, text)| text).as_deref(), expected, "{actor}");
        }
    }
}
