//! Actors that are networks: `actorPrefix` replaces an address by its network, so that all its addresses share a counter.

use std::fmt;

use super::{Address, Network};

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
