//! Networks: the addresses that begin with the same bits.

use std::fmt;

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
    /// The text before the slash is no address.
    #[error("it is neither an address nor a network")]
    NoAddress,
    /// The address has a port, brackets or a zone.
    #[error("its address has a port, brackets or a zone")]
    NotPlain {
        /// The network without them.
        plain: Network,
    },
    /// The prefix is not a number of bits.
    #[error("its prefix is not a number of bits from 0 to {max}")]
    InvalidPrefix {
        /// The number of bits of the address.
        max: u8,
    },
    /// Bits are set after the prefix.
    #[error("its address has bits after the prefix")]
    HostBits {
        /// The network without these bits.
        masked: Network,
    },
    /// The network consists of IPv4 addresses that are written as IPv6.
    #[error("divvy reads addresses of this network as the IPv4 addresses that they contain")]
    ContainsV4,
}

impl NetworkError {
    /// Returns advice: the text to write instead.
    pub fn fix(&self) -> String {
        match self {
            Self::NoAddress => "write an address, or a network such as 10.0.0.0/8 or 2001:db8::/32".to_owned(),
            Self::NotPlain { plain: network } | Self::HostBits { masked: network } => format!("write {network}"),
            Self::InvalidPrefix { max } => {
                let example = if *max == 32 { "10.0.0.0/8" } else { "2001:db8::/32" };
                format!("write the number of bits after the slash, as in {example}")
            }
            Self::ContainsV4 => "write an IPv4 network, such as 10.0.0.0/8".to_owned(),
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
        let (address_text, prefix_text) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address = Address::parse(address_text).ok_or(NetworkError::NoAddress)?;
        let Some(prefix_text) = prefix_text else {
            let network = Self::of(address, address.length());
            return if is_plain(address_text) { Ok(network) } else { Err(NetworkError::NotPlain { plain: network }) };
        };
        let prefix = parse_prefix(prefix_text);
        let is_written_as_v6 = address.is_v4() && address_text.matches(':').count() > 1;
        // A shorter prefix than that of translated addresses is an ordinary IPv6 network.
        let as_v6 = || address_text.parse().ok().map(Address::from_v6);
        let address = match is_written_as_v6.then(as_v6).flatten() {
            Some(as_v6) if prefix.is_some_and(|prefix| prefix < TRANSLATED_BITS) => as_v6,
            _ if is_written_as_v6 => return Err(NetworkError::ContainsV4),
            _ => address,
        };
        let max = address.length();
        let prefix = prefix.filter(|prefix| *prefix <= max).ok_or(NetworkError::InvalidPrefix { max })?;
        let network = Self::of(address, prefix);
        if !is_plain(address_text) {
            return Err(NetworkError::NotPlain { plain: network });
        }
        if network.first != address {
            return Err(NetworkError::HostBits { masked: network });
        }
        Ok(network)
    }

    /// Returns the network that a value of a request names: an address, or an address and a prefix, in any notation of a
    /// gateway. Bits after the prefix are ignored.
    pub fn of_value(value: &[u8]) -> Option<Self> {
        if let Some(address) = Address::parse_bytes(value) {
            return Some(Self::of(address, address.length()));
        }
        let slash = value.iter().rposition(|byte| *byte == b'/')?;
        let (address_text, prefix) = (value.get(..slash)?, std::str::from_utf8(value.get(slash + 1..)?).ok()?);
        let (address, prefix) = (Address::parse_bytes(address_text)?, parse_prefix(prefix)?);
        let is_written_as_v6 = address.is_v4() && address_text.iter().filter(|byte| **byte == b':').count() > 1;
        let prefix = if is_written_as_v6 { prefix.checked_sub(TRANSLATED_BITS)? } else { prefix };
        (prefix <= address.length()).then(|| Self::of(address, prefix))
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

/// Returns whether a valid address has no port, brackets or zone.
fn is_plain(address: &str) -> bool {
    match address.find(['.', ':', '[']).and_then(|first| address.as_bytes().get(first)) {
        Some(b'.') => !address.contains(':'),
        Some(b':') => !address.contains('%'),
        _ => false,
    }
}

/// Parses digits without a sign or a leading zero.
fn parse_prefix(text: &str) -> Option<u8> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    is_number.then(|| text.parse().ok())?
}

/// Returns whether a text is a range of addresses, such as `10.0.0.1-10.0.0.9`.
pub fn is_range(text: &str) -> bool {
    let is_address = |text: &str| Address::parse(text).is_some();
    text.split_once('-').is_some_and(|(first, last)| is_address(first) && is_address(last))
}

/// Returns whether a text that is no network was probably meant to be one: it has the characters of one, or is one apart from
/// up to two characters at each end.
pub fn resembles(text: &str) -> bool {
    let is_network = |text: &str| Address::parse(text).is_some() || Network::parse(text).is_ok();
    let ends = (0..3).flat_map(|front| (0..3).map(move |back| (front, back)));
    let inner = |(front, back): (usize, usize)| {
        let count = text.chars().count();
        // The rest of a short text may be an address by accident, such as `::`.
        (count > front + back + SHORTEST)
            .then(|| text.chars().skip(front).take(count - front - back).collect::<String>())
    };
    looks_like_v4(text)
        || looks_like_v6(text)
        || is_network(&text.replace(',', "."))
        || ends.filter_map(inner).any(|inner| is_network(&inner))
}

/// Characters of the shortest text that counts as an address with others around it, less one.
const SHORTEST: usize = 6;

/// Returns the first word of a text that is an address or a network, or was probably meant to be one.
pub(crate) fn find_in(text: &str) -> Option<&str> {
    if resembles(text) {
        return Some(text);
    }
    let words = text.split(is_separator).filter(|word| !word.is_empty());
    let is_network = |word: &&str| Address::parse(word).is_some() || Network::parse(word).is_ok() || resembles(word);
    words.into_iter().find(is_network)
}

fn is_separator(c: char) -> bool {
    c.is_whitespace() || ",;=\"'<>(){}|@".contains(c)
}

/// Returns whether a text of a field with addresses was probably meant to be one, or has one in it. This takes more texts for
/// addresses than [`find_in`]: parts of one such as `10.0`, letters in place of digits, a URL with an address, `10/8`, and
/// characters that look like others.
pub(crate) fn is_nearly_address(text: &str) -> bool {
    let text: String = text.chars().filter_map(to_ascii).collect();
    let mut words = text.split(|c| is_separator(c) || matches!(c, '/' | '\\')).filter(|word| !word.is_empty());
    let is_short = text.split_once('/').is_some_and(|(number, prefix)| is_octet(number) && is_octet(prefix));
    is_short || find_in(&text).is_some() || is_range(&text) || words.any(|word| resembles(word) || is_part(word))
}

/// Returns the character of an address that looks like this one; `None` if it is not shown.
fn to_ascii(c: char) -> Option<char> {
    match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0),
        '\u{3002}' | '\u{ff61}' => Some('.'),
        _ if c.is_ascii() => Some(c),
        _ => c.is_numeric().then_some('1'),
    }
}

fn is_octet(text: &str) -> bool {
    (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a word is two or three numbers with dots, has letters in place of some of four, or is groups with colons.
/// Three pairs of digits are a time.
fn is_part(word: &str) -> bool {
    let parts: Vec<_> = word.trim_matches('.').split('.').collect();
    let is_typo = |part: &&&str| {
        let is_like_digit = |byte: u8| byte.is_ascii_digit() || b"oOlIxX".contains(&byte);
        let hexadecimal =
            part.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        !part.is_empty() && (part.bytes().all(is_like_digit) || hexadecimal)
    };
    let is_v4 = match parts.as_slice() {
        [_, _] | [_, _, _] => parts.iter().all(|part| is_octet(part)),
        [first, _, _, last] => {
            let typos = parts.iter().filter(is_typo).count();
            first.contains(|c: char| c.is_ascii_digit()) && (typos == 4 || typos == 3 && last.len() <= 3)
        }
        _ => false,
    };
    let is_time = word.split(':').count() == 3 && word.split(':').all(|part| part.len() == 2 && is_octet(part));
    is_v4 || !is_time && count_groups(word) > 2
}

/// Returns whether a text has four numbers, or numbers and a prefix.
fn looks_like_v4(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = address.split('.').filter(|number| !number.is_empty()).count();
    address.split('.').all(is_number)
        && prefix.is_none_or(is_number)
        && (numbers == 4 || (numbers > 1 && prefix.is_some()))
}

/// Returns whether a text has hexadecimal groups as in an IPv6 address.
fn looks_like_v6(text: &str) -> bool {
    let groups = count_groups(text);
    groups > 4 || groups > 3 && text.contains("::")
}

/// Returns the number of hexadecimal groups of a text, or 0 if it has other characters. Six pairs of digits are a hardware address.
fn count_groups(text: &str) -> usize {
    let address = text.split(['/', '%']).next().unwrap_or_default().trim_matches(['[', ']']);
    let groups: Vec<_> = address.split(':').collect();
    let is_hardware = groups.len() == 6 && groups.iter().all(|group| group.len() == 2);
    let is_group = |group: &&str| group.len() <= 5 && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    if groups.iter().all(is_group) && !is_hardware { groups.len() } else { 0 }
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
        let texts = "10.0.0.1\\32|10.0.0.O|1O.0.0.1|10.0.0.x|10.0.0|10.0.0.|10.x.x.x|10.1|10/8|2001:db8:|10:0:0:1|\
            0x0a.0.0.1|http://10.0.0.1/|http://10.0.0.1:80/x|\u{ff11}\u{ff10}.0.0.1|\
            10\u{3002}0\u{3002}0\u{3002}1|10.0\u{200b}.0.1|deny from 10.0.0|Require ip 10.1|10.0.0.1, 10.0.0.2|\
            192.0.2.7x|10.0.0.0/255.0.0.0";
        for text in texts.split('|') {
            assert!(is_nearly_address(text), "{text}");
        }
        let texts = "|unknown|unix:|_hidden|alice|a.b.c.d|1.2.3.4.example.org|4.dsl.isp.net|00:1b:63:84:45:e6|12:30:45|\
            std::vec|dead:beef|ann@example.org|v1.2|7|caf\u{e9}|*.example";
        for text in texts.split('|') {
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
        let error = |text: &str| {
            let error = Network::parse(text).unwrap_err();
            format!("{error}: {}", error.fix())
        };
        let no_address = "it is neither an address nor a network: write an address, or a network such as 10.0.0.0/8 or 2001:db8::/32";
        for text in ["", "office", "10.0.0/8", "/8", "2001:db8/32", "10.0.0.0.0/8", "10.0.0.0-10.0.0.9"] {
            assert_eq!(error(text), no_address, "{text}");
        }
        assert_eq!(error("10.1.2.3/8"), "its address has bits after the prefix: write 10.0.0.0/8");
        assert_eq!(error("2001:db8::1/64"), "its address has bits after the prefix: write 2001:db8::/64");
        for prefix in ["33", "-1", "", "8/8", "08", "+8", " 8", "255.0.0.0", "999999"] {
            let text = format!("10.0.0.0/{prefix}");
            let expected = "its prefix is not a number of bits from 0 to 32: write the number of bits after the slash, as in 10.0.0.0/8";
            assert_eq!(error(&text), expected, "{text}");
        }
        assert!(error("2001:db8::/129").contains("0 to 128"));
        assert_eq!(error("10.1.2.3:80"), "its address has a port, brackets or a zone: write 10.1.2.3");
        assert_eq!(error("[2001:db8::1]/64"), "its address has a port, brackets or a zone: write 2001:db8::/64");
        assert_eq!(network("64:ff9b::/64").to_string(), "64:ff9b::/64", "more than translated addresses");
        for text in ["::ffff:10.0.0.0/104", "64:ff9b::/96", "::ffff:0:0/96", "0:0:0:0:0:ffff:a00:0/104"] {
            assert!(error(text).starts_with("divvy reads addresses of this network as the IPv4"), "{text}");
        }
    }

    #[test]
    fn value_names_a_network() {
        let rows = "10.1.2.3:443 => 10.1.2.3|10.1.2.0/24 => 10.1.2.0/24|10.1.2.3/24 => 10.1.2.0/24|\
            10.1.2.3/32 => 10.1.2.3|::ffff:10.1.2.0/120 => 10.1.2.0/24|64:ff9b::10.1.2.3/128 => 10.1.2.3|\
            2001:DB8::/32 => 2001:db8::/32|[2001:db8::1]/64 => 2001:db8::/64|::ffff:10.1.2.0/24 => none|\
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
        fn plain_addresses_are_those_of_the_standard_library(v6: u128, zeros in 0..=7_u32, v4: u32, decoration in 0..6_usize) {
            let v6 = std::net::Ipv6Addr::from_bits(v6 >> (16 * zeros));
            let v4 = std::net::Ipv4Addr::from_bits(v4);
            for text in [v6.to_string(), v4.to_string(), format!("::ffff:{v4}"), format!("64:ff9b::{v4}")] {
                let decorated = [
                    format!("[{text}]"), format!("[{text}]:80"), format!("{text}:80"), format!("{text}%eth0.1"), format!("[{text}%e]"), text,
                ];
                let text = &decorated[decoration];
                if Address::parse(text).is_some() {
                    prop_assert_eq!(is_plain(text), text.parse::<std::net::IpAddr>().is_ok(), "{}", text);
                }
            }
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
