//! Networks: the addresses that begin with the same bits.

use std::fmt;
use std::net::IpAddr;

use super::Address;

/// The length of the prefixes of IPv4 addresses that are written as IPv6.
const TRANSLATED_BITS: u8 = 96;

/// A network in its canonical form: no bit is set after its prefix. A single address is a network, too. Displays as
/// `10.0.0.0/8`, or as the address alone if the prefix has all bits.
///
/// IPv4 addresses are in IPv4 networks only, because an [`Address`] that contains one is that one. In order, a network comes
/// before those within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    first: Address,
    prefix: u8,
}

/// The reason why a text is no network. Displays as a sentence that says what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The text is no address, with or without the number of its network's bits, in the standard notation.
    #[error("it is neither an address nor a network")]
    NoAddress,
    /// Bits are set after the prefix.
    #[error("its address has bits after the prefix")]
    HostBits {
        /// The network without these bits.
        masked: Network,
    },
}

impl NetworkError {
    /// Returns advice: the text to write instead.
    pub fn fix(&self) -> String {
        match self {
            Self::NoAddress => "write an address, or a network such as 10.0.0.0/8 or 2001:db8::/32".to_owned(),
            Self::HostBits { masked } => format!("write {masked}"),
        }
    }
}

impl Network {
    /// Returns the network of `address` with this number of bits. An address has no more than [`Address::length`].
    pub fn of(address: Address, prefix: u8) -> Self {
        let prefix = prefix.min(address.length());
        Self { first: address.with_bits(address.bits() & !host_mask(address, prefix)), prefix }
    }

    /// Parses a network. An address is a network of one address.
    ///
    /// # Errors
    /// The text is not a network, or not in its canonical form.
    pub fn parse(text: &str) -> Result<Self, NetworkError> {
        let is_standard = text.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok());
        let named = if is_standard { read(text.as_bytes()) } else { None };
        let (address, prefix) = named.ok_or(NetworkError::NoAddress)?;
        let network = Self::of(address, prefix);
        if network.first == address { Ok(network) } else { Err(NetworkError::HostBits { masked: network }) }
    }

    /// Returns the network that a value of a request names: an address, or an address and a prefix, in any notation of a
    /// gateway. Bits after the prefix are ignored.
    pub fn of_value(value: &[u8]) -> Option<Self> {
        read(value).map(|(address, prefix)| Self::of(address, prefix))
    }

    /// Returns its lowest address.
    pub fn first(self) -> Address {
        self.first
    }

    /// Returns its highest address.
    pub fn last(self) -> Address {
        self.first.with_bits(self.first.bits() | host_mask(self.first, self.prefix))
    }

    /// Returns the number of bits that its addresses share.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Returns whether it is a single address.
    pub fn is_address(self) -> bool {
        self.prefix == self.first.length()
    }

    /// Returns whether the address is in this network.
    pub fn contains(self, address: Address) -> bool {
        address.is_v4() == self.first.is_v4()
            && (address.bits() ^ self.first.bits()) & !host_mask(self.first, self.prefix) == 0
    }

    /// Returns whether every address of `other` is in this network.
    pub fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.first)
    }

    /// Appends the text that [`Display`](fmt::Display) shows.
    pub fn write(self, out: &mut Vec<u8>) {
        self.first.write(out);
        if !self.is_address() {
            out.push(b'/');
            out.extend_from_slice(itoa::Buffer::new().format(self.prefix).as_bytes());
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        if self.is_address() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// Returns the bits of the address after the prefix.
fn host_mask(address: Address, prefix: u8) -> u128 {
    let host_bits = u32::from(address.length().saturating_sub(prefix));
    1_u128.checked_shl(host_bits).map_or(u128::MAX, |bit| bit - 1)
}

/// Returns the address and the number of bits that a text names.
fn read(value: &[u8]) -> Option<(Address, u8)> {
    if let Some(address) = Address::parse_bytes(value) {
        return Some((address, address.length()));
    }
    let slash = value.iter().rposition(|byte| *byte == b'/')?;
    let (text, prefix) = (value.get(..slash)?, parse_prefix(str::from_utf8(value.get(slash + 1..)?).ok()?)?);
    let address = Address::parse_bytes(text)?;
    let is_written_as_v6 = address.is_v4() && text.iter().filter(|byte| **byte == b':').count() > 1;
    let (address, prefix) = match prefix.checked_sub(TRANSLATED_BITS) {
        _ if !is_written_as_v6 => (address, prefix),
        Some(prefix) => (address, prefix),
        // A shorter prefix than that of translated addresses is an ordinary IPv6 network.
        None => (Address::from_v6(str::from_utf8(text).ok()?.parse().ok()?), prefix),
    };
    (prefix <= address.length()).then_some((address, prefix))
}

/// Parses digits without a sign or a leading zero.
fn parse_prefix(text: &str) -> Option<u8> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_number.then(|| text.parse().ok())?
}

/// Number of characters of the shortest address that is found within a text.
const SHORTEST: usize = 7;

/// Returns whether a text that is no network was probably meant to be one, or has an address in it.
pub fn resembles(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/');
    let is_network =
        |run: &str| run.len() >= SHORTEST && (Address::parse(run).is_some() || Network::parse(run).is_ok());
    let dots = text.matches(['.', ',']).count();
    let is_v4 = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '/'))
        && (dots > 2 || dots > 0 && text.contains('/'));
    // Six pairs of digits are a hardware address.
    let is_v6 = text.chars().all(is_part) && (text.contains("::") || text.matches(':').count() > 5);
    is_v4 || is_v6 || Address::parse(text).is_some() || text.split(|c| !is_part(c)).any(is_network)
}

/// Returns whether a text of a field with addresses was probably meant to be one, or has one in it: a word of it begins with a
/// digit, as `10.0` and `10.0.0.O` do, or has several colons.
pub(crate) fn is_nearly_address(text: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | ':' | '-' | '_'));
    words.any(|word| word.starts_with(char::is_numeric) || word.matches(':').count() > 1) || resembles(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::cases;
    use proptest::prelude::*;

    fn network(text: &str) -> Network {
        Network::parse(text).unwrap()
    }

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn text_that_is_nearly_an_address_is_recognized() {
        let texts = "10.0.0.1\\32|10.0.0.O|1O.0.0.1|10.0.0|10.x.x.x|10/8|2001:db8:|http://10.0.0.1:80/x|\u{ff11}\u{ff10}.0.0.1|\
            10.0\u{200b}.0.1|deny from 10.0.0|10.0.0.1, 10.0.0.2|10.0.0.0/255.0.0.0|fe80::x";
        for text in texts.split('|') {
            assert!(is_nearly_address(text), "{text}");
        }
        for text in "|unknown|unix:|_hidden|alice|a.b.c.d|dead:beef|ann@example.org|v1.2|caf\u{e9}|*.example".split('|')
        {
            assert!(!is_nearly_address(text), "{text}");
        }
    }

    #[test]
    fn network_has_one_written_form() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "10.1.2.3", "2001:db8::/32", "::/0", "::1", "fe80::/10"] {
            assert_eq!(network(text).to_string(), text);
        }
        assert_eq!(network("10.1.2.3/32").to_string(), "10.1.2.3");
        assert_eq!(network("2001:DB8:0::1/128").to_string(), "2001:db8::1");
        assert_eq!(network("::ffff:10.1.2.3").to_string(), "10.1.2.3");
        assert_eq!(network("64:ff9b::a01:203").to_string(), "10.1.2.3");
    }

    #[test]
    fn text_that_is_no_network_is_explained() {
        let texts = "|office|10.0.0/8|/8|2001:db8/32|10.0.0.0.0/8|10.0.0.0-10.0.0.9|10.0.0.0/33|10.0.0.0/-1|10.0.0.0/|10.0.0.0/08|\
            10.0.0.0/255.0.0.0|2001:db8::/129|10.1.2.3:80|[2001:db8::1]/64|::1%eth0";
        for text in texts.split('|') {
            assert_eq!(Network::parse(text), Err(NetworkError::NoAddress), "{text}");
        }
        for (text, masked) in cases("10.1.2.3/8 => 10.0.0.0/8|2001:db8::1/64 => 2001:db8::/64") {
            let error = Network::parse(text).unwrap_err();
            assert_eq!(
                (error.to_string().as_str(), error.fix()),
                ("its address has bits after the prefix", format!("write {masked}"))
            );
        }
        assert_eq!(network("64:ff9b::/64").to_string(), "64:ff9b::/64", "more than translated addresses");
        assert_eq!(network("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
    }

    #[test]
    fn value_names_a_network() {
        let rows = "10.1.2.3:443 => 10.1.2.3|10.1.2.0/24 => 10.1.2.0/24|10.1.2.3/24 => 10.1.2.0/24|\
            10.1.2.3/32 => 10.1.2.3|::ffff:10.1.2.0/120 => 10.1.2.0/24|64:ff9b::10.1.2.3/128 => 10.1.2.3|\
            2001:DB8::/32 => 2001:db8::/32|[2001:db8::1]/64 => 2001:db8::/64|::ffff:10.1.2.0/24 => ::/24|\
            10.1.2.0/33 => none|10.1.2.0/024 => none|10.1.2.0/ => none|/24 => none|10.1.2.0/24/24 => none|\
            eve => none";
        for (value, expected) in cases(rows) {
            let found = Network::of_value(value.as_bytes()).map_or("none".to_owned(), |network| network.to_string());
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn network_contains_its_addresses() {
        assert!(network("10.0.0.0/8").contains(address("10.255.0.1:443")));
        assert!(network("10.0.0.0/8").contains(address("::ffff:10.0.0.1")));
        assert!(!network("10.0.0.0/8").contains(address("11.0.0.0")));
        assert!(!network("::/0").contains(address("10.0.0.1")) && !network("0.0.0.0/0").contains(address("::1")));
        assert!(!network("::/0").contains(address("::ffff:10.0.0.1")), "it is an IPv4 address");
        assert_eq!(network("10.0.0.0/8").last(), address("10.255.255.255"));
        assert_eq!(network("::/0").last(), address("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"));
        assert_eq!(Network::of(address("2001:db8:1:2::3"), 56).to_string(), "2001:db8:1::/56");
        assert_eq!(Network::of(address("10.1.2.3"), 200).to_string(), "10.1.2.3");
    }

    /// Few bits at both ends, so that networks often contain one another.
    fn address_strategy() -> impl Strategy<Value = Address> {
        let bits = (0..4_u128, 0..4_u128);
        (prop::bool::ANY, bits).prop_map(|(v4, (high, low))| {
            if v4 {
                address("0.0.0.0").with_bits(high << 30 | low)
            } else {
                // Not in the networks of addresses that contain IPv4.
                address("::").with_bits(1 << 125 | high << 126 | low)
            }
        })
    }

    fn network_strategy() -> impl Strategy<Value = Network> {
        (address_strategy(), prop::sample::select(vec![0, 1, 2, 3, 30, 31, 32, 126, 127, 128]))
            .prop_map(|(address, prefix)| Network::of(address, prefix))
    }

    proptest! {
        #[test]
        fn network_is_the_range_from_its_first_to_its_last_address(network in network_strategy(), address in address_strategy()) {
            let is_between = network.first().is_v4() == address.is_v4()
                && (network.first().bits()..=network.last().bits()).contains(&address.bits());
            prop_assert_eq!(network.contains(address), is_between);
            prop_assert_eq!(Network::parse(&network.to_string()), Ok(network));
            let mut written = Vec::new();
            network.write(&mut written);
            prop_assert_eq!(String::from_utf8(written).unwrap(), network.to_string());
        }

        #[test]
        fn network_covers_those_whose_ends_it_contains(one in network_strategy(), other in network_strategy()) {
            prop_assert_eq!(one.covers(other), one.contains(other.first()) && one.contains(other.last()));
            let share_addresses = one.contains(other.first()) || other.contains(one.first());
            prop_assert_eq!(one.covers(other) || other.covers(one), share_addresses, "networks never cross");
        }

        #[test]
        fn masked_form_of_an_address_is_accepted(address in address_strategy(), prefix in 0..=128_u8) {
            let prefix = prefix.min(address.length());
            let text = format!("{address}/{prefix}");
            match Network::parse(&text) {
                Ok(network) => prop_assert_eq!(network, Network::of(address, prefix)),
                Err(NetworkError::HostBits { masked }) => prop_assert_eq!(masked, Network::of(address, prefix)),
                Err(error) => prop_assert!(false, "{}: {}", text, error),
            }
        }
    }
}
